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

from dataclasses import replace
from typing import Any

import numpy as np

from leanify.architecture import primary_of
from leanify.design.plan import Plan
from leanify.design.prices.shapes import Shape
from leanify.design.search.control import control
from leanify.design.search.design import Design, design_of
from leanify.design.search.grid import grids_of
from leanify.design.search.limits import share_out, within
from leanify.design.search.search import search
from leanify.errors import BudgetError, ShapeError

KEPT = {"depth-only": ("heads", "mlp"), "mlp-only": ("heads", "depth")}  # the sizes that stay the baseline's
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
    if name in KEPT:
        shape = _cut(plan, name)
    elif name == "wide-heads":
        shape = _wide_heads(plan)
    elif name == "split":
        shape = _split(plan)
    else:
        raise ShapeError(f"{name!r} names no design; there are {', '.join(NAMES)} and front:N")
    return design_of(plan.prices, shape)


def front(plan: Plan, count: int) -> list[Design]:
    """The best ``count`` alternatives, lean first: none is beaten in parameters, MACs, κ and depth."""
    return search(plan.prices, plan.request, count, plan.ranking).front


def _cut(plan: Plan, name: str) -> Shape:
    """The largest design within the limits, in every tower, of what the sizes that are kept leave free."""
    prices = plan.prices
    pins: dict[str, Any] = {}
    for what in KEPT[name]:
        stages = prices.architecture.stages
        pins[what] = [stage.depth if what == "depth" else getattr(primary_of(stage), what) for stage in stages]
    request = replace(plan.request, options=replace(plan.request.options, **pins))
    grids = grids_of(prices, request)
    shape = list(prices.baseline)
    for grid, limits in zip(grids, share_out(prices, request, grids), strict=True):
        fits = np.flatnonzero(within(grid, limits))
        if not fits.size:
            raise BudgetError(f"no {name} design is within the budget: {grid.tower.name} cannot become so small")
        best = grid.shape_at(int(max(fits, key=lambda i: (grid.params[i], grid.macs[i]))))
        for i in grid.tower.stages:
            shape[i] = best[i]
    return tuple(shape)


def _wide_heads(plan: Plan) -> Shape:
    """Heads as wide as lean's inner needs, to an even number of channels (rotary positions pair them)."""
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


NAMES = ("baseline", "lean", "control", *KEPT, "wide-heads", "split")
