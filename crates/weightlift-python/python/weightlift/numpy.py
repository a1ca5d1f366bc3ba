"""Tensors as numpy arrays.

``load_file`` and ``load`` answer as those of ``safetensors.numpy`` do, for every format that
weightlift reads. Types that numpy itself has not, such as ``bfloat16``, are those of the package
``ml_dtypes``.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from ._bytes import as_file
from ._model import Job, Model, Tensor, TensorInfo, literal, open, patterns
from .errors import InvalidArgument

__all__ = ["load", "load_file"]

# Whether parts of tensors are taken as the framework takes them, errors included.
INDEXES_ITSELF = False

# Name, and where numpy or ml_dtypes has it.
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64", "C128": "complex128",
}  # fmt: skip
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


def dtype_of(name: str) -> np.dtype[Any]:
    """numpy's type for weightlift's name of one.

    ``TypeError`` if numpy has none (packed and quantized types: take ``weightlift.open(...).load()``
    and their bytes), ``ImportError`` if ``ml_dtypes`` has it and is not installed.
    """
    if name in _DTYPES:
        return np.dtype(_DTYPES[name])
    if name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise ImportError(f"numpy has no type for {name}: pip install ml_dtypes, which has it") from None
        return np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    raise TypeError(f"numpy has no type for {name}; weightlift.open(...).load() gives its bytes")


def check_type(info: TensorInfo) -> None:
    """``TypeError`` or ``ImportError`` if numpy has no type for a tensor."""
    dtype_of(info.dtype)


def array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A tensor in host memory as an array over the same memory, which it keeps alive."""
    return view(tensor, tensor.dtype, tensor.shape, tensor.strides)


def view(
    buffer: Any, dtype_name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> np.ndarray[Any, Any]:
    """An array over a buffer of bytes, ``strides`` in elements."""
    dtype = dtype_of(dtype_name)
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    if strides is None:
        return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape)
    steps = tuple(step * dtype.itemsize for step in strides)
    return np.ndarray(shape, dtype, buffer, strides=steps)


def load_file(filename: str | os.PathLike[str], **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Loads a model into numpy arrays, by name.

    ``filename`` is a file of any format that weightlift reads, a shard index or a folder; options
    are those of :meth:`weightlift.Model.load`. The arrays are writable and share one region of
    memory, which goes when the last of them is gone.

    >>> weights = weightlift.numpy.load_file("model.safetensors")
    >>> weights["wte.weight"].shape
    """
    return _load(open(filename), "host", **options)


def load(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Loads a safetensors file that is in memory, by name of tensor. The bytes are copied."""
    with as_file(data) as path:
        return _load(open(path, format="safetensors"), "host")


def _load(model: Model, device: Any = "host", **call: Any) -> dict[str, np.ndarray[Any, Any]]:
    check_device(device)
    call["tensors"] = _check(model, call.get("tensors"))
    return _arrays(model._run("host", **call))


def _arrays(loaded: list[Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    return {tensor.name: array(tensor) for tensor in loaded}


def _start(model: Model, device: Any, infos: list[TensorInfo], **call: Any) -> Job:
    """Begins to load these tensors, and returns at once."""
    check_device(device)
    return model._start("host", [info.name for info in infos], _arrays, **call)


def _check(model: Model, tensors: Any) -> list[str] | None:
    """Before anything is read: numpy has a type for every tensor that is asked for. Returns the names
    and patterns, which may have come from an iterator."""
    names = patterns(tensors)
    if names != []:
        for dtype in model._native.dtypes(names):
            dtype_of(dtype)
    return names


def _one(model: Model, name: str, device: Any, native: Any = None, **call: Any) -> np.ndarray[Any, Any]:
    check_device(device)
    dtype_of(model[name].dtype)
    return array(model._run("host", tensors=None if native else [literal(name)], native=native, **call)[0])


def check_device(device: Any) -> None:
    """Refuses what is not the host."""
    if str(device) not in ("host", "cpu", "auto", "None"):
        raise InvalidArgument(
            f"numpy's arrays are in host memory, not on {device}; for arrays there take torch or jax",
            context={"option": "device", "value": str(device)},
        )
