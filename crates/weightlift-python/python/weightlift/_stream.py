"""``stream``: tensors one after the other, in bounded memory."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Any, Iterable, Iterator, NamedTuple

from . import _frameworks
from ._model import Loader, Model, TensorInfo

# Bytes that are loaded and not given out yet: two halves of 10 ms of a bus each, beside which
# starting a load is short.
WINDOW = 1 << 30


def stream(
    path: str | os.PathLike[str] | Model,
    device: Any = "auto",
    *,
    framework: str | None = None,
    tensors: Iterable[str] | None = None,
    window: int = WINDOW,
    loader: Loader | None = None,
    **options: Any,
) -> Iterator[tuple[str, Any]]:
    """Yields ``(name, tensor)`` for every tensor, in the order in which they lie in the files.

    The tensors are the receiver's: nothing is written to them again, whatever it does and however
    late, and each frees its memory when it is let go of, on the CPU with the others that were loaded
    with it. Half of ``window`` (1 GiB unless set) is loaded at a time, and while the receiver works on
    it the next half is. A tensor larger than that is loaded alone, and beside what is given out only
    where both are no more than ``window``. So the memory needed is ``window`` or the largest tensor,
    and what the receiver keeps; it does not grow with the model. A stream that is closed or let go
    of ends the load that is under way.

    The framework is that of ``framework`` or the first of torch, jax and numpy that is installed.
    ``tensors`` are names; without it, all. ``options`` are those of :meth:`weightlift.Model.load`.

    A file that changes between two tensors ends the stream with
    :class:`~weightlift.errors.Changed`; what was yielded before was read before.

    >>> for name, tensor in weightlift.stream("models/llama", device="cuda:0"):
    ...     parameters[name].copy_(tensor)
    """
    model = path if isinstance(path, Model) else Model(path)
    module = _frameworks.module(framework or _frameworks.installed())
    infos = model.tensors if tensors is None else [model[name] for name in tensors]
    infos = sorted(infos, key=lambda info: (info.file, info.offset))
    for info in infos:
        module.check_type(info)
    return _give(model, module, device, _parts(infos, window), window, {"loader": loader, **options})


class _Part(NamedTuple):
    """What is loaded at a time."""

    infos: list[TensorInfo]
    nbytes: int


def _parts(infos: list[TensorInfo], window: int) -> list[_Part]:
    """Tensors in parts of at most half a window, or of one tensor."""
    parts: list[_Part] = []
    at = 0
    while at < len(infos):
        end, nbytes = at, 0
        storages: set[int] = set()
        while end < len(infos):
            info = infos[end]
            more = 0 if info.storage in storages else info.storage_nbytes
            if end > at and nbytes + more > window // 2:
                break
            storages.add(info.storage)
            nbytes += more
            end += 1
        parts.append(_Part(infos[at:end], nbytes))
        at = end
    return parts


def _give(
    model: Model, module: Any, device: Any, parts: list[_Part], window: int, call: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    ahead: Any = None
    try:
        for part, following in itertools.zip_longest(parts, parts[1:]):
            loaded = None
            if ahead is not None:
                with contextlib.suppress(MemoryError):
                    # Where there was not enough for it beside the part before, it is tried alone.
                    loaded = ahead.result()
            if loaded is None:
                loaded = module._start(model, device, part.infos, **call).result()
            ahead = None
            if following is not None and part.nbytes + following.nbytes <= window:
                # What is wrong with it is told when it is its turn.
                with contextlib.suppress(Exception):
                    ahead = module._start(model, device, following.infos, **call)
            for info in part.infos:
                # Ours goes first: what the receiver lets go of is free.
                yield info.name, loaded.pop(info.name)
    finally:
        if ahead is not None:
            ahead.cancel()
