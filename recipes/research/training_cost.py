"""What the training loop costs beside a bare one, and what a lean model gains beside its baseline, turn by turn.

    python -m recipes.research.training_cost
    python -m recipes.research.training_cost --small      one turn: whether it runs

Goals: the loop takes at most 1.05 times a bare forward, backward and step on the same model and batches; a lean model
is as much faster as its multiplications say, to 0.85. Exit 1 where one is missed. Processor time of this process on one
thread: other processes do not count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import leanify
from leanify.core import recipe as recipes
from leanify.training import loop, preparation

STEPS = 5
MODELS = ("vit_small_patch16_224", "deit_tiny_patch16_224")


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def loop_goal(name: str, turns: int) -> bool:
    """The ratio of the medians of alternating turns; logging is off, data is in memory for both."""
    settings = ["schedule.batch_size=64", "data.mixup="] if name == "digits" else []
    trainer = loop.Trainer(recipes.apply_settings(recipes.load(name), settings))
    batches, order = trainer.batches(0), trainer.order
    samples: Any = trainer.splits.train
    bare = preparation.build_model(trainer.recipe)
    optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-3, fused=True)
    place = 0

    def ours() -> None:
        nonlocal place
        for step in range(place, place + STEPS):
            trainer.step(step, batches)
        place += STEPS

    def theirs() -> None:
        for step in range(place, place + STEPS):
            inputs, targets = samples.batch(order.batch(step))
            loss = trainer.task.loss(bare, inputs, targets) / (targets >= 0).sum()
            loss.backward()
            if name == "chars":
                torch.nn.utils.clip_grad_norm_(bare.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    pairs = [(seconds(theirs), seconds(ours)) for _ in range(turns)]
    ratio = statistics.median(mine for _, mine in pairs) / statistics.median(other for other, _ in pairs)
    print(f"{name}: {ratio:.3f} times a bare loop", flush=True)
    return ratio <= 1.05


def lean_goal(name: str, training: bool, turns: int) -> bool:
    """Forward passes or whole steps of baseline and lean; the medians of alternating turns, the first left out."""
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
    times = [[seconds(run) for run in runs] for _ in range(turns + 1)][1:]
    slow, fast = (statistics.median(turn[place] for turn in times) for place in (0, 1))
    macs = plan.baseline.macs / plan.chosen.macs
    what = "training" if training else "forward"
    print(f"{name}, {what}: {slow / fast:.2f} times as fast, {macs:.2f} by MACs", flush=True)
    return slow / fast >= 0.85 * macs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="one turn of two cases, and goals are not judged")
    small = parser.parse_args().small
    torch.set_num_threads(1)
    met = [loop_goal(name, 1 if small else 12) for name in (("digits",) if small else ("digits", "chars"))]
    for name in MODELS[-1:] if small else MODELS:
        met += [lean_goal(name, training, 1 if small else 5) for training in (False, True)]
    if not small and not all(met):
        raise SystemExit("a goal is missed")


if __name__ == "__main__":
    main()
