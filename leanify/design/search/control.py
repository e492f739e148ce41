"""The control: lean's depth and parameters, the baseline's heads, wider MLPs. It isolates the effect of heads."""

from __future__ import annotations

import math
from collections.abc import Mapping

from leanify.architecture import primary_of
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Shape
from leanify.design.search.rules import SMALL_MULTIPLE, Rules
from leanify.design.search.towers import Tower, towers

CLOSE = 0.001  # of lean's parameters


def control(prices: PriceList, lean: Shape, rules: Rules) -> Shape | None:
    """The shape with lean's depth and parameters, the baseline's heads, and wider MLPs in each tower.

    Hidden units are multiples of 64, 32, 16 or 8: the largest that comes within 0.1% of lean's parameters,
    else the nearest with 8. None if the stages have no MLP to widen or if lean has the baseline's heads: the
    control is always another design than lean.
    """
    shape = _with_old_heads(prices, lean)
    if shape == lean or not any(stage and stage.mlp for stage in shape):
        return None
    params = int(prices.total(lean).params)
    for tower in towers(prices.architecture, prices.changed):
        if any(shape[i] != lean[i] for i in tower.stages):
            shape = _widened(prices, tower, shape, lean, params, rules)
    return shape


def has_close_control(prices: PriceList, tower: Tower, lean: Shape, params: int, rules: Rules) -> bool:
    """Whether one tower's lean shape has a control within 0.1% of ``params``, the whole model's; True if no
    MLP is known that it could widen.
    """
    old = _with_old_heads(prices, lean)
    if not any(stage and stage.mlp for stage in old):
        return True
    found = _widened(prices, tower, old, lean, params, rules)
    off = _params(prices, tower, found) - _params(prices, tower, lean)
    return abs(off) <= CLOSE * params


def _with_old_heads(prices: PriceList, shape: Shape) -> Shape:
    """The shape with the baseline's heads."""
    found = []
    for stage, wanted in zip(prices.architecture.stages, shape, strict=True):
        if wanted is not None:
            primary = primary_of(stage)
            wanted = wanted._replace(heads=primary.heads, head_dim=primary.head_dim)
        found.append(wanted)
    return tuple(found)


def _widened(prices: PriceList, tower: Tower, shape: Shape, lean: Shape, params: int, rules: Rules) -> Shape:
    """The shape with the tower's MLPs widened until it has lean's parameters; ``params`` is the size of lean.

    Parameters are affine in the MLPs, which gives one factor for all of them. Every MLP is rounded; the
    leading one is also tried one step narrower and wider.
    """
    stages = prices.architecture.stages
    mlps = {}
    for i in tower.stages:
        stage = shape[i]
        if stage is not None and stage.mlp:
            mlps[i] = stage.mlp
    wanted, now = _params(prices, tower, lean), _params(prices, tower, shape)
    per_doubling = _params(prices, tower, _with_mlps(shape, {i: 2 * mlp for i, mlp in mlps.items()})) - now
    factor = 1 + (wanted - now) / per_doubling if per_doubling else 1.0
    nearest, nearest_off = shape, math.inf
    first = rules.mlp_multiple(stages[tower.lead])
    for multiple in (first, *(m for m in (32, 16, SMALL_MULTIPLE) if m < first)):
        for more in (-1, 0, 1):
            rounded = {}
            for i, mlp in mlps.items():
                step = math.lcm(stages[i].units, multiple)
                steps = round(mlp * factor / step) + (more if i == tower.lead else 0)
                rounded[i] = step * max(1, steps)
            found = _with_mlps(shape, rounded)
            off = abs(_params(prices, tower, found) - wanted)
            if off < nearest_off:
                nearest, nearest_off = found, off
        if nearest_off <= CLOSE * params / 2:
            break
    return nearest


def _with_mlps(shape: Shape, mlps: Mapping[int, int]) -> Shape:
    """The shape with these hidden units, by the stage's index."""
    return tuple(stage._replace(mlp=mlps[i]) if stage and i in mlps else stage for i, stage in enumerate(shape))


def _params(prices: PriceList, tower: Tower, shape: Shape) -> int:
    """The tower's parameters above the shortest model's."""
    total = 0
    for i in tower.stages:
        stage = shape[i]
        if stage is not None:
            total += int(prices.stage(i, stage).params)
    return total
