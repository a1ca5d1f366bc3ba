"""ONNX Runtime sessions on weights that weightlift has loaded.

``session`` takes the place of ``onnxruntime.InferenceSession`` for models whose weights lie in files: on a
GPU the session uses them where weightlift put them, on the CPU out of weightlift's memory. It works with
ONNX Runtime as it is released, from version 1.31 on, which is imported when the function is called.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Sequence

from ._model import Model


if TYPE_CHECKING:
    import onnxruntime

__all__ = ["session"]

# The first that takes files in memory without copying them.
_OLDEST = (1, 31)


def session(
    model: str | os.PathLike[str] | Model,
    sess_options: onnxruntime.SessionOptions | Callable[[], onnxruntime.SessionOptions] | None = None,
    providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    *,
    provider_options: Sequence[dict[str, Any]] | None = None,
    **load_options: Any,
) -> Any:
    """An ``onnxruntime.InferenceSession`` over the model at ``model``, whose big weights weightlift loads.

    ``model`` is a path to an ONNX model, or one that :func:`weightlift.open` opened. ``providers`` and
    ``provider_options`` are those of ``InferenceSession``; without them CUDA where this onnxruntime and this
    machine have it, then the CPU. With ``CUDAExecutionProvider`` weights go to its device (``device_id``),
    otherwise they stay in host memory. ``load_options`` are those of :meth:`weightlift.Model.load`:
    ``route``, ``reading_threads``, ``staging_budget``, ``progress``, ``loader``.

    ``sess_options`` is copied and stays the caller's; custom operators that are registered with it are not
    copied, because ONNX Runtime does not show them. A function that makes options is called instead, and
    what it makes is used as it is. Providers belong in ``providers``.

    The session has an attribute ``weightlift_report``, a dict: ``in_place``, the bytes of each weight that the
    session uses where weightlift put it, by name; ``host``, why each other initializer came from the host;
    ``bytes`` of memory that is used in place, and ``given_back``, those of weights that were loaded and that
    the session did not want; ``device``; ``seconds``; ``load``, the load's own report. Whether a weight is used in place is what ONNX Runtime did with it: it
    let go of what it does not use before the session was there. Nothing that happens to the model's files
    afterwards changes the session, and all memory goes with it.

    Raises ``ImportError`` if onnxruntime is missing or older than 1.31,
    :class:`~weightlift.errors.WeightliftError` for what is wrong with the model, its files or the device, and
    what ``InferenceSession`` raises.

    >>> session = weightlift.onnxruntime.session("model.onnx", providers=["CUDAExecutionProvider"])
    >>> session.run(None, {"input_ids": ids})
    """
    _check_version()
    from . import _onnxruntime

    opened = model if isinstance(model, Model) else Model(model)
    return _onnxruntime.make(opened, sess_options, providers, provider_options, load_options)


def _check_version() -> None:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            f"weightlift.onnxruntime needs the package onnxruntime, 1.31 or newer: pip install onnxruntime, or "
            f"onnxruntime-gpu ({error})"
        ) from error
    found = getattr(onnxruntime, "__version__", "0")
    parts = found.split(".")
    version = tuple(int(part) for part in parts[:2]) if all(part.isdecimal() for part in parts[:2]) else (0, 0)
    if version < _OLDEST:
        raise ImportError(
            f"weightlift.onnxruntime needs onnxruntime 1.31 or newer, and {found} is installed: earlier versions "
            "copy weights that they are given in memory; pip install --upgrade onnxruntime (or onnxruntime-gpu)"
        )
