"""``safe_open``: tensors by name from a model that is open, as safetensors has it."""

from __future__ import annotations

import os
from typing import Any

from . import _frameworks
from ._model import Loader, Model, TensorInfo
from .errors import NotFound, SafetensorError

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
        loader: Loader | None = None,
        **options: Any,
    ):
        self._framework = _frameworks.module(framework)
        self._device = device
        self._loader = loader
        self._open: Model | None = Model(filename, **options)

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

    def get_slice(self, name: str) -> PySafeSlice:
        """The tensor of this name, of which to load a part by indexing."""
        model = self._model()
        return PySafeSlice(self, _info(model, name))

    def _model(self) -> Model:
        if self._open is None:
            raise SafetensorError("the file is not open any more")
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
        _check(indices, info)
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


def _check(indices: tuple[Any, ...], info: TensorInfo) -> None:
    if len([each for each in indices if each is not Ellipsis]) > len(info.shape):
        raise SafetensorError(f"too many indices for {info.name}, which has {len(info.shape)} dimensions")
    for at, each in enumerate(indices):
        if isinstance(each, int) and not isinstance(each, bool):
            size = info.shape[at] if Ellipsis not in indices[: at + 1] else info.shape[at - len(indices)]
            if not -size <= each < size:
                raise SafetensorError(f"index {each} is out of range for a dimension of {size} ({info.name})")


def _rows(indices: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, int, tuple[Any, ...]] | None:
    """The rows of the first dimension that are needed, and the index into what they are."""
    if not shape or not indices:
        return None
    first, *others = indices
    if isinstance(first, int) and not isinstance(first, bool):
        row = first % shape[0]
        return row, row + 1, (0, *others)
    if isinstance(first, slice) and first.step in (None, 1):
        start, stop, _ = first.indices(shape[0])
        return start, max(start, stop), (slice(None), *others)
    return None
