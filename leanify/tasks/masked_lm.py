"""Masked language modelling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import IGNORED, Inputs
from leanify.errors import RecipeError
from leanify.models.crammed_bert import CrammedBert
from leanify.tasks.outputs import logits_of


class MaskedLm:
    """The words that were masked (Devlin et al. 2019): cross-entropy, perplexity, and the share guessed right."""

    metric, sign, margin = "loss", -1, 0.02  # nats a token, 2 % of perplexity

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """input_ids and targets B, N → the sum over targets"""
        logits, words = self._guesses(model, inputs, targets)
        return F.cross_entropy(logits, words, label_smoothing=self.smoothing, reduction="sum")

    def _guesses(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and words where words are asked for: K, V in float32, and K."""
        assert isinstance(inputs, dict)
        chosen = targets != IGNORED
        bare: Any = getattr(model, "module", model)  # within what several processes wrap around it
        if isinstance(bare, CrammedBert) and bare.classifier is None:
            return model(**inputs, chosen=chosen).float(), targets[chosen]
        logits = logits_of(model(**inputs))
        if logits.shape[:2] != targets.shape:
            gives, tokens = (" × ".join(map(str, shape)) for shape in (logits.shape, targets.shape))
            raise RecipeError(
                f"this model gives {gives} numbers for {tokens} tokens, so it guesses no words: "
                'class = "AutoModelForMaskedLM" in [model]'
            )
        return logits[chosen].float(), targets[chosen]

    def count(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED).sum()

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        logits, words = self._guesses(model, inputs, targets)
        right = (logits.argmax(-1) == words).sum()
        return {
            "loss": F.cross_entropy(logits, words, reduction="sum"),
            "right": right,
            "count": self.count(targets),
        }

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean loss in nats a masked token, and the share of them guessed right in per cent."""
        loss, right = ((found[name] / found["count"]).item() for name in ("loss", "right"))
        return {"loss": loss, "perplexity": math.exp(min(loss, 700)), "accuracy": 100 * right}
