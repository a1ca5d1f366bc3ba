"""A model that is open, loaders, and tensors in weightlift's own memory."""

from __future__ import annotations

import atexit
import os
import re
import weakref
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence

from . import _native
from .errors import InvalidOption, NotFound

Tensor = _native.Tensor


class TensorInfo(NamedTuple):
    """A tensor as the model's files describe it."""

    name: str
    dtype: str
    """The data type's name: ``F32``, ``BF16``, ``F8_E4M3``, ``Q4_K``."""
    shape: tuple[int, ...]
    """Elements along each dimension; ``()`` for a scalar."""
    nbytes: int
    """Bytes that it covers in its file, from its first element to its last."""
    file: str
    """The file that it lies in, as the model calls it."""
    offset: int
    """Where it begins there, in bytes."""
    strides: tuple[int, ...] | None
    """Elements to step over along each dimension; ``None`` if it is dense and row-major."""
    storage: int
    """The number of the range of bytes that it shares with the tensors of the same number."""
    storage_offset: int
    """Where it begins in that range, in bytes."""
    storage_nbytes: int
    """How many bytes that range has."""


class Loader:
    """What outlives one load: the driver's contexts, the staging memory and the settings.

    One is enough for a process, and :func:`default_loader` is used where none is given. Settings
    are those of the command and the library, as text or numbers, sizes in bytes or as ``"16MiB"``:
    ``device``, ``route``, ``reading_threads``, ``direct_io``, ``map_files``, ``pin_host``,
    ``block_size``, ``piece_size``, ``staging_budget``. A refused value is :class:`~weightlift.errors.InvalidOption`.

    >>> loader = weightlift.Loader(reading_threads=8, staging_budget="64MiB")
    >>> weights = weightlift.open(path).load(loader=loader)
    """

    __slots__ = ("_native",)

    def __init__(self, *, driver: str | os.PathLike[str] | None = None, **options: Any):
        self._native = _native.Loader([(name, _text(name, value)) for name, value in options.items()], driver)

    @property
    def options(self) -> dict[str, str]:
        """All settings, as text that sets them again."""
        return self._native.options()

    def release(self) -> None:
        """Gives back staging memory and device contexts that no tensor needs; the next load takes
        them again."""
        self._native.release()

    def quarantined(self) -> tuple[int, int]:
        """Bytes and driver handles given up so far because they could not be proved idle."""
        return self._native.quarantined()

    def __repr__(self) -> str:
        return f"weightlift.Loader({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


_default: Loader | None = None
_parents: list[Loader] = []


def _in_child() -> None:
    # A thread that the child has not may have held a lock of the parent's loader. That one is kept, so
    # that nothing is given back that is not the child's.
    global _default
    if _default is not None:
        _parents.append(_default)
        _default = None


os.register_at_fork(after_in_child=_in_child)


def default_loader() -> Loader:
    """The loader of all calls that name none. It lives as long as the process."""
    global _default
    if _default is None:
        _default = Loader()
    return _default


class Model:
    """A model whose headers are read and checked; no weight is read yet, and no file is open.

    ``path`` is a file of any format that weightlift reads, a shard index, or a folder that holds one
    of these. ``format`` names the format (``safetensors``, ``gguf``, ``onnx``, ``openvino``,
    ``pytorch``, ``raw``) where it is not to be told from the content; ``search_dirs`` are folders to
    look into for files that the model names; ``ignore_index`` takes all shards that are there;
    ``follow_links`` allows links out of the model's folder; ``metadata_lists`` keeps the values of
    lists in the metadata.

    Raises :class:`~weightlift.errors.FileNotFound`, :class:`~weightlift.errors.FormatError` and
    other :class:`~weightlift.errors.WeightliftError`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        search_dirs: Sequence[str | os.PathLike[str]] = (),
        ignore_index: bool = False,
        follow_links: bool = False,
        metadata_lists: bool = False,
    ):
        self._native = _native.Model(
            os.fspath(path), format, [os.fspath(each) for each in search_dirs], ignore_index, follow_links,
            metadata_lists,
        )  # fmt: skip
        self._by_name: dict[str, TensorInfo] | None = None
        self._report: dict[str, Any] | None = None

    @property
    def path(self) -> str:
        """What was opened."""
        return os.fspath(self._native.path)

    @property
    def format(self) -> str | None:
        """The format's name."""
        return self._native.format

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, those that tensors share counted once."""
        return self._native.nbytes

    @property
    def metadata(self) -> dict[str, Any]:
        """What the files say beside their tensors: of safetensors and ONNX text, of GGUF numbers
        and lists too."""
        return self._native.metadata

    @property
    def tensors(self) -> list[TensorInfo]:
        """All tensors, in the model's order."""
        return list(self._infos().values())

    @property
    def report(self) -> dict[str, Any] | Any:  # None before the first: nobody has to ask a second time
        """The report of the last load of this model: bytes by route and kind of read, seconds by
        phase, decisions and fallbacks. ``None`` before the first."""
        return self._report

    def keys(self) -> list[str]:
        """The names of all tensors, in the model's order."""
        return self._native.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._infos())

    def __contains__(self, name: object) -> bool:
        return name in self._infos()

    def __getitem__(self, name: str) -> TensorInfo:
        try:
            return self._infos()[name]
        except KeyError:
            raise NotFound(f"the model has no tensor of this name (tensor: {name})", context={"tensor": name}) from None

    def _infos(self) -> dict[str, TensorInfo]:
        if self._by_name is None:
            self._by_name = {fields[0]: TensorInfo(*fields) for fields in self._native.tensors()}
        return self._by_name

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"<weightlift.Model {self.path!r}: {len(self)} tensors, {self.nbytes} bytes>"

    def load(
        self,
        device: Any = "auto",
        *,
        tensors: Iterable[str] | None = None,
        framework: str | None = None,
        route: str | None = None,
        reading_threads: int | None = None,
        staging_budget: int | str | None = None,
        pin_host: bool | None = None,
        progress: bool | Callable[[int, int], None] = False,
        loader: Loader | None = None,
        verify: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Loads tensors, all or nothing, and returns them by name.

        ``device`` is ``"auto"`` (the current CUDA device where there is one, else the host),
        ``"host"`` or ``"cpu"``, ``"cuda"``, ``"cuda:1"``, a number, or a ``torch.device``.
        ``tensors`` are names or shell patterns. ``framework`` is ``"numpy"``, ``"torch"`` or
        ``"jax"`` for arrays of that; without it :class:`weightlift.Tensor` in memory that all
        tensors of the load share. ``progress=True`` shows a bar on a terminal (tqdm's where it is
        installed); a function gets ``(bytes, total)`` instead. ``staging_budget`` is a setting of a
        loader: it makes one for this load.

        ``verify`` is a manifest of ``weightlift verify --write``: every tensor is compared with it while
        it is read, and one that differs is a :class:`weightlift.errors.Mismatch`.

        What happened stands in :attr:`report` afterwards.
        """
        call: dict[str, Any] = {
            "tensors": tensors, "route": route, "reading_threads": reading_threads,
            "staging_budget": staging_budget, "pin_host": pin_host, "progress": progress, "loader": loader,
        }  # fmt: skip
        if verify is not None:
            call["verify"] = verify
        if framework is not None:
            from . import _frameworks

            return _frameworks.module(framework)._load(self, device, **call)
        loaded = self._run(device, **call)
        return {tensor.name: tensor for tensor in loaded}

    def _run(
        self,
        device: Any,
        *,
        tensors: Iterable[str] | None = None,
        route: str | None = None,
        reading_threads: int | None = None,
        staging_budget: int | str | None = None,
        pin_host: bool | None = None,
        progress: bool | Callable[[int, int], None] = False,
        loader: Loader | None = None,
        provide: Callable[[int, int, list[tuple[Any, ...]], str], tuple[int, int, Any, int | None]] | None = None,
        ready: Callable[[str], None] | None = None,
        native: Any = None,
        apart: bool = False,
        verify: str | os.PathLike[str] | None = None,
    ) -> list[Tensor]:
        loader = _loader(loader, staging_budget)
        settings = _settings(device, route, reading_threads, pin_host)
        names = patterns(tensors)
        if names == []:
            # No pattern would mean all tensors.
            self._report = None
            return []
        from ._progress import watch

        with watch(progress, self.path) as landed:
            loaded, self._report = loader._native.load(
                native or self._native, settings, names, provide, landed, ready, apart, verify
            )
        return loaded

    def _start(
        self,
        device: Any,
        names: list[str],
        finish: Callable[[list[Tensor]], dict[str, Any]],
        places: dict[int, tuple[int, int, Any, int | None]] | None = None,
        *,
        route: str | None = None,
        reading_threads: int | None = None,
        staging_budget: int | str | None = None,
        pin_host: bool | None = None,
        progress: bool | Callable[[int, int], None] = False,
        loader: Loader | None = None,
    ) -> Job:
        """Begins to load tensors and returns at once. ``device`` names one, for the thread that loads
        has no current one; ``places`` has memory for each storage, as ``provide`` of :meth:`_run`
        returns it; ``finish`` makes of the tensors what the caller gets."""
        loader = _loader(loader, staging_budget)
        settings = _settings(device, route, reading_threads, pin_host)
        native = loader._native.start(self._native, settings, [literal(name) for name in names], places)
        return Job(self, native, finish, progress)


class Job:
    """A load that goes on while its caller does something else. One that is let go of is cancelled."""

    __slots__ = ("_model", "_native", "_finish", "_progress", "__weakref__")

    def __init__(self, model: Model, native: Any, finish: Callable[[list[Tensor]], dict[str, Any]], progress: Any):
        self._model, self._native, self._finish, self._progress = model, native, finish, progress
        _jobs.add(self)

    def result(self) -> dict[str, Any] | None:
        """Waits for the tensors, by name. ``None`` in a forked child, which has no such load."""
        from ._progress import watch

        with watch(self._progress, self._model.path) as landed:
            done = self._native.result(landed)
        if done is None:
            return None
        loaded, self._model._report = done
        return self._finish(loaded)

    def cancel(self) -> None:
        """Ends the load if it is under way, and waits until nothing is."""
        self._native.cancel()


class Done:
    """A load that has nothing to do."""

    def __init__(self, made: dict[str, Any]):
        self._made = made

    def result(self) -> dict[str, Any]:
        return self._made

    def cancel(self) -> None:
        pass


# Ended before the interpreter is: a driver does not like to be left with copies under way.
_jobs: weakref.WeakSet[Job] = weakref.WeakSet()


@atexit.register
def _cancel_jobs() -> None:
    for job in list(_jobs):
        job.cancel()


def open(path: str | os.PathLike[str], **options: Any) -> Model:
    """Opens the model at ``path``: reads and checks its headers. See :class:`Model`.

    >>> with weightlift.open("model.safetensors") as model:
    ...     print(model.keys())
    ...     weights = model.load(device="cuda:0")
    """
    return Model(path, **options)


def literal(name: str) -> str:
    """The pattern that matches this name alone."""
    return re.sub(r"([*?\[\]{}\\])", r"[\1]", name)


def patterns(tensors: str | Iterable[str] | None) -> list[str] | None:
    """Names and patterns as a caller gives them: one, several, or ``None`` for all tensors."""
    if tensors is None:
        return None
    return [tensors] if isinstance(tensors, str) else list(tensors)


def _loader(loader: Loader | None, staging_budget: int | str | None) -> Loader:
    if staging_budget is None:
        return loader or default_loader()
    if loader is not None:
        raise InvalidOption("staging_budget is a setting of the loader: give it to weightlift.Loader")
    return Loader(staging_budget=staging_budget)


def _settings(device: Any, route: str | None, reading_threads: int | None, pin_host: bool | None) -> list[tuple[str, str]]:
    settings = {"device": device_name(device), "route": route, "reading_threads": reading_threads, "pin_host": pin_host}
    return [(name, _text(name, value)) for name, value in settings.items() if value is not None]


def device_name(device: Any) -> str:
    """A device as weightlift spells it: ``auto``, ``host``, ``cuda`` or ``cuda:N``."""
    if device is None:
        return "auto"
    if isinstance(device, bool):
        raise InvalidOption(f"{device!r} is no device", context={"option": "device", "value": repr(device)})
    if isinstance(device, int):
        return f"cuda:{device}"
    # torch.device has both; a number as text is one.
    text = str(device)
    if text.isdecimal():
        return f"cuda:{text}"
    return "host" if text == "cpu" or text.startswith("cpu:") else text


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "auto"
    if name == "device":
        return device_name(value)
    return str(value)


