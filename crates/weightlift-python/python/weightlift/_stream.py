"""``stream``: tensors one after the other, in bounded memory."""

from __future__ import annotations

import os
from typing import Any, Iterable, Iterator

from . import _frameworks
from ._model import Loader, Model, TensorInfo, literal

# Bytes that are loaded at a time: 20 ms of a bus, beside which starting a load is short.
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
    late, and each frees its memory when it is let go of. Up to ``window`` bytes (1 GiB unless set)
    are loaded at a time, and a tensor that is larger alone; what was yielded and let go of counts no
    more, so that the memory needed does not grow with the model. The framework is that of ``framework``
    or the first of torch, jax and numpy that is installed. ``tensors`` are names; without it, all.

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
        module.dtype_of(info.dtype)
    return _windows(model, module, device, infos, window, {"loader": loader, **options})


def _windows(
    model: Model, module: Any, device: Any, infos: list[TensorInfo], window: int, call: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    at = 0
    while at < len(infos):
        end, nbytes = at, 0
        storages: set[int] = set()
        while end < len(infos):
            info = infos[end]
            more = 0 if info.storage in storages else info.storage_nbytes
            if end > at and nbytes + more > window:
                break
            storages.add(info.storage)
            nbytes += more
            end += 1
        names = [info.name for info in infos[at:end]]
        loaded = module._load(model, device, tensors=[literal(name) for name in names], **call)
        for name in names:
            # Ours goes first: what the receiver lets go of is free.
            yield name, loaded.pop(name)
        at = end
