"""Knowledge distillation: the student learns from a teacher's logits and hidden layers as well as from the targets.

    loss = (1 − weight) · task + weight · T² · KL(teacher ‖ student, both at temperature T) + hidden_weight · hidden

KL follows Hinton, Vinyals and Dean (arXiv 1503.02531, section 2), summed over targets. A model of one output, a
regression, has no distribution: (student − teacher)² replaces T² · KL. ``hidden`` is the mean
squared difference between the outputs of paired layers (FitNets, arXiv 1412.6550, equation 3), averaged over a
sample and over the pairs. If the widths differ, a linear map from the student's to the teacher's is trained too
(TinyBERT, arXiv 1909.10351, equation 8).
With layers = "output", ``hidden`` is 1 − cosine of each token's last hidden state to the teacher's, averaged over a
sample: an encoder that only learns pooled embeddings forgets how tokens of other domains differ.
Samples may mark the targets that the logits teach (``TAUGHT``): the others are learnt from the task alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.errors import RecipeError, ShapeError
from leanify.core.recipe import DistillSection, TrainingRecipe
from leanify.data.samples import IGNORED, Inputs, Splits
from leanify.data.sampling import MODEL, seed_everything
from leanify.lens.located import record_outputs
from leanify.reshaping.sites import locate
from leanify.tasks import Task, get_hidden, get_logits, make_task
from leanify.training.evaluation import first_sample
from leanify.training.teachers import Teacher
from leanify.upstream.origin import in_mode

if TYPE_CHECKING:
    from accelerate import Accelerator

TAUGHT = "is_taught"  # a mask of targets (B, N) among the inputs, which no model gets
OUTPUT = "output"  # in place of pairs: the last hidden states that an encoder returns
Pair = tuple[int, int]  # (student's layer, teacher's layer), both counted from 0


class Learner(nn.Module):
    """The student and its linear maps. A call returns the student's output and records inputs and layers."""

    last_call: tuple[tuple[Any, ...], dict[str, Any], Any, list[Tensor]]

    def __init__(self, student: nn.Module, blocks: Sequence[nn.Module], maps: Sequence[nn.Module]) -> None:
        super().__init__()
        self.student, self.blocks, self.maps = student, tuple(blocks), nn.ModuleList(maps)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with record_outputs(self.blocks) as hidden:
            output = self.student(*args, **kwargs)
        self.last_call = args, kwargs, output, [linear(x) for linear, x in zip(self.maps, hidden, strict=True)]
        return output


class Distilled:
    """A task whose loss is the sum above. Its metrics and other attributes are the task's."""

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
        self.teacher = in_mode(teacher.to(place.device).requires_grad_(False))
        self.blocks = tuple(blocks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """The summed loss of a batch. ``model`` is the learner, possibly wrapped (DDP, FSDP, compiled)."""
        # the task's own loss; the teacher then gets the student's inputs, which the task may have mixed
        section, taught = self.section, None
        if isinstance(inputs, dict) and TAUGHT in inputs:
            inputs = dict(inputs)
            taught = inputs.pop(TAUGHT)
        if taught is None:
            total = (1 - section.weight) * self.task.loss(model, inputs, targets)
        else:
            total = self.task.loss(model, inputs, targets.masked_fill(taught, IGNORED))
        args, kwargs, output, hidden = self.learner.last_call
        with torch.no_grad(), self.place.autocast(), record_outputs(self.blocks) as teacher_hidden:
            teacher_output = self.teacher(*args, **kwargs)

        # (B,) or (B, N): which targets count; mixed images have vectors of class probabilities
        if targets.ndim > 1 and targets.is_floating_point():
            targets = targets[..., 0]
        is_target = targets != IGNORED
        is_taught = is_target if taught is None else is_target & taught

        # the logits' term, summed over targets: in nats
        if section.weight:
            student, teacher = get_logits(output).float(), get_logits(teacher_output).float()
            if student.shape[-1] == 1:  # a regression, in squares of its unit
                distance = (student - teacher).square()[..., 0]
            else:
                distance = section.temperature**2 * divergence(student, teacher, section.temperature)
            total = total + section.weight * (distance * is_taught).sum()
            if taught is not None and section.weight < 1:
                rest = targets.masked_fill(~taught, IGNORED).flatten()
                loss = F.cross_entropy(student.flatten(0, -2), rest, ignore_index=IGNORED, reduction="sum")
                total = total + (1 - section.weight) * loss

        # the layers' term: a mean a sample, as often as the sample has targets
        if section.hidden_weight:
            counts = is_target.flatten(1).sum(1) if is_target.ndim > 1 else is_target  # targets of each sample
            mask = kwargs.get("attention_mask")
            if section.layers == OUTPUT:
                means = [token_distance(get_hidden(output), get_hidden(teacher_output), mask)]
            else:
                means = [difference(x, y, mask) for x, y in zip(hidden, teacher_hidden, strict=True)]
            total = total + section.hidden_weight * (torch.stack(means).mean(0) * counts).sum()
        return total


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of logits (…, classes) at a temperature, in nats → (…)"""
    log_p, log_q = (F.log_softmax(logits / temperature, -1) for logits in (student, teacher))
    return F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)


def difference(student: Tensor, teacher: Tensor, mask: Tensor | None) -> Tensor:
    """Mean squared difference of each sample, (B, …, width) → (B,), over the positions that ``mask`` (B, N) keeps."""
    squares = (student.float() - teacher.float()).square()
    if mask is None or squares.shape[:2] != mask.shape:
        return squares.flatten(1).mean(1)
    return (squares.mean(-1) * mask).sum(1) / mask.sum(1)


def token_distance(student: Tensor, teacher: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of 1 − cosine over each sample's tokens, (B, N, width) → (B,); ``mask`` (B, N) leaves out padding."""
    distances = 1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1)
    return distances.mean(1) if mask is None else (distances * mask).sum(1) / mask.sum(1)


def build_task(
    recipe: TrainingRecipe, splits: Splits, student: nn.Module, taught: Teacher | None, place: Accelerator
) -> Task:
    """The recipe's task over its data; a teacher that steps call adds its terms to the loss.

    Student and teacher are tried on one sample. Raises LeanifyError.
    """
    task = make_task(recipe, splits)
    if taught is None or not taught.is_called:
        return task
    section, teacher = taught.section, taught.model
    inputs = splits.scale_inputs(first_sample(splits)[0])

    # the layers that learn, and those that they learn from
    pairs: list[Pair] = []
    learning: list[nn.Module] = []
    teaching: list[nn.Module] = []
    by_output = bool(section.hidden_weight) and section.layers == OUTPUT
    if section.hidden_weight and not by_output:
        student_blocks, teacher_blocks = locate(student).blocks, locate(teacher).blocks
        pairs = pair_layers(section, len(student_blocks), len(teacher_blocks))
        learning = [student_blocks[i] for i, _ in pairs]
        teaching = [teacher_blocks[i] for _, i in pairs]

    # what both return for the sample
    hidden: list[list[Tensor]] = []
    logits: list[Tensor] = []
    states: list[Tensor] = []
    for model, blocks in ((student, learning), (teacher, teaching)):
        training = model.training
        with torch.no_grad(), record_outputs(blocks) as outputs:
            output = in_mode(model)(**inputs) if isinstance(inputs, dict) else in_mode(model)(inputs)
        if section.weight:
            logits.append(get_logits(output))
        if by_output:
            states.append(get_hidden(output))
        model.train(training)
        hidden.append(outputs)

    # logits of the same classes, states of the same width, and a linear map for each pair of layers
    if logits and logits[0].shape != logits[1].shape:
        raise RecipeError(
            f"student and teacher give {_size(logits[0])} and {_size(logits[1])} logits a sample; distilling logits "
            "needs the same classes in both. To distil from the teacher's layers alone, set distill.weight=0 and a "
            "distill.hidden_weight"
        )
    if states and states[0].shape != states[1].shape:
        raise RecipeError(
            f"student and teacher give {_size(states[0])} and {_size(states[1])} states a sample; "
            "distill.layers=output needs the same width in both; distill.layers=even learns maps between widths"
        )
    seed_everything(MODEL, recipe.run.seed, 1)
    maps = [_map(pair, x, y) for pair, x, y in zip(pairs, *hidden, strict=True)]
    return Distilled(task, section, Learner(student, learning, maps), teacher, teaching, place)


def pair_layers(section: DistillSection, depth: int, teacher_depth: int) -> list[Pair]:
    """Pairs of a student's layer and its teacher's, as the recipe lists them or evenly, the last with the last."""
    if isinstance(section.layers, str):
        return [(i, math.ceil((i + 1) * teacher_depth / depth) - 1) for i in range(depth)]
    for pair in section.layers:
        if len(pair) != 2 or not 0 <= pair[0] < depth or not 0 <= pair[1] < teacher_depth:
            raise RecipeError(
                f'distill.layers must be "even", "output" or pairs [student layer 0 … {depth - 1}, teacher layer '
                f"0 … {teacher_depth - 1}]; found {list(pair)}"
            )
    return [(pair[0], pair[1]) for pair in section.layers]


def _map(pair: Pair, student: Tensor, teacher: Tensor) -> nn.Module:
    """A module from the student's width to the teacher's: the identity if they are equal, otherwise a linear map."""
    if student.shape == teacher.shape:
        return nn.Identity()
    if student.shape[:-1] != teacher.shape[:-1]:
        raise ShapeError(
            f"layer {pair[0]} of the student gives {_size(student)} and layer {pair[1]} of the teacher "
            f"{_size(teacher)}: only the width, the last number, may differ"
        )
    return nn.Linear(student.shape[-1], teacher.shape[-1], bias=False)


def _size(output: Tensor) -> str:
    return " × ".join(map(str, output.shape[1:]))
