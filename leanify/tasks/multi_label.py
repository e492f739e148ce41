"""Multi-label classification of texts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import Inputs, Splits
from leanify.runs.recipe import TrainingRecipe
from leanify.tasks.outputs import answer, mean
from leanify.tasks.references import Linear

THRESHOLD = 0.5  # of a label's probability


def task(recipe: TrainingRecipe, splits: Splits) -> MultiLabel:
    return MultiLabel()


class MultiLabel:
    """Independent labels: binary cross-entropy; micro and macro F1."""

    metric, sign, best, unit = "f1_micro", 1, 100.0, "points of micro F1"
    summed = None

    def __init__(self) -> None:
        self.reference = Linear(labels=True)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B, labels) of zeros and ones → the mean over labels, summed over B"""
        return self._loss(answer(model, inputs), targets).sum()

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)

    def count(self, targets: Tensor) -> int:
        return len(targets)

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        logits = answer(model, inputs)
        return {
            "loss": self._loss(logits, targets),
            "count": torch.ones(len(targets)),
            "guess": (logits.sigmoid() >= THRESHOLD).float(),
            "label": targets,
        }

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean loss in nats per label, and in per cent micro F1, macro F1 and ``exact``: all labels right.

        F1 is 0 for a label that neither occurs nor is predicted.
        """
        from sklearn.metrics import accuracy_score, f1_score

        label, guess = (found[name].numpy().astype(int) for name in ("label", "guess"))
        means = {how: f1_score(label, guess, average=how, zero_division=0.0) for how in ("micro", "macro")}
        return {
            "loss": mean(found, "loss"),
            **{f"f1_{how}": 100 * float(mean) for how, mean in means.items()},
            "exact": 100 * float(accuracy_score(label, guess)),
        }
