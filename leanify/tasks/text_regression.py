"""Regression of one number per sentence or sentence pair."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.recipe import TrainingRecipe
from leanify.data.samples import Inputs, Splits
from leanify.tasks import answer, mean
from leanify.tasks.references import Linear


def correlation(name: str, labels: np.ndarray, guesses: np.ndarray) -> float:
    """SciPy's correlation of this name, from −1 to 1; 0 where a constant column leaves it undefined."""
    from scipy import stats

    if len(labels) < 2 or not (np.ptp(labels) > 0 and np.ptp(guesses) > 0):
        return 0.0
    value = float(getattr(stats, name)(labels, guesses).statistic)
    return value if np.isfinite(value) else 0.0


def task(recipe: TrainingRecipe, splits: Splits) -> TextRegression:
    return TextRegression()


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

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        guess = answer(model, inputs)[:, 0]
        loss = F.mse_loss(guess, targets, reduction="none")
        return {"loss": loss, "count": torch.ones(len(targets)), "guess": guess, "label": targets}

    def metrics(self, tally: Mapping[str, Tensor]) -> dict[str, float]:
        """The mean squared error, and the correlations times 100."""
        label, guess = tally["label"].numpy(), tally["guess"].numpy()
        loss = mean(tally, "loss")
        correlations = {name: 100 * correlation(f"{name}r", label, guess) for name in ("spearman", "pearson")}
        return {"loss": loss, **correlations}
