"""Any number of labels for each text."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import Inputs
from leanify.tasks.outputs import answer

THRESHOLD = 0.5  # of a label's probability


class MultiLabel:
    """Every label by itself: binary cross-entropy, and F1 over all labels together and as their mean."""

    metric, sign, margin = "f1_micro", 1, 1.0  # a point

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B, labels) of zeros and ones → the sum over B of the mean over labels"""
        return self._loss(answer(model, inputs), targets)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / targets.shape[1]

    def count(self, targets: Tensor) -> int:
        return len(targets)

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        logits = answer(model, inputs)
        return {
            "loss": self._loss(logits, targets),
            "count": torch.tensor(len(targets)),
            "guess": (logits.sigmoid() >= THRESHOLD).float(),
            "label": targets,
        }

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean loss in nats a label; in per cent F1 micro and macro (0 for a label that nobody has or guesses), and
        ``exact``, the share of texts whose labels are all right.
        """
        from sklearn.metrics import accuracy_score, f1_score

        label, guess = (found[name].numpy().astype(int) for name in ("label", "guess"))
        means = {how: f1_score(label, guess, average=how, zero_division=0.0) for how in ("micro", "macro")}
        return {
            "loss": (found["loss"] / found["count"]).item(),
            **{f"f1_{how}": 100 * float(mean) for how, mean in means.items()},
            "exact": 100 * float(accuracy_score(label, guess)),
        }
