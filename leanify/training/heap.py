"""The C library's heap while a model is trained."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers what mallopt sets
MIB = 1 << 20


@contextmanager
def kept() -> Iterator[None]:
    """Keep freed memory in malloc between steps; trim the heap on exit.

    By default glibc returns it to the kernel after each step and gets it back page by page, zeroed, which took 5% of
    the time of a small ViT on a CPU. Blocks of 32 MiB and more are still mapped and unmapped one by one, so the peak
    does not rise: 32 and 64 MiB are the upper ends of glibc's adaptive thresholds. Does nothing under other C
    libraries.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(MMAP_THRESHOLD, 32 * MIB)
    libc.mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        libc.mallopt(TRIM_THRESHOLD, 64 * MIB)
        libc.malloc_trim(0)
