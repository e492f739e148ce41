"""What a SOURCE was found to be, before anything is built of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from leanify.architecture import Architecture
from leanify.lens import surgery
from leanify.upstream.build import build_model
from leanify.upstream.origin import Origin


@dataclass(frozen=True)
class ModelSource:
    """How to build a model, the shape that leanify gives it, and where its weights lie.

    origin         what upstream's constructor takes; a transformers configuration may itself carry a lean shape
    architecture   the shape that surgery gives what upstream builds; None where the origin says it all
    weights        a directory or a file, or a hub id; None for a model that is initialised
    tied           names of tensors that are stored under another name
    """

    origin: Origin
    architecture: Architecture | None = None
    weights: Path | str | None = None
    tied: Mapping[str, str] = field(default_factory=dict)


def build_on_meta(found: ModelSource) -> nn.Module:
    """The found model on torch's meta device: shapes without memory."""
    model = build_model(found.origin, "meta")
    return model if found.architecture is None else surgery.write(model, found.architecture)
