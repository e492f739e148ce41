"""Latency by a fitted line, on timings that were recorded or made up of known weights: no test looks at a clock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import IMAGE

import leanify
from leanify.design.measure import limits as measured
from leanify.design.measure.clock import Clock, Pair, Setting
from leanify.design.options import Options
from leanify.design.prices import cache
from leanify.design.prices.live import prices_of
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Shape, StageShape
from leanify.design.search import search
from leanify.design.search.grid import grids_of
from leanify.design.search.latency import NANO, TERMS, Latency, Timed, fit, shapes_to_time, terms
from leanify.design.search.request import Request
from leanify.runs.cache import write_value

# vit_small at batch 1 on one thread, by processor time, beside the baseline: depth, heads, head_dim, MLP, time.
RECORDED = [
    (12, 6, 64, 1536, 1.0045), (5, 6, 64, 384, 0.2522), (12, 18, 64, 384, 1.3091), (12, 6, 64, 384, 0.5677),
    (5, 18, 64, 1536, 0.7413), (5, 6, 64, 1536, 0.4213), (5, 18, 64, 384, 0.5440), (11, 6, 64, 384, 0.5266),
]  # fmt: skip
ANY = Request(limits=measured.NO_LIMIT)
WEIGHTS = (2e-3, 1e-4, 3e-9, 1.5e-11, 2.5e-11)  # seconds: fixed, a layer, a map's entry, a MAC, a MAC of an MLP


@pytest.fixture(scope="module")
def vit_small() -> PriceList:
    return prices_of(leanify.load("vit_small", device="meta"))


def timed(prices: PriceList, designs: Shape, weights: tuple[float, ...] = WEIGHTS, noise: float = 0.0) -> Timed:
    """What a machine with these weights would measure."""
    base = np.array([1, 0, 0, prices.base.macs, 0])  # MACs are counted over those of the shortest model
    return Timed(designs, float((terms(prices, designs) + base * [0, 0, 0, 1, 0]) @ weights) * (1 + noise))


def recorded(seconds: float = 0.03) -> list[Timed]:
    return [Timed((StageShape(*shape),), seconds * ratio) for *shape, ratio in RECORDED]


def test_a_line_through_recorded_timings(vit_small: PriceList) -> None:
    line = fit(vit_small, recorded())
    assert line.error < 0.03
    assert min(line.weights) >= 0
    left_out = fit(vit_small, recorded()[:-1])
    predicted = int(left_out.applied_to(vit_small).total(recorded()[-1].shape).ns) / NANO
    assert predicted == pytest.approx(recorded()[-1].seconds, rel=0.03)


def test_the_search_within_a_latency(vit_small: PriceList) -> None:
    """Half of the baseline's time: almost all of it is spent, by the same design each time."""
    prices = fit(vit_small, recorded()).applied_to(vit_small)
    limit = round(0.5 * 0.03 * NANO)
    chosen = search.search(prices, Request(limits={"ns": limit})).chosen
    assert 0.97 * limit <= chosen.cost.ns <= limit
    again = fit(vit_small, recorded()).applied_to(vit_small)
    assert search.search(again, Request(limits={"ns": limit})).chosen == chosen


def test_known_weights_are_found_from_the_shapes_that_are_timed(vit_small: PriceList) -> None:
    """With 1 % of noise every design of the search is predicted within 4 %."""
    request = replace(ANY, options=Options(heads_mode="auto"))
    grids = grids_of(vit_small, request)
    shapes = shapes_to_time(vit_small, grids)
    assert shapes[0] == vit_small.baseline
    assert len({*shapes}) == len(shapes) >= TERMS
    random = np.random.default_rng(0)
    line = fit(vit_small, [timed(vit_small, one, noise=random.uniform(-0.01, 0.01)) for one in shapes])
    prices = line.applied_to(vit_small)
    for i in random.integers(len(grids[0]), size=100):
        designs = grids[0].shape_at(int(i))
        truth = timed(vit_small, designs).seconds
        assert int(prices.total(designs).ns) / NANO == pytest.approx(truth, rel=0.04)


def test_narrow_heads_cost_what_they_cost(vit_small: PriceList) -> None:
    """Equal MACs, and many more entries of softmax maps."""
    prices = fit(vit_small, [timed(vit_small, s) for s in _split_shapes(vit_small)]).applied_to(vit_small)
    costs = [prices.total((StageShape(12, heads, 384 // heads, 1536),)) for heads in (6, 24, 48)]
    assert len({int(cost.macs) for cost in costs}) == 1
    maps = 12 * vit_small.tokens[0] ** 2 * WEIGHTS[2] * NANO
    assert np.diff([int(cost.ns) for cost in costs]) == pytest.approx([18 * maps, 24 * maps], rel=0.05)


def _split_shapes(prices: PriceList) -> list[Shape]:
    return shapes_to_time(prices, grids_of(prices, replace(ANY, options=Options(heads_mode="split"))))


def test_one_design_is_priced_as_the_grid_prices_it(vit_small: PriceList) -> None:
    prices = fit(vit_small, recorded()).applied_to(vit_small)
    (grid,) = grids_of(prices, ANY)
    for i in (0, len(grid) // 2, len(grid) - 1):
        assert grid.cost.ns[i] == prices.total(grid.shape_at(i)).ns > 0
    assert vit_small.total(vit_small.baseline).ns == 0


@pytest.mark.parametrize("source", ["swin_tiny", "hf/clip"])
def test_stages_and_towers_are_timed_together(source: str) -> None:
    prices = prices_of(leanify.load(source, device="meta"), 16)
    grids = grids_of(prices, ANY)
    shapes = shapes_to_time(prices, grids)
    assert all(None not in [d for d, now in zip(s, prices.baseline, strict=True) if now] for s in shapes)
    line = fit(prices, [timed(prices, designs) for designs in shapes])
    assert line.error < 1e-6
    said = line.applied_to(prices)
    base = int(said.total(prices.baseline).ns)
    assert search.search(said, Request(limits={"ns": int(0.7 * base)})).chosen.cost.ns <= 0.7 * base


def test_a_correction_moves_all_designs() -> None:
    assert Latency((1.0, 2.0), 0.1).scaled(1.5) == Latency((1.5, 3.0), 0.1)


# -- the whole way, on a clock that is a value --------------------------------------------------------------------


class Machine:
    """A clock that knows what everything takes; in truth attention takes longer than any line of its shapes says."""

    def __init__(self, prices: PriceList, monkeypatch: pytest.MonkeyPatch, noise: float = 0.0) -> None:
        self.prices, self.noise, self.asked = prices, noise, 0
        monkeypatch.setattr(measured, "Clock", lambda model, setting: self)

    def beside(self, shape: Any) -> Pair:
        self.asked += 1
        main = shape.stages[0].primary
        designs = (StageShape(shape.stages[0].depth, main.heads, main.head_dim, main.mlp),)
        bend = 1 + 0.3 * (main.heads > 6)
        base = self.alone().baseline
        return Pair(base, timed(self.prices, designs).seconds * bend, self.noise)

    def alone(self) -> Pair:
        base = timed(self.prices, self.prices.baseline).seconds
        return Pair(base, base, self.noise)


SMALL: dict[str, Any] = {"overrides": {**IMAGE, "depth": 9}}


def test_what_the_line_misses_the_check_finds(
    vit_small: PriceList, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LEANIFY_PRICES")
    machine = Machine(vit_small, monkeypatch)
    plan = leanify.redesign("vit_small", max_latency=0.6)
    assert plan.timing is not None
    assert plan.chosen.latency_s is not None
    assert 0.92 <= plan.chosen.latency_s / plan.timing.limit_s <= 1.05
    assert all(design.latency_s for design in (plan.baseline, plan.control, *plan.candidates) if design)
    first = machine.asked
    again = leanify.redesign("vit_small", max_latency=0.6)
    assert again.chosen.architecture == plan.chosen.architecture
    assert machine.asked - first < first - 6  # the shapes were kept, what is shown was timed anew


def test_a_busy_machine_is_said_and_is_no_failure(vit_small: PriceList, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(vit_small, monkeypatch, noise=0.3)
    plan = leanify.redesign("vit_small", max_latency=0.6)
    assert any("the machine is busy: timings scatter by 30%" in words for words in plan.warnings)


def test_the_command_says_measured_and_predicted(
    vit_small: PriceList, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leanify.cli import app

    Machine(vit_small, monkeypatch)
    app("redesign")(args=["vit_small", "--max-latency", "0.6", "--explain"], standalone_mode=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "GMACs latency κ" in shown
    assert "lean was predicted at" in shown
    assert "and measured at" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-latency", "0.001us"], "below every sensible design"),
        (["--max-latency", "0.5", "--dtype", "int8"], "not a floating-point type"),
        (["--max-latency", "0.5", "--device", "cuda:99"], "'cuda:99' is not available"),
        (["--max-latency", "0.5", "--latency-of", "epoch"], "none of pass, token"),
        (["--max-latency", "0.5", "--latency-of", "token"], "keeps none"),
        (["--batch-size", "4", "--target-params", "0.6"], "need --max-latency"),
    ],
)
def test_bad_input_is_one_message(words: list[str], said: str) -> None:
    from leanify.cli import app

    with pytest.raises(leanify.LeanifyError, match=said):
        app("redesign")(
            args=["vit_tiny", "--override", "img_size=32", "--override", "depth=6", *words], standalone_mode=False
        )


# -- the clock ----------------------------------------------------------------------------------------------------


def test_the_clock_times_two_shapes_and_a_token() -> None:
    """That it runs and that its numbers are times: how long they are is the machine's affair."""
    model = leanify.load("gpt2", device="meta", overrides={"n_embd": 32, "n_layer": 3, "n_head": 2, "vocab_size": 50})
    shape = leanify.read(model).grown(factor=2)
    for what in ("pass", "token"):
        setting = Setting(torch.device("cpu"), torch.bfloat16, 2, tokens=16, what=what)
        pair = Clock(model, setting).beside(shape)
        assert pair.ratio > 0
        assert pair.noise >= 0
    assert next(model.parameters()).dtype is torch.float32  # the asker's model stays as it is


def test_kept_timings_are_believed_only_for_their_key(tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    rows = [[[list(StageShape(12, 6, 64, 1536)), None], 1.0, 0.01]]
    write_value(file, "this machine", rows)
    assert cache.kept((file, "this machine"), measured.timed_in) == [
        Timed((StageShape(12, 6, 64, 1536), None), 1.0, 0.01)
    ]
    assert cache.kept((file, "another"), measured.timed_in) is None
    file.write_text(json.dumps({**json.loads(file.read_text()), "answers": [[1]]}))
    assert cache.kept((file, "this machine"), measured.timed_in) is None
