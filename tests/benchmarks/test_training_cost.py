"""What the loop costs beside a bare forward, backward and step on the same model and batches, turn by turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import torch

from leanify import loop, preparation
from leanify import recipe as recipes

pytestmark = pytest.mark.benchmark
STEPS, TURNS = 5, 12


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@pytest.mark.parametrize("name", ["digits", "chars"])
def test_the_loop_costs_at_most_5_percent_over_a_bare_one(name: str) -> None:
    """The ratio of the medians of alternating turns of 5 steps; logging is off, data is in memory for both."""
    settings = ["schedule.batch_size=64", "data.mixup="] if name == "digits" else []
    trainer = loop.Trainer(recipes.with_settings(recipes.load(name), settings))
    batches, order = trainer.batches(0), trainer.order
    bare = preparation.build(trainer.recipe)
    options = {"lr": 1e-3, "fused": True}
    optimizer = torch.optim.AdamW(bare.parameters(), **options)  # type: ignore[arg-type]
    place = 0

    def ours() -> None:
        nonlocal place
        for step in range(place, place + STEPS):
            trainer.step(step, batches)
        place += STEPS

    def theirs() -> None:
        for step in range(place, place + STEPS):
            inputs, targets = trainer.splits.train.batch(order.batch(step))  # type: ignore[attr-defined]
            loss = trainer.task.loss(bare, inputs, targets) / (targets >= 0).sum()
            loss.backward()
            if name == "chars":
                torch.nn.utils.clip_grad_norm_(bare.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    pairs = [(seconds(theirs), seconds(ours)) for _ in range(TURNS)]
    ratio = statistics.median(mine for _, mine in pairs) / statistics.median(other for other, _ in pairs)
    print(f"{name}: {ratio:.3f} times a bare loop")
    assert ratio <= 1.05
