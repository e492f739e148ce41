"""Knowledge distillation: the student learns from a teacher's logits and hidden layers as well as from the targets.

    loss = (1 − weight) · task + weight · T² · KL(teacher ‖ student, both at temperature T) + hidden_weight · hidden

KL is that of Hinton, Vinyals and Dean (arXiv 1503.02531, section 2), summed over targets. ``hidden`` is the
mean squared difference between the outputs of paired layers (FitNets, arXiv 1412.6550, equation 3), averaged
over a sample and over the pairs. Where the widths differ, a linear map from the student's to the teacher's is
trained too (TinyBERT, arXiv 1909.10351, equation 8). A checkpoint keeps these maps in its training state, not
in its weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import IGNORED, Inputs
from leanify.data.sampling import MODEL, seed_everything
from leanify.errors import RecipeError, ShapeError
from leanify.lens.located import outputs_of
from leanify.lens.sites import locate
from leanify.runs.recipe import DistillSection
from leanify.tasks import Task
from leanify.tasks.outputs import logits_of

if TYPE_CHECKING:
    from accelerate import Accelerator

Pair = tuple[int, int]  # (student's layer, teacher's layer), both counted from 0


class Learner(nn.Module):
    """The student and its linear maps. A call returns the student's output and records inputs and layers."""

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
    """A task whose loss is the sum above. Its metrics, and everything else, are those of the task."""

    def __init__(
        self,
        task: Task,
        section: DistillSection,
        learner: Learner,
        teacher: nn.Module,
        blocks: Sequence[nn.Module],
        place: Accelerator,
    ) -> None:
        self.task, self.section, self.learner, self.place = task, section, learner, place
        self.teacher = teacher.to(place.device).requires_grad_(False).eval()
        self.blocks = tuple(blocks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """The summed loss of a batch. ``model`` is the learner, possibly wrapped (DDP, FSDP, compiled)."""
        own, section = self.task.loss(model, inputs, targets), self.section
        args, kwargs, output, hidden = self.learner.seen  # after the task's mixing, so the teacher sees the same
        with torch.no_grad(), self.place.autocast(), outputs_of(self.blocks) as wanted:
            answer = self.teacher(*args, **kwargs)
        total = (1 - section.weight) * own
        kept = (targets[..., 0] if targets.ndim > 1 and targets.is_floating_point() else targets) != IGNORED
        if section.weight:
            kl = divergence(logits_of(output).float(), logits_of(answer).float(), section.temperature)
            total = total + section.weight * section.temperature**2 * (kl * kept).sum()
        if section.hidden_weight:
            counts = kept.flatten(1).sum(1) if kept.ndim > 1 else kept  # targets of each sample
            mask = kwargs.get("attention_mask")
            means = [difference(x, y, mask) for x, y in zip(hidden, wanted, strict=True)]
            total = total + section.hidden_weight * (torch.stack(means).mean(0) * counts).sum()
        return total


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of logits (…, classes) at a temperature, in nats → (…)"""
    log_p, log_q = (F.log_softmax(logits / temperature, -1) for logits in (student, teacher))
    return F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)


def difference(student: Tensor, teacher: Tensor, mask: Tensor | None) -> Tensor:
    """Mean squared difference of each sample, (B, …, width) → (B,), without padding (mask (B, N))."""
    squares = (student.float() - teacher.float()).square()
    if mask is None or squares.shape[:2] != mask.shape:
        return squares.flatten(1).mean(1)
    return (squares.mean(-1) * mask).sum(1) / mask.sum(1)


def begin(
    section: DistillSection,
    task: Task,
    student: nn.Module,
    teacher: nn.Module,
    inputs: Inputs,
    seed: int,
    place: Accelerator,
) -> Distilled:
    """Check the two models on one sample, and return the task with its teacher. Raises LeanifyError."""
    own, others = (locate(model).blocks if section.hidden_weight else [] for model in (student, teacher))
    pairs = pairs_of(section, len(own), len(others)) if section.hidden_weight else []
    learning, taught = [own[i] for i, _ in pairs], [others[i] for _, i in pairs]
    hidden: list[list[Tensor]] = []
    logits: list[Tensor] = []
    for model, blocks in ((student, learning), (teacher, taught)):
        training = model.training
        with torch.no_grad(), outputs_of(blocks) as outputs:
            output = model.eval()(**inputs) if isinstance(inputs, dict) else model.eval()(inputs)
        if section.weight:
            logits.append(logits_of(output).float())
        model.train(training)
        hidden.append(outputs)
    if section.weight and (logits[0].shape != logits[1].shape or logits[0].shape[-1] == 1):
        shapes = " and ".join(" × ".join(map(str, x.shape[1:])) for x in logits)
        raise RecipeError(
            f"student and teacher give {shapes} logits a sample; distilling logits needs the same classes in both, at "
            "least two. To distil from the teacher's layers alone, set distill.weight=0 and a distill.hidden_weight"
        )
    seed_everything(MODEL, seed, 1)
    maps = [_map(pair, x, y) for pair, x, y in zip(pairs, *hidden, strict=True)]
    return Distilled(task, section, Learner(student, learning, maps), teacher, taught, place)


def pairs_of(section: DistillSection, depth: int, teacher_depth: int) -> list[Pair]:
    """Which layer learns from which: as the recipe lists them, or spread evenly, the last from the last."""
    if section.layers == "even":
        return [(i, math.ceil((i + 1) * teacher_depth / depth) - 1) for i in range(depth)]
    for pair in section.layers:
        if len(pair) != 2 or not 0 <= pair[0] < depth or not 0 <= pair[1] < teacher_depth:
            raise RecipeError(
                f'distill.layers must be "even" or pairs [student layer 0 … {depth - 1}, teacher layer '
                f"0 … {teacher_depth - 1}]; found {list(pair)}"
            )
    return [(pair[0], pair[1]) for pair in section.layers]


def _map(pair: Pair, student: Tensor, teacher: Tensor) -> nn.Module:
    """From the student's width to the teacher's: the identity where they are equal, else a linear map."""
    if student.shape == teacher.shape:
        return nn.Identity()
    if student.shape[:-1] != teacher.shape[:-1]:
        own, other = (" × ".join(map(str, x.shape[1:])) for x in (student, teacher))
        raise ShapeError(
            f"layer {pair[0]} of the student gives {own} and layer {pair[1]} of the teacher {other}: only the "
            "width, the last number, may differ"
        )
    return nn.Linear(student.shape[-1], teacher.shape[-1], bias=False)
