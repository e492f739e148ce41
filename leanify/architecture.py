"""A transformer's shape as a value: a sequence of layers, and nothing else.

    Layer         one attention with its MLP
    Block         what upstream repeats: one layer (ViT, BERT, Llama), two (TNT), none (a block without attention)
    Stage         one upstream list of blocks
    Architecture  all stages of a model

Values are frozen and comparable, know no torch, and are written run-length encoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from leanify.errors import ShapeError


@dataclass(frozen=True, order=True)
class Layer:
    """The shape of one attention and the MLP behind it.

    width     residual channels
    heads     query heads
    kv_heads  key/value heads; fewer than ``heads`` under grouped-query attention
    head_dim  channels of one head
    mlp       hidden units of the MLP, or of one expert; 0 where no MLP belongs to this attention
    experts   routed experts of a mixture; 0 where the MLP is dense
    active    experts that the router sends a token to; 0 where the configuration does not say
    """

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    experts: int = 0
    active: int = 0

    @property
    def inner(self) -> int:
        """Width of the concatenated heads, heads × head_dim; it need not equal ``width``."""
        return self.heads * self.head_dim

    @property
    def group(self) -> int:
        """How many heads can be added at a time: whole key/value groups; one under MHA and under MQA."""
        return 1 if self.kv_heads in (1, self.heads) else self.heads // self.kv_heads

    def with_heads(self, heads: int, head_dim: int | None = None) -> Layer:
        """This layer with other heads; key/value heads follow in whole groups (under MQA the single one stays)."""
        if heads < 1 or heads % self.group:
            raise ShapeError(
                f"{heads} heads do not make whole key/value groups: this layer has {self.heads} heads on "
                f"{self.kv_heads} key/value heads, so heads must be a multiple of {self.group}"
            )
        kv_heads = heads if self.kv_heads == self.heads else 1 if self.kv_heads == 1 else heads // self.group
        return replace(self, heads=heads, kv_heads=kv_heads, head_dim=head_dim or self.head_dim)


Block = tuple[Layer, ...]


@dataclass(frozen=True)
class Stage:
    """One upstream list of blocks, by its path; ``fixed`` where upstream keeps no list (a pooling head).

    ``least`` is the number of blocks below which another width would come out; it is the model's, not the shape's.
    """

    name: str
    blocks: tuple[Block, ...]
    fixed: bool = False
    least: int = field(default=1, compare=False)

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @cached_property
    def primary(self) -> Layer | None:
        """The layer that a redesign sets: the widest of the first block with attention, with an MLP if any."""
        return next(
            (max(block, key=lambda layer: (layer.width, layer.mlp > 0)) for block in self.blocks if block), None
        )

    @cached_property
    def primaries(self) -> Block:
        """The primary layers of all blocks; they change in proportion to :attr:`primary`."""
        return tuple(layer for block in self.blocks for layer in widest(block))

    @cached_property
    def mixture(self) -> Layer | None:
        """The first primary layer with routed experts; a mixture's first layers are often dense."""
        return next((layer for layer in self.primaries if layer.experts), None)

    @cached_property
    def group(self) -> int:
        """How many heads can be added at a time: whole key/value groups in every primary layer."""
        heads = self.primary.heads if self.primary else 1
        return math.lcm(
            *(layer.group * heads // math.gcd(layer.heads, layer.group * heads) for layer in self.primaries)
        )

    @cached_property
    def units(self) -> int:
        """How many hidden units can be added at a time: whole ones in every primary layer."""
        mlp = self.primary.mlp if self.primary else 0
        return math.lcm(*(mlp // math.gcd(layer.mlp, mlp) for layer in self.primaries if layer.mlp and mlp))

    @cached_property
    def shortest(self) -> int:
        """Smallest depth that keeps two blocks with attention (one if the stage has one) and the stage's output width.

        With attention in one block among several there would be no depth to trade.
        """
        attending = [index for index, block in enumerate(self.blocks) if block]
        enough = 1 if attending[:2] in ([0], [0, 1]) else attending[1] + 1
        return max(enough, self.least)

    def reshape(
        self,
        depth: int | None = None,
        heads: int | None = None,
        head_dim: int | None = None,
        mlp: int | None = None,
        experts: int | None = None,
        active: int | None = None,
    ) -> Stage:
        """This stage with ``depth`` blocks (the first ones; the last is repeated to deepen) and another primary layer.

        The primary layers of a block are its widest ones: TNT's outer layer, both layers of DaViT. Those of all blocks
        change in proportion, and all mixtures to so many experts. Raises ShapeError where that leaves no integers.
        """
        if experts is not None or active is not None:
            return self.mixing(experts, active).reshape(depth, heads, head_dim, mlp)
        depth = self.depth if depth is None else depth
        if depth < 1 or (self.fixed and depth != self.depth):
            allowed = "exactly 1" if self.fixed else "at least 1"
            raise ShapeError(f"stage {self.name!r} was asked for {depth} blocks; it takes {allowed}")
        if mlp is not None and mlp < 1 and self.primary and self.primary.mlp:
            raise ShapeError(f"stage {self.name!r} was asked for MLPs of {mlp} units; they take at least 1")
        if mlp and self.primary and not self.primary.mlp:
            raise ShapeError(f"stage {self.name!r} was asked for MLPs of {mlp} units; no MLP of it is known")
        blocks = self.blocks[:depth] + self.blocks[-1:] * (depth - self.depth)
        asked = {"heads": heads, "head_dim": head_dim, "mlp": mlp}
        return replace(self, blocks=tuple(self._changed(block, asked) for block in blocks))

    def mixing(self, experts: int | None = None, active: int | None = None) -> Stage:
        """This stage with so many routed experts in every mixture, so many of them active. Raises ShapeError."""
        if self.mixture is None:
            raise ShapeError(f"stage {self.name!r} has no routed experts whose number could change")
        every, some = experts or self.mixture.experts, active or self.mixture.active
        if not some:
            raise ShapeError(
                f"stage {self.name!r}: nothing says to how many of its {self.mixture.experts} experts a token is sent, "
                "so their number stays"
            )
        if some > every:
            raise ShapeError(
                f"stage {self.name!r} would send a token to {some} of {every} experts; with {every} experts at most as "
                "many are active (--active-experts)"
            )
        blocks = (
            tuple(replace(layer, experts=every, active=some) if layer.experts else layer for layer in block)
            for block in self.blocks
        )
        return replace(self, blocks=tuple(blocks))

    def _changed(self, block: Block, asked: Mapping[str, int | None]) -> Block:
        primaries = widest(block)
        return tuple(self._in_proportion(layer, asked) if layer in primaries else layer for layer in block)

    def _in_proportion(self, layer: Layer, asked: Mapping[str, int | None]) -> Layer:
        """A layer changed in proportion to the primary layer, which becomes as asked."""
        new = {name: getattr(layer, name) for name in asked}
        for name, value in asked.items():
            old = getattr(self.primary, name)
            if value is not None and old:
                new[name], rest = divmod(new[name] * value, old)
                if rest:
                    raise ShapeError(
                        f"stage {self.name!r} has layers of {old} and of {getattr(layer, name)} {name}, which change "
                        f"in proportion: {value} in the first leaves no integer in the others"
                    )
        return replace(layer.with_heads(new["heads"], new["head_dim"]), mlp=new["mlp"])


def primary_of(stage: Stage) -> Layer:
    """The primary layer of a stage. Raises ShapeError where the stage has none."""
    if stage.primary is None:
        raise ShapeError(f"stage {stage.name!r} holds no attention")
    return stage.primary


def widest(block: Block) -> Block:
    """The primary layers of a block."""
    width = max((layer.width for layer in block), default=0)
    return tuple(layer for layer in block if layer.width == width)


@dataclass(frozen=True)
class Architecture:
    """The shape of a whole model. ``source`` says whose shape it is; equality is of shapes alone."""

    source: str = field(compare=False)
    stages: tuple[Stage, ...]

    @property
    def depth(self) -> int:
        return sum(stage.depth for stage in self.stages)

    @property
    def varied(self) -> tuple[int, ...]:
        """Indices of the stages that a search varies: lists of three or more blocks.

        Shorter ones (class attention, a pooling head, DaViT's single blocks) hold few parameters and no depth to
        trade; the published redesigns leave them alone too. If all are short, every list is varied, and without any
        list every attention.
        """
        stages = [i for i, stage in enumerate(self.stages) if stage.primary]
        lists = [i for i in stages if not self.stages[i].fixed]
        return tuple(i for i in lists if self.stages[i].depth >= 3) or tuple(lists or stages)

    def map_layers(self, change: Callable[[Layer], Layer]) -> Architecture:
        """The architecture with ``change`` applied to every layer."""
        return replace(
            self,
            stages=tuple(
                replace(stage, blocks=tuple(tuple(change(layer) for layer in block) for block in stage.blocks))
                for stage in self.stages
            ),
        )

    def grown(self, heads: int | Sequence[int] | None = None, factor: int | None = None) -> Architecture:
        """More heads at constant head_dim: ``factor`` times as many in every layer, or ``heads`` in every stage.

        A single ``heads`` goes to the stages in :attr:`varied`; a sequence names one number a stage.
        """
        if (heads is None) == (factor is None):
            raise ShapeError("grow takes either heads=… or factor=…, exactly one of them")
        if factor is not None:
            if factor < 1:
                raise ShapeError(f"grow was asked for a factor of {factor}; a factor must be an integer of at least 1")
            return self.map_layers(lambda layer: layer.with_heads(layer.heads * factor))
        assert heads is not None
        grown = replace(
            self,
            stages=tuple(
                stage if wanted is None else stage.reshape(heads=wanted)
                for stage, wanted in zip(self.stages, self.per_stage(heads, "heads"), strict=True)
            ),
        )
        for old, new in zip(self.layers(), grown.layers(), strict=True):
            if new.heads < old.heads:
                raise ShapeError(f"grow was asked for {new.heads} heads; this layer has {old.heads} already")
        return grown

    def layers(self) -> Iterable[Layer]:
        return (layer for stage in self.stages for block in stage.blocks for layer in block)

    def per_stage(self, value: int | Sequence[int] | None, what: str) -> list[int | None]:
        """``value`` for each stage: one number goes to the varied stages, a list names those, or all."""
        if isinstance(value, Sequence):
            if len(value) == 1:
                return self.per_stage(value[0], what)
            if len(value) == len(self.varied) != len(self.stages):
                named = dict(zip(self.varied, value, strict=True))
                return [named.get(i) for i in range(len(self.stages))]
            if len(value) != len(self.stages):
                names = ", ".join(f"{stage.name} ({stage.depth})" for stage in self.stages)
                raise ShapeError(
                    f"{what} was given {len(value)} values; this model has {len(self.stages)} stages: {names}"
                )
            return list(value)
        return [value if i in self.varied else None for i in range(len(self.stages))]

    def __str__(self) -> str:
        return "; ".join(f"{stage.name}: {_words(stage.blocks)}" for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; equal consecutive blocks are written once, with their number."""
        return {
            "source": self.source,
            "stages": [
                {
                    "name": stage.name,
                    "fixed": stage.fixed,
                    "blocks": [
                        {"repeat": count, "layers": [_layer_to_json(layer) for layer in block]}
                        for block, count in run_lengths(stage.blocks)
                    ],
                }
                for stage in self.stages
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Architecture:
        """The inverse of :meth:`to_json`. A malformed object raises ShapeError."""
        try:
            return cls(
                source=data["source"],
                stages=tuple(
                    Stage(
                        name=stage["name"],
                        fixed=stage["fixed"],
                        blocks=tuple(
                            tuple(Layer(**layer) for layer in run["layers"])
                            for run in stage["blocks"]
                            for _ in range(run["repeat"])
                        ),
                    )
                    for stage in data["stages"]
                ),
            )
        except (KeyError, TypeError) as error:
            raise ShapeError(f"this is not an architecture: {error}") from error


def _layer_to_json(layer: Layer) -> dict[str, int]:
    """The numbers of a layer; those of a mixture only where it is one."""
    dense = () if layer.experts else ("experts", "active")
    return {name: value for name, value in asdict(layer).items() if name not in dense}


def run_lengths(blocks: Iterable[Block]) -> list[tuple[Block, int]]:
    """Equal consecutive blocks, each with how often it stands there."""
    return [(block, sum(1 for _ in run)) for block, run in groupby(blocks)]


def _words(blocks: tuple[Block, ...]) -> str:
    return " + ".join(
        f"{count} × [" + ", ".join(_layer_words(layer) for layer in block) + "]" for block, count in run_lengths(blocks)
    )


def _layer_words(layer: Layer) -> str:
    kv = "" if layer.kv_heads == layer.heads else f" on {layer.kv_heads} kv"
    active = f" ({layer.active} active)" if layer.active else ""
    experts = f"{layer.experts} experts{active} of " if layer.experts else ""
    return f"{layer.heads}×{layer.head_dim}{kv}, mlp {experts}{layer.mlp}, width {layer.width}"
