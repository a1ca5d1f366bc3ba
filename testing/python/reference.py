"""What the package safetensors reads from a file."""

from dataclasses import dataclass
from pathlib import Path

import safetensors
import xxhash


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple
    length: int
    digest: str


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of one file by name."""
    return read_bytes(path.read_bytes())


def read_bytes(content: bytes) -> dict[str, Tensor]:
    tensors = {}
    # The one call of the package that gives the bytes of every dtype, also of those that no
    # framework has.
    for name, entry in safetensors.deserialize(content):
        data = bytes(entry["data"])
        tensors[name] = Tensor(name, entry["dtype"], tuple(entry["shape"]), len(data), digest(data))
    return tensors


def digest(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)
