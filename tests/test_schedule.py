"""The learning rate by step, against timm's and torch's schedulers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leanify.core.recipe import OptimSection, ScheduleSection
from leanify.data.sampling import Order
from leanify.training.schedule import build_rate, ramp_steps, steps_per_unit


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-3)


def test_cosine_matches_timm() -> None:
    from timm.scheduler import CosineLRScheduler

    rate = build_rate(ScheduleSection(8, epochs=10, warmup=2, warmup_lr=1e-5), OptimSection(3e-3), 7)
    theirs = optimizer()
    schedule = CosineLRScheduler(theirs, 70, warmup_t=14, warmup_lr_init=1e-5, t_in_epochs=False)
    for step in range(70):
        schedule.step_update(step)
        assert rate(step) == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)


def test_one_cycle_matches_torch() -> None:
    rate = build_rate(ScheduleSection(8, steps=50, warmup=10, kind="one-cycle"), OptimSection(3e-3), 1)
    theirs = optimizer()
    schedule = torch.optim.lr_scheduler.OneCycleLR(theirs, 3e-3, 50, pct_start=0.2, anneal_strategy="linear")
    for step in range(50):
        assert rate(step) == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9)
        theirs.step()
        schedule.step() if step < 49 else None
    assert rate(49) == pytest.approx(3e-3 / 25e4, rel=1e-9, abs=0)


def test_other_schedules_follow_formulas() -> None:
    flat = build_rate(ScheduleSection(8, steps=10, warmup=4, kind="constant"), OptimSection(1.0), 1)
    assert [flat(step) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    line = build_rate(ScheduleSection(8, steps=4, kind="linear"), OptimSection(1.0), 1)
    assert [line(step) for step in range(4)] == [1, 0.75, 0.5, 0.25]
    hill = build_rate(ScheduleSection(8, steps=8, warmup=2, cooldown=4, kind="triangular"), OptimSection(1.0), 1)
    assert [hill(step) for step in range(8)] == [0, 0.5, 1, 1, 1, 0.75, 0.5, 0.25]


def test_schedule_units_convert() -> None:
    assert steps_per_unit(ScheduleSection(8, epochs=1), 7, 50, None) == 7
    assert steps_per_unit(ScheduleSection(8, steps=1), 7, 50, None) == 1
    budget = ScheduleSection(8, tokens=1280)
    assert build_rate(budget, OptimSection(1.0), steps_per_unit(budget, 7, 56, 16)).steps == 10
    short_text = build_rate(budget, OptimSection(1.0), steps_per_unit(budget, 1, 4, 16))  # less than a batch
    assert short_text.steps == 20


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6])
@pytest.mark.parametrize("unit", ["tokens", "epochs", "steps"])
def test_batch_grows_in_equal_steps(unit: str, share: float) -> None:
    """The batches before the first full one see that share of the run's samples (or are that share of its steps)."""
    length = {"tokens": 16 * 64 * 200, "epochs": 2, "steps": 200}[unit]
    schedule = ScheduleSection(64, **{unit: length}, batch_ramp=share)
    whole = build_rate(schedule, OptimSection(1.0), steps_per_unit(schedule, 100, 6400, 16)).steps
    assert whole == 200
    order = Order(6400, 64, seed=0, ramp=ramp_steps(schedule, whole))
    steps = whole if unit == "steps" else order.step_at(whole)
    sizes = [len(order.batch(step)) for step in range(steps)]
    grown = next(step for step, size in enumerate(sizes) if size == 64)
    if unit == "steps":
        assert grown == pytest.approx(share * steps, abs=1)
    else:
        assert sum(sizes) == pytest.approx(64 * 200, abs=63)
        assert sum(sizes[:grown]) == pytest.approx(share * 64 * 200, abs=3 * 64)
        assert [order.position(step) for step in (0, steps)] == pytest.approx([0, 200], abs=1)
    first = order.step_at(order.steps_per_epoch)  # an epoch's end cuts a batch short
    assert all(abs(64 * (step + 1) / (order.ramp + 1) - sizes[step]) < 1 for step in range(min(grown, first - 1)))


def test_length_batches_reshuffle_every_epoch() -> None:
    """The batches are those of lengths 0–3, 4–7, …, whatever the samples; which of them comes when is drawn anew."""
    lengths = np.arange(40)
    order = Order(40, 4, seed=0, lengths=lengths)
    turns = [[int(min(order.batch(epoch * 10 + step))) // 4 for step in range(10)] for epoch in range(6)]
    assert all(sorted(turn) == list(range(10)) for turn in turns)
    assert len({tuple(turn) for turn in turns}) == 6
