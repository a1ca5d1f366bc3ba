"""Tensors as arrays of JAX.

``load_file`` answers as that of ``safetensors.flax`` does, for every format that weightlift reads.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp

from . import numpy as _numpy
from ._bytes import as_file
from ._model import Job, Model, Tensor, TensorInfo, device_name, literal, open

__all__ = ["load", "load_file"]

# Whether parts of tensors are taken as the framework takes them, errors included.
INDEXES_ITSELF = False


def load_file(filename: str | os.PathLike[str], device: Any = "auto", **options: Any) -> dict[str, jax.Array]:
    """Loads a model into arrays of JAX on ``device``, by name.

    ``filename`` is a file of any format that weightlift reads, a shard index or a folder; ``device``
    is a ``jax.Device``, ``"cpu"``, ``"cuda:1"`` or ``"auto"``, JAX's own default; other options are
    those of :meth:`weightlift.Model.load`. On a GPU the arrays lie in weightlift's memory, which all
    of a load share and JAX's own does not count; on the CPU in JAX's.

    Types that JAX narrows unless ``jax_enable_x64`` is set, such as ``float64``, are narrowed.
    """
    return _load(open(filename), device, **options)


def load(data: bytes, device: Any = "auto") -> dict[str, jax.Array]:
    """Loads a safetensors file that is in memory, by name of tensor. The bytes are copied."""
    with as_file(data) as path:
        return _load(open(path, format="safetensors"), device)


def _load(model: Model, device: Any = "auto", **call: Any) -> dict[str, jax.Array]:
    where = device_of(device)
    call["tensors"] = _numpy._check(model, call.get("tensors"))
    return _arrays(model._run(_loads_to(where), **call), where)


def _start(model: Model, device: Any, infos: list[TensorInfo], **call: Any) -> Job:
    """Begins to load these tensors, and returns at once."""
    where = device_of(device)
    names = [info.name for info in infos]
    return model._start(_loads_to(where), names, lambda loaded: _arrays(loaded, where), **call)


def _is_gpu(where: jax.Device) -> bool:
    return where.platform in ("gpu", "cuda")


def _loads_to(where: jax.Device) -> Any:
    return where.local_hardware_id if _is_gpu(where) else "host"


def _arrays(loaded: list[Tensor], where: jax.Device) -> dict[str, jax.Array]:
    if _is_gpu(where):
        return {tensor.name: _on_gpu(tensor, where) for tensor in loaded}
    return {tensor.name: jax.device_put(jnp.asarray(_numpy.array(tensor)), where) for tensor in loaded}


def _on_gpu(tensor: Tensor, where: jax.Device) -> jax.Array:
    if tensor.nbytes == 0:
        return jax.device_put(jnp.zeros(tensor.shape, _numpy.dtype_of(tensor.dtype)), where)
    return jax.dlpack.from_dlpack(tensor)


def check_device(device: Any) -> None:
    """Refuses what is no name of a device. Whether JAX has it is seen when it is used."""
    if not isinstance(device, jax.Device):
        device_name(device)


def device_of(device: Any) -> jax.Device:
    """What a caller means by a device."""
    if isinstance(device, jax.Device):
        return device
    name = device_name(device)
    if name == "auto":
        return jax.local_devices()[0]
    if name == "host":
        return jax.local_devices(backend="cpu")[0]
    number = int(name.partition(":")[2] or 0)
    for each in jax.local_devices(backend="gpu"):
        if each.local_hardware_id == number:
            return each
    raise ValueError(f"JAX has no device {name}; it has {jax.local_devices()}")


def _one(model: Model, name: str, device: Any, native: Any = None, **call: Any) -> jax.Array:
    names = None if native else [literal(name)]
    return next(iter(_load(model, device, native=native, tensors=names, **call).values()))


def check_type(info: TensorInfo) -> None:
    """``TypeError`` or ``ImportError`` if JAX has no type for a tensor: numpy's, or those of ``ml_dtypes``."""
    _numpy.dtype_of(info.dtype)
