"""The limits of every tower, and masks of the designs within them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leanify.profiling.price_list import PriceList
from leanify.search.grid import Grid
from leanify.search.request import Request

UNSPENT = 0.03  # share of a budget; a design that leaves more of it unspent is not offered as an alternative


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
