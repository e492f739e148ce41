"""What a design costs, by arithmetic: a price list of every block of a model, from a handful of counts.

A block's parameters and MACs are affine in its heads at a fixed head_dim and affine in its MLP's hidden units, whatever
the family, because projections, attention maps and per-head parameters all are; so three counts of a shortened model
price every head count and every MLP of a block, and the search is integer arithmetic. Knows no torch: counts come from
an appraiser, which is the live model (`appraisal`) or what was remembered of it (`price_cache`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from leanify.architecture import Architecture, Layer, Stage, primary_of
from leanify.design.prices.cost import Cost
from leanify.design.prices.facts import Appraiser
from leanify.spectra.theory import gaussian_kappa

if TYPE_CHECKING:
    from leanify.design.search.latency import Latency


class StageDesign(NamedTuple):
    """What a search changes in one stage. ``mlp`` may be an array: a design for each of its entries.

    ``experts`` and ``active`` are those of its mixtures, 0 where they stay.
    """

    depth: int
    heads: int
    head_dim: int
    mlp: Any
    experts: int = 0
    active: int = 0

    def applied_to(self, stage: Stage) -> Stage:
        """The stage in this shape."""
        return stage.reshape(self.depth, self.heads, self.head_dim, self.mlp, self.experts or None, self.active or None)


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

    facts   the model as it stands
    turned  the stages whose designs vary, by index
    base    the cost of the model with the shortest that each of them can be
    tokens  N of A in each stage
    latency how long designs take, where that was fitted

    A block's price is that of a model that ends with it, less that of a model that ends before it, all blocks of the
    stage in the same shape: some share tables of positions. Blocks that look alike (same layers, same modules, same
    parameters, same switches) and take as many MACs where they stand share a price.
    """

    def __init__(self, appraiser: Appraiser, turned: Sequence[int] | None = None) -> None:
        self.appraiser = appraiser
        self.latency: Latency | None = None
        self.facts = appraiser.facts
        self.architecture = self.facts.architecture
        self.turned = tuple(self.architecture.varied if turned is None else turned)
        self.count = cache(appraiser.count)
        self.base = self.count(self._shortened())
        self.tokens = appraiser.tokens(self._shortened())
        self._line = cache(self._count_line)
        self._blocks = cache(self._count_blocks)

    def total(self, designs: Sequence[StageDesign | None]) -> Cost:
        """The cost of a design in each stage; None leaves a stage as it is. Arrays of mlp give arrays of costs."""
        cost = self.base if self.latency is None else replace(self.base, ns=self.latency.base_ns)
        for index, design in enumerate(designs):
            if design is not None:
                cost = cost + self.more(index, design)
        return cost

    def timed(self, latency: Latency) -> PriceList:
        """The same prices, and nanoseconds by a fitted line."""
        made = copy(self)
        made.latency = latency
        return made

    def more(self, index: int, design: StageDesign) -> Cost:
        """What one stage's design adds to the shortest model."""
        cost = self.counted(index, design)
        return cost if self.latency is None else replace(cost, ns=self.latency.stage_ns(self, index, design))

    def counted(self, index: int, design: StageDesign) -> Cost:
        """`more` without what is timed."""
        anchor = self._anchor(index, design)
        shortest = self.architecture.stages[index].shortest
        cost: Cost = self._line(index, shortest, anchor)(design.heads, design.mlp) - self.base
        for block, times in self._blocks(index, design.depth).items():
            with_it = self._line(index, block + 1, anchor)
            without = self._line(index, block, anchor)
            cost = cost + (with_it - without)(design.heads, design.mlp) * times
        return cost

    def held(self, stages: Sequence[int], cost: str) -> int:
        """How much of a cost the blocks of these stages hold in the source."""
        if cost in ("macs", "kv", "ns"):
            primaries = {i: primary for i in stages if (primary := self.architecture.stages[i].primary)}
            designs = {
                i: StageDesign(self.architecture.stages[i].depth, *_shape(primary)) for i, primary in primaries.items()
            }
            return sum(int(getattr(self.more(i, design), cost)) for i, design in designs.items())
        return self.appraiser.held(stages)

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
        line = self._line(index, self.architecture.stages[index].shortest, self._anchor(index, design))
        attention = line.per_group.active / line.group * design.heads
        return attention / (attention + line.per_units.active / line.units * design.mlp)

    def _alike(self, index: int, block: int) -> int:
        """The first block behind the shortest stage that looks like this one; blocks beyond the last repeat it."""
        kinds = self.facts.kinds[index]
        shortest = self.architecture.stages[index].shortest
        kind = kinds[min(block, len(kinds) - 1)]
        return next(i for i in range(shortest, block + 1) if kinds[min(i, len(kinds) - 1)] == kind)

    def _count_blocks(self, index: int, depth: int) -> Counter[int]:
        """How often each block behind the shortest stage stands in one of this depth, like ones as the first."""
        return Counter(self._alike(index, i) for i in range(self.architecture.stages[index].shortest, depth))

    def _anchor(self, index: int, design: StageDesign) -> StageDesign:
        """Where a line is counted: at the stage's own heads, or at each split's, its own MLP and the asked experts."""
        primary = primary_of(self.architecture.stages[index])
        heads = primary.heads if design.head_dim == primary.head_dim else design.heads
        return design._replace(depth=0, heads=heads, mlp=primary.mlp)

    def _shortened(self) -> Architecture:
        """Every turned stage as short as it can be."""
        stages = enumerate(self.architecture.stages)
        return replace(
            self.architecture,
            stages=tuple(stage.reshape(depth=stage.shortest) if i in self.turned else stage for i, stage in stages),
        )

    def _count_line(self, index: int, depth: int, anchor: StageDesign) -> Line:
        """The price of the model with so many blocks in one stage, by their heads and MLP."""
        stage = self.architecture.stages[index]
        heads, mlp = anchor.heads, anchor.mlp

        def at(heads: int, mlp: int) -> Cost:
            short = self._shortened()
            stages = list(short.stages)
            stages[index] = anchor._replace(depth=depth, heads=heads, mlp=mlp).applied_to(stage)
            return self.count(replace(short, stages=tuple(stages)))

        here = at(heads, mlp)
        per_group = at(heads + stage.group, mlp) - here
        per_units = at(heads, mlp + stage.units) - here if mlp else Cost(0, 0, 0)
        return Line(heads, stage.group, mlp, stage.units, here, per_group, per_units)


def _shape(layer: Layer) -> tuple[int, int, int]:
    return layer.heads, layer.head_dim, layer.mlp
