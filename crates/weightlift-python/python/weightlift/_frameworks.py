"""Which array package tensors become those of."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from .errors import InvalidArgument, SafetensorError

# Names as people write them, safetensors' among them, and the module of ours.
_MODULES = {
    "torch": "torch", "pt": "torch", "pytorch": "torch",
    "numpy": "numpy", "np": "numpy",
    "jax": "jax", "flax": "jax",
}  # fmt: skip


def module(name: str) -> ModuleType:
    """The module of ours for a framework. ``ImportError`` says what to install."""
    ours = _MODULES.get(name)
    if ours is None:
        raise InvalidArgument(
            f"there is no framework of this name (framework: {name}, known: torch, numpy, jax)",
            context={"option": "framework", "value": str(name)},
        )
    return importlib.import_module(f"weightlift.{ours}")


def installed() -> str:
    """The first framework that is installed: torch, jax or numpy."""
    for name in ("torch", "jax", "numpy"):
        if importlib.util.find_spec(name) is not None:
            return name
    raise ImportError("weightlift.load_file needs torch, jax or numpy: install one, for example pip install numpy")


def check_backend(backend: str | None) -> None:
    """Refuses what safetensors refuses. How it reads is of no effect here."""
    if backend not in (None, "mmap", "pread"):
        raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
