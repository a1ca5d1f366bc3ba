"""``open_reader``: any file as a file object that reads in parallel and ahead."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from . import _native


if TYPE_CHECKING:

    class _RawIOBase(io.RawIOBase, BinaryIO):  # type: ignore[misc]
        """As type checkers have ``io.FileIO``: what wants an ``IO[bytes]`` takes it."""
else:
    _RawIOBase = io.RawIOBase


class Reader(_RawIOBase):
    """A file that is open for reading. Large reads are done by several threads straight into the
    caller's buffer, small ones come from a window that is read ahead.

    It is what ``torch.load``, ``pickle.load``, ``numpy.load`` and OpenVINO's ``import_model`` take: it
    has ``read``, ``readinto``, ``readline``, ``seek``, ``tell`` and iterates over lines. A read is as
    long as what is asked for unless the file ends. A file that changes meanwhile is
    :class:`~weightlift.errors.Changed`.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int | None = None, window: int | None = None):
        self._stream = _native.Stream(os.fspath(path), "auto" if threads is None else str(threads), window)
        self._name = os.fspath(path)

    @property
    def name(self) -> str:
        """The path."""
        return self._name

    @property
    def mode(self) -> str:
        return "rb"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads into a writable buffer of bytes; how many came, 0 at the end."""
        view = memoryview(buffer)
        return self._stream.readinto(view if view.format == "B" and view.ndim == 1 else view.cast("B"))

    def read(self, size: int | None = -1) -> bytes:
        """Up to ``size`` bytes, or all that are left."""
        left = max(self._stream.length() - self._stream.tell(), 0)
        wanted = left if size is None or size < 0 else min(size, left)
        buffer = bytearray(wanted)
        count = self._stream.readinto(buffer) if wanted else 0
        del buffer[count:]
        return bytes(buffer)

    def readall(self) -> bytes:
        return self.read(-1)

    def write(self, data: Any) -> int:
        """Not for this: it reads."""
        raise io.UnsupportedOperation("not writable")

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position and returns it."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """The position, in bytes from the start."""
        return self._stream.tell()

    def close(self) -> None:
        """Ends the threads that read ahead."""
        if not self.closed:
            self._stream.close()
        super().close()


def open_reader(path: str | os.PathLike[str], *, threads: int | None = None, window: int | None = None) -> Reader:
    """Opens a file to be read in parallel and ahead. ``threads`` is how many read, chosen unless
    given; ``window`` the bytes of memory for reading ahead, 8 MiB unless given.

    >>> with weightlift.open_reader("checkpoint.pt") as f:
    ...     state = torch.load(f, weights_only=True)
    """
    return Reader(path, threads, window)
