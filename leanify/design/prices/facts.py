"""The facts of a model that a search needs, as a value that can be saved and read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from leanify.architecture import Architecture
from leanify.upstream.caches import Kept


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
