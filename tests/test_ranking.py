"""The order of designs beside a plain sort of tuples, and which of them were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import leanify
from leanify.design.options import Options
from leanify.design.prices.live import prices_of
from leanify.design.prices.price_list import PriceList
from leanify.design.search.grid import Grid, grids_of
from leanify.design.search.ranking import (
    EVIDENCE,
    directions,
    is_unmeasured,
    is_usual,
    pareto,
    rank,
    ranked_by,
    recommendation,
    score,
)
from leanify.design.search.request import Request

TINY_T5 = {"d_model": 24, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 3,
           "vocab_size": 41}  # fmt: skip


def priced(name: str, **overrides: Any) -> PriceList:
    return prices_of(leanify.load(name, overrides=overrides or None, device="meta"), 16)


@pytest.fixture(scope="module")
def vit() -> Grid:
    (found,) = grids_of(priced("vit_small"), Request(Options(heads_mode="auto"), {"params": 11 * 10**6}))
    return found


@pytest.fixture(scope="module")
def gpt2() -> Grid:
    prices = priced("gpt2", n_embd=48, n_head=3, n_layer=8, vocab_size=50)
    (found,) = grids_of(prices, Request(limits={"params": 10**5}))
    return found


def with_columns(grid: Grid, **columns: list[Any]) -> Grid:
    """A grid with other numbers in some columns, one design for each."""
    length = len(next(iter(columns.values())))
    arrays: dict[str, Any] = {name: np.asarray(values) for name, values in columns.items()}
    rest = ("shape", "row", "depth", "heads", "head_dim", "mlp", "kappa", "attention", "mlp_params")
    for name in rest:
        arrays.setdefault(name, np.full(length, getattr(grid, name)[0]))
    cost = {name: np.full(length, np.ravel(value)[0]) for name, value in vars(grid.cost).items()}
    if "params" in arrays:
        cost["params"] = arrays.pop("params")
    return replace(grid, cost=type(grid.cost)(**cost), **arrays)


def plain_order(grid: Grid, inside: np.ndarray) -> list[int]:
    def key(i: int) -> tuple[Any, ...]:
        narrow = max(0, min(grid.old.head_dim, 64) - int(grid.head_dim[i]))
        mlp, inner = grid.mlp[i] / grid.old.width, grid.heads[i] * grid.head_dim[i] / grid.old.width
        known = 1 <= mlp <= 10 or grid.mlp[i] == grid.old.mlp
        unmeasured = bool(4 * grid.depth[i] < grid.old_depth or not known or inner > 3)
        share = float(grid.attention[i])
        steps = round((max(share, 0.5) if grid.causal else -share) / 0.02)
        return (narrow, unmeasured, steps, abs(int(grid.depth[i]) - grid.old_depth),
                share if grid.causal else -share, int(grid.params[i]))  # fmt: skip

    return sorted(inside.tolist(), key=key)


@pytest.mark.parametrize("which", ["vit", "gpt2"])
def test_designs_come_in_the_order_of_the_rule(which: str, request: pytest.FixtureRequest) -> None:
    grid: Grid = request.getfixturevalue(which)
    inside = np.arange(0, len(grid), 7)
    order, classes = rank(grid, inside)
    assert order.tolist() == plain_order(grid, inside)
    narrow = [max(0, min(grid.old.head_dim, 64) - int(dim)) for dim in grid.head_dim]
    assert classes.tolist() == narrow
    if which == "vit":
        assert len(set(narrow)) > 2
    assert grid.causal == (which == "gpt2")


def test_heads_of_more_channels_than_the_baselines_or_than_64_are_as_good(vit: Grid) -> None:
    made = with_columns(vit, head_dim=[32, 63, 64, 65, 128])
    assert rank(made, np.arange(5))[1].tolist() == [32, 1, 0, 0, 0]
    small = replace(made, old=vit.old.with_heads(vit.old.heads))
    small = replace(small, old=replace(small.old, head_dim=48))
    assert rank(small, np.arange(5))[1].tolist() == [16, 0, 0, 0, 0]


def test_a_ranking_of_the_callers_own_is_followed(vit: Grid) -> None:
    """Equal scores go by size; a class of narrower heads comes later whatever the score."""
    inside = np.arange(0, len(vit), 5)

    def deepest(grid: Grid) -> Any:
        return -grid.depth.astype(float)

    order, classes = rank(vit, inside, deepest)
    keys = [(int(classes[i]), -int(vit.depth[i]), int(vit.params[i])) for i in order]
    assert keys == sorted(keys)
    assert len(order) == len(inside)


def test_what_was_measured_includes_its_bounds(vit: Grid) -> None:
    width, old = vit.old.width, vit.old.mlp
    below, above = width - 1, 10 * width + 1
    made = with_columns(vit, mlp=[width, 10 * width, below, above, old])
    made = replace(made, depth=np.full(5, vit.old_depth))
    assert is_unmeasured(made).tolist() == [False, False, True, True, False]
    odd = replace(made, old=replace(vit.old, mlp=above))  # the baseline's own MLP is known, however wide
    assert is_unmeasured(odd).tolist() == [False, False, True, False, False]
    dim = vit.old.head_dim
    most = 3 * width // dim
    assert most * dim == 3 * width
    made = with_columns(vit, heads=[most, most + 1, 1], mlp=[old] * 3, depth=[vit.old_depth] * 3)
    assert is_unmeasured(made).tolist() == [False, True, False]
    quarter = vit.old_depth // 4
    made = with_columns(vit, depth=[quarter, quarter - 1, quarter + 1], mlp=[old] * 3)
    assert is_unmeasured(made).tolist() == [False, True, False]
    both = with_columns(vit, depth=[quarter - 1], mlp=[below], heads=[1])
    assert is_unmeasured(both).tolist() == [True]


def test_experts_count_together_in_what_was_measured(vit: Grid) -> None:
    """Two active experts of half a width are an MLP of one."""
    width = vit.old.width
    made = with_columns(vit, mlp=[width // 2, width // 2 - 1, 5 * width], depth=[vit.old_depth] * 3)
    mixture = replace(made, old=replace(vit.old, experts=8, active=2))
    assert is_unmeasured(mixture).tolist() == [False, True, False]


def test_a_usual_mlp_has_two_widths_or_the_baselines(vit: Grid) -> None:
    width, old = vit.old.width, vit.old.mlp
    least = 2 * 2 * width * width  # parameters of two widths without biases
    made = with_columns(vit, mlp=[8, 8, old, old - 1], mlp_params=[least, least - 1, 0, 0])
    request = Request(limits={"params": 1})
    assert is_usual(made, request).tolist() == [True, False, True, False]
    asked = Request(Options(min_mlp=0.5), {"params": 1})
    assert is_usual(made, asked).all()
    mixture = replace(made, old=replace(vit.old, experts=8, active=2))
    assert is_usual(mixture, request).all()


def test_the_front_is_what_no_other_design_beats(vit: Grid) -> None:
    order = np.arange(0, len(vit), max(1, len(vit) // 150))
    columns = np.stack([vit.params, vit.macs, vit.kappa, -vit.depth], 1).astype(float)
    expected = []
    for i in order:
        beaten = [(columns[j] <= columns[i]).all() and (columns[j] < columns[i]).any() for j in order]
        if not any(beaten):
            expected.append(int(i))
    assert list(pareto(vit, order)) == expected
    assert 1 < len(expected) < len(order)


@pytest.mark.parametrize(("name", "causal"), [("vit_small", [False]), ("gpt2", [True]), ("t5", [False, True])])
def test_a_recommendation_is_as_strong_as_its_weaker_evidence(name: str, causal: list[bool]) -> None:
    prices = priced(name, **(TINY_T5 if name == "t5" else {}))
    assert directions(prices) == causal
    known = [EVIDENCE[one] for one in causal]
    found = recommendation(prices, "lean")
    assert found.design == "lean"
    assert found.regret == max(one.held_out for one in known)
    for one in known:
        assert one.rule in found.evidence
        assert f"{one.held_out:.2f} on {one.tasks} small" in found.evidence
        assert one.rule in ranked_by(prices)
    own = recommendation(prices, "lean", lambda grid: grid.depth)
    assert own.regret is None
    assert not any(one.rule in own.evidence for one in known)
    assert own.to_json() == {"design": "lean", "regret": None, "evidence": own.evidence}


def test_a_score_is_the_share_of_attention_or_of_it_above_one_half() -> None:
    vit = priced("vit_small")
    (stage,) = vit.baseline
    assert stage is not None
    share = float(vit.attention_share(0, stage))
    assert 0 < share < 0.5
    assert score(vit, vit.baseline) == pytest.approx(-share)
    gpt = priced("gpt2")
    assert score(gpt, gpt.baseline) == 0.5
    (one,) = gpt.baseline
    assert one is not None
    wide = one._replace(heads=3 * one.heads)
    assert score(gpt, (wide,)) == pytest.approx(float(gpt.attention_share(0, wide)))
    assert score(gpt, (wide,)) > 0.5


def test_the_share_of_attention_is_that_of_a_blocks_projections() -> None:
    """By hand for a Llama: queries and outputs of all heads, keys and values of their groups, three maps of the MLP."""
    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
             "intermediate_size": 80, "num_hidden_layers": 4, "vocab_size": 50}  # fmt: skip
    prices = priced("llama", **sizes)
    (stage,) = prices.baseline
    assert stage is not None
    for heads, groups, mlp in ((6, 2, 80), (9, 3, 64), (3, 1, 128)):
        attention = 48 * 8 * (2 * heads + 2 * groups)
        found = prices.attention_share(0, stage._replace(heads=heads, mlp=mlp))
        assert found == pytest.approx(attention / (attention + 3 * 48 * mlp))


def test_blocks_beyond_the_last_one_cost_what_it_costs() -> None:
    prices = priced("vit_small")
    (stage,) = prices.baseline
    assert stage is not None
    at = {depth: prices.total((stage._replace(depth=depth),)) for depth in (11, 12, 15)}
    last = at[12] - at[11]
    assert (at[15].params, at[15].macs) == (at[12].params + 3 * last.params, at[12].macs + 3 * last.macs)
