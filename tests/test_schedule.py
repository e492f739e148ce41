"""The learning rate by step, against timm's and torch's schedulers."""

from __future__ import annotations

import pytest
import torch
from timm.scheduler import CosineLRScheduler

from leanify.recipe import Optim, Schedule
from leanify.schedule import rate_of, steps_of


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-3)


def test_cosine_is_timms_by_updates() -> None:
    rate = rate_of(Schedule(8, epochs=10, warmup=2, warmup_lr=1e-5), Optim(3e-3), 7)
    theirs = optimizer()
    schedule = CosineLRScheduler(theirs, 70, warmup_t=14, warmup_lr_init=1e-5, t_in_epochs=False)
    for step in range(70):
        schedule.step_update(step)
        assert rate(step) == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)


def test_one_cycle_is_torchs() -> None:
    rate = rate_of(Schedule(8, steps=50, warmup=10, kind="one-cycle"), Optim(3e-3), 1)
    theirs = optimizer()
    schedule = torch.optim.lr_scheduler.OneCycleLR(theirs, 3e-3, 50, pct_start=0.2, anneal_strategy="linear")
    for step in range(50):
        assert rate(step) == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9)
        theirs.step()
        schedule.step() if step < 49 else None


def test_the_other_kinds() -> None:
    flat = rate_of(Schedule(8, steps=10, warmup=4, kind="constant"), Optim(1.0), 1)
    assert [flat(step) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    line = rate_of(Schedule(8, steps=4, kind="linear"), Optim(1.0), 1)
    assert [line(step) for step in range(4)] == [1, 0.75, 0.5, 0.25]
    hill = rate_of(Schedule(8, steps=8, warmup=2, cooldown=4, kind="triangular"), Optim(1.0), 1)
    assert [hill(step) for step in range(8)] == [0, 0.5, 1, 1, 1, 0.75, 0.5, 0.25]


def test_units() -> None:
    assert steps_of(Schedule(8, epochs=1), 7, None) == 7
    assert steps_of(Schedule(8, steps=1), 7, None) == 1
    assert rate_of(Schedule(8, tokens=1280), Optim(1.0), steps_of(Schedule(8, tokens=1280), 7, 16)).steps == 10
