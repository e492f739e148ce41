"""Find the best design that trades layers for heads within a budget, tower by tower.

The towers share a budget in proportion to their blocks; if a tower cannot become small enough, the others save the
rest. Lean is the first design, in the common order (`ranking`), that has fewer layers and more heads, meets the bounds
(`rules`) and uses the budget. Plain is the first design without more heads. The alternatives are the first design of
every depth. If no design with more heads is within the bounds, lean is missing, and plain and its alternatives
remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leanify.core.errors import UnsupportedModel
from leanify.profiling.cost import Shape
from leanify.profiling.price_list import PriceList
from leanify.search.control import has_close_control
from leanify.search.design import Design, changes, make_design
from leanify.search.grid import Grid, make_grids
from leanify.search.ranking import Ranking, grid_scores, is_published, preference, rank
from leanify.search.request import Request
from leanify.search.rules import MAX_MACS

UNSPENT = 0.03  # share of a budget; a design that leaves more of it unspent is not offered as an alternative
CLOSE_SCORE = 0.05  # designs of one depth with scores this close count as equal
AS_GOOD = 24  # number of equal designs to check for a control


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    lean      the best design that trades layers for heads, or the best one with the user's heads; None if there is none
    plain     the best design without more heads, None if there is none or heads are pinned
    front     lean (or plain without a lean), the best of every other depth, and then the next best
    searched  the number of priced designs
    headless  the names of towers in which no head was added, if another has more
    """

    lean: Design | None
    plain: Design | None
    front: list[Design]
    searched: int
    headless: list[str]


@dataclass(frozen=True)
class _TowerResult:
    """Designs of one tower, by index in its grid; ``is_lean``: the first of ``front`` trades layers for heads."""

    grid: Grid
    plain: int | None
    front: list[int]
    is_lean: bool


def search(
    prices: PriceList, request: Request, top_k: int | None = None, ranking: Ranking | None = None
) -> SearchResult:
    """Return the best design within the limits and bounds, and the best of other depths, ``top_k`` in all.

    The front is empty if no design is within the limits.
    """
    grids = make_grids(prices, request)
    searched = sum(map(len, grids))
    best_by_tower = []
    for grid, limits in zip(grids, share_out(prices, request, grids), strict=True):
        result = _best(prices, grid, limits, request, top_k, ranking)
        if result is None:
            return SearchResult(None, None, [], searched, [])
        best_by_tower.append(result)

    # Designs of the model combine the first designs of every tower, then the second ones, etc.
    front = []
    for place in range(max(len(one.front) for one in best_by_tower)):
        picks = [(one.grid, one.front[min(place, len(one.front) - 1)]) for one in best_by_tower]
        front.append(_join_towers(prices, picks))
    plain = None
    best_plain = [(one.grid, one.plain) for one in best_by_tower if one.plain is not None]
    if len(best_plain) == len(best_by_tower):
        plain = _join_towers(prices, best_plain)
    headless = [one.grid.tower.name for one in best_by_tower if not one.is_lean]
    if len(headless) == len(best_by_tower):
        return SearchResult(None, plain, front, searched, [])
    return SearchResult(front[0], plain, front, searched, headless)


def _best(
    prices: PriceList, grid: Grid, limits: Limits, request: Request, top_k: int | None, ranking: Ranking | None
) -> _TowerResult | None:
    """Return the best designs of one tower; None if none is within its limits."""
    is_inside = is_within(grid, limits)
    if not is_inside.any():
        return None
    spent = is_inside & ~unspent(grid, limits)
    preferred = preference(prices, grid.tower)

    # 1. The design without more heads. It also limits lean: at equal parameters, to 1.1 times its MACs.
    plain, is_affordable = None, np.ones(len(grid), bool)
    has_old_heads = ~adds_heads(grid) & (grid.head_dim == grid.old.head_dim)
    plain_pool = _first((spent & has_old_heads, nearest(grid, limits, is_inside & has_old_heads)))
    if request.wants_heads and plain_pool is not None:
        plain = int(rank(grid, np.flatnonzero(plain_pool), preferred, ranking)[0])
        is_affordable = (grid.macs <= MAX_MACS * grid.macs[plain]) | is_published(grid, preferred)

    # 2. Lean: fewer layers and more heads. A tower whose budget leaves no layers to trade keeps its heads.
    lean = trades_layers(grid, request) & is_affordable
    lean_pool = _first((spent & lean, nearest(grid, limits, is_inside & lean)))
    if lean_pool is not None:
        order = rank(grid, np.flatnonzero(lean_pool), preferred, ranking)
        scores = ranking(grid) if ranking is not None else grid_scores(grid, preferred)
        best = _prefer_controlled(prices, grid, order, scores, request)
        peers = spent & is_affordable
    else:
        pool = plain_pool if plain_pool is not None else nearest(grid, limits, is_inside)
        order = rank(grid, np.flatnonzero(pool), preferred, ranking)
        best = int(order[0])
        peers = spent & has_old_heads

    # 3. The best design of every depth.
    front = [best]
    for depth in np.unique(grid.depth):
        same_depth = np.flatnonzero(peers & (grid.depth == depth))
        if depth != grid.depth[best] and same_depth.size:
            front.append(int(rank(grid, same_depth, preferred, ranking)[0]))
    others = rank(grid, np.array(front[1:], np.int64), preferred, ranking)
    front = [best, *map(int, others)][:top_k]

    # If more designs are requested than there are depths, the next best ones follow.
    if top_k is not None and len(front) < top_k:
        front += [int(i) for i in order[: top_k + len(front)] if i not in front][: top_k - len(front)]
    return _TowerResult(grid, plain, front, lean_pool is not None)


def _first(masks: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_] | None:
    return next((mask for mask in masks if mask.any()), None)


def _prefer_controlled(
    prices: PriceList, grid: Grid, order: NDArray[np.int64], scores: NDArray[np.float64], request: Request
) -> int:
    """Return the first of ``order``, or of equally good designs of its depth, that has a control within 0.1% of its
    parameters; without such a control, training cannot isolate the effect of heads.
    """
    first = int(order[0])
    if request.wants_heads:
        is_as_good = (scores[order] <= scores[first] + CLOSE_SCORE) & (grid.depth[order] == grid.depth[first])
        for i in order[is_as_good][:AS_GOOD]:
            if has_close_control(prices, grid.tower, grid.get_shape(i), int(grid.params[i]), request.rules):
                return int(i)
    return first


def _join_towers(prices: PriceList, picks: Sequence[tuple[Grid, int]]) -> Design:
    shape: Shape = (None,) * len(prices.architecture.stages)
    for grid, i in picks:
        tower_shape = grid.get_shape(i)
        shape = tuple(new or old for old, new in zip(shape, tower_shape, strict=True))
    return make_design(prices, shape)


def plain_name(baseline: Design, plain: Design) -> str:
    """Return the name of a design without more heads, based on the sizes that it reduces."""
    stages = changes(baseline, plain)
    has_fewer_layers = any(after.depth < before.depth for before, after in stages)
    is_narrower = any(after.mlp < before.mlp for before, after in stages)
    if has_fewer_layers and is_narrower:
        return "plain-cut"
    return "mlp-only" if is_narrower else "depth-only"


def baseline_design(prices: PriceList) -> Design:
    """Return the unchanged source, priced like any design. Raises UnsupportedModel if its counted costs differ: then
    equal blocks have different costs (tokens are merged between them), and prices of other designs would be wrong.
    """
    design = make_design(prices, prices.baseline)
    macs, params = prices.facts.macs, prices.facts.params
    if macs not in (None, design.macs) or params != design.params:
        raise UnsupportedModel(
            f"{prices.architecture.source} cannot be priced block by block: its costs depend on the position of "
            "blocks, for example because tokens are merged or other parts read certain blocks (they add up to "
            f"{design.macs:,} MACs and {design.params:,} parameters; {macs} and {params} were "
            "counted). leanify.read, write and grow may still work"
        )
    return design


# -- the limits of every tower, and masks of the designs within them --------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """The largest cost of the model with one tower changed, and how much of it may remain unspent (``slack``)."""

    maximum: float
    slack: float


Limits = Mapping[str, Limit]  # keys: names of costs


def share_out(prices: PriceList, request: Request, grids: Sequence[Grid]) -> list[Limits]:
    """Return the limits of every tower. Each saves in proportion to its blocks, up to its own maximum.

    If towers have separate budgets, on the parameters in their blocks, a tower without a budget stays unchanged.
    """
    total_cost = prices.total(prices.baseline)
    shares: list[dict[str, Limit]] = [{} for _ in grids]
    # budgets that name their towers
    if request.tower_params:
        for share, grid in zip(shares, grids, strict=True):
            embedding_params = prices.fixed_cost(grid.tower.stages, "params")
            budget = request.tower_params.get(grid.tower.name, embedding_params)
            share["params"] = Limit(int(total_cost.params) - embedding_params + budget, UNSPENT * budget)
        return list(shares)
    # one budget for all: each tower saves in proportion to the cost of its blocks
    for cost, limit in request.limits.items():
        total = getattr(total_cost, cost)
        max_savings = [total - int(getattr(grid.cost, cost).min()) for grid in grids]
        weights = [prices.fixed_cost(grid.tower.stages, cost) for grid in grids]
        savings = _proportional_shares(total - limit, weights, max_savings)
        total_weight = sum(weights) or 1
        for share, saving, weight in zip(shares, savings, weights, strict=True):
            part = weight / total_weight if len(grids) > 1 else 1
            share[cost] = Limit(total - saving, UNSPENT * limit * part)
    return list(shares)


def _proportional_shares(saving: float, weights: Sequence[float], max_shares: Sequence[float]) -> list[float]:
    """Split ``saving`` in proportion to weights, with a cap per part; caps that add up to too little are exceeded."""
    shares = [0.0] * len(weights)
    free = [i for i, weight in enumerate(weights) if weight > 0] or list(range(len(weights)))
    # fix the towers above their caps at the cap, until no tower is above
    while free:
        remaining = saving - sum(share for i, share in enumerate(shares) if i not in free)
        by_weight = sum(weights[i] for i in free) or len(free)
        for i in free:
            shares[i] = remaining * (weights[i] or 1) / by_weight
        full = [i for i in free if shares[i] > max_shares[i]]
        if not full or len(full) == len(free):
            return shares
        for i in full:
            shares[i] = max_shares[i]
            free.remove(i)
    return shares


def is_within(grid: Grid, limits: Limits) -> NDArray[np.bool_]:
    """Mask of the designs within every limit."""
    fits = np.ones(len(grid), bool)
    for cost, limit in limits.items():
        fits &= getattr(grid.cost, cost) <= limit.maximum
    return fits


def unspent(grid: Grid, limits: Limits) -> NDArray[np.bool_]:
    """Mask of the designs whose unused budget exceeds the slack under every limit."""
    if not limits:
        return np.zeros(len(grid), bool)
    has_slack = [getattr(grid.cost, cost) < limit.maximum - limit.slack for cost, limit in limits.items()]
    return np.asarray(np.logical_and.reduce(has_slack))


def nearest(grid: Grid, limits: Limits, is_eligible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of eligible designs whose unused budget is within one slack of the smallest unused budget."""
    if not limits or not is_eligible.any():
        return is_eligible
    slacks = [(limit.maximum - getattr(grid.cost, cost)) / max(limit.slack, 1.0) for cost, limit in limits.items()]
    min_slack = np.min(slacks, axis=0)
    return np.asarray(is_eligible & (min_slack <= min_slack[is_eligible].min() + 1))


def adds_heads(grid: Grid) -> NDArray[np.bool_]:
    """Mask of the designs with more heads than the baseline in the leading stage."""
    return np.asarray(grid.heads > grid.old.heads)


def trades_layers(grid: Grid, request: Request) -> NDArray[np.bool_]:
    """Mask of the designs with more heads and fewer layers, if neither is pinned.

    If no block can be removed (EdgeNeXt, ALBERT), narrower MLPs pay for the heads.
    """
    if not request.wants_heads:
        return np.ones(len(grid), bool)
    if grid.shortest == grid.old_depth:
        return np.asarray(adds_heads(grid) & (grid.mlp < grid.old.mlp))
    has_fewer_layers = grid.depth < grid.old_depth if request.options.depth is None else True
    return np.asarray(adds_heads(grid) & has_fewer_layers)
