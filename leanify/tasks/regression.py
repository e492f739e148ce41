"""Regression to target vectors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from leanify.core.recipe import TrainingRecipe
from leanify.data.samples import Inputs, Splits
from leanify.tasks import answer, mean
from leanify.tasks.references import Mean


def task(recipe: TrainingRecipe, splits: Splits) -> Regression:
    return Regression()


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

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        errors = (answer(model, inputs) - targets).square().flatten(1).sum(1)
        return {"loss": errors, "count": torch.full((len(targets),), targets[0, ..., 0].numel())}

    def metrics(self, tally: Mapping[str, Tensor]) -> dict[str, float]:
        """The mean squared error per point."""
        return {"loss": mean(tally, "loss")}
