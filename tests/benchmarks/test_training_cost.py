"""What the loop costs beside a bare forward, backward and step on the same model and batches, turn by turn; and what a
lean model gains beside its baseline."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import torch

import leanify
from leanify.runs import recipe as recipes
from leanify.training import loop, preparation

pytestmark = pytest.mark.benchmark
STEPS, TURNS = 5, 12


def seconds(work: Callable[[], None]) -> float:
    """Processor time of this process, which has one thread: another process beside it does not count."""
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["vit_small_patch16_224", "deit_tiny_patch16_224"])
def test_a_lean_model_is_as_fast_as_its_multiplications_say(name: str, training: bool) -> None:
    """At least 0.85 of the ratio of the MACs, forward or in a whole step; the medians of alternating turns."""
    plan = leanify.redesign(name, target_params=0.5)
    models = [leanify.load(name), plan.build()]
    images = torch.randn(4, 3, 224, 224)

    def work(model: torch.nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(model.train(training).parameters(), fused=True)

        def run() -> None:
            with torch.set_grad_enabled(training):
                output = model(images)
            if training:
                output.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        return run

    runs = [work(model) for model in models]
    turns = [[seconds(run) for run in runs] for _ in range(6)][1:]
    slow, fast = (statistics.median(turn[place] for turn in turns) for place in (0, 1))
    macs = plan.baseline.macs / plan.chosen.macs
    print(f"{name}, {'training' if training else 'forward'}: {slow / fast:.2f} times as fast, {macs:.2f} by MACs")
    assert slow / fast >= 0.85 * macs
