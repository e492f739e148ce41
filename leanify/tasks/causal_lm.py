"""Causal language modelling."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.recipe import TrainingRecipe
from leanify.data.samples import IGNORED, Inputs, Splits
from leanify.tasks import UsualSettings, answer, mean
from leanify.tasks.references import Grams

USUAL = UsualSettings(  # a teacher's distribution alone: Muralidharan et al. 2024 (arXiv 2407.14679), table 9
    "a text file, or a folder with train.txt and validation.txt", distill=(1.0, 1.0)
)


def task(recipe: TrainingRecipe, splits: Splits) -> CausalLm:
    return CausalLm(recipe.optim.label_smoothing, splits.bytes_per_target)


class CausalLm:
    """Next-token prediction: cross-entropy, perplexity, bits per byte."""

    metric, sign, best, unit = "loss", -1, 0.0, "nats per token"
    mean_column = ("loss", 1.0)

    def __init__(self, smoothing: float, bytes_per_target: float | None) -> None:
        self.smoothing, self.bytes_per_target = smoothing, bytes_per_target
        self.reference = Grams(is_masked=False)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """input_ids and targets (B, N) → the loss summed over targets"""
        return self._nats(model, inputs, targets, self.smoothing).sum()

    def _nats(self, model: nn.Module, inputs: Inputs, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """→ the loss of every position, (B, N)"""
        logits = answer(model, inputs)
        loss = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, label_smoothing=smoothing, reduction="none"
        )
        return loss.view_as(targets)

    def count(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED).sum()

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        return {"loss": self._nats(model, inputs, targets).sum(1), "count": (targets != IGNORED).sum(1)}

    def metrics(self, tally: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean loss in nats per token, perplexity, and bits per byte (by the split's bytes per token)."""
        loss = mean(tally, "loss")
        report = {"loss": loss, "perplexity": math.exp(min(loss, 700))}
        if self.bytes_per_target:
            report["bits_per_byte"] = loss / math.log(2) / self.bytes_per_target
        return report
