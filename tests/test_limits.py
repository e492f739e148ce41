"""What a budget leaves to each tower, and which designs keep to it: each mask beside the same words in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cases import bart_prices, price_list
from hypothesis import given, settings
from hypothesis import strategies as st

import leanify
from leanify.profiling.price_list import PriceList
from leanify.search.grid import Grid, make_grids
from leanify.search.options import Options
from leanify.search.request import Request
from leanify.search.search import (
    UNSPENT,
    Limit,
    _proportional_shares,
    nearest,
    share_out,
    trades_layers,
    unspent,
)


@pytest.fixture(scope="module")
def vit() -> PriceList:
    return price_list(leanify.load("vit_small", device="meta"))


@pytest.fixture(scope="module")
def towers() -> PriceList:
    return bart_prices()


# -- dividing a saving ------------------------------------------------------------------------------------------------

PARTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), min_size=1, max_size=4)


@settings(deadline=None)
@given(PARTS, st.integers(0, 100))
def test_saving_splits_proportionally_within_caps(parts: Sequence[tuple[int, int]], saving: int) -> None:
    weights, most = [weight for weight, _ in parts], [cap for _, cap in parts]
    found = _proportional_shares(saving, weights, most)
    assert sum(found) == pytest.approx(saving)
    taking = [i for i, weight in enumerate(weights) if weight or not any(weights)]
    assert all(found[i] == 0 for i in range(len(parts)) if i not in taking)
    if saving <= sum(most[i] for i in taking):
        assert all(found[i] <= most[i] + 1e-9 for i in taking)
    rates = [found[i] / (weights[i] or 1) for i in taking]
    below = [rate for i, rate in zip(taking, rates, strict=True) if found[i] < most[i] - 1e-9]
    assert below == pytest.approx([max(rates)] * len(below))  # who is not at the cap gives as much as anybody


def test_single_tower_gets_whole_budget(vit: PriceList) -> None:
    for request in (Request(limits={"params": 7 * 10**6, "macs": 10**9}), Request(limits={"params": 10})):
        (limits,) = share_out(vit, request, make_grids(vit, request))
        assert limits == {cost: Limit(most, UNSPENT * most) for cost, most in request.limits.items()}


def test_towers_save_by_block_parameters(towers: PriceList) -> None:
    whole = int(towers.total(towers.baseline).params)
    request = Request(limits={"params": round(0.9 * whole)})
    grids = make_grids(towers, request)
    shares = share_out(towers, request, grids)
    held = [towers.fixed_cost(grid.tower.stages, "params") for grid in grids]
    savings = [whole - share["params"].maximum for share in shares]
    assert sum(savings) == pytest.approx(whole - request.limits["params"])
    assert savings[0] / savings[1] == pytest.approx(held[0] / held[1])
    slacks = [share["params"].slack for share in shares]
    assert sum(slacks) == pytest.approx(UNSPENT * request.limits["params"])
    assert slacks[0] / slacks[1] == pytest.approx(held[0] / held[1])


def test_tower_saving_is_capped() -> None:
    """A decoder of three blocks with MLPs of one width can save little, so the encoder saves the rest."""
    prices = bart_prices(decoder_layers=3, decoder_ffn_dim=16)
    whole = int(prices.total(prices.baseline).params)
    request = Request(limits={"params": round(0.75 * whole)})
    grids = make_grids(prices, request)
    savings = [whole - share["params"].maximum for share in share_out(prices, request, grids)]
    most = [whole - int(grid.cost.params.min()) for grid in grids]
    capped = [i for i, saving in enumerate(savings) if saving == most[i]]
    assert len(capped) == 1
    assert sum(savings) == pytest.approx(whole - request.limits["params"])
    held = [prices.fixed_cost(grid.tower.stages, "params") for grid in grids]
    assert sum(savings) * held[capped[0]] / sum(held) > most[capped[0]]  # its proportion would be more


def test_tower_budget_leaves_other_alone(towers: PriceList) -> None:
    names = [grid.tower.name for grid in make_grids(towers, Request(limits={"params": 1}))]
    whole = int(towers.total(towers.baseline).params)
    request = Request(tower_params={names[0]: 5_000})
    grids = make_grids(towers, request)
    first, second = share_out(towers, request, grids)
    held = [towers.fixed_cost(grid.tower.stages, "params") for grid in grids]
    assert first == {"params": Limit(whole - held[0] + 5_000, UNSPENT * 5_000)}
    assert second == {"params": Limit(whole, UNSPENT * held[1])}


# -- masks ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid(vit: PriceList) -> Grid:
    (found,) = make_grids(vit, Request(limits={"params": 11 * 10**6}))
    return found


def test_unspent_is_below_every_limit(grid: Grid) -> None:
    place = len(grid) // 2
    params, macs = grid.cost.params, grid.cost.macs
    slack = Limit(float(params[place]) + 100.0, 100.0), Limit(float(macs[place]) + 50.0, 50.0)  # met exactly
    limits = {"params": slack[0], "macs": slack[1]}
    expected = [p < params[place] and m < macs[place] for p, m in zip(params, macs, strict=True)]
    assert unspent(grid, limits).tolist() == expected
    assert not unspent(grid, limits)[place]
    assert 0 < sum(expected) < len(grid)
    assert not unspent(grid, {}).any()


def test_nearest_are_within_slack(grid: Grid) -> None:
    """Within a slack of the least unused budget."""
    limits = {"params": Limit(2e7, 4e5), "macs": Limit(4e9, 1e8)}
    among = np.arange(len(grid)) % 3 == 0
    costs = zip(grid.cost.params.tolist(), grid.cost.macs.tolist(), strict=True)
    unused = [min((2e7 - params) / 4e5, (4e9 - macs) / 1e8) for params, macs in costs]
    least = min(each for each, is_in in zip(unused, among, strict=True) if is_in)
    expected = [bool(is_in) and each <= least + 1 for each, is_in in zip(unused, among, strict=True)]
    assert nearest(grid, limits, among).tolist() == expected
    assert 0 < sum(expected) < among.sum()
    assert (nearest(grid, {}, among) == among).all()
    nothing = np.zeros(len(grid), bool)
    assert not nearest(grid, limits, nothing).any()


def test_slack_is_at_least_one(grid: Grid) -> None:
    """A budget of a few parameters divides by nothing."""
    limits = {"params": Limit(float(grid.cost.params.min()) + 0.5, 0.0)}
    among = np.ones(len(grid), bool)
    best = float(grid.cost.params.max())
    assert nearest(grid, limits, among).tolist() == [float(p) >= best - 1 for p in grid.cost.params]


def test_layers_trade_for_heads(vit: PriceList) -> None:
    """Unless one of the two is pinned."""
    limits = {"params": 11 * 10**6}
    for options in (Options(), Options(depth=12), Options(heads=6), Options(heads=9), Options(head_dim=32)):
        request = Request(options, limits)
        (found,) = make_grids(vit, request)
        heads, depth = found.heads.tolist(), found.depth.tolist()
        if options.heads or options.head_dim:
            expected = [True] * len(found)
        elif options.depth:
            expected = [each > 6 for each in heads]
        else:
            expected = [each > 6 and layers < 12 for each, layers in zip(heads, depth, strict=True)]
        assert trades_layers(found, request).tolist() == expected, options
