"""Regression to target vectors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from leanify.data.samples import Inputs
from leanify.tasks.outputs import answer


class Regression:
    """Regression to one vector per point of a sequence, by the squared error ‖ŷ − y‖² per point."""

    metric, sign, margin = "loss", -1, 0.01  # targets are unit vectors, for which a trivial model's error is about 1

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B, N, d) → the loss summed over B and N"""
        return (answer(model, inputs) - targets).square().sum()

    def count(self, targets: Tensor) -> Tensor:
        return targets.new_tensor(targets[..., 0].numel())

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        return {"loss": self.loss(model, inputs, targets), "count": self.count(targets)}

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """The mean squared error per point."""
        return {"loss": (found["loss"] / found["count"]).item()}
