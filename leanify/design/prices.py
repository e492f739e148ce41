"""What a design costs, by arithmetic: a price list of every block of a model, from a handful of counts.

A block's parameters and MACs are affine in its heads at a fixed head_dim and affine in its MLP's hidden units, whatever
the family, because projections, attention maps and per-head parameters all are; so three counts of a shortened model
price every head count and every MLP of a block, and the search is integer arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from torch import nn

from leanify.architecture import Architecture, Layer, Stage
from leanify.design.counting import (
    Cost,
    count_located,
    macs_by_module,
    observed_on_cpu,
    observed_on_meta,
    parameters,
    token_counts,
    unmasked_inputs,
)
from leanify.lens.located import LocatedStage
from leanify.lens.sites import locate
from leanify.lens.surgery import write_located
from leanify.spectra.theory import gaussian_kappa
from leanify.upstream.caches import kept_by, longest_context, looks_back
from leanify.upstream.inputs import words_of

CONTEXT = 4096
COUNTED_IN_MEMORY = 500_000_000  # parameters; a larger model that does not run on meta is not counted whole


class StageDesign(NamedTuple):
    """What a search changes in one stage. ``mlp`` may be an array: a design for each of its entries."""

    depth: int
    heads: int
    head_dim: int
    mlp: Any

    def applied_to(self, stage: Stage) -> Stage:
        """The stage in this shape."""
        return stage.reshape(self.depth, self.heads, self.head_dim, self.mlp)


@dataclass(frozen=True)
class Line:
    """How a price changes with heads and MLP, at one head_dim; affine in both.

    ``group`` is how many heads come at a time, ``units`` how many hidden units.
    """

    heads: int
    group: int
    mlp: int
    units: int
    at: Cost
    per_group: Cost
    per_units: Cost

    def __call__(self, heads: int, mlp: Any) -> Cost:
        more_heads, more_units = (heads - self.heads) // self.group, (mlp - self.mlp) // self.units
        cost: Cost = self.at + self.per_group * more_heads + self.per_units * more_units
        return cost

    def __sub__(self, other: Line) -> Line:
        """The line of a difference; both start at the same heads and MLP."""
        return replace(
            self,
            at=self.at - other.at,
            per_group=self.per_group - other.per_group,
            per_units=self.per_units - other.per_units,
        )


class PriceList:
    """Prices of every block of a model, counted when they are first asked for.

    turned  the stages whose designs vary, by index
    base    the model with the shortest that each of them can be
    tokens  N of A in each stage
    inputs  what one sample is, in words
    whole   MACs of every module of the model as it stands, by path; None where that was not counted

    A block's price is that of a model that ends with it, less that of a model that ends before it, all blocks of the
    stage in the same shape: some share tables of positions. Blocks that look alike (same layers, same modules, same
    parameters, same switches) and take as many MACs where they stand share a price.
    """

    def __init__(
        self,
        model: nn.Module,
        tokens: int | None = None,
        turned: Sequence[int] | None = None,
        context: int | None = None,
    ) -> None:
        self._asked = tokens
        self.context = context or context_of(model)
        self.inputs = words_of(unmasked_inputs(model, tokens))
        self.located = locate(model)
        self.architecture = self.located.architecture
        self.turned = tuple(self.architecture.varied if turned is None else turned)
        self.model = model
        self.whole = self._count_whole()
        self._kinds = [_kinds(model, stage, self.whole or {}) for stage in self.located.stages]
        self.count = cache(lambda shape: count_located(write_located(self.located, shape), tokens, self.context))
        self.base = self.count(self._shortened())
        self.tokens = token_counts(write_located(self.located, self._shortened()), tokens)
        self._line = cache(self._count_line)
        self._blocks = cache(self._count_blocks)

    def total(self, designs: Sequence[StageDesign | None]) -> Cost:
        """The cost of a design in each stage; None leaves a stage as it is. Arrays of mlp give arrays of costs."""
        cost = self.base
        for index, design in enumerate(designs):
            if design is not None:
                cost = cost + self.more(index, design)
        return cost

    def more(self, index: int, design: StageDesign) -> Cost:
        """What one stage's design adds to the shortest model."""
        anchor = self._anchor(index, design)
        shortest = self.architecture.stages[index].shortest
        cost: Cost = self._line(index, shortest, design.head_dim, anchor)(design.heads, design.mlp) - self.base
        for block, times in self._blocks(index, design.depth).items():
            with_it = self._line(index, block + 1, design.head_dim, anchor)
            without = self._line(index, block, design.head_dim, anchor)
            cost = cost + (with_it - without)(design.heads, design.mlp) * times
        return cost

    def held(self, stages: Sequence[int], cost: str) -> int:
        """How much of a cost the blocks of these stages hold in the source."""
        if cost in ("macs", "kv"):
            mains = {i: main for i in stages if (main := self.architecture.stages[i].main)}
            designs = {i: StageDesign(self.architecture.stages[i].depth, *_shape(main)) for i, main in mains.items()}
            return sum(int(getattr(self.more(i, design), cost)) for i, design in designs.items())
        modules = (module for i in stages for module in _modules_of(self.located.stages[i]))
        return sum({id(p): p.numel() for module in modules for p in module.parameters()}.values())

    def _count_whole(self) -> dict[str, int] | None:
        """The MACs of every module of the model as it stands; None where only a large one in memory would tell."""
        on_meta = observed_on_meta(self.model, self._asked, macs_by_module)
        if on_meta is None and parameters(self.model) < COUNTED_IN_MEMORY:
            return observed_on_cpu(self.model, self._asked, macs_by_module)
        return on_meta

    def kappa(self, designs: Sequence[StageDesign | None]) -> float:
        """The predicted κ of the worst stage that a design turns (Theorem 3.2); the others are the same in all."""
        return max(
            gaussian_kappa(design.heads * design.head_dim, tokens)
            for design, tokens in zip(designs, self.tokens, strict=True)
            if design is not None
        )

    def attention_share(self, index: int, design: StageDesign) -> Any:
        """The share of a block's parameters that grow with heads among those that grow with heads or hidden units; of
        experts those that a token meets. For each MLP of the design where that is an array.
        """
        line = self._line(index, self.architecture.stages[index].shortest, design.head_dim, self._anchor(index, design))
        attention = line.per_group.active / line.group * design.heads
        return attention / (attention + line.per_units.active / line.units * design.mlp)

    def causal(self, index: int) -> bool:
        """Whether a stage's tokens see those before them alone."""
        return any(looks_back(layer.attention.module) for layer in self.located.stages[index].layers)

    def _alike(self, index: int, block: int) -> int:
        """The first block behind the shortest stage that looks like this one; blocks beyond the last repeat it."""
        kinds = self._kinds[index]
        shortest = self.architecture.stages[index].shortest
        kind = kinds[min(block, len(kinds) - 1)]
        return next(i for i in range(shortest, block + 1) if kinds[min(i, len(kinds) - 1)] == kind)

    def _count_blocks(self, index: int, depth: int) -> Counter[int]:
        """How often each block behind the shortest stage stands in one of this depth, like ones as the first."""
        return Counter(self._alike(index, i) for i in range(self.architecture.stages[index].shortest, depth))

    def _anchor(self, index: int, design: StageDesign) -> int:
        """Where a line is counted: at the stage's own heads, or at each split's."""
        main = self.architecture.stages[index].main
        assert main is not None
        return main.heads if design.head_dim == main.head_dim else design.heads

    def _shortened(self) -> Architecture:
        """Every turned stage as short as it can be."""
        stages = enumerate(self.architecture.stages)
        return replace(
            self.architecture,
            stages=tuple(stage.reshape(depth=stage.shortest) if i in self.turned else stage for i, stage in stages),
        )

    def _count_line(self, index: int, depth: int, head_dim: int, heads: int) -> Line:
        """The price of the model with so many blocks in one stage, by their heads and MLP."""
        stage = self.architecture.stages[index]
        main = stage.main
        assert main is not None

        def at(heads: int, mlp: int) -> Cost:
            short = self._shortened()
            stages = list(short.stages)
            stages[index] = StageDesign(depth, heads, head_dim, mlp).applied_to(stage)
            return self.count(replace(short, stages=tuple(stages)))

        here = at(heads, main.mlp)
        per_group = at(heads + stage.group, main.mlp) - here
        per_units = at(heads, main.mlp + stage.units) - here if main.mlp else Cost(0, 0, 0)
        return Line(heads, stage.group, main.mlp, stage.units, here, per_group, per_units)


def _modules_of(stage: LocatedStage) -> list[nn.Module]:
    """What holds a stage's parameters: its list, or without one its attentions and MLPs."""
    if stage.container is not None:
        return [stage.container]
    return [site.module for layer in stage.layers for site in (layer.attention, layer.mlp) if site is not None]


def _shape(layer: Layer) -> tuple[int, int, int]:
    return layer.heads, layer.head_dim, layer.mlp


def context_of(model: nn.Module) -> int:
    """The context at which caches are compared: as long as the model takes, at most 4,096 tokens."""
    return min(longest_context(model) or CONTEXT, CONTEXT)


def _kinds(model: nn.Module, stage: LocatedStage, macs: Mapping[str, int]) -> list[int]:
    """For each block the index of the first one that looks like it and takes as many of the ``macs``, by path."""
    if stage.container is None:
        return [0]
    looks = [
        (
            tuple((layer.read(), kept_by(model, layer.attention.module)) for layer in layers),
            tuple(type(module).__qualname__ for module in block.modules()),
            tuple(parameter.shape for parameter in block.parameters()),
            tuple((k, v) for module in block.modules() for k, v in vars(module).items() if isinstance(v, bool)),
            macs.get(f"{stage.name}.{name}"),
        )
        for layers, (name, block) in zip(stage.blocks, stage.container.named_children(), strict=True)
    ]
    return [looks.index(look) for look in looks]
