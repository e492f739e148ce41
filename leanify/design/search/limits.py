"""The limits of every tower, and which of its designs keep to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leanify.design.prices.cost import Cost
from leanify.design.prices.price_list import PriceList
from leanify.design.search.grid import Grid, Request, baseline_designs
from leanify.design.search.towers import Tower

UNSPENT = 0.03  # of a budget; a design that leaves more of it is no alternative


@dataclass(frozen=True)
class Limit:
    """What a tower may cost, the others as in the baseline; ``slack`` is how much of it may be left unspent."""

    most: float
    slack: float


Limits = Mapping[str, Limit]  # by the cost that it is on


def share_out(prices: PriceList, request: Request, grids: Sequence[Grid]) -> list[Limits]:
    """Every tower's limits: each saves in proportion to its blocks, no more than it can."""
    whole = prices.total(baseline_designs(prices))
    if request.tower_params:
        return [_own_limits(request, designs.tower, whole, prices) for designs in grids]
    shares: list[dict[str, Limit]] = [{} for _ in grids]
    for cost, limit in request.limits.items():
        total = getattr(whole, cost)
        least = [total - int(getattr(designs.cost, cost).min()) for designs in grids]
        weights = [prices.held(designs.tower.stages, cost) for designs in grids]
        savings = _in_proportion(total - limit, weights, least)
        every = sum(weights) or 1
        for share, saving, weight in zip(shares, savings, weights, strict=True):
            share[cost] = Limit(total - saving, UNSPENT * limit * (weight / every if len(grids) > 1 else 1))
    return list(shares)


def _in_proportion(saving: float, weights: Sequence[float], most: Sequence[float]) -> list[float]:
    """``saving`` shared out by weight, none above its most; all of it where even that does not do."""
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


def _own_limits(request: Request, tower: Tower, whole: Cost, prices: PriceList) -> Limits:
    """A tower's limit on its own blocks; one without a limit stays as it is."""
    held = prices.held(tower.stages, "params")
    most = request.tower_params.get(tower.name, held)
    return {"params": Limit(whole.params - held + most, UNSPENT * most)}


def within(designs: Grid, limits: Limits) -> NDArray[np.bool_]:
    """Which designs keep to all limits."""
    fits = np.ones(len(designs), bool)
    for cost, limit in limits.items():
        fits &= getattr(designs.cost, cost) <= limit.most
    return fits


def unspent(designs: Grid, limits: Limits) -> NDArray[np.bool_]:
    """Which designs leave more of every limit than they may: no alternatives to one that spends it."""
    if not limits:
        return np.zeros(len(designs), bool)
    left = [getattr(designs.cost, cost) < limit.most - limit.slack for cost, limit in limits.items()]
    return np.asarray(np.logical_and.reduce(left))


def nearest(designs: Grid, limits: Limits, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of some designs within the limits, those that leave no more unspent than the nearest one, or hardly more."""
    if not limits or not among.any():
        return among
    costs = [(getattr(designs.cost, cost), limit) for cost, limit in limits.items()]
    left = np.min([(limit.most - cost) / max(limit.slack, 1.0) for cost, limit in costs], axis=0)
    return np.asarray(among & (left <= left[among].min() + 1))


def adds_heads(designs: Grid) -> NDArray[np.bool_]:
    """Which designs have more heads than the baseline where the tower leads."""
    return np.asarray(designs.heads > designs.old.heads)


def trades_layers(designs: Grid, request: Request) -> NDArray[np.bool_]:
    """Which designs have more heads and fewer layers, as far as neither is pinned.

    Where no block can be left out (EdgeNeXt, ALBERT), narrower MLPs pay for the heads.
    """
    if not request.wants_heads:
        return np.ones(len(designs), bool)
    if designs.shortest == designs.old_depth:
        return np.asarray(adds_heads(designs) & (designs.mlp < designs.old.mlp))
    fewer = designs.depth < designs.old_depth if request.depth is None else True
    return np.asarray(adds_heads(designs) & fewer)
