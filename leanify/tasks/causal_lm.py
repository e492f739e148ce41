"""Causal language modelling."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import IGNORED, Inputs
from leanify.tasks.outputs import answer


class CausalLm:
    """Next-token prediction: cross-entropy, perplexity, bits per byte."""

    metric, sign, margin = "loss", -1, 0.02  # nats per token, which is 2 % of perplexity

    def __init__(self, smoothing: float, bytes_per_target: float | None) -> None:
        self.smoothing, self.bytes_per_target = smoothing, bytes_per_target

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """input_ids and targets (B, N) → the loss summed over targets"""
        return self._nats(model, inputs, targets, self.smoothing)

    def _nats(self, model: nn.Module, inputs: Inputs, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        logits = answer(model, inputs)
        return F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
        )

    def count(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED).sum()

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        return {"loss": self._nats(model, inputs, targets), "count": self.count(targets)}

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean loss in nats per token, perplexity, and bits per byte (from the split's mean bytes per token)."""
        loss = (found["loss"] / found["count"]).item()
        report = {"loss": loss, "perplexity": math.exp(min(loss, 700))}
        return report | ({"bits_per_byte": loss / math.log(2) / self.bytes_per_target} if self.bytes_per_target else {})
