"""Named designs to train side by side. What a design has in common with lean decides what comparing them shows.

baseline     the source as it stands
lean         fewer layers, more heads
control      lean's depth and parameters, the old heads, a wider MLP
depth-only   the budget met by fewer layers alone
mlp-only     the budget met by narrower MLPs alone
wide-heads   lean's depth, inner and MLP with the old number of heads, each of them wider
split        the control with twice as many heads of half the size: more heads without more parameters
front        designs that none beats in all of parameters, MACs, κ and depth
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leanify.architecture import primary_of
from leanify.design.plan import Plan
from leanify.design.prices.shapes import Shape
from leanify.design.search.control import control
from leanify.design.search.design import Design, design_of
from leanify.design.search.grid import grids_of
from leanify.design.search.limits import share_out, within
from leanify.design.search.search import search
from leanify.errors import BudgetError, ShapeError

NO_CONTROL = "there is no control: lean has the baseline's heads, or its stages have no MLP to widen"


def named(plan: Plan, name: str) -> Design:
    """The design of this name within the plan's limits.

    Raises ShapeError for an unknown name and if the model has no such design; BudgetError if none is within the limits.
    """
    if name == "baseline":
        return plan.baseline
    if name == "lean":
        return plan.chosen
    if name == "control":
        if plan.control is None:
            raise ShapeError(NO_CONTROL)
        return plan.control
    if name not in _NAMED:
        raise ShapeError(f"{name!r} names no design; there are {', '.join(NAMES)} and front:N")
    return design_of(plan.prices, _NAMED[name](plan))


def front(plan: Plan, count: int) -> list[Design]:
    """The best ``count`` of the plan's alternatives, lean first: none is beaten in parameters, MACs, κ and depth."""
    return search(plan.prices, plan.request, count, plan.ranking).front


def _depth_only(plan: Plan) -> Shape:
    return _cut(plan, "depth-only", heads=_baseline_of(plan, "heads"), mlp=_baseline_of(plan, "mlp"))


def _mlp_only(plan: Plan) -> Shape:
    depths = [stage.depth for stage in plan.prices.architecture.stages]
    return _cut(plan, "mlp-only", heads=_baseline_of(plan, "heads"), depth=depths)


def _baseline_of(plan: Plan, what: str) -> list[int]:
    """A size of the baseline's primary layers, for each stage."""
    return [getattr(primary_of(stage), what) for stage in plan.prices.architecture.stages]


def _cut(plan: Plan, name: str, **pins: Any) -> Shape:
    """The largest design within the limits, in every tower, of what the pins leave free."""
    prices = plan.prices
    request = replace(plan.request, options=replace(plan.request.options, **pins))
    grids = grids_of(prices, request)
    shape = list(prices.baseline)
    for grid, limits in zip(grids, share_out(prices, request, grids), strict=True):
        fits = [i for i, is_inside in enumerate(within(grid, limits)) if is_inside]
        if not fits:
            raise BudgetError(f"no {name} design is within the budget: {grid.tower.name} cannot become so small")
        best = grid.shape_at(max(fits, key=lambda i: (grid.params[i], grid.macs[i])))
        for i in grid.tower.stages:
            shape[i] = best[i]
    return tuple(shape)


def _wide_heads(plan: Plan) -> Shape:
    """Heads as wide as lean's inner needs, to the nearest even number of channels (rotary positions pair them)."""
    shape = list(plan.chosen.shape)
    for i, (stage, lean) in enumerate(zip(plan.prices.architecture.stages, shape, strict=True)):
        if lean is not None:
            heads = primary_of(stage).heads
            shape[i] = lean._replace(heads=heads, head_dim=2 * round(lean.inner / heads / 2))
    return tuple(shape)


def _split(plan: Plan) -> Shape:
    wide = control(plan.prices, plan.chosen.shape, plan.request.rules)
    if wide is None:
        raise ShapeError(NO_CONTROL)
    shape = list(wide)
    for i, stage in enumerate(shape):
        if stage is not None:
            if stage.head_dim % 2:
                raise ShapeError(f"heads of {stage.head_dim} channels cannot be split in two")
            shape[i] = stage._replace(heads=2 * stage.heads, head_dim=stage.head_dim // 2)
    return tuple(shape)


_NAMED: dict[str, Callable[[Plan], Shape]] = {
    "depth-only": _depth_only,
    "mlp-only": _mlp_only,
    "wide-heads": _wide_heads,
    "split": _split,
}
NAMES = ("baseline", "lean", "control", *_NAMED)
