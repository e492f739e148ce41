"""What a search changes in a model: depth, heads and MLP of each stage, as a value. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from leanify.architecture import Architecture, Stage


class StageShape(NamedTuple):
    """What a stage becomes. ``mlp`` may be an array: one design for each of its entries.

    ``experts`` and ``active`` are those of its mixtures; 0 leaves them as they are.
    """

    depth: int
    heads: int
    head_dim: int
    mlp: Any
    experts: int = 0
    active: int = 0

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    def applied_to(self, stage: Stage) -> Stage:
        """The stage in this shape. Raises ShapeError where it cannot have it."""
        return stage.reshape(self.depth, self.heads, self.head_dim, self.mlp, self.experts or None, self.active or None)


Shape = tuple[StageShape | None, ...]  # one for each stage; None leaves the stage as it is


def applied(shape: Shape, architecture: Architecture) -> Architecture:
    """The architecture in this shape."""
    stages = []
    for stage, wanted in zip(architecture.stages, shape, strict=True):
        stages.append(stage if wanted is None else wanted.applied_to(stage))
    return replace(architecture, stages=tuple(stages))


def shape_of(architecture: Architecture, stages: Sequence[int]) -> Shape:
    """The shape that an architecture has in these stages, None for the others."""
    found: list[StageShape | None] = []
    for index, stage in enumerate(architecture.stages):
        primary = stage.primary
        if index in stages and primary is not None:
            found.append(StageShape(stage.depth, primary.heads, primary.head_dim, primary.mlp))
        else:
            found.append(None)
    return tuple(found)
