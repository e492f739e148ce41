"""Check that a planned shape fits on the disk and into memory before it is built."""

from __future__ import annotations

import shutil
from pathlib import Path

from leanify import machine
from leanify.errors import DirectoryError, LeanifyError


def room_for(size: int, directory: Path) -> None:
    """Raise unless ``size`` bytes of weights fit on the disk and into memory."""
    room_on_disk(size, directory)
    memory = machine.memory("MemAvailable")
    if memory is not None and size > memory:
        raise LeanifyError(
            f"building this model takes {size / 1e9:.1f} GB of memory, {memory / 1e9:.1f} GB are available; "
            "without -o the redesign is planned in no memory at all"
        )


def room_on_disk(size: int, directory: Path) -> None:
    """Raise unless the disk has room."""
    parent = next(folder for folder in directory.absolute().parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if size > free:
        raise DirectoryError(f"the weights take {size / 1e9:.1f} GB; {directory} has {free / 1e9:.1f} GB free")
