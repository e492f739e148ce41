"""The control: lean's depth and parameters, the baseline's heads, wider MLPs. It isolates the effect of heads."""

from __future__ import annotations

import math
from collections.abc import Mapping

from leanify.core.architecture import primary_layer
from leanify.profiling.cost import Shape
from leanify.profiling.price_list import PriceList
from leanify.search.rules import SMALL_MULTIPLE, Rules
from leanify.search.towers import Tower, towers

CLOSE = 0.001  # maximum difference, as a share of lean's parameters


def control(prices: PriceList, lean: Shape, rules: Rules, limits: Mapping[str, float] | None = None) -> Shape | None:
    """Return the shape with lean's depth and parameters, the baseline's heads, and wider MLPs in each tower.

    Hidden units are multiples of 64, 32, 16 or 8: the largest multiple that comes within 0.1% of lean's parameters, or
    the nearest result with 8, never above the budgets of parameters in ``limits``. Returns None if the stages have no
    MLP to widen or if lean has the baseline's heads: the control always differs from lean.
    """
    shape = _restore_heads(prices, lean)
    if shape == lean or not any(stage and stage.mlp for stage in shape):
        return None
    params = int(prices.total(lean).params)
    for tower in towers(prices.architecture, prices.stage_indices):
        if any(shape[i] != lean[i] for i in tower.stages):
            shape = _widen_mlps(prices, tower, shape, lean, params, rules, limits or {})
    return shape


def has_close_control(prices: PriceList, tower: Tower, lean: Shape, params: int, rules: Rules) -> bool:
    """Whether a tower's lean shape has a control within 0.1% of the model's ``params``, or no MLP to widen."""
    old = _restore_heads(prices, lean)
    if not any(stage and stage.mlp for stage in old):
        return True
    shape = _widen_mlps(prices, tower, old, lean, params, rules, {})
    off = _params(prices, tower, shape) - _params(prices, tower, lean)
    return abs(off) <= CLOSE * params


def _restore_heads(prices: PriceList, shape: Shape) -> Shape:
    stages = []
    for stage, stage_shape in zip(prices.architecture.stages, shape, strict=True):
        if stage_shape is not None:
            primary = primary_layer(stage)
            stage_shape = stage_shape._replace(heads=primary.heads, head_dim=primary.head_dim)
        stages.append(stage_shape)
    return tuple(stages)


def _widen_mlps(
    prices: PriceList,
    tower: Tower,
    shape: Shape,
    lean: Shape,
    params: int,
    rules: Rules,
    limits: Mapping[str, float],
) -> Shape:
    """Widen the tower's MLPs until the shape has lean's parameters; ``params`` are those of the whole model."""
    stages = prices.architecture.stages
    max_params = {cost: limit for cost, limit in limits.items() if cost.startswith("params")}
    mlps = {i: stage.mlp for i, stage in enumerate(shape) if i in tower.stages and stage and stage.mlp}
    # parameters are linear in the widths: one factor reaches lean's
    target_params, current_params = _params(prices, tower, lean), _params(prices, tower, shape)
    doubled = _replace_mlps(shape, {i: 2 * mlp for i, mlp in mlps.items()})
    per_doubling = _params(prices, tower, doubled) - current_params
    factor = 1 + (target_params - current_params) / per_doubling if per_doubling else 1.0
    # the nearest design over multiples, coarse ones first, and one step around the factor
    nearest, nearest_off = shape, math.inf
    first = rules.mlp_multiple(stages[tower.lead])
    for multiple in (first, *(m for m in (32, 16, SMALL_MULTIPLE) if m < first)):
        for shift in (-1, 0, 1):
            widths = {}
            for i, mlp in mlps.items():
                step = math.lcm(stages[i].units, multiple)
                steps = round(mlp * factor / step)
                if i == tower.lead:
                    steps += shift
                widths[i] = step * max(1, steps)
            widened_shape = _replace_mlps(shape, widths)
            off = abs(_params(prices, tower, widened_shape) - target_params)
            cost = prices.total(widened_shape)
            if off < nearest_off and all(getattr(cost, name) <= limit for name, limit in max_params.items()):
                nearest, nearest_off = widened_shape, off
        if nearest_off <= CLOSE * params / 2:
            break
    return nearest


def _replace_mlps(shape: Shape, mlps: Mapping[int, int]) -> Shape:
    return tuple(stage._replace(mlp=mlps[i]) if stage and i in mlps else stage for i, stage in enumerate(shape))


def _params(prices: PriceList, tower: Tower, shape: Shape) -> int:
    """Return the tower's parameters minus the parameters of the shortest model."""
    stages = ((i, shape[i]) for i in tower.stages)
    return sum(int(prices.stage(i, stage).params) for i, stage in stages if stage is not None)
