"""Named designs to train side by side. What a design keeps equal to lean decides what their comparison shows.

baseline     the source as it stands
lean         fewer layers, more heads
control      lean's depth and parameters, the old heads, a wider MLP
depth-only   the budget met by fewer layers alone
mlp-only     the budget met by narrower MLPs alone
wide-heads   lean's depth, inner and MLP with the old number of heads, each of them wider
split        the control with twice as many heads of half the size: more heads without more parameters
front        designs that none beats in parameters, MACs, κ and depth at once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from leanify.architecture import primary_of
from leanify.design.plan import Plan
from leanify.design.prices.price_list import PriceList
from leanify.design.search.control import control
from leanify.design.search.design import Design, designer
from leanify.design.search.grid import Candidate, Request, baseline_designs, priced
from leanify.design.search.limits import share_out, within
from leanify.design.search.search import grids_of, search
from leanify.errors import BudgetError, ShapeError


def named(plan: Plan, name: str) -> Design:
    """The design of this name within the plan's limits, exactly priced.

    Raises ShapeError for a name that is none, and where the shape has no such design; BudgetError where none is within
    the limits.
    """
    known: dict[str, Design | None] = {"baseline": plan.baseline, "lean": plan.chosen, "control": plan.control}
    if name not in NAMES:
        raise ShapeError(f"{name!r} names no design; there are {', '.join(NAMES)} and front:N")
    if (design := known.get(name)) is not None:
        return design
    if name == "control":
        raise ShapeError("there is no control: lean has the baseline's heads, or its stages have no MLP to widen")
    return designer(plan.prices)(_NAMED[name](plan.prices, plan.request, plan.candidate))


def front(plan: Plan, count: int) -> list[Design]:
    """The best ``count`` of the plan's alternatives, lean first: none is beaten in parameters, MACs, κ and depth."""
    found = search(plan.prices, plan.request, count, plan.ranking).front
    return [designer(plan.prices)(candidate) for candidate in found]


def _control(prices: PriceList, request: Request, lean: Candidate) -> Candidate:
    found = control(prices, lean, request.constraints)
    if found is None:
        raise ShapeError("there is no control: lean has the baseline's heads, or its stages have no MLP to widen")
    return found


def _depth_only(prices: PriceList, request: Request, lean: Candidate) -> Candidate:
    return _cut(prices, replace(request, heads=_values(prices, "heads"), mlp=_values(prices, "mlp")), "depth-only")


def _mlp_only(prices: PriceList, request: Request, lean: Candidate) -> Candidate:
    return _cut(prices, replace(request, heads=_values(prices, "heads"), depth=_values(prices, "depth")), "mlp-only")


def _values(prices: PriceList, what: str) -> list[int]:
    """What the baseline has, stage by stage, as pins."""
    stages = prices.architecture.stages
    return [stage.depth if what == "depth" else getattr(primary_of(stage), what) for stage in stages]


def _cut(prices: PriceList, request: Request, name: str) -> Candidate:
    """The largest design within the limits, in every tower, of what the pins leave open."""
    grids = grids_of(prices, request)
    designs = list(baseline_designs(prices))
    for grid, limits in zip(grids, share_out(prices, request, grids), strict=True):
        fits = [i for i, inside in enumerate(within(grid, limits)) if inside]
        if not fits:
            raise BudgetError(f"no {name} design is within the budget: {grid.tower.name} cannot become so small")
        best = grid.candidate(max(fits, key=lambda i: (grid.params[i], grid.macs[i])))
        for i in grid.tower.stages:
            designs[i] = best.designs[i]
    return priced(prices, tuple(designs))


def _wide_heads(prices: PriceList, request: Request, lean: Candidate) -> Candidate:
    """Heads as wide as needed for lean's inner, to the nearest even number of channels (rotary positions pair them)."""
    designs = list(lean.designs)
    for i, (stage, design) in enumerate(zip(prices.architecture.stages, designs, strict=True)):
        if design is not None:
            heads = primary_of(stage).heads
            designs[i] = design._replace(heads=heads, head_dim=2 * round(design.heads * design.head_dim / heads / 2))
    return priced(prices, tuple(designs))


def _split(prices: PriceList, request: Request, lean: Candidate) -> Candidate:
    designs = list(_control(prices, request, lean).designs)
    for i, design in enumerate(designs):
        if design is not None:
            if design.head_dim % 2:
                raise ShapeError(f"heads of {design.head_dim} channels cannot be split in two")
            designs[i] = design._replace(heads=2 * design.heads, head_dim=design.head_dim // 2)
    return priced(prices, tuple(designs))


_NAMED: dict[str, Callable[[PriceList, Request, Candidate], Candidate]] = {
    "depth-only": _depth_only,
    "mlp-only": _mlp_only,
    "wide-heads": _wide_heads,
    "split": _split,
}
NAMES = ("baseline", "lean", "control", *_NAMED)
