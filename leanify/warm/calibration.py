"""Statistics on calibration data: second moments, block inputs and outputs, and the damage of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.design.prices.counting import call
from leanify.errors import DataError
from leanify.lens.resize import features_of
from leanify.warm.blocks import uncached

Batch = Mapping[str, Tensor]
ROWS = 4096  # of outputs that are compared: more change the second digit of the damage at most
NUMBERS = 2**26  # of them in all: a large vocabulary has fewer rows


@dataclass(frozen=True)
class Moments:
    """E[x̃ x̃ᵀ] of the inputs x̃ = (x, 1) of a linear map: (inputs + 1) × (inputs + 1), float64."""

    second: Tensor

    @property
    def powers(self) -> Tensor:
        """E[x_j²] of every input."""
        return self.second.diagonal()[:-1]


def run(model: nn.Module, batch: Batch) -> Any:
    with uncached(model):
        return call(model, dict(batch))


@torch.no_grad()
def moments(model: nn.Module, modules: Mapping[str, nn.Module], batches: Sequence[Batch]) -> dict[str, Moments]:
    """The second moments of what goes into some linear maps, by name; padded tokens do not count.

    A map whose input is not laid out as (…, inputs) is left out. Raises DataError where the data gives none of them.
    """
    model.eval()
    totals: dict[str, Tensor] = {}
    mask: list[Tensor | None] = [None]

    def hook(name: str) -> Any:
        def add(module: nn.Module, args: tuple[Any, ...]) -> None:
            x = args[0]
            if not isinstance(x, Tensor) or x.shape[-1] != features_of(module).inputs or _is_convolution(module):
                return
            rows = rows_of(x, mask[0])
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
            totals[name] = totals.get(name, 0) + (rows.T @ rows).double()

        return add

    hooks = [module.register_forward_pre_hook(hook(name)) for name, module in modules.items()]
    try:
        for batch in batches:
            mask[0] = batch.get("attention_mask")
            run(model, batch)
    finally:
        for handle in hooks:
            handle.remove()
    if modules and not totals:
        raise DataError("the calibration data reached none of the layers")
    return {name: Moments(total / total[-1, -1].clamp(min=1)) for name, total in totals.items()}


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.conv._ConvNd)


def rows_of(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N, width) → (tokens, width) without padding, in float32 at least."""
    rows = counted(x, mask)
    return rows if rows.dtype == torch.float64 else rows.float()


def counted(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N, width) → (tokens, width), without padding."""
    if mask is not None and x.shape[: mask.dim()] == mask.shape:
        return x[mask.bool()].flatten(0, -2)
    return x.flatten(0, -2)


# -- how far a model moved ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """What a model answers on some data: rows of logits, or of hidden states where it has no head."""

    rows: Tensor
    logits: bool

    @property
    def unit(self) -> str:
        return "KL, nats" if self.logits else "relative error"


@torch.no_grad()
def answers(model: nn.Module, batches: Sequence[Batch]) -> Answers:
    """The answers of a model. Padded tokens do not count, and rows beyond `ROWS` are left out evenly."""
    model.eval()
    found, logits = [], False
    for batch in batches:
        output: Any = run(model, batch)
        logits = isinstance(output, Tensor) or getattr(output, "logits", None) is not None
        value = output if isinstance(output, Tensor) else output.logits if logits else output[0]
        found.append(counted(value, batch.get("attention_mask")).float())
    rows = torch.cat(found)
    most = max(1, min(ROWS, NUMBERS // rows.shape[-1]))
    return Answers(rows[:: -(-len(rows) // most)], logits and rows.shape[-1] > 1)


def damage(given: Answers, wanted: Answers) -> float:
    """How far answers are from a teacher's: KL(teacher ‖ student) of logits in nats, else Σ|y − t|² / Σ|t − mean|²."""
    if wanted.logits:
        student, teacher = (F.log_softmax(x.rows, -1) for x in (given, wanted))
        divergence = float(F.kl_div(student, teacher, reduction="batchmean", log_target=True))
        return max(0.0, divergence)  # below zero by rounding alone
    spread = (wanted.rows - wanted.rows.mean(0)).square().sum()
    return float((given.rows - wanted.rows).square().sum() / spread)


# -- residual stream ----------------------------------------------------------------------------------------------


@contextmanager
def states_of(blocks: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """The input of the first block and the output of each, in the forward pass inside the context."""
    states: dict[int, Tensor] = {}

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        states[0] = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))

    def after(index: int) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            states[index] = output if isinstance(output, Tensor) else output[0]

        return keep

    hooks = [blocks[0].register_forward_pre_hook(before, with_kwargs=True)]
    hooks += [block.register_forward_hook(after(index)) for index, block in enumerate(blocks, 1)]
    found: list[Tensor] = []
    try:
        yield found
        found += [states[index] for index in sorted(states)]
    finally:
        for hook in hooks:
            hook.remove()
