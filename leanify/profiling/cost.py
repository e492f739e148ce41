"""Values without torch: the changes of a search (`Shape`), their cost, and the facts of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import add, sub
from typing import Any, NamedTuple

from leanify.core.architecture import Architecture, Stage
from leanify.upstream.spelling import CacheSize


class StageShape(NamedTuple):
    """The new shape of a stage. ``mlp`` may be an array with one entry for each design.

    ``experts`` and ``active`` apply to its mixtures; 0 keeps them.
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
        """Return the stage in this shape. Raises ShapeError if the stage cannot have it."""
        return stage.reshape(self.depth, self.heads, self.head_dim, self.mlp, self.experts or None, self.active or None)


Shape = tuple[StageShape | None, ...]  # one for each stage; None leaves the stage as it is


def apply_shape(shape: Shape, architecture: Architecture) -> Architecture:
    """The architecture in this shape."""
    stages = []
    for stage, stage_shape in zip(architecture.stages, shape, strict=True):
        stages.append(stage if stage_shape is None else stage_shape.applied_to(stage))
    return replace(architecture, stages=tuple(stages))


def read_shape(architecture: Architecture, stages: Sequence[int]) -> Shape:
    """The shape that an architecture has in these stages, None for the others."""
    stage_shapes: list[StageShape | None] = []
    for index, stage in enumerate(architecture.stages):
        primary = stage.primary
        if index in stages and primary is not None:
            stage_shapes.append(StageShape(stage.depth, primary.heads, primary.head_dim, primary.mlp))
        else:
            stage_shapes.append(None)
    return tuple(stage_shapes)


@dataclass(frozen=True)
class Cost:
    """Costs of a model. Every number may be an array with one entry for each design.

    params       all parameters
    params_body  parameters of the blocks
    macs         multiply-adds of a forward pass of one sample
    active       parameters that one token uses; of a mixture, only the experts that it is sent to
    kv           bytes of the key/value cache at the given context, two bytes a number
    prefill      multiply-adds of an encoder-decoder's prompt at that context (`counting.generation`), or 0
    decode       multiply-adds of one decoded token after it
    embeddings   parameters of tables with a row for each token; 0 without any
    """

    params: Any
    params_body: Any
    macs: Any
    active: Any = 0
    kv: Any = 0
    prefill: Any = 0
    decode: Any = 0
    embeddings: Any = 0

    @property
    def numbers(self) -> tuple[Any, ...]:
        """All numbers in this order."""
        return tuple(vars(self).values())

    def __add__(self, other: Cost) -> Cost:
        return self._with(other, add)

    def __sub__(self, other: Cost) -> Cost:
        return self._with(other, sub)

    def __mul__(self, times: int) -> Cost:
        return Cost(*(number * times for number in self.numbers))

    def _with(self, other: Cost, combine: Callable[[Any, Any], Any]) -> Cost:
        return Cost(*map(combine, self.numbers, other.numbers))


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a model in its own shape.

    library, name  timm or transformers, and upstream's name of the model
    architecture   its shape
    context        number of cached tokens at which key/value caches are compared
    inputs         description of one sample
    params         number of parameters
    macs           multiply-adds of one sample; None for a large model that does not run on meta
    kinds          for each block of each stage the index of the first block that looks like it
    causal         for each stage whether a token sees earlier tokens only
    caches         for each layer of each block of each stage what its attention caches; None if it caches nothing
    notes          parts that a redesign leaves unchanged: MLPs next to the leading one, unread maps
    maps_heads     whether an attention maps heads to heads, so that its parameters grow with their square
    """

    library: str
    name: str
    architecture: Architecture
    context: int
    inputs: str
    params: int
    macs: int | None
    kinds: tuple[tuple[int, ...], ...]
    causal: tuple[bool, ...]
    caches: tuple[tuple[tuple[CacheSize | None, ...], ...], ...]
    notes: tuple[str, ...] = ()
    maps_heads: bool = False

    def to_json(self) -> dict[str, Any]:
        caches = [[[cache and asdict(cache) for cache in block] for block in stage] for stage in self.caches]
        min_depths = [stage.min_depth for stage in self.architecture.stages]
        architecture = self.architecture.to_json()
        return {**vars(self), "architecture": architecture, "min_depths": min_depths, "caches": caches}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelFacts:
        """The inverse of `to_json`. Raises KeyError, TypeError, ValueError or ShapeError for anything else."""
        # minimum depths are not part of an architecture's JSON
        architecture = Architecture.from_json(data["architecture"])
        stages = []
        for stage, min_depth in zip(architecture.stages, data["min_depths"], strict=True):
            stages.append(replace(stage, min_depth=min_depth))
        caches = [[[cache and CacheSize(**cache) for cache in block] for block in stage] for stage in data["caches"]]
        return cls(
            **{name: data[name] for name in ("library", "name", "context", "inputs", "params", "macs")},
            architecture=replace(architecture, stages=tuple(stages)),
            kinds=tuple(map(tuple, data["kinds"])),
            causal=tuple(data["causal"]),
            caches=tuple(tuple(map(tuple, stage)) for stage in caches),
            notes=tuple(data.get("notes", ())),
            maps_heads=data["maps_heads"],
        )
