"""A limit on latency, on a clock that is a value: only one test looks at a real one."""

from __future__ import annotations

from typing import Any

import pytest
from cases import IMAGE, price_list
from torch import nn

import leanify
from leanify.cli import app
from leanify.core.architecture import Architecture, primary_layer
from leanify.profiling.measuring import Clock, Pair
from leanify.search import measured_limits as limits
from leanify.search import search
from leanify.search.options import Options
from leanify.search.request import Request

SMALL: dict[str, Any] = {"overrides": {**IMAGE, "depth": 9}}


class Machine:
    """A clock that knows the time of every shape; heads take more time than their MACs say."""

    setting = "a pass on paper"
    noise = 0.0
    overhead, layer, head, unit = 2e-3, 1e-3, 4e-4, 2e-6  # seconds: of a pass, and of each layer, head and MLP unit

    def __init__(self, model: nn.Module, tokens: int | None) -> None:
        self.baseline = self._seconds(leanify.read(model))

    def _seconds(self, shape: Architecture) -> float:
        (stage,) = shape.stages
        primary = primary_layer(stage)
        return self.overhead + stage.depth * (self.layer + self.head * primary.heads + self.unit * primary.mlp)

    def pair(self, shape: Architecture) -> Pair:
        return Pair(self.baseline, self._seconds(shape) / self.baseline, self.noise)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> type[Machine]:
    own = type("OwnMachine", (Machine,), {})
    monkeypatch.setattr(limits, "Clock", own)
    return own


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_designs_meet_the_limit(share: float) -> None:
    plan = leanify.redesign("vit_base", max_latency=share, min_depth=2, **SMALL)
    assert plan.baseline.latency_s == pytest.approx(plan.timing.limit_s / share)
    for design in (plan.chosen, plan.plain, *plan.candidates):
        assert design.latency_s <= plan.timing.limit_s
    assert plan.chosen.heads > plan.baseline.heads
    assert plan.chosen == plan.candidates[0]
    assert len(plan.candidates) <= 3
    assert plan.control is None or plan.control.latency_s


def test_unused_time_allows_more_macs(machine: type[Machine]) -> None:
    """Where most of the time is one of layers, half of the time has room for more than half of the MACs."""
    machine.overhead, machine.head = -5e-3, 1e-5
    plan = leanify.redesign("vit_base", max_latency=0.5, **SMALL)
    assert plan.chosen.macs > 0.5 * plan.baseline.macs


def test_slow_designs_shrink_again(machine: type[Machine]) -> None:
    machine.overhead = 8e-3
    plan = leanify.redesign("vit_base", max_latency=0.6, min_depth=2, min_mlp=0.5, **SMALL)
    assert len(plan.timing.pairs) > limits.MAX_TIMED
    assert plan.chosen.macs < 0.5 * plan.baseline.macs


def test_unreachable_limit_is_refused(machine: type[Machine]) -> None:
    machine.overhead = 1.0
    with pytest.raises(leanify.BudgetError, match=r"max_latency=.*the fastest of \d+ takes .*% of the baseline"):
        leanify.redesign("vit_base", max_latency=0.6, **SMALL)


def test_latency_and_memory_bind_together() -> None:
    """Where the best of the fast designs takes too much memory, the next one is chosen."""
    prices = price_list(leanify.load("vit_base", device="meta", **SMALL))

    def find(request: Request, top: int) -> search.SearchResult:
        return search.search(prices, request, top)

    request = Request(Options(max_latency=0.7, min_depth=2, min_mlp=0.5))
    first = limits.limit_latency(prices, request, find, None)[0].front[0]
    all_memory = limits.MemoryLimit(prices, Options(max_memory=1.0))
    memory = limits.MemoryLimit(prices, Options(max_memory=0.99 * all_memory.share(first)))
    chosen = limits.limit_latency(prices, request, find, memory)[0].front[0]
    assert chosen.architecture != first.architecture
    assert memory.share(chosen) <= 1 < memory.share(first)


def test_busy_machine_is_a_warning(machine: type[Machine]) -> None:
    machine.noise = 0.3
    plan = leanify.redesign("vit_base", max_latency=0.6, **SMALL)
    assert any("the machine is busy: timings scatter by 30%" in warning for warning in plan.warnings)


def test_table_shows_latencies(capsys: pytest.CaptureFixture[str]) -> None:
    small = [word for key, value in SMALL["overrides"].items() for word in ("--override", f"{key}={value}")]
    app("redesign")(args=["vit_base", "--max-latency", "0.6", *small], standalone_mode=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "a pass, 60% of" in shown
    assert "GMACs latency" in shown or "MMACs latency" in shown
    assert "latency: a pass on paper" in shown


def test_clock_times_two_shapes() -> None:
    """That it runs and that its numbers are times: how long they are is the machine's affair."""
    model = leanify.load("gpt2", device="meta", overrides={"n_embd": 32, "n_layer": 3, "n_head": 2, "vocab_size": 50})
    clock = Clock(model, 16)
    pair = clock.pair(leanify.read(model).grown(factor=2))
    assert pair.ratio > 0
    assert pair.noise >= 0
    assert clock.baseline > 0
    assert "a pass at batch 1, float32" in clock.setting
