"""The limits of every tower, and which of its designs keep to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leanify.design.prices.price_list import PriceList
from leanify.design.search.grid import Grid
from leanify.design.search.request import Request

UNSPENT = 0.03  # share of a budget; a design that leaves more of it unspent is no alternative


@dataclass(frozen=True)
class Limit:
    """The largest cost of the model with one tower changed, and how much of it may stay unspent (``slack``)."""

    most: float
    slack: float


Limits = Mapping[str, Limit]  # by the cost that they limit


def share_out(prices: PriceList, request: Request, grids: Sequence[Grid]) -> list[Limits]:
    """The limits of every tower. Towers save in proportion to their blocks, but none more than it can.

    Where towers have budgets of their own, on the parameters in their blocks, one without stays as it is.
    """
    whole = prices.total(prices.baseline)
    shares: list[dict[str, Limit]] = [{} for _ in grids]
    if request.tower_params:
        for share, grid in zip(shares, grids, strict=True):
            held = prices.held(grid.tower.stages, "params")
            budget = request.tower_params.get(grid.tower.name, held)
            share["params"] = Limit(int(whole.params) - held + budget, UNSPENT * budget)
        return list(shares)
    for cost, limit in request.limits.items():
        total = getattr(whole, cost)
        most = [total - int(getattr(grid.cost, cost).min()) for grid in grids]
        weights = [prices.held(grid.tower.stages, cost) for grid in grids]
        savings = _in_proportion(total - limit, weights, most)
        every = sum(weights) or 1
        for share, saving, weight in zip(shares, savings, weights, strict=True):
            part = weight / every if len(grids) > 1 else 1
            share[cost] = Limit(total - saving, UNSPENT * limit * part)
    return list(shares)


def _in_proportion(saving: float, weights: Sequence[float], most: Sequence[float]) -> list[float]:
    """``saving`` in proportion to weights, each part capped; more than the caps if those are not enough."""
    shares = [0.0] * len(weights)
    free = [i for i, weight in enumerate(weights) if weight > 0] or list(range(len(weights)))
    while free:
        left = saving - sum(share for i, share in enumerate(shares) if i not in free)
        by_weight = sum(weights[i] for i in free) or len(free)
        for i in free:
            shares[i] = left * (weights[i] or 1) / by_weight
        full = [i for i in free if shares[i] > most[i]]
        if not full or len(full) == len(free):
            return shares
        for i in full:
            shares[i] = most[i]
            free.remove(i)
    return shares


def within(grid: Grid, limits: Limits) -> NDArray[np.bool_]:
    """Mask: within every limit."""
    fits = np.ones(len(grid), bool)
    for cost, limit in limits.items():
        fits &= getattr(grid.cost, cost) <= limit.most
    return fits


def unspent(grid: Grid, limits: Limits) -> NDArray[np.bool_]:
    """Mask: unused budget exceeds the slack under every limit."""
    if not limits:
        return np.zeros(len(grid), bool)
    left = [getattr(grid.cost, cost) < limit.most - limit.slack for cost, limit in limits.items()]
    return np.asarray(np.logical_and.reduce(left))


def nearest(grid: Grid, limits: Limits, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask: of ``among``, the designs whose unused budget is within one slack of the least unused one."""
    if not limits or not among.any():
        return among
    left = [(limit.most - getattr(grid.cost, cost)) / max(limit.slack, 1.0) for cost, limit in limits.items()]
    least = np.min(left, axis=0)
    return np.asarray(among & (least <= least[among].min() + 1))


def adds_heads(grid: Grid, times: float = 1.0) -> NDArray[np.bool_]:
    """Mask: more heads than the baseline in the leading stage, or at least ``times`` as many."""
    return np.asarray((grid.heads > grid.old.heads) & (grid.heads >= times * grid.old.heads))


def trades_layers(grid: Grid, request: Request) -> NDArray[np.bool_]:
    """Mask: more heads and fewer layers, as far as neither is pinned.

    If no block can be left out (EdgeNeXt, ALBERT), narrower MLPs pay for the heads.
    """
    if not request.wants_heads:
        return np.ones(len(grid), bool)
    if grid.shortest == grid.old_depth:
        return np.asarray(adds_heads(grid) & (grid.mlp < grid.old.mlp))
    fewer = grid.depth < grid.old_depth if request.options.depth is None else True
    return np.asarray(adds_heads(grid) & fewer)
