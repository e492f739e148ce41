"""A teacher beside the task: what it says of a sample, and what its layers hold, are learnt along with the targets.

    loss = (1 − weight) · task + weight · T² · KL(teacher ‖ student, both at temperature T) + hidden_weight · hidden

KL is that of Hinton, Vinyals and Dean (arXiv 1503.02531, section 2), a target at a time; ``hidden`` is the mean squared
difference between layers' outputs (FitNets, arXiv 1412.6550, equation 3), averaged over a sample and over the pairs of
layers. Where a student is of another width, a linear map learnt with it brings its layer to the teacher's (TinyBERT,
arXiv 1909.10351, equation 8). The maps are kept with a checkpoint's state, not with the weights that are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import IGNORED, Inputs
from leanify.data.sampling import MODEL, seed_everything
from leanify.errors import RecipeError, ShapeError
from leanify.lens.located import outputs_of
from leanify.lens.sites import locate
from leanify.sources.recipe import DistillSection
from leanify.tasks import Task
from leanify.tasks.outputs import logits_of

Pair = tuple[int, int]  # a layer of the student and one of the teacher, both counted from 0


class Learner(nn.Module):
    """A student and the maps of its layers; called, it is the student, and remembers what went in and came out."""

    seen: tuple[tuple[Any, ...], dict[str, Any], Any, list[Tensor]]

    def __init__(self, student: nn.Module, blocks: Sequence[nn.Module], maps: Sequence[nn.Module]) -> None:
        super().__init__()
        self.student, self.blocks, self.maps = student, tuple(blocks), nn.ModuleList(maps)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with outputs_of(self.blocks) as hidden:
            output = self.student(*args, **kwargs)
        self.seen = args, kwargs, output, [each(x) for each, x in zip(self.maps, hidden, strict=True)]
        return output


class Distilled:
    """A task with a teacher. Its loss is the sum above over the targets; everything else is the task's own."""

    def __init__(
        self,
        task: Task,
        told: DistillSection,
        learner: Learner,
        teacher: nn.Module,
        blocks: Sequence[nn.Module],
        place: Any,
    ) -> None:
        self.task, self.told, self.learner, self.place = task, told, learner, place
        self.teacher = teacher.to(place.device).requires_grad_(False).eval()
        self.blocks = tuple(blocks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """``model`` is the learner, or what a launcher has wrapped around it."""
        own, told = self.task.loss(model, inputs, targets), self.told
        args, kwargs, output, hidden = self.learner.seen  # as the task has mixed them
        with torch.no_grad(), self.place.autocast(), outputs_of(self.blocks) as wanted:
            said = self.teacher(*args, **kwargs)
        total = (1 - told.weight) * own
        kept = (targets[..., 0] if targets.ndim > 1 and targets.is_floating_point() else targets) != IGNORED
        if told.weight:
            apart = divergence(logits_of(output).float(), logits_of(said).float(), told.temperature)
            total = total + told.weight * told.temperature**2 * (apart * kept).sum()
        if told.hidden_weight:
            shares = kept.flatten(1).sum(1) if kept.ndim > 1 else kept  # of the targets, a sample
            mask = kwargs.get("attention_mask")
            means = [difference(x, y, mask) for x, y in zip(hidden, wanted, strict=True)]
            total = total + told.hidden_weight * (torch.stack(means).mean(0) * shares).sum()
        return total


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of logits (…, classes) at a temperature, in nats → (…)"""
    mine, theirs = (F.log_softmax(logits / temperature, -1) for logits in (student, teacher))
    return F.kl_div(mine, theirs, reduction="none", log_target=True).sum(-1)


def difference(student: Tensor, teacher: Tensor, mask: Tensor | None) -> Tensor:
    """The mean squared difference of (B, …, width), a sample → (B,); of masked (B, N) tokens alone where they are."""
    apart = (student.float() - teacher.float()).square()
    if mask is None or apart.shape[:2] != mask.shape:
        return apart.flatten(1).mean(1)
    return (apart.mean(-1) * mask).sum(1) / mask.sum(1)


# -- beginning --------------------------------------------------------------------------------------------------------


def begin(
    told: DistillSection, task: Task, student: nn.Module, teacher: nn.Module, inputs: Inputs, seed: int, place: Any
) -> Distilled:
    """The task with its teacher. ``inputs`` is a sample, ``place`` the accelerator. Raises RecipeError."""
    own, others = (locate(model).blocks if told.hidden_weight else [] for model in (student, teacher))
    pairs = pairs_of(told, len(own), len(others)) if told.hidden_weight else []
    mine, theirs = [own[i] for i, _ in pairs], [others[i] for _, i in pairs]
    hidden: list[list[Tensor]] = []
    logits: list[Tensor] = []
    for model, blocks in ((student, mine), (teacher, theirs)):
        training = model.training
        with torch.no_grad(), outputs_of(blocks) as outputs:
            given = model.eval()(**inputs) if isinstance(inputs, dict) else model.eval()(inputs)
        if told.weight:
            logits.append(logits_of(given).float())
        model.train(training)
        hidden.append(outputs)
    if told.weight and (logits[0].shape != logits[1].shape or logits[0].shape[-1] == 1):
        shapes = " and ".join(" × ".join(map(str, x.shape[1:])) for x in logits)
        raise RecipeError(
            f"student and teacher give {shapes} logits a sample: a teacher's say is learnt where both have the same "
            "classes, two at least; distill.weight=0 with a distill.hidden_weight learns from its layers alone"
        )
    seed_everything(MODEL, seed, 1)
    maps = [_map(pair, x, y) for pair, x, y in zip(pairs, *hidden, strict=True)]
    return Distilled(task, told, Learner(student, mine, maps), teacher, theirs, place)


def pairs_of(told: DistillSection, mine: int, theirs: int) -> list[Pair]:
    """Layers of the student and the teacher's that they learn from: as said, or spread evenly, the last to the last."""
    if told.layers == "even":
        return [(i, math.ceil((i + 1) * theirs / mine) - 1) for i in range(mine)]
    for pair in told.layers:
        if len(pair) != 2 or not 0 <= pair[0] < mine or not 0 <= pair[1] < theirs:
            raise RecipeError(
                f'[distill] layers are "even" or pairs of a layer of the student, 0 … {mine - 1}, and one of the '
                f"teacher, 0 … {theirs - 1}; {list(pair)} is no such pair"
            )
    return [(pair[0], pair[1]) for pair in told.layers]


def _map(pair: Pair, student: Tensor, teacher: Tensor) -> nn.Module:
    """From a layer of the student to one of the teacher: nothing where they are as wide, else a linear map."""
    if student.shape == teacher.shape:
        return nn.Identity()
    if student.shape[:-1] != teacher.shape[:-1]:
        mine, theirs = (" × ".join(map(str, x.shape[1:])) for x in (student, teacher))
        raise ShapeError(
            f"layer {pair[0]} of the student gives {mine} and layer {pair[1]} of the teacher {theirs}: only their "
            "widths, the last number, may differ"
        )
    return nn.Linear(student.shape[-1], teacher.shape[-1], bias=False)
