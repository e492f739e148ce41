"""A learning rate for healing, by a short range test.

A model with transferred weights is close to its teacher, and the rate of a fresh model undoes that. So three rates are
tried from the same weights and on the same batches (after Smith 2017, Cyclical Learning Rates, section 3.3). Each trial
is a small schedule with warm-up and a cosine to zero: ten steps at a flat rate choose one too low
(`recipes/results/shrink-minilm.md`). The best one ends with the lowest validation loss: the accuracy of a few batches
is often the same at every rate. A fresh model keeps its recipe's rate, which short trials do not find.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from leanify.core.errors import TrainingError
from leanify.core.recipe import Recipe
from leanify.data.samples import Splits
from leanify.training.loop import Trainer
from leanify.training.preparation import has_weights
from leanify.training.schedule import Rate

FACTORS = (0.1, 0.3, 1.0)  # of the recipe's rate
PART = 25  # a trial takes 1 / PART of the run's steps
MIN_STEPS, MAX_STEPS = 10, 80  # steps at each rate
BATCHES = 8  # of the validation split


@dataclass(frozen=True)
class RangeTest:
    """The validation loss at the start and after some steps at each rate, and the rate that did best."""

    steps: int
    start: float
    after: dict[float, float]
    best: float

    @property
    def summary(self) -> str:
        losses = ", ".join(f"{rate:.2g}: {value:.4g}" for rate, value in self.after.items())
        return f"rate {self.best:.2g} by a range test of {self.steps} steps (loss {self.start:.4g} → {losses})"


def range_test(
    recipe: Recipe,
    rates: Sequence[float] = (),
    *,
    model: nn.Module | None = None,
    splits: Splits | None = None,
    teacher: nn.Module | None = None,
) -> RangeTest | None:
    """The best of some rates, by default among shares of the recipe's rate; None if the recipe does not heal weights.

    Several processes, and a run that is not much longer than the test, keep the recipe's rate. ``model``, ``splits``
    and ``teacher`` are those of `Trainer`; the model is trained in place.
    """
    if recipe.distill is None or recipe.optim is None or (model is None and not has_weights(recipe)):
        return None
    # one trainer for all trials; it evaluates on a few batches and averages no weights
    short_recipe = replace(recipe, run=replace(recipe.run, eval_batches=BATCHES), optim=replace(recipe.optim, ema=None))
    trainer = Trainer(short_recipe, model=model, splits=splits, teacher=teacher)
    if trainer.accelerator.num_processes > 1 or (trainer.steps < 2 * MIN_STEPS and not rates):
        return None

    # each trial starts from the same weights, without moments
    start = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    first, steps = trainer.evaluate()["loss"], steps_of_test(trainer.steps)
    after: dict[float, float] = {}
    for rate in rates or default_rates(recipe.optim.lr):
        trainer.model.load_state_dict(start)
        trainer.optimizer.state.clear()
        batches = trainer.batches(0)
        warm_up = Rate("cosine", rate, steps, steps / 10, 0.0, 0)
        trainer.schedule = replace(trainer.schedule, rate=warm_up, counts_samples=False)
        try:
            for step in range(steps):
                trainer.step(step, batches)
            loss = trainer.evaluate()["loss"]
        except TrainingError:
            loss = math.inf
        trainer.window.clear()
        after[rate] = loss if math.isfinite(loss) else math.inf
    best = min(after, key=lambda rate: after[rate])
    return RangeTest(steps, first, after, best)


def default_rates(rate: float) -> tuple[float, ...]:
    """The rates that are tried where none are given, from a recipe's: the lowest first."""
    return tuple(rate * factor for factor in FACTORS)


def steps_of_test(steps: int) -> int:
    """Steps at each rate, for a run of ``steps``."""
    return min(MAX_STEPS, max(MIN_STEPS, steps // PART))
