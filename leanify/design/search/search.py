"""Budget → the proposed design: the best one that trades layers for heads, tower by tower.

A budget is divided among the towers in proportion to their blocks; if a tower cannot become so small, the
others save the rest. Lean is the best design with fewer layers and at least a quarter more heads, or any more
heads if no such design is within the budget. Plain is the best design without more heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Shape
from leanify.design.search.control import has_close_control
from leanify.design.search.design import Design, changes, design_of
from leanify.design.search.grid import Grid, grids_of
from leanify.design.search.limits import Limits, adds_heads, nearest, share_out, trades_layers, unspent, within
from leanify.design.search.ranking import Ranking, is_usual, pareto, rank
from leanify.design.search.refusals import refusal
from leanify.design.search.request import Request
from leanify.errors import UnsupportedModel

NEXT_HEADS = 2  # head counts next to the best design's that are tried for a control
AS_GOOD = 24  # first designs of a ranking, which it hardly tells apart
MORE_HEADS = 1.25  # times the baseline's: fewer are hardly a trade


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    chosen    the best design that trades layers for heads
    plain     the best design without more heads, None if there is none or heads are pinned
    recommended  lean or plain: the one that ranks first
    front     alternatives to the chosen one, itself first: none is beaten in all of parameters, MACs, κ and depth
    searched  the number of priced designs
    headless  the names of towers in which no head was added
    """

    chosen: Design
    plain: Design | None
    recommended: str
    front: list[Design]
    searched: int
    headless: list[str]


@dataclass(frozen=True)
class _TowerResult:
    """Designs of one tower, by index in its grid; the first of ``front`` adds heads if any does."""

    grid: Grid
    plain: int | None
    plain_is_better: bool
    front: list[int]
    has_heads: bool


def search(
    prices: PriceList, request: Request, most: int | None = None, ranking: Ranking | None = None
) -> SearchResult:
    """The best design within the limits, and the best ``most`` of its Pareto front, or all.

    Raises BudgetError if no sensible design is within them; it names a budget that would do and what
    loosening each rule would gain.
    """
    grids = grids_of(prices, request)
    shares = share_out(prices, request, grids)
    found = []
    for grid, limits in zip(grids, shares, strict=True):
        result = _best(prices, grid, limits, request, most, ranking)
        if result is not None:
            found.append(result)
    if len(found) < len(grids) or (request.wants_heads and not any(one.has_heads for one in found)):
        raise refusal(prices, request, grids, shares)
    front = []
    for place in range(max(len(one.front) for one in found)):
        front.append(_joined(prices, [(one.grid, one.front[min(place, len(one.front) - 1)]) for one in found]))
    plain, recommended = None, "lean"
    best_plain = [(one.grid, one.plain) for one in found if one.plain is not None]
    if len(best_plain) == len(found):
        plain = _joined(prices, best_plain)
        recommended = "plain" if all(one.plain_is_better for one in found) else "lean"
    headless = [one.grid.tower.name for one in found if request.wants_heads and not one.has_heads]
    return SearchResult(front[0], plain, recommended, front, sum(map(len, grids)), headless)


def _best(
    prices: PriceList, grid: Grid, limits: Limits, request: Request, most: int | None, ranking: Ranking | None
) -> _TowerResult | None:
    """The best designs of one tower; None if none is within its limits."""
    inside = within(grid, limits)
    if not inside.any():
        return None
    spent = inside & ~unspent(grid, limits)
    lean = trades_layers(grid, request)
    usual = is_usual(grid, request) if ranking is None else np.ones(len(grid), bool)
    more = lean & adds_heads(grid, MORE_HEADS) if request.wants_heads else lean
    near = nearest(grid, limits, inside & lean)
    pool = _first((spent & more & usual, spent & more, spent & lean & usual, spent & lean, near, spent))
    if pool is None:
        pool = nearest(grid, limits, inside)
    order, head_class = rank(grid, np.flatnonzero(pool), ranking)
    best = _with_control(prices, grid, order, request)
    peers, _ = rank(grid, np.flatnonzero(spent & lean & (head_class == head_class[best])), ranking)
    front = [best, *(i for i in islice(pareto(grid, peers), most) if i != best)][:most]
    plain, plain_is_better = None, False
    old = ~adds_heads(grid) & (grid.head_dim == grid.old.head_dim)
    plain_pool = _first((spent & old & usual, spent & old, nearest(grid, limits, inside & old)))
    if request.wants_heads and plain_pool is not None:
        plain = int(rank(grid, np.flatnonzero(plain_pool), ranking)[0][0])
        first = rank(grid, np.array([best, plain]), ranking)[0][0]
        plain_is_better = bool(first == plain and lean[best])
    return _TowerResult(grid, plain, plain_is_better, front, bool(lean[best]))


def _first(masks: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_] | None:
    """The first mask that holds a design."""
    return next((mask for mask in masks if mask.any()), None)


def _with_control(prices: PriceList, grid: Grid, order: NDArray[np.int64], request: Request) -> int:
    """The first of the best designs that has a control within 0.1% of its parameters; without such a control,
    training cannot isolate the effect of heads.

    The error of a control depends on the heads, which it replaces by whole steps of the MLP (in a mixture, of
    every expert), and hardly on the depth. So the best designs with a few heads more or less are tried too.
    """
    if request.wants_heads:
        counts, first = np.unique(grid.heads[order], return_index=True)
        nearest_counts = np.argsort(np.abs(counts - grid.heads[order[0]]), kind="stable")[1 : 1 + NEXT_HEADS]
        for i in [*order[:AS_GOOD], *order[first[nearest_counts]]]:
            if has_close_control(prices, grid.tower, grid.shape_at(i), int(grid.params[i]), request.rules):
                return int(i)
    return int(order[0])


def _joined(prices: PriceList, picked: Sequence[tuple[Grid, int]]) -> Design:
    """One design of every tower, as one design of the model."""
    shape: Shape = (None,) * len(prices.architecture.stages)
    for grid, i in picked:
        own = grid.shape_at(i)
        shape = tuple(old if new is None else new for old, new in zip(shape, own, strict=True))
    return design_of(prices, shape)


def plain_name(baseline: Design, plain: Design) -> str:
    """The name of a design without more heads, by what it has less of."""
    stages = changes(baseline, plain)
    has_fewer_layers = any(after.depth < before.depth for before, after in stages)
    is_narrower = any(after.mlp < before.mlp for before, after in stages)
    if has_fewer_layers and is_narrower:
        return "plain-cut"
    return "mlp-only" if is_narrower else "depth-only"


def baseline_of(prices: PriceList) -> Design:
    """The source as it stands, priced like any design. Raises UnsupportedModel if counting it gives another price:
    then blocks that look alike cost differently (tokens are merged between them), and no design could be trusted.
    """
    found = design_of(prices, prices.baseline)
    counted, params = prices.facts.macs, prices.facts.params
    if counted not in (None, found.macs) or params != found.params:
        raise UnsupportedModel(
            f"{prices.architecture.source} cannot be priced block by block: what it costs depends on where blocks "
            "stand, as where tokens are merged or something outside reads certain blocks (they add up to "
            f"{found.macs:,} MACs and {found.params:,} parameters; {counted} and {params} were "
            "counted). leanify.read, write and grow may still do for it"
        )
    return found
