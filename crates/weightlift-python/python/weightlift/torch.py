"""Tensors as torch tensors.

``load_file`` answers as that of ``safetensors.torch`` does, for every format that weightlift reads.
On a GPU the memory comes from torch's own allocator, tensor by tensor: ``torch.cuda.memory_allocated``
counts it, and each tensor can be freed alone. On the CPU all tensors of a load share one region of
weightlift's.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ._bytes import as_file
from ._frameworks import check_backend
from ._model import Done, Job, Model, Tensor, TensorInfo, literal, open, patterns
from .errors import InvalidArgument

__all__ = ["load", "load_file"]

# Whether parts of tensors are taken as the framework takes them, errors included.
INDEXES_ITSELF = True

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64", "C128": "complex128",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
}  # fmt: skip
# Elements in one of torch's.
_PACKED = {"F4": 2}


# Ours by theirs, of those that this torch has.
NAMES = {getattr(torch, theirs): own for own, theirs in _DTYPES.items() if hasattr(torch, theirs)}


def dtype_of(name: str) -> torch.dtype:
    """torch's type for weightlift's name of one; ``TypeError`` if this torch has none."""
    dtype = getattr(torch, _DTYPES.get(name, ""), None)
    if dtype is None:
        raise TypeError(f"torch {torch.__version__} has no type for {name}; weightlift.open(...).load() gives its bytes")
    return dtype


def check_type(info: TensorInfo) -> None:
    """``TypeError`` if torch has no type for a tensor, or cannot pack its shape."""
    dtype_of(info.dtype)
    _shape(info)


def load_file(
    filename: str | os.PathLike[str], device: Any = "cpu", *, backend: str | None = None, **options: Any
) -> dict[str, torch.Tensor]:
    """Loads a model into torch tensors on ``device``, by name.

    ``filename`` is a file of any format that weightlift reads, a shard index or a folder; ``device``
    is what torch takes for one, or ``"auto"``; other options are those of
    :meth:`weightlift.Model.load`. All or nothing: after an error no tensor is left. Devices that
    weightlift cannot write to (``mps``, ``xpu``) get theirs through the CPU. ``backend`` is an argument of
    safetensors', taken and of no effect.

    Raises :class:`~weightlift.errors.WeightliftError`; ``TypeError`` if torch has no type for a tensor.

    >>> weights = weightlift.torch.load_file("models/llama", device="cuda:0")
    """
    check_backend(backend)
    return _load(open(filename), device, **options)


def load(data: bytes) -> dict[str, torch.Tensor]:
    """Loads a safetensors file that is in memory, by name of tensor. The bytes are copied."""
    with as_file(data) as path:
        return _load(open(path, format="safetensors"), "cpu")


def _load(model: Model, device: Any = "cpu", native: Any = None, **call: Any) -> dict[str, torch.Tensor]:
    where = device_of(device)
    if where.type == "meta" and call.get("verify") is not None:
        from .errors import InvalidOption

        raise InvalidOption("tensors on meta have no bytes to verify", context={"option": "verify"})
    opened = native or model._native
    names = patterns(call.pop("tensors", None))
    _check(opened, names)
    if where.type == "meta":
        return _on_meta(_infos(opened, names), where)
    if where.type == "cuda" or opened.has_shared():
        memory = _Memory(where if where.type == "cuda" else torch.device("cpu"))

        def provide(_: int, nbytes: int, tensors: list[tuple[Any, ...]], __: str) -> tuple[int, int, Any, int | None]:
            return memory.take(nbytes, [TensorInfo(*fields) for fields in tensors])

        if names is None:
            memory.expect(opened.storage_sizes())
        loaded = model._run(memory.where, provide=provide, native=native, tensors=names, **call)
        made = memory.tensors(loaded)
    else:
        made = _over_all(model._run("host", native=native, tensors=names, **call))
    return _moved(made, where)


def _start(model: Model, device: Any, infos: list[TensorInfo], **call: Any) -> Job | Done:
    """Begins to load these tensors, and returns at once. Memory that is torch's is allocated now."""
    where = device_of(device)
    if where.type == "meta":
        return Done(_on_meta(infos, where))
    names = [info.name for info in infos]
    if where.type != "cuda" and not model._native.has_shared():
        return model._start("host", names, lambda loaded: _moved(_over_all(loaded), where), **call)
    memory = _Memory(where if where.type == "cuda" else torch.device("cpu"))
    by_storage: dict[int, list[TensorInfo]] = {}
    for info in infos:
        by_storage.setdefault(info.storage, []).append(info)
    memory.expect([sharing[0].storage_nbytes for sharing in by_storage.values()])
    places = {
        storage: memory.take(sharing[0].storage_nbytes, sharing)
        for storage, sharing in by_storage.items()
    }
    return model._start(memory.where, names, lambda loaded: _moved(memory.tensors(loaded), where), places, **call)


def _infos(opened: Any, names: list[str] | None) -> list[TensorInfo]:
    """The tensors that these names and patterns ask for."""
    infos = [TensorInfo(*fields) for fields in opened.tensors()]
    if names is None:
        return infos
    wanted = set(opened.select(names)) if names else set()
    return [info for info in infos if info.name in wanted]


def _check(opened: Any, names: list[str] | None) -> None:
    """Before anything is read: torch can have every tensor that is asked for."""
    if names == []:
        return
    dtypes = opened.dtypes(names)
    for dtype in dtypes:
        dtype_of(dtype)
    if not _PACKED.keys().isdisjoint(dtypes):
        for info in _infos(opened, names):
            check_type(info)


def _on_meta(infos: list[TensorInfo], where: torch.device) -> dict[str, torch.Tensor]:
    return {info.name: torch.empty(_shape(info), dtype=dtype_of(info.dtype), device=where) for info in infos}


def _over_all(loaded: list[Tensor]) -> dict[str, torch.Tensor]:
    return {tensor.name: over(tensor) for tensor in loaded}


def _moved(loaded: dict[str, torch.Tensor], where: torch.device) -> dict[str, torch.Tensor]:
    """To devices that weightlift cannot write to."""
    if where.type in ("cpu", "cuda"):
        return loaded
    return {name: tensor.to(where) for name, tensor in loaded.items()}


class _Memory:
    """Memory of torch's for tensors that are about to be loaded: allocated on the calling thread, in
    the order in which it is read. Tensors that share bytes in the file share a storage here too."""

    def __init__(self, where: torch.device):
        self.where = where
        self._whole: dict[str, torch.Tensor] = {}
        self._parts: dict[str, tuple[torch.Tensor, TensorInfo]] = {}
        self._event = torch.cuda.Event() if where.type == "cuda" else None
        self._expected: list[int] | None = None
        self._ahead: _Ahead | None = None

    def expect(self, sizes: list[int]) -> None:
        """Bytes of the storages that will be asked for, in that order."""
        if self._event is not None:
            self._expected = sizes

    def take(self, nbytes: int, infos: list[TensorInfo]) -> tuple[int, int, Any, int | None]:
        """Memory for a storage, in which these tensors lie: what a load is given for it."""
        if self._expected is not None:
            # Here, because readers run meanwhile.
            self._ahead, self._expected = _Ahead(self.where, self._expected), None
        if self._ahead is not None:
            self._ahead.take(nbytes)
        first = infos[0]
        if len(infos) == 1 and first.strides is None and first.nbytes == nbytes:
            memory = torch.empty(_shape(first), dtype=dtype_of(first.dtype), device=self.where)
            self._whole[first.name] = memory
        else:
            memory = torch.empty(nbytes, dtype=torch.uint8, device=self.where)
            self._parts.update((info.name, (memory, info)) for info in infos)
        if self._event is None:
            return memory.data_ptr(), nbytes, memory, None
        # torch may have given out a block that work of this stream still uses: our copies wait for
        # all that was submitted before. The same event again is fine: they have been told to wait
        # for what it was, or are to be told of what it will be, which is later.
        self._event.record(torch.cuda.current_stream(self.where))
        return memory.data_ptr(), nbytes, (memory, self._event), self._event.cuda_event

    def tensors(self, loaded: list[Tensor]) -> dict[str, torch.Tensor]:
        """Those that were loaded. They are let go of here."""
        whole, self._whole = self._whole, {}
        parts, self._parts = self._parts, {}
        made: dict[str, torch.Tensor] = {}
        for tensor in loaded:
            name = tensor.name
            if name in whole:
                made[name] = whole[name]
            else:
                # Only now: a view at an odd place is a copy of what is there.
                memory, info = parts[name]
                part = memory[info.storage_offset : info.storage_offset + info.nbytes]
                made[name] = _view(part, info.dtype, info.shape, info.strides)
        return made


class _Ahead:
    """Has torch's allocator take memory from the driver in few large pieces, of which it then gives
    out the tensors' parts: it would call the driver for each tensor otherwise, and copies that are
    under way wait for those calls."""

    # As the library does it where it allocates itself.
    PIECE = 1 << 30
    # Smaller ones torch takes from pieces of its own.
    LARGE = 1 << 20

    def __init__(self, where: torch.device, sizes: list[int]):
        self.where = where
        self.pieces: list[int] = []
        self.room = 0
        sizes = [-(-size // 512) * 512 for size in sizes if size >= self.LARGE]
        now = torch.cuda.memory_stats(where)
        unused = now.get("reserved_bytes.all.current", 0) - now.get("allocated_bytes.all.current", 0)
        if unused >= sum(sizes):
            return
        for size in sizes:
            if self.pieces and self.pieces[-1] + size <= self.PIECE:
                self.pieces[-1] += size
            else:
                self.pieces.append(size)
        self.pieces.reverse()

    def take(self, nbytes: int) -> None:
        """A tensor of so many bytes is about to be allocated."""
        if not self.pieces or nbytes < self.LARGE:
            return
        size = -(-nbytes // 512) * 512
        if self.room < size:
            piece = self.pieces.pop()
            try:
                reserved = torch.empty(piece, dtype=torch.uint8, device=self.where)
            except torch.OutOfMemoryError:
                # Each by itself, then: there may be room in smaller parts.
                self.pieces.clear()
                return
            del reserved
            self.room = piece
        self.room -= size


def device_of(device: Any) -> torch.device:
    """What a caller means by a device: the current one where it names none."""
    where = check_device(device)
    if where.type == "cuda" and where.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return where


def check_device(device: Any) -> torch.device:
    """The device that is named; one that torch does not know is refused."""
    if device is None or device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "host":
        device = "cpu"
    elif isinstance(device, str) and device.isdecimal():
        device = int(device)
    try:
        return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(
            f"torch knows no such device (device: {device}, reason: {reason})",
            context={"option": "device", "value": str(device), "reason": reason},
        ) from None


def over(tensor: Tensor) -> torch.Tensor:
    """A tensor in host memory as one of torch's over the same memory, which it keeps alive."""
    if tensor.nbytes == 0:
        return torch.empty(_shape(tensor), dtype=dtype_of(tensor.dtype))
    return _view(torch.frombuffer(tensor, dtype=torch.uint8), tensor.dtype, tensor.shape, tensor.strides)


def _view(
    memory: torch.Tensor, dtype_name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> torch.Tensor:
    dtype = dtype_of(dtype_name)
    if memory.data_ptr() % dtype.itemsize or memory.storage_offset() % dtype.itemsize:
        # Some files lay tensors anywhere; torch wants them at a multiple of their elements' size.
        memory = memory.clone()
    typed = memory.view(dtype)
    if strides is not None:
        return typed.as_strided(shape, strides)
    return typed.reshape(_packed(dtype_name, shape))


def _shape(info: TensorInfo | Tensor) -> tuple[int, ...]:
    return _packed(info.dtype, info.shape)


def _packed(dtype_name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in torch's elements, which pack several of the file's along the last dimension."""
    elements = _PACKED.get(dtype_name)
    if elements is None:
        return shape
    if not shape or shape[-1] % elements:
        raise TypeError(f"torch packs {elements} elements of {dtype_name} into one, which a shape of {shape} is no multiple of")
    return (*shape[:-1], shape[-1] // elements)


def _one(model: Model, name: str, device: Any, native: Any = None, **call: Any) -> torch.Tensor:
    names = None if native else [literal(name)]
    return next(iter(_load(model, device, native=native, tensors=names, **call).values()))
