"""Classification of images, sequences and texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.errors import RecipeError
from leanify.core.recipe import TrainingRecipe
from leanify.data.samples import Inputs, Splits
from leanify.tasks import Tally, UsualSettings, answer, mean
from leanify.tasks.references import Linear

USUAL = UsualSettings(
    "a folder of images, DIR/train/CLASS/… and DIR/validation/CLASS/…", batch_size=128, distill=(0.5, 2.0)
)


def task(recipe: TrainingRecipe, splits: Splits) -> Classification:
    assert splits.classes is not None
    data, smoothing = recipe.data, recipe.optim.label_smoothing
    # the training samples of each class (classes,), if they are known without reading the samples
    labels, counts = getattr(splits.train, "labels", None), None
    if labels is not None:
        counts = torch.bincount(torch.as_tensor(np.asarray(labels)).long(), minlength=splits.classes)
    weights = None
    if recipe.optim.class_weights:
        if counts is None:
            raise RecipeError("optim.class_weights needs labels that are known before the first step")
        if data.mixup or data.cutmix:
            raise RecipeError("optim.class_weights and data.mixup or data.cutmix do not go together: classes are mixed")
        weights = counts.sum() / (len(counts) * counts.clamp(min=1))  # the mean weight of a sample is 1
    is_unbalanced = counts is not None and bool(2 * counts.max() > counts.sum())
    constant = splits.constant
    return Classification(splits.classes, data.mixup, data.cutmix, smoothing, constant, weights, is_unbalanced)


class Classification:
    """Classification: cross-entropy, top-1 and top-5. ``constant`` is a class to compare with.

    ``weights`` (classes,) are those of the classes in the training loss. ``is_unbalanced`` adds the macro-F1, which a
    class with most of the samples does not decide.
    """

    metric, sign, best, unit = "top1", 1, 100.0, "points of top1"
    mean_column = ("top1", 100.0)

    def __init__(
        self,
        classes: int,
        mixup: float,
        cutmix: float,
        smoothing: float,
        constant: int | None = None,
        weights: Tensor | None = None,
        is_unbalanced: bool = False,
    ) -> None:
        self.classes, self.smoothing, self.constant = classes, smoothing, constant
        self.weights, self.is_unbalanced = weights, is_unbalanced
        self.reference = Linear(classes)
        self.mixup: Any = None
        if mixup or cutmix:
            from timm.data import Mixup

            self.mixup = Mixup(mixup, cutmix, label_smoothing=smoothing, num_classes=classes)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B,) → the loss summed over B, with label smoothing and mixup or CutMix"""
        if self.mixup is None:
            logits = answer(model, inputs)
            weights = self.weights
            if weights is not None:  # the head may have more outputs than classes
                weights = F.pad(weights, (0, logits.shape[-1] - len(weights)), value=1.0).to(logits)
            return F.cross_entropy(logits, targets, weights, label_smoothing=self.smoothing, reduction="sum")

        # mixed: cross-entropy with class probabilities (B, outputs); the head may have more outputs than classes
        assert isinstance(inputs, Tensor)
        inputs, soft = self._mix_samples(inputs, targets)
        logits = answer(model, inputs)
        soft = F.pad(soft, (0, logits.shape[-1] - soft.shape[-1]))
        return -(soft * F.log_softmax(logits, dim=-1)).sum()

    def _mix_samples(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Mix neighbouring samples with timm's Mixup, so that the pairs do not depend on passes and processes.

        The last of an odd number is not mixed. → (B, C, H, W) and (B, classes), in the order of mixing
        """
        from timm.data.mixup import mixup_target

        even = len(inputs) // 2 * 2
        rest = mixup_target(targets[even:], self.classes, 1.0, self.smoothing)
        if not even:
            return inputs, rest
        # timm mixes the first sample with the last; slices, unlike indexing by a CPU tensor, need no GPU sync
        mixed_inputs, soft = self.mixup(*(torch.cat([x[0:even:2], x[1:even:2].flip(0)]) for x in (inputs, targets)))
        if even == len(inputs):
            return mixed_inputs, soft
        return torch.cat([mixed_inputs, inputs[even:]]), torch.cat([soft, rest])

    def count(self, targets: Tensor) -> int:
        return len(targets)

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tally:
        logits = answer(model, inputs)
        top = logits.topk(min(5, logits.shape[1])).indices
        best = top == targets[:, None]
        answers = {"predicted": top[:, 0], "target": targets} if self.is_unbalanced else {}
        return answers | {
            "loss": F.cross_entropy(logits, targets, reduction="none"),
            "top1": best[:, 0],
            "top5": best.any(1),
            "majority": targets == (-1 if self.constant is None else self.constant),
            "count": torch.ones_like(targets),
        }

    def metrics(self, tally: Tally) -> dict[str, float]:
        """Mean loss in nats, and in per cent top-1, and top-5 if there are more than five classes.

        With ``is_unbalanced``, also the macro-F1: the mean over classes of the harmonic mean of precision and recall.

        With ``constant``, instead of top-5: ``accuracy`` (same as top-1) and the constant's, ``majority``.
        """
        share = {name: mean(tally, name) for name in ("loss", "top1", "top5", "majority")}
        report = {"loss": share["loss"], "top1": 100 * share["top1"]}
        if self.constant is not None:
            report |= {"accuracy": report["top1"], "majority": 100 * share["majority"]}
        elif self.classes > 5:
            report["top5"] = 100 * share["top5"]
        if self.is_unbalanced:
            report["macro_f1"] = 100 * macro_f1(tally["predicted"], tally["target"])
        return report


def macro_f1(predicted: Tensor, target: Tensor) -> float:
    """The mean F1 of the classes that are in either of two vectors of classes (N,), as scikit-learn's."""
    scores = []
    for label in torch.unique(torch.cat([predicted, target])):
        both = ((predicted == label) & (target == label)).sum()
        scores.append(2 * both / ((predicted == label).sum() + (target == label).sum()))
    return torch.stack(scores).double().mean().item()
