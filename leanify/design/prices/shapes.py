"""Values without torch: what a search changes in a model (`Shape`), what that costs, and the facts of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import add, sub
from typing import Any, NamedTuple

from leanify.architecture import Architecture, Stage
from leanify.upstream.caches import Kept


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


@dataclass(frozen=True)
class Cost:
    """What a model costs. Every number may be an array with one entry for each design.

    params       all parameters
    params_body  parameters of the blocks
    macs         multiply-adds of a forward pass of one sample
    active       parameters that one token uses; of a mixture, only the experts that it is sent to
    kv           bytes of the key/value cache at the given context, two bytes a number
    ns           nanoseconds by a fitted line (`latency`); 0 if nothing was timed
    prefill      multiply-adds of an encoder-decoder's prompt at that context (`counting.generation`), else 0
    decode       MACs of one decoded token behind it
    """

    params: Any
    params_body: Any
    macs: Any
    active: Any = 0
    kv: Any = 0
    ns: Any = 0
    prefill: Any = 0
    decode: Any = 0

    @property
    def numbers(self) -> tuple[Any, ...]:
        """All of them, in this order."""
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
class Facts:
    """A model as it stands.

    library, name  timm or transformers, and upstream's name of the model
    architecture   its shape
    context        number of cached tokens at which key/value caches are compared
    inputs         what one sample is, in words
    params         number of parameters
    macs           multiply-adds of one sample; None if only a large model in memory could tell
    kinds          for each block of each stage the index of the first block that looks like it
    causal         for each stage whether a token sees earlier tokens only
    kept           for each layer of each block of each stage what its attention caches; None if it caches nothing
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
    kept: tuple[tuple[tuple[Kept | None, ...], ...], ...]

    def to_json(self) -> dict[str, Any]:
        kept = [[[each and asdict(each) for each in block] for block in stage] for stage in self.kept]
        least = [stage.least for stage in self.architecture.stages]
        return {**vars(self), "architecture": self.architecture.to_json(), "least": least, "kept": kept}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """The inverse of `to_json`. Raises KeyError, TypeError, ValueError or ShapeError for anything else."""
        shape = Architecture.from_json(data["architecture"])
        pairs = zip(shape.stages, data["least"], strict=True)
        kept = [[[each and Kept(**each) for each in block] for block in stage] for stage in data["kept"]]
        return cls(
            **{name: data[name] for name in ("library", "name", "context", "inputs", "params", "macs")},
            architecture=replace(shape, stages=tuple(replace(stage, least=least) for stage, least in pairs)),
            kinds=tuple(map(tuple, data["kinds"])),
            causal=tuple(data["causal"]),
            kept=tuple(tuple(map(tuple, stage)) for stage in kept),
        )
