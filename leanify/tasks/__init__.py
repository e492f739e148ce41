"""Tasks: a training loss and the evaluation metrics, one file each. `TASKS` names the files.

A file has ``task(recipe, splits)``, and ``USUAL`` if a recipe that leanify makes for it needs it.

A task computes the summed loss of a training step and the tally of an evaluation batch: vectors with one
entry per sample, which are concatenated over batches and processes. Metrics are computed once at the end,
over exactly the evaluated samples; `outcomes` gives each sample's contribution to the metric.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.recipe import TrainingRecipe
from leanify.core.task_names import TASKS
from leanify.data.samples import Inputs, Splits
from leanify.tasks.references import Reference
from leanify.upstream.origin import is_hf

Tally = Mapping[str, Tensor]
BLOCKS = 500  # maximum number of blocks that the jackknife leaves out in turn


class Task(Protocol):
    """``metric`` selects the best checkpoint; ``sign`` is 1 if higher is better, −1 if lower is.

    best         the metric of a perfect model; the distance to it is the remaining loss
    unit         of the metric, as in "0.5 points of top1"
    mean_column  the column of a tally whose mean is the metric, and its factor; None for other metrics, such as F1
    reference    a trivial model that a trained one must beat to have learnt, not yet fitted; None if none fits
    """

    metric: str
    sign: int
    best: float
    unit: str

    @property
    def mean_column(self) -> tuple[str, float] | None: ...
    @property
    def reference(self) -> Reference | None: ...

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """The loss of a training step, summed over targets."""

    def count(self, targets: Tensor) -> Tensor | int:
        """The number of targets, by which the summed loss is divided."""

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tally:
        """The tally of an evaluation batch: one entry per sample, (B, …)."""

    def metrics(self, tally: Tally) -> dict[str, float]:
        """The metrics of an evaluation from its merged tally, including ``loss``."""


@dataclass(frozen=True)
class UsualSettings:
    """Settings of the recipe that leanify makes for a model and the user's own data."""

    layout: str = ""  # the layout of the data on the disk, for the message that asks for it
    batch_size: int = 32
    distill: tuple[float, float] = (0.5, 1.0)  # with a teacher: its weight relative to the targets, the temperature


def merge_tallies(parts: Sequence[Tally]) -> dict[str, Tensor]:
    """Merge the tallies of several batches or processes, on the CPU."""
    total = {}
    for name in next(filter(None, parts), {}):
        total[name] = torch.cat([part[name] for part in parts if part]).cpu()
    return total


def make_task(recipe: TrainingRecipe, splits: Splits) -> Task:
    """Return the task of a recipe. Raises RecipeError for settings that do not fit the data."""
    data = recipe.data
    for key, value in (("data.mixup", data.mixup), ("data.cutmix", data.cutmix)):
        if value and not splits.images:
            raise RecipeError(f"{key} mixes images, but {splits.description} are not images")
    task: Task = _task_module(data.task).task(recipe, splits)
    return task


def usual_settings(task: str) -> UsualSettings:
    """The usual settings of a recipe of this task."""
    settings: UsualSettings = getattr(_task_module(task), "USUAL", UsualSettings())
    return settings


def _task_module(task: str) -> Any:
    return importlib.import_module(f"leanify.tasks.{TASKS[task].loss}")


def check_fit(model: nn.Module, splits: Splits) -> None:
    """Raise DataError if the data has more classes than the model has outputs."""
    if splits.classes is None:
        return
    # the model's number of classes: an attribute in timm and own modules, or a key of transformers' configuration
    key = "classes" if hasattr(model, "classes") else "num_classes"
    classes: Any = getattr(model, key, None)
    if is_hf(model):
        key = "num_labels"
        classes = getattr(getattr(model, "config", None), key, None)
    if isinstance(classes, int) and splits.classes > classes:
        raise DataError(
            f"{splits.description} has {splits.classes} classes, but the model has only {classes} outputs; "
            f"--set model.override.{key}={splits.classes}"
        )


# -- what a model returns for a batch ----------


def answer(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the model's logits in float32 for images (a tensor) or text (tensors by argument name)."""
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return get_logits(output).float()


def get_logits(output: Any) -> Tensor:
    """The logits in a model's output: the tensor, its ``logits``, or the first of several."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, (tuple, list)):  # VOLO with mixed tokens, distilled DeiT: the class token comes first
        return get_logits(output[0])
    if getattr(output, "logits", None) is None:
        raise RecipeError(
            "this model outputs no logits: it has no head for the task. Name a transformers class that has one: "
            'class = "AutoModelForCausalLM", "AutoModelForMaskedLM" or "AutoModelForImageClassification" in [model]'
        )
    logits: Tensor = output.logits
    return logits


def get_hidden(output: Any) -> Tensor:
    """The last hidden states (B, N, width) of a bare encoder. Raises RecipeError for a model with a head."""
    hidden: Tensor | None = getattr(output, "last_hidden_state", None)
    if hidden is None:
        raise RecipeError(
            "this model has a head and returns no hidden states for embeddings; use the bare encoder: "
            'class = "AutoModel" in [model]'
        )
    return hidden


def mean(tally: Tally, name: str) -> float:
    """The mean of a tally's column over all targets."""
    return (tally[name].sum() / tally["count"].sum()).item()


def outcomes(task: Task, tally: Tally) -> NDArray[np.float64]:
    """Each sample's contribution (N,) to the metric of a merged tally, whose scatter is a part of its uncertainty.

    To a mean its own value, to a ratio of sums (loss per token) the value of the delta method, to any other metric the
    jackknife's, over blocks if there are many samples. Their mean always equals the metric.
    """
    if task.mean_column is not None:
        column, scale = task.mean_column
        values, counts = (tally[name].double().numpy() for name in (column, "count"))
        metric = values.sum() / counts.sum()
        return np.asarray(scale * (metric + (values - metric * counts) * len(values) / counts.sum()))

    # pseudo-values of the delete-one jackknife (Efron and Stein 1981): the metric without each block
    samples = len(tally["count"])
    blocks = min(samples, BLOCKS)
    block_indices = np.arange(samples) % blocks
    full_metric = task.metrics(tally)[task.metric]
    metrics = []
    for block in range(blocks):
        rest = {name: column[block_indices != block] for name, column in tally.items()}
        metrics.append(task.metrics(rest)[task.metric])
    without = np.array(metrics)
    return np.asarray(full_metric + (blocks - 1) * (without.mean() - without))
