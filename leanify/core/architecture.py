"""A transformer's shape as a value.

    Layer         one attention with its MLP
    Block         upstream's repeated unit: one layer (ViT, BERT, Llama), two (TNT), or none (no attention)
    Stage         one upstream list of blocks
    Architecture  all stages of a model

Values are frozen and comparable, do not depend on torch, and are serialised with run-length encoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby
from typing import Any

from leanify.core.errors import ShapeError

MAX_BLOCKS = 1024  # of a stage; the deepest published transformer has 1,000 (DeepNet, Wang et al. 2022)
MAX_SIZE = 1 << 20  # heads, channels and hidden units are fewer


def check_size(what: str, value: Any) -> None:
    """Raise ShapeError unless a value is an integer that a depth, a width or a number of heads may have."""
    if type(value) is not int:
        raise ShapeError(f"{what} is {value!r}; it must be an integer")
    if value >= MAX_SIZE or (what == "depth" and value > MAX_BLOCKS):
        limit = MAX_BLOCKS if what == "depth" else MAX_SIZE - 1
        raise ShapeError(f"{what} is {min(value, 10**300):.9g}; it must be at most {limit:,}")


@dataclass(frozen=True, order=True)
class Layer:
    """The shape of one attention and its MLP."""

    width: int  # residual channels
    heads: int  # query heads
    kv_heads: int  # key/value heads; fewer than ``heads`` under grouped-query attention
    head_dim: int  # channels of one head
    mlp: int  # hidden units of the MLP, or of one expert; 0 if this attention has no MLP
    experts: int = 0  # routed experts of a mixture; 0 if the MLP is dense
    active: int = 0  # experts per token; 0 if the configuration does not specify it

    @property
    def inner(self) -> int:
        """Width of the concatenated heads, heads × head_dim; it need not equal ``width``."""
        return self.heads * self.head_dim

    @property
    def group(self) -> int:
        """The smallest number of heads that can be added: a whole key/value group; 1 under MHA and MQA."""
        return 1 if self.kv_heads in (1, self.heads) else self.heads // self.kv_heads

    def set_heads(self, heads: int, head_dim: int | None = None) -> Layer:
        """This layer with other heads, on key/value heads in proportion (MQA has one). Raises ShapeError."""
        if heads < 1 or heads % self.group:
            raise ShapeError(
                f"{heads} heads do not form whole key/value groups: this layer has {self.heads} heads on "
                f"{self.kv_heads} key/value heads, so heads must be a multiple of {self.group}"
            )
        kv_heads = 1 if self.kv_heads == 1 < self.heads else heads // self.group
        return replace(self, heads=heads, kv_heads=kv_heads, head_dim=head_dim or self.head_dim)


Block = tuple[Layer, ...]


@dataclass(frozen=True)
class Stage:
    """One upstream list of blocks, named by its path."""

    name: str
    blocks: tuple[Block, ...]
    is_fixed: bool = False  # not a list: a pooling head
    min_depth: int = field(default=1, compare=False)  # the minimum depth that keeps the stage's output width

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @cached_property
    def primary(self) -> Layer | None:
        """The layer that a redesign sets: the widest of the first block with attention, best with an MLP."""
        for block in self.blocks:
            if block:
                return max(block, key=lambda layer: (layer.width, layer.mlp > 0))
        return None

    @cached_property
    def primaries(self) -> Block:
        """The primary layers of all blocks, which change in proportion to :attr:`primary`."""
        return tuple(chain(*map(widest, self.blocks)))

    @cached_property
    def mixture(self) -> Layer | None:
        """The first primary layer with routed experts; a mixture's first layers are often dense."""
        return next((layer for layer in self.primaries if layer.experts), None)

    @cached_property
    def group(self) -> int:
        """The smallest number of heads that can be added: whole key/value groups in every primary layer."""
        heads = self.primary.heads if self.primary else 1
        return math.lcm(
            *(layer.group * heads // math.gcd(layer.heads, layer.group * heads) for layer in self.primaries)
        )

    @cached_property
    def units(self) -> int:
        """The smallest number of hidden units that can be added: integers in every primary layer."""
        mlp = self.primary.mlp if self.primary else 0
        return math.lcm(*(mlp // math.gcd(layer.mlp, mlp) for layer in self.primaries if layer.mlp and mlp))

    @cached_property
    def shortest(self) -> int:
        """The minimum depth that keeps the output width and two blocks with attention, to trade depth."""
        attending = [index for index, block in enumerate(self.blocks) if block]
        enough = 1 if attending[:2] in ([0], [0, 1]) else attending[1] + 1
        return max(enough, self.min_depth)

    def reshape(
        self,
        depth: int | None = None,
        heads: int | None = None,
        head_dim: int | None = None,
        mlp: int | None = None,
        experts: int | None = None,
        active: int | None = None,
        width: int | None = None,
    ) -> Stage:
        """Return this stage with another depth, primary layer, or number of experts in its mixtures.

        The first blocks are kept; the last is repeated to add depth. The primary layers of a block are its
        widest ones (TNT's outer layer, both layers of DaViT), and the layers of all blocks change in proportion.
        Raises ShapeError if the result is not an integer, or a size is out of range.
        """
        # experts first: the rest applies to the mixture of the new size
        if experts is not None or active is not None:
            return self.mixing(experts, active).reshape(depth, heads, head_dim, mlp, width=width)
        # refuse shapes that the stage cannot have
        depth = self.depth if depth is None else depth
        check_size("depth", int(depth))
        if depth < 1 or (self.is_fixed and depth != self.depth):
            allowed_depth = "exactly 1" if self.is_fixed else "at least 1"
            raise ShapeError(f"stage {self.name!r} was asked for {depth} blocks; it takes {allowed_depth}")
        if mlp is not None and mlp < 1 and self.primary and self.primary.mlp:
            raise ShapeError(f"stage {self.name!r} was asked for MLPs of {mlp} units; they take at least 1")
        if mlp and self.primary and not self.primary.mlp:
            raise ShapeError(f"stage {self.name!r} was asked for MLPs of {mlp} units; no MLP of it is known")
        # the first blocks stay; further ones repeat the last
        blocks = self.blocks[:depth] + self.blocks[-1:] * (depth - self.depth)
        targets = {"heads": heads, "head_dim": head_dim, "mlp": mlp, "width": width}
        reshaped = []
        for block in blocks:
            primaries = widest(block)
            reshaped.append(tuple(self._scale(layer, targets) if layer in primaries else layer for layer in block))
        return replace(self, blocks=tuple(reshaped))

    def mixing(self, experts: int | None = None, active: int | None = None) -> Stage:
        """This stage with other numbers of routed and of active experts in mixtures. Raises ShapeError."""
        if self.mixture is None:
            raise ShapeError(f"stage {self.name!r} has no routed experts whose number could change")
        # numbers that are not set stay
        expert_count, active_count = experts or self.mixture.experts, active or self.mixture.active
        # more experts need a router whose number of active experts is known
        if not active_count:
            raise ShapeError(
                f"stage {self.name!r}: nothing says to how many of its {self.mixture.experts} experts a token is sent, "
                "so their number stays"
            )
        if active_count > expert_count:
            raise ShapeError(
                f"stage {self.name!r} would send a token to {active_count} of {expert_count} experts; at most all of "
                "them can be active (--mlp active=N)"
            )

        # every mixture of the stage changes alike
        def mix(layer: Layer) -> Layer:
            return replace(layer, experts=expert_count, active=active_count) if layer.experts else layer

        return self.map_layers(mix)

    def map_layers(self, change: Callable[[Layer], Layer]) -> Stage:
        """Return the stage with ``change`` applied to every layer."""
        return replace(self, blocks=tuple(tuple(map(change, block)) for block in self.blocks))

    def _scale(self, layer: Layer, targets: Mapping[str, int | None]) -> Layer:
        """Change a layer in proportion to the primary layer's change."""
        new = {name: getattr(layer, name) for name in targets}
        for name, value in targets.items():
            old = getattr(self.primary, name)
            if value is not None and old:
                new[name], rest = divmod(new[name] * value, old)
                if rest:
                    raise ShapeError(
                        f"stage {self.name!r} has layers of {old} and of {getattr(layer, name)} {name}, which change "
                        f"in proportion: {value} in the first leaves no integer in the others"
                    )
        return replace(layer.set_heads(new["heads"], new["head_dim"]), mlp=new["mlp"], width=new["width"])


def primary_layer(stage: Stage) -> Layer:
    """The primary layer of a stage. Raises ShapeError if it has none."""
    if stage.primary is None:
        raise ShapeError(f"stage {stage.name!r} has no attention")
    return stage.primary


def widest(block: Block) -> Block:
    """The primary layers of a block."""
    width = max((layer.width for layer in block), default=0)
    return tuple(layer for layer in block if layer.width == width)


@dataclass(frozen=True)
class Architecture:
    """The shape of a whole model. ``source`` names the model and is ignored in comparisons."""

    source: str = field(compare=False)
    stages: tuple[Stage, ...]

    @property
    def depth(self) -> int:
        return sum(stage.depth for stage in self.stages)

    @property
    def variable_stages(self) -> tuple[int, ...]:
        """Indices of the stages that a redesign changes: lists of three or more blocks.

        Shorter ones (class attention, a pooling head, DaViT's single blocks) have few parameters and no depth
        to trade, and published redesigns leave them unchanged too. If all lists are short, all are varied;
        without any list, every attention is.
        """
        stages = [i for i, stage in enumerate(self.stages) if stage.primary]
        lists = [i for i in stages if not self.stages[i].is_fixed]
        return tuple(i for i in lists if self.stages[i].depth >= 3) or tuple(lists or stages)

    def map_layers(self, change: Callable[[Layer], Layer]) -> Architecture:
        """Return the architecture with ``change`` applied to every layer."""
        return replace(self, stages=tuple(stage.map_layers(change) for stage in self.stages))

    def grown(self, heads: int | Sequence[int] | None = None, factor: int | None = None) -> Architecture:
        """This architecture with more heads of the same head_dim: ``factor`` times as many, or ``heads``.

        A single ``heads`` applies to the stages in :attr:`variable_stages`; a sequence has one number per stage.
        Raises ShapeError for fewer heads, a factor below 1, or broken key/value groups.
        """
        # one of two ways to say how many
        if (heads is None) == (factor is None):
            raise ShapeError("grow needs exactly one of heads=… and factor=…")
        if factor is not None:
            if factor < 1:
                raise ShapeError(f"grow was asked for a factor of {factor}; a factor must be an integer of at least 1")
            return self.map_layers(lambda layer: layer.set_heads(layer.heads * factor))
        # heads by stage, of which a fixed stage keeps its own
        stages = list(self.stages)
        for place, heads_target in enumerate(self.per_stage(heads, "heads")):
            if heads_target is not None:
                stages[place] = stages[place].reshape(heads=heads_target)
        grown = replace(self, stages=tuple(stages))
        # growing never takes a head away
        for old, new in zip(self.layers(), grown.layers(), strict=True):
            if new.heads < old.heads:
                raise ShapeError(f"grow was asked for {new.heads} heads; this layer has {old.heads} already")
        return grown

    def layers(self) -> Iterator[Layer]:
        for stage in self.stages:
            for block in stage.blocks:
                yield from block

    def per_stage(self, value: Any, what: str) -> list[Any]:
        """One value per stage: a number is for varied stages, a list for those or all. Raises ShapeError unless they
        are integers or None; a width may be a share.
        """
        # a list: one value for all stages that vary, or one for each stage
        if isinstance(value, Sequence) and not isinstance(value, str):
            for number in value:
                if number is not None and what != "width":
                    check_size(what, number)
            if len(value) == 1:
                return self.per_stage(value[0], what)
            if len(value) == len(self.variable_stages) != len(self.stages):
                values_by_stage = dict(zip(self.variable_stages, value, strict=True))
                return [values_by_stage.get(i) for i in range(len(self.stages))]
            if len(value) != len(self.stages):
                names = ", ".join(f"{stage.name} ({stage.depth})" for stage in self.stages)
                raise ShapeError(
                    f"{what} was given {len(value)} values; this model has {len(self.stages)} stages: {names}"
                )
            return list(value)
        # a number: for the stages that vary
        if value is not None:
            check_size(what, value)
        return [value if i in self.variable_stages else None for i in range(len(self.stages))]

    def __str__(self) -> str:
        stages = []
        for stage in self.stages:
            runs = []
            for block, count in run_lengths(stage.blocks):
                runs.append(f"{count} × [{', '.join(map(_describe_layer, block))}]")
            stages.append(f"{stage.name}: {' + '.join(runs)}")
        return "; ".join(stages)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; equal consecutive blocks are written once with their count."""
        stages = []
        for stage in self.stages:
            blocks = []
            for block, count in run_lengths(stage.blocks):
                layers = [asdict(layer) for layer in block]
                for sizes in layers:
                    if not sizes["experts"]:  # a dense layer has no sizes of a mixture
                        del sizes["experts"], sizes["active"]
                blocks.append({"repeat": count, "layers": layers})
            stages.append({"name": stage.name, "fixed": stage.is_fixed, "blocks": blocks})
        return {"source": self.source, "stages": stages}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Architecture:
        """The inverse of :meth:`to_json`. A malformed object raises ShapeError."""
        try:
            stages = []
            for stage in data["stages"]:
                blocks: list[Block] = []
                for run in stage["blocks"]:
                    check_size("depth", len(blocks) + run["repeat"])  # before a list of that length is made
                    if run["repeat"] < 1:
                        raise ShapeError(f"this is not an architecture: a block is repeated {run['repeat']} times")
                    layers = []
                    for sizes in run["layers"]:
                        for name, size in sizes.items():
                            check_size(name, size)
                        layers.append(Layer(**sizes))
                    blocks += [tuple(layers)] * run["repeat"]
                stages.append(Stage(name=stage["name"], is_fixed=stage["fixed"], blocks=tuple(blocks)))
            return cls(source=data["source"], stages=tuple(stages))
        except (KeyError, TypeError) as error:
            raise ShapeError(f"this is not an architecture: {error}") from error


def run_lengths(blocks: Iterable[Block]) -> list[tuple[Block, int]]:
    """Group equal consecutive blocks: (block, count)."""
    return [(block, len([*run])) for block, run in groupby(blocks)]


def _describe_layer(layer: Layer) -> str:
    kv = "" if layer.kv_heads == layer.heads else f" on {layer.kv_heads} kv"
    active = f" ({layer.active} active)" if layer.active else ""
    experts = f"{layer.experts} experts{active} of " if layer.experts else ""
    return f"{layer.heads}×{layer.head_dim}{kv}, mlp {experts}{layer.mlp}, width {layer.width}"
