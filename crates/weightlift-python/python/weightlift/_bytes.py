"""Models in memory, for functions that take bytes."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator


@contextlib.contextmanager
def as_file(data: bytes | bytearray | memoryview) -> Iterator[str]:
    """The path of a file in memory that holds ``data``, as long as the context lasts."""
    descriptor = os.memfd_create("weightlift")
    try:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
