"""Regression of one number per sentence or sentence pair."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import Inputs, Splits
from leanify.runs.recipe import TrainingRecipe
from leanify.tasks.glue import pearson, spearman
from leanify.tasks.outputs import answer, mean
from leanify.tasks.references import Linear


def task(recipe: TrainingRecipe, splits: Splits) -> TextRegression:
    return TextRegression()


class TextRegression:
    """One number per text, by squared error; evaluated by Spearman's and Pearson's correlation."""

    metric, sign, best, unit = "spearman", 1, 100.0, "points of Spearman's correlation"
    summed = None

    def __init__(self) -> None:
        self.reference = Linear()

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B,) → the loss summed over B"""
        return F.mse_loss(answer(model, inputs)[:, 0], targets, reduction="sum")

    def count(self, targets: Tensor) -> int:
        return len(targets)

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        guess = answer(model, inputs)[:, 0]
        loss = F.mse_loss(guess, targets, reduction="none")
        return {"loss": loss, "count": torch.ones(len(targets)), "guess": guess, "label": targets}

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """The mean squared error, and the correlations times 100."""
        label, guess = found["label"].numpy(), found["guess"].numpy()
        loss = mean(found, "loss")
        return {"loss": loss, "spearman": 100 * spearman(label, guess), "pearson": 100 * pearson(label, guess)}
