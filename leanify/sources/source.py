"""A resolved SOURCE: what is known of a model before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from leanify.architecture import Architecture
from leanify.lens import surgery
from leanify.upstream import modules
from leanify.upstream.build import build_model
from leanify.upstream.origin import Origin


@dataclass(frozen=True)
class ModelSource:
    """How to build a model, the lean shape to give it, and where its weights are.

    origin         arguments of upstream's constructor; a transformers configuration may itself carry a lean shape
    architecture   the shape that surgery gives to upstream's model; None if the origin alone is enough
    weights        a directory, a file or a hub id; None for a freshly initialised model
    tied           tied tensors, stored once: missing name → stored name
    """

    origin: Origin
    architecture: Architecture | None = None
    weights: Path | str | None = None
    tied: Mapping[str, str] = field(default_factory=dict)


def build_on_meta(found: ModelSource) -> nn.Module:
    """Build the model on torch's meta device: shapes, no memory for weights.

    A user's own module is read before it goes there, where it can be tried.
    """
    if found.origin.library in (modules.LIBRARY, modules.LIVE):
        real = build_model(found.origin)
        surgery.read(real)
        model = modules.on_meta(real)
    else:
        model = build_model(found.origin, "meta")
    return model if found.architecture is None else surgery.write(model, found.architecture)
