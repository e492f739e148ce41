"""A planned shape as a model: by upstream's constructor where it can express the shape, else by surgery."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn

from leanify import machine
from leanify.architecture import Architecture
from leanify.errors import DirectoryError, LeanifyError
from leanify.lens import surgery
from leanify.sources.describe import expressed
from leanify.sources.source import ModelSource, build_on_meta
from leanify.upstream.build import build_model
from leanify.upstream.origin import set_origin


def build_fresh(found: ModelSource, architecture: Architecture) -> nn.Module:
    """A model of this shape, initialised by upstream: by its constructor where it can, else by surgery."""
    on_meta = surgery.write(build_on_meta(found), architecture)
    native = expressed(on_meta, found.origin, architecture)
    if native is None:
        return surgery.write(build_model(found.origin), architecture, "fresh")
    model = build_model(native)
    set_origin(model, found.origin)
    return model


def room_for(size: int, directory: Path) -> None:
    """Refuse before hours are lost: ``size`` bytes of weights need room on the disk and in memory."""
    parent = next(folder for folder in directory.absolute().parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if size > free:
        raise DirectoryError(f"the weights take {size / 1e9:.1f} GB; {directory} has {free / 1e9:.1f} GB free")
    memory = machine.memory("MemAvailable")
    if memory is not None and size > memory:
        raise LeanifyError(
            f"building this model takes {size / 1e9:.1f} GB of memory, {memory / 1e9:.1f} GB are available; "
            "without -o the redesign is planned in no memory at all"
        )
