"""A learning rate for healing, by a short range test.

A model whose weights were carried over is close to its teacher, and a rate that suits a fresh model undoes
that. So three rates are tried from the same weights and on the same batches (Smith 2017, Cyclical Learning
Rates, section 3.3, raises the rate within one run; here every rate starts anew). The rate is the one after
which the loss is least on some of the validation split: the accuracy of a few batches is often the same at
every rate.

Each is a schedule in small, a twenty-fifth of the run, with warm-up and a cosine to zero. Ten steps at a flat
rate choose too low a one: a MiniLM brought to 60% and healed for 1,000 steps has a cosine of 0.955 at 5e-5,
which they chose, 0.961 at 1.5e-4 and 0.959 at 5e-4 (`recipes/results/shrink-minilm.md`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leanify.data.samples import Splits
from leanify.errors import TrainingError
from leanify.runs.recipe import Recipe
from leanify.training.loop import Trainer
from leanify.training.preparation import has_weights
from leanify.training.schedule import Rate

FACTORS = (0.1, 0.3, 1.0)  # of the recipe's rate
PART = 25  # of a run are done at each rate: one step in so many
FEWEST, MOST = 10, 80  # steps at each rate
COST = len(FACTORS) / PART  # of a run
BATCHES = 8  # of the validation split


@dataclass(frozen=True)
class Tested:
    """The validation loss at the start and after some steps at each rate, and the rate that did best."""

    steps: int
    start: float
    after: dict[float, float]
    best: float

    @property
    def words(self) -> str:
        tried = ", ".join(f"{rate:.2g}: {value:.4g}" for rate, value in self.after.items())
        return f"rate {self.best:.2g} by a range test of {self.steps} steps (loss {self.start:.4g} → {tried})"


def range_test(recipe: Recipe, rates: Sequence[float] = (), splits: Splits | None = None) -> Tested | None:
    """The best of some rates, by default of shares of the recipe's own; None where it does not heal weights.

    Several processes, and a run that is hardly longer than the test, keep the recipe's rate.
    """
    if recipe.distill is None or recipe.optim is None or not has_weights(recipe):
        return None
    few = replace(recipe, run=replace(recipe.run, eval_batches=BATCHES), optim=replace(recipe.optim, ema=None))
    trainer = Trainer(few, splits=splits)
    if trainer.accelerator.num_processes > 1 or trainer.steps < 2 * FEWEST:
        return None
    start = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    first, steps = trainer.evaluate()["loss"], min(MOST, max(FEWEST, trainer.steps // PART))
    after: dict[float, float] = {}
    for rate in rates or [recipe.optim.lr * factor for factor in FACTORS]:
        trainer.model.load_state_dict(start)
        trainer.optimizer.state.clear()
        after[rate] = _after(trainer, rate, steps)
    best = min(after, key=lambda rate: after[rate])
    return Tested(steps, first, after, best)


def _after(trainer: Trainer, rate: float, steps: int) -> float:
    """The validation loss after a run of so many steps at a rate; infinite where the run failed."""
    batches = trainer.batches(0)
    trainer.lr = Rate("cosine", rate, steps, steps / 10, 0.0, 0)  # type: ignore[method-assign]
    try:
        for step in range(steps):
            trainer.step(step, batches)
        value = trainer.evaluate()["loss"]
    except TrainingError:
        value = math.nan
    trainer.window.clear()
    return value if math.isfinite(value) else math.inf
