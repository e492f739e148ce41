"""A resolved SOURCE: a model that is known but not built."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from leanify.core.architecture import Architecture
from leanify.core.errors import UnsupportedModel
from leanify.reshaping import surgery
from leanify.upstream import user_modules
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


def build_on_meta(source: ModelSource, must_be_read: bool = True) -> nn.Module:
    """Build the model on torch's meta device: shapes, no memory for weights.

    A user's own module is read while it can still be run. Raises UnsupportedModel if it cannot be read and must be.
    """
    if user_modules.is_user_module(source.origin):
        real = build_model(source.origin)
        with nullcontext() if must_be_read else suppress(UnsupportedModel):
            surgery.read(real)
        model = user_modules.copy_to_meta(real)
    else:
        model = build_model(source.origin, "meta")
    return model if source.architecture is None else surgery.write(model, source.architecture)
