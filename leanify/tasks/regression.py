"""Regression to target vectors, and of one number per sentence or sentence pair."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.recipe import TrainingRecipe
from leanify.data.samples import Inputs, Splits
from leanify.tasks import Tally, Task, answer, mean
from leanify.tasks.references import Linear, Mean


def task(recipe: TrainingRecipe, splits: Splits) -> Task:
    return TextRegression() if recipe.data.task == "text-regression" else Regression()


class Regression:
    """Regression to one vector per point of a sequence, by the squared error ‖ŷ − y‖² per point."""

    metric, sign, best, unit = "loss", -1, 0.0, "squared error"
    mean_column = ("loss", 1.0)

    def __init__(self) -> None:
        self.reference = Mean()

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B, N, d) → the loss summed over B and N"""
        return (answer(model, inputs) - targets).square().sum()

    def count(self, targets: Tensor) -> Tensor:
        return targets.new_tensor(targets[..., 0].numel())

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tally:
        errors = (answer(model, inputs) - targets).square().flatten(1).sum(1)
        return {"loss": errors, "count": torch.full((len(targets),), targets[0, ..., 0].numel())}

    def metrics(self, tally: Tally) -> dict[str, float]:
        """The mean squared error per point."""
        return {"loss": mean(tally, "loss")}


class TextRegression:
    """One number per text, by squared error; evaluated by Spearman's and Pearson's correlation."""

    metric, sign, best, unit = "spearman", 1, 100.0, "points of Spearman's correlation"
    mean_column = None

    def __init__(self) -> None:
        self.reference = Linear()

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B,) → the loss summed over B"""
        return F.mse_loss(answer(model, inputs)[:, 0], targets, reduction="sum")

    def count(self, targets: Tensor) -> int:
        return len(targets)

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tally:
        guess = answer(model, inputs)[:, 0]
        loss = F.mse_loss(guess, targets, reduction="none")
        return {"loss": loss, "count": torch.ones(len(targets)), "guess": guess, "label": targets}

    def metrics(self, tally: Tally) -> dict[str, float]:
        """The mean squared error, and the correlations times 100."""
        label, guess = tally["label"].numpy(), tally["guess"].numpy()
        loss = mean(tally, "loss")
        correlations = {name: 100 * correlation(f"{name}r", label, guess) for name in ("spearman", "pearson")}
        return {"loss": loss, **correlations}


def correlation(name: str, labels: np.ndarray, guesses: np.ndarray) -> float:
    """SciPy's correlation of this name, from −1 to 1; 0 where a constant column leaves it undefined."""
    from scipy import stats

    if len(labels) < 2 or not (np.ptp(labels) > 0 and np.ptp(guesses) > 0):
        return 0.0
    value = float(getattr(stats, name)(labels, guesses).statistic)
    return value if np.isfinite(value) else 0.0
