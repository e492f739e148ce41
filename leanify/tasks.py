"""What is learnt: a loss to descend, and the metrics that an evaluation reports.

A task turns (model, inputs, targets) into sums over targets, which add up over batches and processes; means are taken
once, at the end. Targets below 0 do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify import upstream
from leanify.data.samples import Splits
from leanify.errors import DataError, RecipeError
from leanify.recipe import Recipe

IGNORED = -100  # a target that does not count, torch's own default


class Task(Protocol):
    """``metric`` tells the best checkpoint; ``sign`` is 1 where more of it is better, −1 where less is."""

    metric: str
    sign: int

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a training step, summed over the targets."""

    def sums(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """What an evaluation adds up; ``loss`` and ``count`` among them."""

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """What an evaluation reports, from the sums over all samples."""


def task_of(recipe: Recipe, splits: Splits) -> Task:
    """The task of a recipe. Raises RecipeError for what does not go together."""
    data, optim = recipe.data, recipe.optim
    assert data is not None
    assert optim is not None
    if data.task == "classification":
        assert splits.classes is not None
        return Classification(splits.classes, data.mixup, data.cutmix, optim.label_smoothing)
    for key, value in (("data.mixup", data.mixup), ("data.cutmix", data.cutmix)):
        if value:
            raise RecipeError(f"{key} mixes images, and the task is {data.task}")
    return CausalLm(optim.label_smoothing, splits.bytes_per_target)


def logits_of(output: Any) -> Tensor:
    """The logits in what a model gives: a tensor, transformers' ``logits``, or the first of several heads."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, (tuple, list)):  # VOLO with mixed tokens, distilled DeiT: the class token first, as in timm
        return logits_of(output[0])
    if getattr(output, "logits", None) is None:
        raise RecipeError(
            "this model gives no logits: it has no head for the task. Name a transformers class that has one, "
            'class = "AutoModelForCausalLM" or "AutoModelForImageClassification" in [model]'
        )
    logits: Tensor = output.logits
    return logits


class Classification:
    """Images into classes: cross-entropy, top-1 and top-5."""

    metric, sign = "top1", 1

    def __init__(self, classes: int, mixup: float, cutmix: float, smoothing: float) -> None:
        self.classes, self.smoothing = classes, smoothing
        self.mixup: Any = None
        if mixup or cutmix:
            from timm.data import Mixup

            self.mixup = Mixup(mixup, cutmix, label_smoothing=smoothing, num_classes=classes)

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """inputs B, C, H, W; targets B → the sum over B, with smoothed and mixed targets"""
        if self.mixup is None:
            logits = logits_of(model(inputs)).float()
            return F.cross_entropy(logits, targets, label_smoothing=self.smoothing, reduction="sum")
        inputs, soft = self._mixed(inputs, targets)
        return -(soft * F.log_softmax(logits_of(model(inputs)).float(), dim=-1)).sum()

    def _mixed(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed in pairs, as timm does; the last of an odd number stays itself. → B, C, H, W and B, classes"""
        from timm.data.mixup import mixup_target

        even = len(inputs) // 2 * 2
        rest = mixup_target(targets[even:], self.classes, 1.0, self.smoothing)
        if not even:
            return inputs, rest
        mixed, soft = self.mixup(inputs[:even].clone(), targets[:even])
        return torch.cat([mixed, inputs[even:]]), torch.cat([soft, rest])

    def sums(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        logits = logits_of(model(inputs)).float()
        best = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]
        return {
            "loss": F.cross_entropy(logits, targets, reduction="sum"),
            "top1": best[:, 0].sum(),
            "top5": best.sum(),
            "count": torch.tensor(len(targets)),
        }

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Mean loss in nats; top-1 and top-5 in per cent (top-5 where there are more than five classes)."""
        found = {"loss": sums["loss"] / sums["count"], "top1": 100 * sums["top1"] / sums["count"]}
        return found | ({"top5": 100 * sums["top5"] / sums["count"]} if self.classes > 5 else {})


class CausalLm:
    """The next token: cross-entropy, perplexity and bits per byte."""

    metric, sign = "loss", -1

    def __init__(self, smoothing: float, bytes_per_target: float | None) -> None:
        self.smoothing, self.bytes_per_target = smoothing, bytes_per_target

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """inputs and targets B, N → the sum over targets"""
        return self._nats(model, inputs, targets, self.smoothing)

    def _nats(self, model: nn.Module, inputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        logits = logits_of(model(input_ids=inputs)).float()
        return F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
        )

    def sums(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"loss": self._nats(model, inputs, targets), "count": (targets != IGNORED).sum()}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Mean loss in nats a token; bits per byte by the bytes that a token of the whole split has on average."""
        loss = sums["loss"] / sums["count"]
        found = {"loss": loss, "perplexity": math.exp(min(loss, 700))}
        return found | ({"bits_per_byte": loss / math.log(2) / self.bytes_per_target} if self.bytes_per_target else {})


def check_fit(model: nn.Module, recipe: Recipe, splits: Splits) -> None:
    """Raise where the data does not suit the model, before anything is written."""
    if splits.classes is None:
        return
    config = getattr(model, "config", None)
    classes = config.num_labels if upstream.is_hf(model) and config is not None else getattr(model, "num_classes", None)
    if classes is not None and splits.classes > classes:
        key = "num_labels" if upstream.is_hf(model) else "num_classes"
        raise DataError(
            f"{splits.words} has {splits.classes} classes and the model {classes}: labels are out of its range; "
            f"--set model.override.{key}={splits.classes}"
        )
