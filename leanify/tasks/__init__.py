"""Tasks: a training loss and the evaluation metrics, one file each.

A task computes the summed loss of a training step and the tally of an evaluation batch: vectors with one entry per
sample, which are concatenated over batches and processes. Metrics are computed once at the end, over exactly the
evaluated samples; `outcomes` says what each sample adds to the metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from leanify.data.samples import Inputs, Splits
from leanify.errors import DataError, RecipeError
from leanify.runs.recipe import TrainingRecipe
from leanify.tasks.causal_lm import CausalLm
from leanify.tasks.classification import Classification
from leanify.tasks.glue import Glue, name_of
from leanify.tasks.masked_lm import MaskedLm
from leanify.tasks.multi_label import MultiLabel
from leanify.tasks.references import Reference
from leanify.tasks.regression import Regression
from leanify.tasks.sentence_embedding import SentenceEmbedding
from leanify.tasks.text_regression import TextRegression
from leanify.tasks.token_classification import TokenClassification
from leanify.upstream.origin import is_hf, is_own

Tally = Mapping[str, Tensor]


class Task(Protocol):
    """``metric`` selects the best checkpoint; ``sign`` is 1 if higher is better, −1 if lower is.

    best     the metric of a perfect model; how far it is away is what is left to lose
    unit     of the metric, as in "0.5 points of top1"
    summed   the column of a tally that the metric is the mean of, and its factor; None for other metrics, such as F1
    reference    a trivial model that a trained one must beat to have learnt, not yet fitted; None if none fits
    """

    @property
    def metric(self) -> str: ...

    @property
    def sign(self) -> int: ...

    @property
    def best(self) -> float: ...

    @property
    def unit(self) -> str: ...

    @property
    def summed(self) -> tuple[str, float] | None: ...

    @property
    def reference(self) -> Reference | None: ...

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """The loss of a training step, summed over targets."""

    def count(self, targets: Tensor) -> Tensor | int:
        """The number of targets, by which the summed loss is divided."""

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tally:
        """The tally of an evaluation batch: one entry per sample, (B, …)."""

    def metrics(self, found: Tally) -> dict[str, float]:
        """The metrics of an evaluation from its merged tally, including ``loss``."""


def merged(parts: Sequence[Tally]) -> dict[str, Tensor]:
    """Merge the tallies of several batches or processes, on the CPU."""
    names = next((list(part) for part in parts if part), [])
    return {name: torch.cat([part[name] for part in parts if part]).cpu() for name in names}


def task_of(recipe: TrainingRecipe, splits: Splits) -> Task:
    """Return the task of a recipe. Raises RecipeError for settings that do not fit the data."""
    data, optim = recipe.data, recipe.optim
    for key, value in (("data.mixup", data.mixup), ("data.cutmix", data.cutmix)):
        if value and not splits.images:
            raise RecipeError(f"{key} mixes images, but {splits.description} are not images")
    if data.task in ("classification", "text-classification", "pair-classification"):
        assert splits.classes is not None
        return Classification(splits.classes, data.mixup, data.cutmix, optim.label_smoothing, splits.constant)
    if data.task == "multi-label-classification":
        return MultiLabel()
    if data.task == "token-classification":
        return TokenClassification(splits.names, optim.label_smoothing)
    if data.task == "masked-lm":
        return MaskedLm(optim.label_smoothing, _most_targets(splits))
    if data.task == "glue":
        return Glue(name_of(data), optim.label_smoothing)
    if data.task == "text-regression":
        return TextRegression()
    if data.task == "regression":
        return Regression()
    if data.task == "sentence-embedding":
        return SentenceEmbedding(splits.pooling)
    return CausalLm(optim.label_smoothing, splits.bytes_per_target)


def _most_targets(splits: Splits) -> int | None:
    """The largest number of targets in a sample; None where that is not known in advance."""
    parts = [part.targets for part in (splits.train, splits.validation, splits.test) if part is not None]
    known = [int(part.max()) for part in parts if part is not None]
    return max(known) if len(known) == len(parts) else None


def check_fit(model: nn.Module, splits: Splits) -> None:
    """Raise DataError if the data has more classes than the model has outputs."""
    if splits.classes is None:
        return
    config = getattr(model, "config", None)
    classes = config.num_labels if is_hf(model) and config is not None else getattr(model, "num_classes", None)
    if is_own(model):
        classes = getattr(model, "classes", 0)
    if classes is not None and splits.classes > classes:
        key = "num_labels" if is_hf(model) else "classes" if is_own(model) else "num_classes"
        raise DataError(
            f"{splits.description} has {splits.classes} classes, but the model has only {classes} outputs; "
            f"--set model.override.{key}={splits.classes}"
        )
