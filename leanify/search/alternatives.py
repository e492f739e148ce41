"""Named designs to train in one study. The sizes that a design shares with lean decide what their comparison isolates.

baseline     the source unchanged
lean         fewer layers, more heads
control      lean's depth and parameters, the old heads, a wider MLP
narrow       the baseline's depth and lean's parameters with a smaller residual width
depth-only   fewer layers alone meet the budget
mlp-only     narrower MLPs alone meet the budget
wide-heads   lean's depth, inner width and MLP with the old number of heads, each of them wider
split        the control with twice as many heads of half the size: more heads at equal parameters
front        lean, the best design of other depths, and the next best
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from leanify.core.architecture import primary_layer
from leanify.core.errors import BudgetError, ShapeError
from leanify.profiling.cost import Shape
from leanify.search.control import control
from leanify.search.design import Design, make_design
from leanify.search.grid import make_grids
from leanify.search.plan import Plan
from leanify.search.search import is_within, search, share_out

KEPT_SIZES = {"depth-only": ("heads", "mlp"), "mlp-only": ("heads", "depth")}  # sizes that keep the baseline's values
NARROWEST_CUT = 0.1  # minimum MLP of these designs, as a multiple of the width
NO_CONTROL = "there is no control: lean has the baseline's heads, or its stages have no MLP to widen"


def named_design(plan: Plan, name: str) -> Design:
    """Return the design with this name within the plan's limits.

    Raises ShapeError for an unknown name and if the model has no such design; BudgetError if none is within the limits.
    """
    # designs that the plan already has
    if name == "baseline":
        return plan.baseline
    if name == "lean":
        return lean_of(plan)
    if name == "control":
        lean_of(plan)
        if plan.control is None:
            raise ShapeError(NO_CONTROL)
        return plan.control
    if name == "narrow":
        if plan.narrow is None:
            reasons = [remark for remark in plan.remarks if remark.startswith("no narrow")]
            raise ShapeError(next(iter(reasons), "there is no narrow design of this model"))
        return plan.narrow
    # designs that keep some sizes, or change only the heads
    if name in KEPT_SIZES:
        shape = _cut(plan, name)
    elif name == "wide-heads":
        shape = _wide_heads(plan)
    elif name == "split":
        shape = _split(plan)
    else:
        raise ShapeError(f"{name!r} names no design; there are {', '.join(NAMES)} and front:N")
    return make_design(plan.prices, shape)


def lean_of(plan: Plan) -> Design:
    """Return the plan's lean design. Raises BudgetError if it has none."""
    if plan.lean is None:
        raise BudgetError(f"no lean design is within the published bounds: {plan.needs}")
    return plan.lean


def front(plan: Plan, count: int) -> list[Design]:
    """Return lean, the best designs of other depths, and then the next best: at most ``count`` designs."""
    return search(plan.prices, plan.request, count, plan.ranking).front


def _cut(plan: Plan, name: str) -> Shape:
    """Return the largest design within the limits whose other sizes keep the baseline's values, for every tower.

    The user requests a cut of one axis by name, so it may cross the lower bounds of a search.
    """
    prices = plan.prices
    # sizes that the name keeps, pinned for every stage
    pins: dict[str, Any] = {"min_depth": plan.request.options.min_depth or 1}
    pins["min_mlp"] = plan.request.options.min_mlp or NARROWEST_CUT
    stages = prices.architecture.stages
    for what in KEPT_SIZES[name]:
        pins[what] = [getattr(stage if what == "depth" else primary_layer(stage), what) for stage in stages]
    request = replace(plan.request, options=replace(plan.request.options, **pins))
    grids = make_grids(prices, request)
    shape = list(prices.baseline)
    # the largest design of each tower within its share of the budget
    for grid, limits in zip(grids, share_out(prices, request, grids), strict=True):
        fits = np.flatnonzero(is_within(grid, limits))
        if not fits.size:
            raise BudgetError(f"no {name} design is within the budget: {grid.tower.name} cannot become so small")
        best = grid.get_shape(int(max(fits, key=lambda i: (grid.params[i], grid.macs[i]))))
        for i in grid.tower.stages:
            shape[i] = best[i]
    return tuple(shape)


def _wide_heads(plan: Plan) -> Shape:
    """Return lean with the old heads, widened to its inner width in even channels (rotary positions pair them)."""
    shape = list(lean_of(plan).shape)
    for i, (stage, lean) in enumerate(zip(plan.prices.architecture.stages, shape, strict=True)):
        if lean is not None:
            heads = primary_layer(stage).heads
            shape[i] = lean._replace(heads=heads, head_dim=2 * round(lean.inner / heads / 2))
    return tuple(shape)


def _split(plan: Plan) -> Shape:
    # start from the control and halve its heads
    wide = control(plan.prices, lean_of(plan).shape, plan.request.rules)
    if wide is None:
        raise ShapeError(NO_CONTROL)
    shape = list(wide)
    for i, stage in enumerate(shape):
        if stage is not None:
            if stage.head_dim % 2:
                raise ShapeError(f"heads of {stage.head_dim} channels cannot be split in two")
            shape[i] = stage._replace(heads=2 * stage.heads, head_dim=stage.head_dim // 2)
    return tuple(shape)


NAMES = ("baseline", "lean", "control", "narrow", *KEPT_SIZES, "wide-heads", "split")
