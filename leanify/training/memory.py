"""Predict, before training starts, whether it fits into memory: what it will take, and what the device has."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leanify.design import counting, profiling
from leanify.errors import TrainingError
from leanify.lens.located import outputs_of
from leanify.lens.sites import locate
from leanify.upstream.origin import is_hf

MOMENTS = {"adamw": 2, "sgd": 1}  # tensors of the weights' size that an optimiser keeps; sgd's is its momentum


@dataclass(frozen=True)
class Need:
    """Bytes: ``fixed`` whatever the batch (weights, gradients, moments, averages, a teacher), and ``sample`` by sample.

    What a sample takes is what autograd saves for it, and twice its outputs, which the loss holds and gives back.
    """

    fixed: int
    sample: int

    def of(self, samples: int) -> int:
        """One forward and backward pass over ``samples`` samples."""
        return self.fixed + samples * self.sample

    def largest(self, available: int) -> int:
        """The samples of a pass that fit, 0 where none does."""
        return max(0, (available - self.fixed) // max(self.sample, 1))


def need(
    model: nn.Module,
    tokens: int | None,
    *,
    optimiser: str = "adamw",
    average: bool = False,
    teacher: nn.Module | None = None,
    half: bool = False,
    recomputed: bool = False,
    fused: bool = False,
) -> Need | None:
    """What training a model takes, from forward passes of a copy on ``meta``; None for a model that has none there.

    ``tokens`` is the length of a text. ``half``: activations and a copy of the weights in 16 bits. ``recomputed``: the
    blocks keep their outputs and are computed again in the backward pass, one at a time. ``fused``: attention with
    dropout is fused too.
    """
    on_meta: Any = _on_meta(model)
    if is_hf(on_meta):
        on_meta.config.use_cache = True  # without, transformers looks at positions, which have no values on meta
    saved_by = partial(profiling.saved_by, fused=fused)
    one, two = (counting.observed_on_meta(on_meta, tokens, saved_by, batch) for batch in (1, 2))
    blocks = locate(on_meta).blocks if recomputed else []
    made = counting.observed_on_meta(on_meta, tokens, partial(_made_by, blocks))
    if one is None or two is None or made is None:
        return None
    given, hidden = made
    saved = two - one if not blocks else (two - one) // len(blocks) + hidden
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    copies = 2 + MOMENTS[optimiser] + average + (0.5 if half else 0)
    taught = 0 if teacher is None else sum(p.numel() * p.element_size() for p in teacher.parameters())
    return Need(int(copies * weights) + taught + max(0, 2 * one - two), saved // (2 if half else 1) + 2 * given)


def _made_by(blocks: Sequence[nn.Module], model: nn.Module, inputs: dict[str, Tensor]) -> tuple[int, int]:
    """Bytes of a pass's first output, and of its blocks' outputs."""
    with torch.no_grad(), counting.Countable(), outputs_of(blocks) as hidden:
        outputs = counting.call(model, inputs)
    return sum(tensor.nbytes for tensor in profiling.tensors_of(outputs)[:1]), sum(tensor.nbytes for tensor in hidden)


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy that never was in memory."""
    shapes: dict[int, Any] = {id(p): nn.Parameter(torch.empty_like(p, device="meta")) for p in model.parameters()}
    shapes |= {id(tensor): torch.empty_like(tensor, device="meta") for tensor in model.buffers()}
    return copy.deepcopy(model, shapes)


def check(needed: Need, available: int, batch: int, world: int, accumulate: int, where: str) -> None:
    """Raise TrainingError, with what would fit, where a pass of this process does not."""
    samples = -(-batch // (world * accumulate))
    if needed.of(samples) <= available:
        return
    largest = needed.largest(available)
    words = (
        f"a step of {batch} samples in {accumulate * world} passes of {samples} needs {_gb(needed.of(samples))} and "
        f"{where} has {_gb(available)}"
    )
    if not largest:
        raise TrainingError(f"{words}: not even a pass of one sample fits ({_gb(needed.of(1))})")
    passes = math.ceil(batch / (world * largest))
    raise TrainingError(
        f"{words}; the largest batch that fits is {largest * world * accumulate}, --set schedule.batch_size="
        f"{largest * world * accumulate}, or the same batch in more passes, --set run.accumulate={passes}"
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
