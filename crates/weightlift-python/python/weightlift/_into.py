"""``load_into``: fills tensors that exist."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, NamedTuple

from . import _frameworks
from ._model import Loader, Model, TensorInfo, literal
from .errors import InvalidDestination, WeightliftError


class Target(NamedTuple):
    """Memory of the caller's, and what it says of itself."""

    address: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    device: str
    keep: Any
    event: Any
    """Records an event behind the work that is pending on the device: the event, and its handle."""


def load_into(
    path: str | os.PathLike[str] | Model,
    tensors: Mapping[str, Any],
    *,
    loader: Loader | None = None,
    reading_threads: int | None = None,
    progress: Any = False,
) -> dict[str, Any]:
    """Fills tensors that exist with the model's tensors of the same names, and returns the report.

    ``tensors`` maps names to torch tensors (parameters too), numpy arrays, CuPy arrays, or anything
    with ``__cuda_array_interface__`` or ``__array_interface__``. Each must have the type and shape that
    the model has, lie densely in row-major order, and be writable. No two may share memory, unless they
    are one tensor under two names that are one in the model too (tied weights of a PyTorch checkpoint):
    it is filled once. All of this is checked before the first byte is read:
    :class:`~weightlift.errors.InvalidDestination` names what does not fit. Tensors may be on several
    devices; one device is loaded after the other.

    If the load fails later, the exception's ``context["unspecified"]`` and a note list the tensors whose
    contents may be half written.

    >>> weightlift.load_into("models/llama", dict(module.named_parameters()))
    """
    model = path if isinstance(path, Model) else Model(path)
    targets = {name: _target(name, model[name], tensor) for name, tensor in tensors.items()}
    again = _check_overlaps(model, targets)
    by_device: dict[str, list[str]] = {}
    for name, target in targets.items():
        if name in again:
            continue
        by_device.setdefault(target.device, []).append(name)
    report: dict[str, Any] = {}
    filled: list[str] = []
    for device, names in by_device.items():
        try:
            report = _fill(model, device, {name: targets[name] for name in names}, tensors,
                           {"loader": loader, "reading_threads": reading_threads, "progress": progress})  # fmt: skip
        except BaseException as error:
            unspecified = [name for name in targets if name not in filled and targets[name].device == device]
            if isinstance(error, WeightliftError):
                error.context["unspecified"] = ", ".join(unspecified)
            error.add_note(f"the contents of these tensors are unspecified: {', '.join(unspecified)}")
            raise
        filled += names
    return report


def _fill(
    model: Model, device: str, targets: dict[str, Target], tensors: Mapping[str, Any], call: dict[str, Any]
) -> dict[str, Any]:
    direct: dict[int, str] = {}
    copied: list[str] = []
    for name in targets:
        info = model[name]
        whole = info.strides is None and info.nbytes == info.storage_nbytes and info.storage not in direct
        if whole:
            direct[info.storage] = name
        else:
            # Parts of a storage, and second ones of the same: read once more, and copied.
            copied.append(name)
    report: dict[str, Any] = {}
    if direct:
        # Work on the tensors that was submitted before comes first: one event for each framework.
        number = int(device.partition(":")[2] or 0)
        events = {record: record(number) for record in {target.event for target in targets.values()} if record}

        def provide(storage: int, nbytes: int, tensors_there: list[tuple[Any, ...]], _: str) -> tuple[int, int, Any, int | None]:
            target = targets[direct[storage]]
            event = events[target.event][1] if target.event else None
            return target.address, target.nbytes, target.keep, event

        model._run(device, tensors=[literal(name) for name in direct.values()], provide=provide, **call)
        report = model.report or {}
    for name in copied:
        _copy(model, name, tensors[name], device)
    return report


def _copy(model: Model, name: str, tensor: Any, device: str) -> None:
    if _is_torch(tensor):
        loaded = _frameworks.module("torch")._one(model, name, tensor.device)
        with sys.modules["torch"].no_grad():
            tensor.copy_(loaded)
    elif device == "host":
        tensor[...] = _frameworks.module("numpy")._one(model, name, "host")
    else:
        import cupy

        loaded = model._run(device, tensors=[literal(name)])[0]
        tensor[...] = cupy.from_dlpack(loaded)


def _target(name: str, info: TensorInfo, tensor: Any) -> Target:
    target = _describe(name, tensor)
    for what, expected, actual in (
        ("type", info.dtype, target.dtype),
        ("shape", tuple(info.shape), target.shape),
    ):
        if expected != actual:
            raise _misfit(name, f"the tensor has another {what} than the model's", expected, actual)
    return target


def _check_overlaps(model: Model, targets: dict[str, Target]) -> set[str]:
    """Refuses targets that share memory, of which the second would overwrite the first. Returns the
    names that ask for the same bytes at the same place as another."""
    again: set[str] = set()
    last: tuple[str, Target] | None = None
    by_place = sorted(targets.items(), key=lambda item: (item[1].device, item[1].address, item[1].nbytes))
    for name, target in by_place:
        if target.nbytes == 0:
            continue
        if last is not None and last[1].device == target.device and target.address < last[1].address + last[1].nbytes:
            other, before = last
            if (before.address, before.nbytes) != (target.address, target.nbytes) or not _tied(model[other], model[name]):
                raise InvalidDestination(
                    f"two tensors that are to be filled share memory, and have bytes of their own in the model "
                    f"(tensor: {name}, other: {other}): leave one out, or give each memory of its own",
                    kind="InvalidDestination", context={"tensor": name, "other": other},
                )  # fmt: skip
            again.add(name)
            continue
        last = name, target
    return again


def _tied(one: TensorInfo, other: TensorInfo) -> bool:
    return (one.storage, one.storage_offset, one.strides) == (other.storage, other.storage_offset, other.strides)


def _misfit(name: str, why: str, expected: Any, actual: Any) -> InvalidDestination:
    message = f"{why} (tensor: {name}, expected: {expected}, actual: {actual})"
    context = {"tensor": name, "expected": str(expected), "actual": str(actual)}
    return InvalidDestination(message, kind="InvalidDestination", context=context)


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _describe(name: str, tensor: Any) -> Target:
    if _is_torch(tensor):
        return _describe_torch(name, tensor)
    for interface in ("__cuda_array_interface__", "__array_interface__"):
        described = getattr(tensor, interface, None)
        if described is not None:
            return _describe_array(name, tensor, described, interface.startswith("__cuda"))
    raise InvalidDestination(
        f"the tensor is nothing that can be filled (tensor: {name}, type: {type(tensor).__name__}): take torch, "
        "numpy, CuPy or what has __cuda_array_interface__",
        kind="InvalidDestination", context={"tensor": name},
    )  # fmt: skip


def _describe_torch(name: str, tensor: Any) -> Target:
    import torch

    from . import torch as ours

    tensor = tensor.detach()
    own = ours.NAMES.get(tensor.dtype, str(tensor.dtype))
    if not tensor.is_contiguous():
        raise _misfit(name, "the tensor does not lie densely in row-major order", "contiguous", tuple(tensor.stride()))
    if tensor.is_conj() or tensor.is_neg():
        raise _misfit(name, "the tensor is a lazily conjugated or negated view", "plain memory", "a view")
    shape = tuple(tensor.shape)
    if own in ours._PACKED and shape:
        shape = (*shape[:-1], shape[-1] * ours._PACKED[own])
    if tensor.device.type == "cpu":
        return Target(tensor.data_ptr(), tensor.nbytes, own, shape, "host", tensor, None)
    if tensor.device.type != "cuda":
        raise _misfit(name, "the tensor is on a device that weightlift cannot write to", "cpu or cuda", tensor.device)
    return Target(tensor.data_ptr(), tensor.nbytes, own, shape, f"cuda:{tensor.device.index}", tensor, _torch_event)


def _torch_event(device: int) -> tuple[Any, int]:
    import torch

    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event, event.cuda_event


# By kind and bytes of an element, as the array interface spells types.
_TYPESTR = {
    "f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8",
    "u8": "U64", "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL", "c8": "C64", "c16": "C128",
}  # fmt: skip


def _describe_array(name: str, tensor: Any, described: dict[str, Any], on_gpu: bool) -> Target:
    typestr = described["typestr"]
    dtype = _TYPESTR.get(typestr[1:], typestr)
    item = int(typestr[2:])
    if typestr[0] == ">" and item > 1:
        raise _misfit(name, "the tensor is of the other byte order", "little-endian", typestr)
    # ml_dtypes' types look like bytes without a type there.
    own = str(getattr(tensor, "dtype", ""))
    if own in _ML_NAMES:
        dtype = _ML_NAMES[own]
    address, readonly = described["data"]
    if readonly:
        raise _misfit(name, "the tensor cannot be written to", "writable", "read-only")
    shape = tuple(described["shape"])
    dense = item
    steps = []
    for size in reversed(shape):
        steps.append(dense)
        dense *= size
    strides = described.get("strides")
    if strides is not None and dense and any(
        given != wanted and size > 1 for given, wanted, size in zip(strides, reversed(steps), shape)
    ):
        raise _misfit(name, "the tensor does not lie densely in row-major order", "contiguous", tuple(strides))
    if not on_gpu:
        return Target(address, dense, dtype, shape, "host", tensor, None)
    device = getattr(getattr(tensor, "device", None), "id", None)
    if device is None:
        raise _misfit(name, "the tensor does not say on which device it is", "tensor.device.id", None)
    cupy = sys.modules.get("cupy")
    event = _cupy_event if cupy is not None and isinstance(tensor, cupy.ndarray) else None
    return Target(address, dense, dtype, shape, f"cuda:{device}", tensor, event)


_ML_NAMES = {
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def _cupy_event(device: int) -> tuple[Any, int]:
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(device):
        event = cupy.cuda.Event(disable_timing=True)
        event.record(cupy.cuda.get_current_stream())
    return event, event.ptr
