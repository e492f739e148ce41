"""The price of any shape of a model, by arithmetic on a handful of counts. Imports no torch.

A block's parameters and MACs are affine in its heads at a fixed head_dim and affine in its MLP's hidden units, whatever
the family, because projections, attention maps and per-head parameters all are. So three counts of a shortened model
price every head count and every MLP of a block, and the search is integer arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from leanify.architecture import Architecture, primary_of
from leanify.design.prices.costs import ModelCosts
from leanify.design.prices.shapes import Cost, Shape, StageShape, shape_of
from leanify.spectra.theory import gaussian_kappa

StageNs = Callable[["PriceList", int, StageShape], Any]


@dataclass(frozen=True)
class Line:
    """How a price changes with heads and MLP at one head_dim; it is affine in both.

    ``group`` is how many heads are added at a time, ``units`` how many hidden units.
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
    """The prices of every block of a model, counted when they are first needed.

    facts    the model as it stands
    changed  the stages whose shape may change, by index
    base     the cost of the model with every changed stage at its minimum depth
    tokens   N of A in each stage

    A block's price is the cost of a model that ends with it, less the cost of one that ends before it, with
    all blocks of the stage in the same shape: some share tables of positions. Blocks that look alike (same
    layers, modules, parameters and switches) and have the same MACs share a price.
    """

    def __init__(self, costs: ModelCosts, changed: Sequence[int] | None = None) -> None:
        self.costs = costs
        self.facts = costs.facts
        self.architecture = self.facts.architecture
        self.changed = tuple(self.architecture.varied if changed is None else changed)
        self.base = costs.cost(self._shortened())
        self.tokens = costs.tokens(self._shortened())
        self._line = cache(self._count_line)
        self._blocks = cache(self._count_blocks)
        self._base_ns, self._stage_ns = 0, None  # type: int, StageNs | None

    @property
    def baseline(self) -> Shape:
        """The changed stages as they are in the source."""
        return shape_of(self.architecture, self.changed)

    def timed(self, base_ns: int, stage_ns: StageNs) -> PriceList:
        """The same prices with nanoseconds: ``base_ns`` and, for each stage, ``stage_ns(prices, index, shape)``."""
        made = copy(self)
        made._base_ns, made._stage_ns = base_ns, stage_ns
        return made

    def total(self, shape: Shape) -> Cost:
        """The cost of the model in this shape. Arrays of ``mlp`` give arrays of costs."""
        cost = replace(self.base, ns=self._base_ns)
        for index, stage in enumerate(shape):
            if stage is not None:
                cost = cost + self.stage(index, stage)
        return cost

    def stage(self, index: int, shape: StageShape) -> Cost:
        """What a stage in this shape adds to `base`."""
        cost = self.counted(index, shape)
        return cost if self._stage_ns is None else replace(cost, ns=self._stage_ns(self, index, shape))

    def counted(self, index: int, shape: StageShape) -> Cost:
        """`stage` without time."""
        anchor = self._anchor(index, shape)
        shortest = self.architecture.stages[index].shortest
        cost: Cost = self._line(index, shortest, anchor)(shape.heads, shape.mlp) - self.base
        for block, times in self._blocks(index, shape.depth).items():
            with_it = self._line(index, block + 1, anchor)
            without = self._line(index, block, anchor)
            cost = cost + (with_it - without)(shape.heads, shape.mlp) * times
        return cost

    def held(self, stages: Sequence[int], cost: str) -> int:
        """How much of a cost the blocks of these stages have in the source."""
        if cost in ("macs", "kv", "ns"):
            shapes = [(index, shape) for index, shape in enumerate(shape_of(self.architecture, stages)) if shape]
            return sum(int(getattr(self.stage(index, shape), cost)) for index, shape in shapes)
        return self.costs.params_of(stages)

    def kappa(self, shape: Shape) -> float:
        """The largest predicted κ of the changed stages (Theorem 3.2); other stages are equal in all designs."""
        stages = zip(shape, self.tokens, strict=True)
        return max(gaussian_kappa(stage.inner, tokens) for stage, tokens in stages if stage is not None)

    def attention_share(self, index: int, shape: StageShape) -> Any:
        """The share of attention in a block's parameters: of those that grow with heads or with hidden units,
        and in a mixture of those that one token uses. An array if ``mlp`` is one.
        """
        line = self._line(index, self.architecture.stages[index].shortest, self._anchor(index, shape))
        attention = line.per_group.active / line.group * shape.heads
        return attention / (attention + self.mlp_params(index, shape))

    def mlp_params(self, index: int, shape: StageShape) -> Any:
        """The parameters of a block's MLP that one token uses. An array if ``mlp`` is one."""
        line = self._line(index, self.architecture.stages[index].shortest, self._anchor(index, shape))
        return line.per_units.active / line.units * shape.mlp

    def _count_blocks(self, index: int, depth: int) -> Counter[int]:
        """The blocks behind the minimum depth in a stage of this depth: the first of each kind → their number.

        Blocks beyond the source's last one repeat it.
        """
        kinds = self.facts.kinds[index]
        shortest = self.architecture.stages[index].shortest
        first: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for block in range(shortest, depth):
            kind = kinds[min(block, len(kinds) - 1)]
            counts[first.setdefault(kind, block)] += 1
        return counts

    def _anchor(self, index: int, shape: StageShape) -> StageShape:
        """Where a line is counted: at the source's heads (at the shape's own if head_dim differs) and its MLP."""
        primary = primary_of(self.architecture.stages[index])
        heads = primary.heads if shape.head_dim == primary.head_dim else shape.heads
        return shape._replace(depth=0, heads=heads, mlp=primary.mlp)

    def _shortened(self) -> Architecture:
        """Every changed stage at its minimum depth."""
        stages = list(self.architecture.stages)
        for index in self.changed:
            stages[index] = stages[index].reshape(depth=stages[index].shortest)
        return replace(self.architecture, stages=tuple(stages))

    def _count_line(self, index: int, depth: int, anchor: StageShape) -> Line:
        """The price of the model with this depth in one stage, by that stage's heads and MLP."""
        stage = self.architecture.stages[index]
        heads, mlp = anchor.heads, anchor.mlp

        def at(heads: int, mlp: int) -> Cost:
            stages = list(self._shortened().stages)
            stages[index] = anchor._replace(depth=depth, heads=heads, mlp=mlp).applied_to(stage)
            return self.costs.cost(replace(self.architecture, stages=tuple(stages)))

        here = at(heads, mlp)
        per_group = at(heads + stage.group, mlp) - here
        per_units = at(heads, mlp + stage.units) - here if mlp else Cost(0, 0, 0)
        return Line(heads, stage.group, mlp, stage.units, here, per_group, per_units)
