"""Statistics on calibration data: second moments, calls of blocks, outputs, and the damage of a step.

A `CallTrace` has one call per batch and block of a stage, so that blocks before a changed block need not run again. A
block runs alone when it is called with the recorded arguments and another input (`replay`). A model whose first blocks
are the recorded ones runs from the first other block on (`replay_recorded`): the blocks before it return their recorded
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from leanify.upstream.on_disk import place, place_output
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
    parts, logits = [], False
    for batch in batches:
        rows, logits = _output_rows(run(model, batch, headless), batch)
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


class RunningDivergence:
    """The distance to a teacher's outputs, batch by batch: KL(teacher ‖ student) in nats, or Σ|y − t|² / Σ|t − mean|².

    It never decreases but by rounding, so a trial can stop early.
    """

    def __init__(self, reference: TeacherOutputs) -> None:
        self.reference, self.total, self.row_count, self.compared_rows = reference, 0.0, 0, 0

    @property
    def divergence(self) -> float:
        return max(0.0, self.total)

    def add(self, output: Any, batch: Batch) -> float:
        """Add a model's output for the next batch; return the damage so far."""
        reference, (rows, _) = self.reference, _output_rows(output, batch)
        some = rows[-self.row_count % reference.step :: reference.step]
        wanted = reference.rows[self.compared_rows : self.compared_rows + len(some)]
        if reference.logits:
            student, teacher = F.log_softmax(some, -1), F.log_softmax(wanted, -1)
            distance = F.kl_div(student, teacher, reduction="sum", log_target=True)
            self.total += float(distance) / len(reference.rows)
        else:
            self.total += float((some - wanted).square().sum()) / reference.total_variance
        self.row_count, self.compared_rows = self.row_count + len(rows), self.compared_rows + len(some)
        return self.divergence


@torch.no_grad()
def model_divergence(model: nn.Module, batches: Sequence[Batch], reference: TeacherOutputs, headless: bool) -> float:
    """Return the distance of a model's outputs to a teacher's on the same data, with one batch of them in memory."""
    model.eval()
    tally = RunningDivergence(reference)
    for batch in batches:
        tally.add(run(model, batch, headless), batch)
    return tally.divergence


# -- calls of blocks ----------


@dataclass(frozen=True)
class Call:
    """One call of a module: its arguments, and its output in upstream's form."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    raw: Any

    @property
    def tensors(self) -> list[Tensor]:
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

    @property
    def state(self) -> Tensor:
        """The input hidden states: the first tensor."""
        return self.tensors[0]

    @property
    def output(self) -> Tensor:
        return first_tensor(self.raw)


CallTrace = list[list[Call]]  # by batch and block


def first_tensor(output: Any) -> Tensor:
    """Return the first tensor of a module's output."""
    first: Tensor = output if isinstance(output, Tensor) else output[0]
    return first


@contextmanager
def record_trace(blocks: Sequence[nn.Module]) -> Iterator[CallTrace]:
    """Record the calls of some blocks, one list per forward pass of the model inside the context.

    If a pass calls a block more than once, as with shared layers, its list has another length.
    """
    trace: CallTrace = []

    def hook(index: int) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if index == 0:
                trace.append([])
            output = place_output(output)  # the next block's input is the same tensor
            trace[-1].append(Call(args, dict(kwargs), output))
            return output

        return keep

    hooks = (block.register_forward_hook(hook(index), with_kwargs=True) for index, block in enumerate(blocks))
    with remove_on_exit(hooks):
        yield trace


@torch.no_grad()
def record(model: nn.Module, blocks: Sequence[nn.Module], batches: Sequence[Batch]) -> CallTrace | None:
    """Return the calls of the blocks in forward passes; None if they are not called once each, in order."""
    with record_trace(blocks) as trace:
        for batch in batches:
            run(model, batch)
    in_turn = len(trace) == len(batches) and all(len(calls) == len(blocks) for calls in trace)
    return trace if in_turn else None


@torch.no_grad()
def replay(block: nn.Module, call: Call, state: Tensor | None = None) -> Tensor:
    """Return the output of a block called as in ``call``, optionally with other hidden states."""
    args, kwargs = list(call.args), dict(call.kwargs)
    if state is not None:
        args = [state if value is call.state else value for value in args]
        kwargs = {name: state if value is call.state else value for name, value in kwargs.items()}
    with disable_cache(block):
        return first_tensor(block(*args, **kwargs))


@contextmanager
def replay_recorded(blocks: Sequence[Any], calls: Sequence[Call]) -> Iterator[None]:
    """Make blocks return the recorded outputs instead of computing."""
    before = [vars(block).get("forward") for block in blocks]
    for block, recorded in zip(blocks, calls, strict=True):
        block.forward = lambda *args, raw=recorded.raw, **kwargs: raw
    try:
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward
