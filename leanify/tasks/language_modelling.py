"""Language modelling: of the next token, and of masked ones."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.errors import RecipeError
from leanify.core.recipe import TrainingRecipe
from leanify.data.samples import IGNORED, Inputs, Splits
from leanify.tasks import Tally, Task, UsualSettings, answer, get_logits, mean
from leanify.tasks.references import Grams
from leanify.upstream.inputs import takes_chosen

USUAL = UsualSettings(  # a teacher's distribution alone: Muralidharan et al. 2024 (arXiv 2407.14679), table 9
    "a text file, or a folder with train.txt and validation.txt", distill=(1.0, 1.0)
)


def task(recipe: TrainingRecipe, splits: Splits) -> Task:
    if recipe.data.task == "causal-lm":
        return CausalLm(recipe.optim.label_smoothing, splits.bytes_per_target)
    return MaskedLm(recipe.optim.label_smoothing, _max_targets(splits))


def _max_targets(splits: Splits) -> int | None:
    """The largest number of targets in a sample, or None if it is not known in advance."""
    parts = [part.targets for part in (splits.train, splits.validation, splits.test) if part is not None]
    counts = [int(part.max()) for part in parts if part is not None]
    return max(counts) if len(counts) == len(parts) else None


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

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tally:
        return {"loss": self._nats(model, inputs, targets).sum(1), "count": (targets != IGNORED).sum(1)}

    def metrics(self, tally: Tally) -> dict[str, float]:
        """Mean loss in nats per token, perplexity, and bits per byte (by the split's bytes per token)."""
        loss = mean(tally, "loss")
        report = {"loss": loss, "perplexity": math.exp(min(loss, 700))}
        if self.bytes_per_target:
            report["bits_per_byte"] = loss / math.log(2) / self.bytes_per_target
        return report


class MaskedLm:
    """Prediction of masked tokens (Devlin et al. 2019): cross-entropy, perplexity and accuracy."""

    metric, sign, best, unit = "loss", -1, 0.0, "nats per masked token"
    mean_column = ("loss", 1.0)

    def __init__(self, smoothing: float, max_targets: int | None = None) -> None:
        """``max_targets`` is the largest number of masked tokens in a sample, if it is known."""
        self.smoothing, self.max_targets = smoothing, max_targets
        self.reference = Grams(is_masked=True)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """input_ids and targets (B, N) → the loss summed over targets"""
        logits, tokens, _ = self._predictions(model, inputs, targets)
        smoothing = self.smoothing
        return F.cross_entropy(logits, tokens, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")

    def _predictions(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (K, V) in float32, true tokens (K,) and samples (K,) of the masked positions."""
        assert isinstance(inputs, dict)
        # places (K,) of the masked tokens in the flattened batch (B · N,), and their samples
        chosen = is_target(targets) if targets.device.type == "cpu" else target_positions(targets, self.max_targets)
        rows = chosen // targets.shape[1]
        bare: Any = getattr(model, "module", model)  # unwrap DistributedDataParallel
        # a model that computes logits for these places alone saves the rest of the vocabulary's product
        if takes_chosen(bare):
            logits = model(**inputs, chosen=chosen)
            if logits.shape[:-1] == chosen.shape:
                return logits.float(), targets.flatten()[chosen], rows
        else:
            logits = get_logits(model(**inputs))

        # another model gives logits (B, N, V), of which the places are taken
        if logits.shape[:2] != targets.shape:
            outputs, tokens = (" × ".join(map(str, shape)) for shape in (logits.shape, targets.shape))
            raise RecipeError(
                f"this model outputs {outputs} numbers for {tokens} tokens, so it has no masked-language-modelling "
                'head: set class = "AutoModelForMaskedLM" in [model]'
            )
        return logits.flatten(0, 1)[chosen].float(), targets.flatten()[chosen], rows

    def count(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED).sum()

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tally:
        logits, tokens, rows = self._predictions(model, inputs, targets)
        losses = F.cross_entropy(logits, tokens, ignore_index=IGNORED, reduction="none")
        none = torch.zeros(len(targets), device=losses.device)
        return {
            "loss": none.index_add(0, rows, losses),
            "right": none.index_add(0, rows, (logits.argmax(-1) == tokens).float()),
            "count": (targets != IGNORED).sum(1),
        }

    def metrics(self, tally: Tally) -> dict[str, float]:
        """Mean loss in nats per masked token, perplexity, and accuracy in per cent."""
        loss, right = (mean(tally, name) for name in ("loss", "right"))
        return {"loss": loss, "perplexity": math.exp(min(loss, 700)), "accuracy": 100 * right}


def is_target(targets: Tensor) -> Tensor:
    """targets (B, N) → (K,) the positions of B · N that have one"""
    return (targets != IGNORED).flatten().nonzero()[:, 0]


def target_positions(targets: Tensor, limit: int | None) -> Tensor:
    """targets (B, N) → (B · limit,) positions that include all targets; the others add nothing to a loss

    Their exact number would cost a synchronisation with the accelerator.
    """
    first = (targets == IGNORED).int().argsort(dim=1, stable=True)[:, :limit]
    rows = torch.arange(len(targets), device=targets.device)[:, None]
    return (rows * targets.shape[1] + first).flatten()
