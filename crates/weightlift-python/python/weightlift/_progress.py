"""Bars and functions that show how far a load is."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Callable, Iterator


@contextlib.contextmanager
def watch(progress: bool | Callable[[int, int], None], what: str) -> Iterator[Callable[[int, int], None] | None]:
    """What a load tells of its progress: nothing, a function of the caller's, or a bar."""
    if not progress:
        yield None
    elif callable(progress):
        yield progress
    else:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            with _plain(what) as landed:
                yield landed
            return
        with tqdm(unit="B", unit_scale=True, desc=os.path.basename(what)) as bar:

            def landed(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            yield landed


@contextlib.contextmanager
def _plain(what: str) -> Iterator[Callable[[int, int], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    name = os.path.basename(what)

    def landed(done: int, total: int) -> None:
        share = done / total if total else 1
        bar = "#" * int(30 * share)
        sys.stderr.write(f"\r{name} [{bar:<30}] {share:4.0%} of {total / 1e9:.2f} GB")
        sys.stderr.flush()

    try:
        yield landed
    finally:
        sys.stderr.write("\n")
