"""``safe_open``: tensors by name from a model that is open, as safetensors has it."""

from __future__ import annotations

import operator
import os
from typing import Any

from . import _frameworks
from ._model import Loader, Model, TensorInfo
from .errors import FileNotFound, NotFound, SafetensorError

# Below this the calling thread reads alone: to start others takes longer.
_SMALL = 4 << 20


class safe_open:  # noqa: N801 - the name that it takes the place of
    """Opens a model to load tensors one by one.

    Takes the place of ``safetensors.safe_open``: the same methods, answers and exceptions, for every
    format that weightlift reads, and for folders and shard indexes. ``framework`` is ``"pt"``,
    ``"numpy"``, ``"jax"`` (or ``"torch"``, ``"np"``, ``"flax"``).

    >>> with weightlift.safe_open("model.safetensors", framework="pt", device="cuda:0") as f:
    ...     for name in f.keys():
    ...         tensor = f.get_tensor(name)
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str = "pt",
        device: Any = "cpu",
        *,
        backend: str | None = None,
        loader: Loader | None = None,
        **options: Any,
    ):
        _frameworks.check_backend(backend)
        _check_text("framework", framework)
        self._framework = _frameworks.module(framework)
        self._framework.check_device(device)
        self._device = device
        self._loader = loader
        try:
            self._open: Model | None = Model(filename, **options)
        except FileNotFound as error:
            # In safetensors' words, for whoever looks at them.
            if os.path.exists(filename):
                raise
            text = f"No such file or directory: {os.fspath(filename)}"
            raise FileNotFound(text, number=error.errno, path=error.filename, context=error.context) from None

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open = None

    def keys(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self._model().keys())

    def offset_keys(self) -> list[str]:
        """The names of all tensors in the order in which they lie in the files."""
        model = self._model()
        return [info.name for info in sorted(model.tensors, key=lambda info: (info.file, info.offset, info.nbytes))]

    def metadata(self) -> dict[str, str] | None:
        """What the files say beside their tensors; ``None`` if nothing."""
        return self._model().metadata or None

    def get_tensor(self, name: str) -> Any:
        """The tensor of this name. Raises :class:`~weightlift.errors.SafetensorError` if there is none."""
        _check_text("name", name)
        model = self._model()
        return self._framework._one(model, name, self._device, **self._call(_info(model, name).nbytes))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, by name, in one load."""
        return self._framework._load(self._model(), self._device, loader=self._loader)

    def get_slice(self, name: str) -> PySafeSlice:
        """The tensor of this name, of which to load a part by indexing."""
        _check_text("name", name)
        model = self._model()
        return PySafeSlice(self, model, _info(model, name))

    def _model(self) -> Model:
        if self._open is None:
            raise SafetensorError("File is closed")
        return self._open

    def _call(self, nbytes: int) -> dict[str, Any]:
        return {"loader": self._loader, "reading_threads": 1 if nbytes < _SMALL else None}


class PySafeSlice:
    """A tensor that is not loaded yet. Indexing loads what is asked for: of the first dimension
    only the rows that are needed are read. It outlives what it came from."""

    def __init__(self, opened: safe_open, model: Model, info: TensorInfo):
        self._opened = opened
        self._model = model
        self._info = info

    def get_shape(self) -> list[int]:
        """Elements along each dimension."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """The data type's name, as ``F32``."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        opened, model, info = self._opened, self._model, self._info
        if not opened._framework.INDEXES_ITSELF:
            index = _as_theirs(index, info.shape)
        indices = index if isinstance(index, tuple) else (index,)
        rows = _rows(indices, info.shape)
        if rows is not None:
            start, stop, rest = rows
            native = model._native.rows(info.name, start, stop)
            if native is not None:
                nbytes = info.nbytes // max(info.shape[0], 1) * (stop - start)
                part = opened._framework._one(model, info.name, opened._device, native=native, **opened._call(nbytes))
                return part[rest]
        whole = opened._framework._one(model, info.name, opened._device, **opened._call(info.nbytes))
        return whole[index]


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"argument '{what}': '{type(value).__name__}' object is not an instance of 'str'")


def _info(model: Model, name: str) -> TensorInfo:
    try:
        return model[name]
    except KeyError:
        raise NotFound(f"File does not contain tensor {name}", context={"tensor": name}) from None


def _as_theirs(index: Any, shape: tuple[int, ...]) -> tuple[int | slice, ...]:
    """An index as safetensors takes it for arrays of numpy and JAX: numbers, slices without negative
    ends, and one ellipsis, each inside its dimension. What it refuses is refused in its words."""
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        index = slice(0, 0)
    indices: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    if sum(each is Ellipsis for each in indices) > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    taken: list[int | slice] = []
    for each in indices:
        if each is Ellipsis:
            taken += [slice(None)] * max(len(shape) - len(indices) + 1, 0)
        elif isinstance(each, slice):
            taken.append(_slice(each))
        elif (number := _number(each)) is not None:
            dimension = len(taken)
            # Too many of them are told below.
            size = shape[dimension] if dimension < len(shape) else 0
            if number < 0 and number + size < 0:
                raise SafetensorError(f"Invalid index {number} for dimension {dimension} of size {size}")
            taken.append(number + size if number < 0 else number)
        else:
            raise SafetensorError(f"Unsupported slice index at position {len(taken)}: expected slice, int, or ellipsis")
    told = f"Error during slicing [{', '.join(map(_spelled, taken))}] with shape {list(shape)}: "
    if len(taken) > len(shape):
        raise SafetensorError(f"{told}more slicing indexes than dimensions in tensor")
    for at, (each, size) in reversed(list(enumerate(zip(taken, shape)))):
        first, last = each, each
        if isinstance(each, slice):
            first, last = each.start or 0, (size if each.stop is None else each.stop) - 1
        outside = first if first >= size else last
        if outside >= size:
            raise SafetensorError(f"{told}index {outside} out of bounds for tensor dimension #{at} of size {size}")
    return tuple(taken)


def _number(given: Any) -> int | None:
    try:
        return operator.index(given)
    except TypeError:
        return None


def _slice(given: slice) -> slice:
    start, stop, step = (None if end is None else operator.index(end) for end in (given.start, given.stop, given.step))
    if (start is not None and start < 0) or (stop is not None and stop < 0):
        raise OverflowError("can't convert negative int to unsigned")
    if step is not None and step < 1:
        raise SafetensorError(f"Slice step must be a positive integer, got {step}")
    return slice(start, stop, step)


def _spelled(index: Any) -> str:
    if not isinstance(index, slice):
        return str(index)
    ends = ["" if end is None else str(end) for end in (index.start, index.stop)]
    return ":".join(ends) + ("" if index.step in (None, 1) else f":{index.step}")


def _rows(indices: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, int, tuple[Any, ...]] | None:
    """The rows of the first dimension that are needed, and the index into what they are."""
    if not shape or not indices:
        return None
    first, *others = indices
    if isinstance(first, int) and not isinstance(first, bool):
        if not -shape[0] <= first < shape[0]:
            return None
        row = first % shape[0]
        return row, row + 1, (0, *others)
    if isinstance(first, slice) and first.step in (None, 1):
        start, stop, _ = first.indices(shape[0])
        return start, max(start, stop), (slice(None), *others)
    return None
