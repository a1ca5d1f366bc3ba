"""``safe_open``: tensors by name from a model that is open, as safetensors has it."""

from __future__ import annotations

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
        self._framework = _frameworks.module(framework)
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
        self._model()
        return self

    def __exit__(self, *exception: object) -> None:
        self._open = None

    def keys(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self._model().keys())

    def offset_keys(self) -> list[str]:
        """The names of all tensors in the order in which they lie in the files."""
        model = self._model()
        return [info.name for info in sorted(model.tensors, key=lambda info: (info.file, info.offset))]

    def metadata(self) -> dict[str, str] | None:
        """What the files say beside their tensors; ``None`` if nothing."""
        return self._model().metadata or None

    def get_tensor(self, name: str) -> Any:
        """The tensor of this name. Raises :class:`~weightlift.errors.SafetensorError` if there is none."""
        model = self._model()
        return self._framework._one(model, name, self._device, **self._call(_info(model, name).nbytes))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, by name, in one load."""
        return self._framework._load(self._model(), self._device, loader=self._loader)

    def get_slice(self, name: str) -> PySafeSlice:
        """The tensor of this name, of which to load a part by indexing."""
        model = self._model()
        return PySafeSlice(self, _info(model, name))

    def _model(self) -> Model:
        if self._open is None:
            raise SafetensorError("File is closed")
        return self._open

    def _call(self, nbytes: int) -> dict[str, Any]:
        return {"loader": self._loader, "reading_threads": 1 if nbytes < _SMALL else None}


class PySafeSlice:
    """A tensor that is not loaded yet. Indexing loads what is asked for: of the first dimension
    only the rows that are needed are read."""

    def __init__(self, opened: safe_open, info: TensorInfo):
        self._opened = opened
        self._info = info

    def get_shape(self) -> list[int]:
        """Elements along each dimension."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """The data type's name, as ``F32``."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        opened, info = self._opened, self._info
        model = opened._model()
        indices = index if isinstance(index, tuple) else (index,)
        if not opened._framework.INDEXES_ITSELF:
            _check(indices, info.shape)
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


def _info(model: Model, name: str) -> TensorInfo:
    try:
        return model[name]
    except KeyError:
        raise NotFound(f"File does not contain tensor {name}", context={"tensor": name}) from None


def _check(indices: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """What safetensors refuses, in its words. numpy would take a slice that is too long."""
    if any(isinstance(each, list) and each for each in indices):
        raise SafetensorError("Non empty lists are not implemented")
    for at, (each, size) in enumerate(zip(indices, shape)):
        last = each
        if isinstance(each, slice):
            last = (size if each.stop is None else each.stop) - 1
        elif not isinstance(each, int):
            return
        elif each < -size:
            raise SafetensorError(f"Invalid index {each} for dimension {at} of size {size}")
        if last >= size:
            told = ", ".join(map(_spelled, indices))
            raise SafetensorError(
                f"Error during slicing [{told}] with shape {list(shape)}: "
                f"index {last} out of bounds for tensor dimension #{at} of size {size}"
            )


def _spelled(index: Any) -> str:
    if not isinstance(index, slice):
        return str(index)
    ends = ["" if end is None else str(end) for end in (index.start, index.stop)]
    return ":".join(ends) + ("" if index.step is None else f":{index.step}")


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
