"""Statistics on calibration data: second moments, inputs and outputs of blocks, and the damage of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.carrying.blocks import disable_cache
from leanify.core.errors import DataError
from leanify.lens.resize import linear_features
from leanify.profiling.forward import call
from leanify.upstream.on_disk import place
from leanify.upstream.origin import remove_on_exit

Batch = Mapping[str, Tensor]
MAX_ROWS = 4096  # rows of outputs to compare; more rows change at most the second digit of the damage
PRODUCT_ROWS = 2048  # rows of one product of second moments
MAX_NUMBERS = 2**26  # limit on their total size: a large vocabulary gets fewer rows


@dataclass(frozen=True)
class Moments:
    """Σ x̃ x̃ᵀ of the inputs x̃ = (x, 1) of a linear map: (inputs + 1) × (inputs + 1), float64."""

    sums: tuple[Tensor, ...]  # one over even and one over odd batches, so that one half can validate the other

    @property
    def second(self) -> Tensor:
        """E[x̃ x̃ᵀ]."""
        total = self.sums[0] if len(self.sums) == 1 else self.sums[0] + self.sums[1]
        return total / self.tokens

    @property
    def tokens(self) -> float:
        return max(1.0, float(sum(part[-1, -1] for part in self.sums)))


def run(model: Any, batch: Batch, headless: bool = False) -> Any:
    """Run a model without its key/value cache; ``headless`` runs what is below its head."""
    inner_model = getattr(model, "base_model", model) if headless else model
    with disable_cache(inner_model):
        return call(inner_model, dict(batch))


def moments(model: nn.Module, modules: Mapping[str, nn.Module], batches: Sequence[Batch]) -> dict[str, Moments]:
    """Return the second moments of the inputs of linear maps, by name, without padding. Raises DataError."""
    model.eval()
    passes = ((batch.get("attention_mask"), partial(run, model, batch)) for batch in batches)
    result = accumulate_moments(modules, passes)
    if modules and not result:
        raise DataError("the calibration data reached none of the layers")
    return result


@torch.no_grad()
def accumulate_moments(
    modules: Mapping[str, nn.Module], passes: Iterable[tuple[Tensor | None, Callable[[], Any]]]
) -> dict[str, Moments]:
    """Return the second moments over passes, each with the mask of its tokens."""
    totals: dict[tuple[str, int], Tensor] = {}
    waiting_rows: dict[tuple[str, int], list[Tensor]] = {}  # a product of many rows costs less than one of each batch
    mask: list[Tensor | None] = [None]
    half = 0

    def add_product(key: tuple[str, int]) -> None:
        rows = torch.cat(waiting_rows.pop(key))
        product = (rows.T @ rows).double()
        totals[key] = totals[key].add_(product) if key in totals else product

    def hook(name: str) -> Any:
        def add(module: nn.Module, args: tuple[Any, ...]) -> None:
            x = args[0]
            if not isinstance(x, Tensor) or x.shape[-1] != linear_features(module).inputs:
                return
            if isinstance(module, nn.modules.conv._ConvNd):
                return
            rows = token_rows(x, mask[0])
            waiting_rows.setdefault((name, half), []).append(torch.cat([rows, rows.new_ones(len(rows), 1)], 1))
            if sum(map(len, waiting_rows[name, half])) >= PRODUCT_ROWS:
                add_product((name, half))

        return add

    with remove_on_exit(module.register_forward_pre_hook(hook(name)) for name, module in modules.items()):
        for index, (mask[0], one_pass) in enumerate(passes):
            half = index % 2
            one_pass()
    for key in list(waiting_rows):
        add_product(key)
    # the sums of even and of odd batches, by name
    sums: dict[str, list[Tensor]] = {}
    for name, index in sorted(totals, key=lambda key: key[1]):
        sums.setdefault(name, []).append(totals[name, index])
    return {name: Moments(tuple(parts)) for name, parts in sums.items()}


def token_rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """Flatten (B, N, width) to (tokens, width) without padding, in at least float32."""
    rows = drop_padding(x, mask)
    return rows if rows.dtype == torch.float64 else rows.float()


def drop_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Flatten (B, N, width) to (tokens, width) without padding."""
    if mask is not None and x.shape[: mask.dim()] == mask.shape:
        return x[mask.bool()].flatten(0, -2)
    return x.flatten(0, -2)


@dataclass(frozen=True)
class TeacherOutputs:
    """A model's outputs on some data: every ``step``-th row of logits, or of hidden states without a head."""

    rows: Tensor
    logits: bool
    step: int = 1

    @property
    def unit(self) -> str:
        return "KL, nats" if self.logits else "relative error"

    @cached_property
    def total_variance(self) -> float:
        """Σ|t − mean|²."""
        return float((self.rows - self.rows.mean(0)).square().sum())


@torch.no_grad()
def collect_outputs(model: nn.Module, batches: Sequence[Batch], headless: bool = False) -> TeacherOutputs:
    """Collect a model's outputs without padding, at most `MAX_ROWS` rows; ``headless`` takes those below its head."""
    model.eval()
    return gather_outputs((run(model, batch, headless) for batch in batches), batches)


def gather_outputs(outputs: Iterable[Any], batches: Sequence[Batch]) -> TeacherOutputs:
    """Collect the outputs for each batch."""
    parts, logits = [], False
    for batch, output in zip(batches, outputs, strict=True):
        rows, logits = _output_rows(output, batch)
        parts.append(place(rows))
    # every ``step``-th row of all batches, counted over their borders; the others are not kept
    width, row_count = parts[0].shape[-1], sum(map(len, parts))
    max_rows = max(1, min(MAX_ROWS, MAX_NUMBERS // width))
    step, start, chosen_rows = -(-row_count // max_rows), 0, []
    for rows in parts:
        chosen_rows.append(rows[-start % step :: step])
        start += len(rows)
    return TeacherOutputs(place(torch.cat(chosen_rows)), logits and width > 1, step)


def _output_rows(output: Any, batch: Batch) -> tuple[Tensor, bool]:
    """Return the rows of a model's output for a batch, without padding, and whether they are logits."""
    logits = isinstance(output, Tensor) or getattr(output, "logits", None) is not None
    value = output
    if not isinstance(output, Tensor):
        value = output.logits if logits else output[0]
    return drop_padding(value, batch.get("attention_mask")).float(), logits


@torch.no_grad()
def model_divergence(model: nn.Module, batches: Sequence[Batch], reference: TeacherOutputs, headless: bool) -> float:
    """Return the distance of a model's outputs to a teacher's on the same data, with one batch of them in memory."""
    model.eval()
    tally = RunningDivergence(reference)
    for batch in batches:
        tally.add(run(model, batch, headless), batch)
    return max(0.0, tally.divergence)


def divergence(outputs: TeacherOutputs, reference: TeacherOutputs) -> float:
    """Return the distance to a teacher's outputs: KL(teacher ‖ student) in nats, or Σ|y − t|² / Σ|t − mean|²."""
    value = _rows_divergence(outputs.rows, reference.rows, reference)
    return max(0.0, value) if reference.logits else value  # negative only through rounding


def _rows_divergence(rows: Tensor, reference_rows: Tensor, reference: TeacherOutputs) -> float:
    """Return the contribution of some rows to the damage, which is never negative."""
    if reference.logits:
        student, teacher = (F.log_softmax(x, -1) for x in (rows, reference_rows))
        return float(F.kl_div(student, teacher, reduction="sum", log_target=True)) / len(reference.rows)
    return float((rows - reference_rows).square().sum()) / reference.total_variance


class RunningDivergence:
    """The damage accumulated batch by batch. It never decreases, so a trial can stop early."""

    def __init__(self, reference: TeacherOutputs) -> None:
        self.reference, self.divergence, self.row_count, self.compared_rows = reference, 0.0, 0, 0

    def add(self, output: Any, batch: Batch) -> float:
        """Add a model's output for the next batch; return the damage so far."""
        rows, _ = _output_rows(output, batch)
        some = rows[-self.row_count % self.reference.step :: self.reference.step]
        self.divergence += _rows_divergence(
            some, self.reference.rows[self.compared_rows : self.compared_rows + len(some)], self.reference
        )
        self.row_count, self.compared_rows = self.row_count + len(rows), self.compared_rows + len(some)
        return self.divergence
