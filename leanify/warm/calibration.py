"""Statistics on calibration data: second moments, block inputs and outputs, and the damage of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.design.prices.counting import call
from leanify.errors import DataError
from leanify.lens.resize import features_of
from leanify.upstream.hooked import hooked
from leanify.warm.blocks import uncached

Batch = Mapping[str, Tensor]
ROWS = 4096  # of outputs that are compared: more change the second digit of the damage at most
NUMBERS = 2**26  # of them in all: a large vocabulary has fewer rows


@dataclass(frozen=True)
class Moments:
    """Σ x̃ x̃ᵀ of the inputs x̃ = (x, 1) of a linear map: (inputs + 1) × (inputs + 1), float64."""

    sums: tuple[Tensor, ...]  # of every other batch and of the rest, so that one half can check the other

    @property
    def second(self) -> Tensor:
        """E[x̃ x̃ᵀ]."""
        total = self.sums[0] if len(self.sums) == 1 else self.sums[0] + self.sums[1]
        return total / self.tokens

    @property
    def powers(self) -> Tensor:
        """E[x_j²] of every input."""
        return self.second.diagonal()[:-1]

    @property
    def tokens(self) -> float:
        return max(1.0, float(sum(part[-1, -1] for part in self.sums)))


def run(model: nn.Module, batch: Batch) -> Any:
    with uncached(model):
        return call(model, dict(batch))


def moments(model: nn.Module, modules: Mapping[str, nn.Module], batches: Sequence[Batch]) -> dict[str, Moments]:
    """The second moments of what goes into some linear maps, by name, without padding. Raises DataError."""
    model.eval()
    passes = ((batch.get("attention_mask"), partial(run, model, batch)) for batch in batches)
    found = moments_in(modules, passes)
    if modules and not found:
        raise DataError("the calibration data reached none of the layers")
    return found


@torch.no_grad()
def moments_in(
    modules: Mapping[str, nn.Module], passes: Iterable[tuple[Tensor | None, Callable[[], Any]]]
) -> dict[str, Moments]:
    """The same over passes, each with the mask of its tokens."""
    totals: dict[tuple[str, int], Tensor] = {}
    mask: list[Tensor | None] = [None]
    half = 0

    def hook(name: str) -> Any:
        def add(module: nn.Module, args: tuple[Any, ...]) -> None:
            x = args[0]
            if not isinstance(x, Tensor) or x.shape[-1] != features_of(module).inputs:
                return
            if isinstance(module, nn.modules.conv._ConvNd):
                return
            rows = rows_of(x, mask[0])
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
            product = (rows.T @ rows).double()
            totals[name, half] = totals[name, half].add_(product) if (name, half) in totals else product

        return add

    with hooked(module.register_forward_pre_hook(hook(name)) for name, module in modules.items()):
        for index, (mask[0], one_pass) in enumerate(passes):
            half = index % 2
            one_pass()
    names = dict.fromkeys(name for name, _ in totals)
    return {name: Moments(tuple(totals[name, i] for i in (0, 1) if (name, i) in totals)) for name in names}


def rows_of(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N, width) → (tokens, width) without padding, in float32 at least."""
    rows = counted(x, mask)
    return rows if rows.dtype == torch.float64 else rows.float()


def counted(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N, width) → (tokens, width), without padding."""
    if mask is not None and x.shape[: mask.dim()] == mask.shape:
        return x[mask.bool()].flatten(0, -2)
    return x.flatten(0, -2)


@dataclass(frozen=True)
class Answers:
    """A model's answers on some data: every ``step``-th row of logits, or of hidden states without a head."""

    rows: Tensor
    logits: bool
    step: int = 1

    @property
    def unit(self) -> str:
        return "KL, nats" if self.logits else "relative error"

    @cached_property
    def spread(self) -> float:
        """Σ|t − mean|²."""
        return float((self.rows - self.rows.mean(0)).square().sum())


@torch.no_grad()
def answers(model: nn.Module, batches: Sequence[Batch], headless: bool = False) -> Answers:
    """The answers of a model without padding, thinned to `ROWS`; ``headless``: those below its head."""
    model.eval()
    asked: Any = getattr(model, "base_model", model) if headless else model
    return gathered((run(asked, batch) for batch in batches), batches)


def gathered(outputs: Iterable[Any], batches: Sequence[Batch]) -> Answers:
    """Answers from what a model gives for each batch."""
    found, logits = [], False
    for batch, output in zip(batches, outputs, strict=True):
        rows, logits = _said(output, batch)
        found.append(rows)
    rows = torch.cat(found)
    most = max(1, min(ROWS, NUMBERS // rows.shape[-1]))
    step = -(-len(rows) // most)
    return Answers(rows[::step], logits and rows.shape[-1] > 1, step)


def _said(output: Any, batch: Batch) -> tuple[Tensor, bool]:
    """Rows of what a model gives for a batch, without padding, and whether they are logits."""
    logits = isinstance(output, Tensor) or getattr(output, "logits", None) is not None
    value = output if isinstance(output, Tensor) else output.logits if logits else output[0]
    return counted(value, batch.get("attention_mask")).float(), logits


@torch.no_grad()
def constant(wanted: Answers) -> float:
    """The damage of the best constant answer: what a model that ignores its input would have."""
    if not wanted.logits:
        return 1.0  # by the definition of a relative error
    teacher = F.log_softmax(wanted.rows, -1)
    mean = (teacher.logsumexp(0) - math.log(len(teacher))).expand_as(teacher)
    return max(0.0, float(F.kl_div(mean, teacher, reduction="batchmean", log_target=True)))


def damage(given: Answers, wanted: Answers) -> float:
    """The distance to a teacher's answers: KL(teacher ‖ student) in nats, else Σ|y − t|² / Σ|t − mean|²."""
    found = _lost(given.rows, wanted.rows, wanted)
    return max(0.0, found) if wanted.logits else found  # below zero by rounding alone


def _lost(given: Tensor, wanted: Tensor, whole: Answers) -> float:
    """What some rows add to the damage: never less than nothing."""
    if whole.logits:
        student, teacher = (F.log_softmax(x, -1) for x in (given, wanted))
        return float(F.kl_div(student, teacher, reduction="sum", log_target=True)) / len(whole.rows)
    return float((given - wanted).square().sum()) / whole.spread


class Tally:
    """The damage of answers that come batch by batch. It only grows, so that a trial can end early."""

    def __init__(self, wanted: Answers) -> None:
        self.wanted, self.damage, self.seen, self.compared = wanted, 0.0, 0, 0

    def add(self, output: Any, batch: Batch) -> float:
        """Count what a model gives for the next batch; the damage so far."""
        rows, _ = _said(output, batch)
        some = rows[-self.seen % self.wanted.step :: self.wanted.step]
        self.damage += _lost(some, self.wanted.rows[self.compared : self.compared + len(some)], self.wanted)
        self.seen, self.compared = self.seen + len(rows), self.compared + len(some)
        return self.damage
