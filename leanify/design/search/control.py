"""The control: lean's depth and parameters, the baseline's heads, wider MLPs. It isolates the effect of heads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from leanify.architecture import Stage, primary_of
from leanify.design.prices.price_list import PriceList
from leanify.design.search.constraints import SMALL_MULTIPLE, Constraints
from leanify.design.search.grid import Candidate, Designs, priced
from leanify.design.search.towers import Tower, towers

CLOSE = 0.001  # of lean's parameters


def control(prices: PriceList, chosen: Candidate, constraints: Constraints | None = None) -> Candidate | None:
    """Same depth and parameters as ``chosen``, the baseline's heads, wider MLPs in each tower.

    The MLPs keep to the largest multiple that comes within 0.1 % of lean's parameters: 64, 32, 16, else 8 and as near
    as that comes. None where the stages have no MLP to widen, and where lean has the baseline's heads itself: the
    control is always another design than lean.
    """
    rules = constraints or Constraints()
    stages = prices.architecture.stages
    designs = old_heads(stages, chosen.designs)
    if designs == chosen.designs or not any(d and d.mlp for d in designs):
        return None
    for tower in towers(prices.architecture, prices.turned):
        if any(designs[i] != chosen.designs[i] for i in tower.stages):
            designs = _widened(prices, tower, designs, chosen, rules)
    return priced(prices, designs)


def has_close_control(prices: PriceList, tower: Tower, lean: Candidate, constraints: Constraints) -> bool:
    """Whether one tower's lean design has a control within 0.1 % of its parameters, or none at all."""
    old = old_heads(prices.architecture.stages, lean.designs)
    if not any(design and design.mlp for design in old):
        return True
    found = _widened(prices, tower, old, lean, constraints)
    off = _params(prices, tower, found) - _params(prices, tower, lean.designs)
    return bool(abs(off) <= CLOSE * lean.cost.params)


def old_heads(stages: Sequence[Stage], designs: Designs) -> Designs:
    """The designs with the baseline's heads."""
    return tuple(
        d and d._replace(heads=primary_of(s).heads, head_dim=primary_of(s).head_dim)
        for s, d in zip(stages, designs, strict=True)
    )


def _widened(prices: PriceList, tower: Tower, designs: Designs, lean: Candidate, rules: Constraints) -> Designs:
    """One tower's MLPs widened until it has lean's parameters."""
    wanted = _params(prices, tower, lean.designs)
    exact = _factor(prices, tower, designs, wanted)
    nearest: Designs = designs
    off = math.inf
    for multiple in _multiples(prices.architecture.stages, tower, rules):
        for found in _around(prices, tower, designs, exact, multiple):
            miss = abs(_params(prices, tower, found) - wanted)
            if miss < off:
                nearest, off = found, miss
        if off <= CLOSE * lean.cost.params / 2:
            break
    return nearest


def _multiples(stages: Sequence[Stage], tower: Tower, rules: Constraints) -> list[int]:
    """The multiples to try, largest first, down to what hardware likes as far as the baseline's MLP has it."""
    first = rules.granule_of(stages[tower.lead])
    return [first, *(m for m in (32, 16, SMALL_MULTIPLE) if m < first)]


def _params(prices: PriceList, tower: Tower, designs: Designs) -> int:
    return sum(int(prices.more(i, design).params) for i in tower.stages if (design := designs[i]) is not None)


def _factor(prices: PriceList, tower: Tower, designs: Designs, wanted: int) -> float:
    """By how much every MLP of the tower would be multiplied, if units were divisible: parameters are affine in it."""
    now = _params(prices, tower, designs)
    double = list(designs)
    for i in tower.stages:
        design = double[i]
        double[i] = design and design._replace(mlp=2 * design.mlp)
    per_doubling = _params(prices, tower, tuple(double)) - now
    return 1 + (wanted - now) / per_doubling if per_doubling else 1.0


def _around(prices: PriceList, tower: Tower, designs: Designs, factor: float, multiple: int) -> Iterator[Designs]:
    """The designs nearest to a factor: every MLP rounded, the leading one also a step more or less."""
    stages = prices.architecture.stages
    steps = {i: math.lcm(stages[i].units, multiple) for i in tower.stages}
    for more in (-1, 0, 1):
        found = list(designs)
        for i in tower.stages:
            design = designs[i]
            if design is None or not design.mlp:
                continue
            units = max(1, round(design.mlp * factor / steps[i]) + (more if i == tower.lead else 0))
            found[i] = design._replace(mlp=units * steps[i])
        yield tuple(found)
