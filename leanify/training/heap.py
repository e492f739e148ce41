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
    """What a step frees is there for the next one; the kernel has it back at the end.

    glibc otherwise hands it back after each step and gets it again page by page, filled with zeros: 5 % of the time of
    a small ViT on a CPU. Blocks from 32 MiB on still come and go, so that the peak stays what it was: 32 and 64 MiB are
    where glibc's own adapting limits end. Other C libraries do as they do.
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
