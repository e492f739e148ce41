"""The facts of a model that a search needs, as values that can be saved and read without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from leanify.architecture import Architecture
from leanify.design.prices.cost import Cost
from leanify.upstream.caches import Kept

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Facts:
    """A model as it stands.

    library, name  timm or transformers, and upstream's name of the model
    architecture   its shape
    context        tokens in the cache at which caches are compared
    inputs         what one sample is, in words
    params         its parameters
    macs           multiply-adds of one sample; None where only a large model in memory would tell
    kinds          for each block of each stage the index of the first one that looks like it
    causal         for each stage whether its tokens see those before them alone
    kept           for each layer of each block of each stage what its attention keeps; None where it keeps nothing
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
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kept = [[[each and asdict(each) for each in block] for block in stage] for stage in self.kept]
        least = [stage.least for stage in self.architecture.stages]
        return {**plain, "architecture": self.architecture.to_json(), "least": least, "kept": kept}

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


class Appraiser(Protocol):
    """Something that gives a model's cost in another shape: the live model, or its cached prices."""

    @property
    def facts(self) -> Facts: ...

    @property
    def model(self) -> nn.Module:
        """The model itself, on meta."""

    def count(self, shape: Architecture) -> Cost:
        """The cost of the model in this shape."""

    def tokens(self, shape: Architecture) -> list[int]:
        """The number of tokens N of A in each stage, in this shape."""

    def held(self, stages: Sequence[int]) -> int:
        """The parameters in the blocks of these stages, shared ones once."""
