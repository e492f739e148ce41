"""The price of any shape of a model, by arithmetic on a handful of counts. Imports no torch.

A block's parameters and MACs are affine in its heads at a fixed head_dim and affine in its MLP's hidden units, whatever
the family, because projections, attention maps and per-head parameters all are. So three counts of a shortened model
price every head count and every MLP of a block, and the search is integer arithmetic. Maps over heads (talking heads)
grow with the square of the heads: a fourth count finds that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from leanify.core.architecture import Architecture, primary_layer, widest
from leanify.profiling.cost import Cost, Shape, StageShape, read_shape
from leanify.profiling.cost_model import ModelCosts
from leanify.spectra.results import gaussian_kappa


@dataclass(frozen=True)
class Line:
    """A price as a function of heads and MLP at one head_dim, affine but for ``curve``.

    ``group`` heads are added at a time, and ``units`` hidden units. ``curve`` is how much more the next group costs
    than the one before: 0 without maps over heads.
    """

    heads: int
    group: int
    mlp: int
    units: int
    at: Cost
    per_group: Cost
    per_units: Cost
    curve: Cost

    def __call__(self, heads: int, mlp: Any) -> Cost:
        more_heads, more_units = (heads - self.heads) // self.group, (mlp - self.mlp) // self.units
        pairs = more_heads * (more_heads - 1) // 2
        cost: Cost = self.at + self.per_group * more_heads + self.curve * pairs + self.per_units * more_units
        return cost


class PriceList:
    """The prices of every block of a model, counted when they are first needed.

    facts          the facts of the source
    stage_indices  the stages whose shape may change
    base           the cost of the model with each of them at its minimum depth
    tokens         N of A in each stage
    has_own_width  whether the model has the width of its source, for which rows may be published

    A block's price is the cost of a model that ends with it, less the cost of one that ends before it, with
    all blocks of the stage in the same shape: some share tables of positions. Blocks that look alike (same
    layers, modules, parameters and switches) and have the same MACs share a price.
    """

    def __init__(
        self, costs: ModelCosts, stage_indices: Sequence[int] | None = None, has_own_width: bool = True
    ) -> None:
        self.costs, self.has_own_width = costs, has_own_width
        self.facts = costs.facts
        self.architecture = self.facts.architecture
        if stage_indices is None:
            stage_indices = self.architecture.variable_stages
        self.stage_indices = tuple(stage_indices)
        self.base = costs.cost(self._short_architecture())
        self.tokens = costs.tokens(self._short_architecture())
        self._line = cache(self._count_line)
        self._blocks = cache(self._count_blocks)

    @property
    def baseline(self) -> Shape:
        """The changed stages as they are in the source."""
        return read_shape(self.architecture, self.stage_indices)

    def total(self, shape: Shape, base: Cost | None = None) -> Cost:
        """The cost of the model in this shape, added to ``base``. Arrays of ``mlp`` give arrays of costs."""
        cost = self.base if base is None else base
        for index, stage in enumerate(shape):
            if stage is not None:
                cost = cost + self.stage(index, stage)
        return cost

    def stage(self, index: int, shape: StageShape) -> Cost:
        """The cost that a stage in this shape adds to `base`."""
        # a line starts at the source's heads (the shape's own if head_dim differs) and its MLP
        source = self.architecture.stages[index]
        primary = primary_layer(source)
        heads = primary.heads if shape.head_dim == primary.head_dim else shape.heads
        anchor = shape._replace(depth=0, heads=heads, mlp=primary.mlp)
        cost: Cost = self._line(index, source.shortest, anchor)(shape.heads, shape.mlp) - self.base
        for block, times in self._blocks(index, shape.depth).items():
            with_it = self._line(index, block + 1, anchor)
            without = self._line(index, block, anchor)
            cost = cost + (with_it(shape.heads, shape.mlp) - without(shape.heads, shape.mlp)) * times
        return cost

    def fixed_cost(self, stages: Sequence[int], cost: str) -> int:
        """How much of a cost the blocks of these stages have in the source."""
        if cost in ("macs", "kv"):
            shapes = [(index, shape) for index, shape in enumerate(read_shape(self.architecture, stages)) if shape]
            return sum(int(getattr(self.stage(index, shape), cost)) for index, shape in shapes)
        return self.costs.stage_params(stages)

    def kappa(self, shape: Shape) -> float:
        """The largest predicted κ of the changed stages (Theorem 3.2); other stages are equal in all designs."""
        stages = zip(shape, self.tokens, strict=True)
        return max(gaussian_kappa(stage.inner, tokens) for stage, tokens in stages if stage is not None)

    def is_gated(self, index: int) -> bool:
        """Whether the MLPs of a stage have three maps a hidden unit, as gated ones do, and not two."""
        stage = self.architecture.stages[index]
        primary = primary_layer(stage)
        if not primary.mlp:
            return False
        line = self._line(index, stage.shortest, StageShape(0, primary.heads, primary.head_dim, primary.mlp))
        params = line.per_units.active / line.units * primary.mlp  # of a block's MLP, that one token uses
        layers = len(widest(next(block for block in stage.blocks if block)))  # DaViT's blocks have two MLPs
        units = layers * primary.mlp * max(1, primary.active)
        return bool(params > 2.5 * units * primary.width)

    def _count_blocks(self, index: int, depth: int) -> Counter[int]:
        """The first block of each kind after the minimum depth → their number; those after the last repeat it."""
        kinds = self.facts.kinds[index]
        shortest = self.architecture.stages[index].shortest
        first: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for block in range(shortest, depth):
            kind = kinds[min(block, len(kinds) - 1)]
            counts[first.setdefault(kind, block)] += 1
        return counts

    def _short_architecture(self) -> Architecture:
        """Every changed stage at its minimum depth."""
        stages = list(self.architecture.stages)
        for index in self.stage_indices:
            stages[index] = stages[index].reshape(depth=stages[index].shortest)
        return replace(self.architecture, stages=tuple(stages))

    def _count_line(self, index: int, depth: int, anchor: StageShape) -> Line:
        """The price of the model with this depth in one stage, by that stage's heads and MLP."""
        stage = self.architecture.stages[index]
        heads, mlp = anchor.heads, anchor.mlp

        # the model's cost with this stage changed and every other one at its minimum depth
        def model_cost(heads: int, mlp: int) -> Cost:
            stages = list(self._short_architecture().stages)
            stages[index] = anchor._replace(depth=depth, heads=heads, mlp=mlp).applied_to(stage)
            return self.costs.cost(replace(self.architecture, stages=tuple(stages)))

        # linear in heads and in MLP units: three counts give the line; where heads are mapped, a fourth its curve
        start_cost = model_cost(heads, mlp)
        per_group = model_cost(heads + stage.group, mlp) - start_cost
        per_units = model_cost(heads, mlp + stage.units) - start_cost if mlp else Cost(0, 0, 0)
        curve = Cost(0, 0, 0)
        if self.facts.maps_heads:
            curve = model_cost(heads + 2 * stage.group, mlp) - start_cost - per_group * 2
        return Line(heads, stage.group, mlp, stage.units, start_cost, per_group, per_units, curve)
