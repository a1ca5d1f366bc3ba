"""weightlift: model weights from storage into GPU or host memory.

>>> import weightlift
>>> weights = weightlift.load_file("models/llama", device="cuda:0")

``load_file`` returns tensors of the framework that is installed; ``weightlift.torch``,
``weightlift.numpy`` and ``weightlift.jax`` name one. ``open`` looks at a model and loads parts of it,
``stream`` gives tensors one after the other, ``load_into`` fills tensors that exist, ``safe_open``
takes the place of safetensors' function of that name, and ``open_reader`` reads any file in
parallel. Everything raises :class:`~weightlift.errors.WeightliftError`.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING, Any

from . import errors
from ._model import Loader, Model, Tensor, TensorInfo, default_loader, open
from ._native import __version__
from .errors import SafetensorError, WeightliftError

if TYPE_CHECKING:
    from . import jax, numpy, onnxruntime, openvino, torch
    from ._into import load_into
    from ._reader import Reader, open_reader
    from ._safe_open import safe_open
    from ._stream import stream

__all__ = [
    "Loader", "Model", "Reader", "SafetensorError", "Tensor", "TensorInfo", "WeightliftError", "__version__",
    "default_loader", "errors", "load_file", "load_into", "open", "open_reader", "safe_open", "stream",
]  # fmt: skip

# Imported when they are asked for: importing weightlift takes a few milliseconds.
_LAZY = {
    "load_into": "_into", "open_reader": "_reader", "Reader": "_reader", "safe_open": "_safe_open", "stream": "_stream",
}  # fmt: skip
_MODULES = ("torch", "numpy", "jax", "onnxruntime", "openvino")


def load_file(filename: Any, device: Any = "cpu", **options: Any) -> dict[str, Any]:
    """Loads the model at ``filename`` to ``device`` and returns its tensors by name.

    They are those of the first of torch, jax and numpy that is installed. Options are those of
    :meth:`weightlift.Model.load`.
    """
    from . import _frameworks

    framework = options.pop("framework", None) or _frameworks.installed()
    return open(filename).load(device, framework=framework, **options)


if not TYPE_CHECKING:  # A checker would take any name for one that is there.

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(_importlib.import_module(f"weightlift.{_LAZY[name]}"), name)
        if name in _MODULES:
            return _importlib.import_module(f"weightlift.{name}")
        raise AttributeError(f"module 'weightlift' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, *_MODULES])
