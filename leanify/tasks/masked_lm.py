"""Masked language modelling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import IGNORED, Inputs, Splits
from leanify.errors import RecipeError
from leanify.runs.recipe import TrainingRecipe
from leanify.tasks import Usual
from leanify.tasks.outputs import logits_of, mean
from leanify.tasks.references import Grams
from leanify.upstream import own_models

USUAL = Usual("a text file, or a folder with train.txt and validation.txt", distill=(1.0, 1.0))


def task(recipe: TrainingRecipe, splits: Splits) -> MaskedLm:
    return MaskedLm(recipe.optim.label_smoothing, _most_targets(splits))


def _most_targets(splits: Splits) -> int | None:
    """The largest number of targets in a sample; None where that is not known in advance."""
    parts = [part.targets for part in (splits.train, splits.validation, splits.test) if part is not None]
    known = [int(part.max()) for part in parts if part is not None]
    return max(known) if len(known) == len(parts) else None


class MaskedLm:
    """Prediction of masked tokens (Devlin et al. 2019): cross-entropy, perplexity and accuracy."""

    metric, sign, best, unit = "loss", -1, 0.0, "nats per masked token"
    summed = ("loss", 1.0)

    def __init__(self, smoothing: float, most: int | None = None) -> None:
        """``most`` is the largest number of masked tokens in a sample, where it is known."""
        self.smoothing, self.most = smoothing, most
        self.reference = Grams(masked=True)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """input_ids and targets (B, N) → the loss summed over targets"""
        logits, tokens, _ = self._predictions(model, inputs, targets)
        smoothing = self.smoothing
        return F.cross_entropy(logits, tokens, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")

    def _predictions(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (K, V) in float32, true tokens (K,) and samples (K,) of the masked positions."""
        assert isinstance(inputs, dict)
        chosen = masked(targets) if targets.device.type == "cpu" else at_most(targets, self.most)
        rows = chosen // targets.shape[1]
        bare: Any = getattr(model, "module", model)  # unwrap DistributedDataParallel
        if own_models.name_of(type(bare)) == "crammed-bert" and bare.classifier is None:
            return model(**inputs, chosen=chosen).float(), targets.flatten()[chosen], rows
        logits = logits_of(model(**inputs))
        if logits.shape[:2] != targets.shape:
            gives, tokens = (" × ".join(map(str, shape)) for shape in (logits.shape, targets.shape))
            raise RecipeError(
                f"this model outputs {gives} numbers for {tokens} tokens, so it has no masked-language-modelling head: "
                'set class = "AutoModelForMaskedLM" in [model]'
            )
        return logits.flatten(0, 1)[chosen].float(), targets.flatten()[chosen], rows

    def count(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED).sum()

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        logits, tokens, rows = self._predictions(model, inputs, targets)
        losses = F.cross_entropy(logits, tokens, ignore_index=IGNORED, reduction="none")
        none = torch.zeros(len(targets), device=losses.device)
        return {
            "loss": none.index_add(0, rows, losses),
            "right": none.index_add(0, rows, (logits.argmax(-1) == tokens).float()),
            "count": (targets != IGNORED).sum(1),
        }

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean loss in nats per masked token, perplexity, and accuracy in per cent."""
        loss, right = (mean(found, name) for name in ("loss", "right"))
        return {"loss": loss, "perplexity": math.exp(min(loss, 700)), "accuracy": 100 * right}


def masked(targets: Tensor) -> Tensor:
    """targets (B, N) → (K,) the positions of B · N that have one"""
    return (targets != IGNORED).flatten().nonzero()[:, 0]


def at_most(targets: Tensor, most: int | None) -> Tensor:
    """targets (B, N) → (B · most,) positions, those with a target among them; the others add nothing to a loss

    How many there are is a question that an accelerator has to be waited for.
    """
    first = (targets == IGNORED).int().argsort(dim=1, stable=True)[:, :most]
    rows = torch.arange(len(targets), device=targets.device)[:, None]
    return (rows * targets.shape[1] + first).flatten()
