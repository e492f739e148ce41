"""Predict, before training starts, whether it fits into memory: what it will take, and what there is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from leanify.design.measure import peak
from leanify.design.measure.peak import Need as Need
from leanify.errors import TrainingError, UnsupportedModel
from leanify.training import sharding
from leanify.units import binary
from leanify.upstream.libraries import first_line

MOMENTS = {"adamw": 2, "sgd": 1}  # tensors of the weights' size that an optimiser keeps; sgd's is its momentum


def need(
    model: nn.Module,
    tokens: int | None,
    *,
    optimiser: str = "adamw",
    average: bool = False,
    teacher: nn.Module | None = None,
    half: bool = False,
    fused: bool = False,
    kept: bool = False,
    parts: int = 1,
) -> Need | None:
    """The memory a process needs to train a model (see `peak`); None for one that cannot run without values.

    ``tokens`` is the length of a text. ``half``: activations and a copy of the weights in 16 bits. ``fused``:
    attention with dropout is fused too. ``kept``: gradients stay from pass to pass, as with several passes or
    DDP. ``parts``: processes that share weights, gradients and moments; then two blocks and what is outside
    all blocks are whole, and so are two blocks' gradients.
    """
    # sharded weights are gathered in 16 bits, not cast by autocast
    cast = torch.bfloat16 if half and parts > 1 else None
    try:
        lines = peak.lines_of(
            model,
            tokens,
            loss=peak.cross_entropy,
            half=half and cast is None,
            weights=cast,
            fused=fused,
            again=kept or parts > 1,
        )
    except UnsupportedModel:
        return None
    weights = _bytes(model)
    fixed = (1 + MOMENTS[optimiser] + average) * weights + (0 if teacher is None else _bytes(teacher))
    if parts == 1:
        return Need(fixed, lines)
    gradients = weights // (2 if half else 1)  # among the lines; a process keeps its part of them, in float32
    units = [_bytes(unit) for unit in sharding.units_of(model)]
    whole = (weights - sum(units) + 2 * max(units, default=0)) // (2 if half else 1) + 2 * max(units, default=0)
    return Need((fixed + weights) // parts + whole, tuple((constant - gradients, slope) for constant, slope in lines))


def _bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def check(needed: Need, available: int, batch: int, world: int, accumulate: int, where: str) -> None:
    """Raise TrainingError, with what would fit, where a pass of this process does not."""
    samples = -(-batch // (world * accumulate))
    if needed.of(samples) <= available:
        return
    largest = needed.largest(available)
    several = f"{accumulate * world} pass{'es' * (accumulate * world > 1)}"
    words = (
        f"a step of {batch} samples in {several} of {samples} needs {binary(needed.of(samples))} and "
        f"{where} has {binary(available)}"
    )
    if not largest:
        raise TrainingError(f"{words}: not even a pass of one sample fits ({binary(needed.of(1))})")
    passes = math.ceil(batch / (world * largest))
    raise TrainingError(
        f"{words}; the largest batch that fits is {largest * world * accumulate}, --set schedule.batch_size="
        f"{largest * world * accumulate}, or the same batch in more passes, --set run.accumulate={passes}"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; torch's class for that is for accelerators alone."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def spoken_of(asked: str, batch: int, world: int, accumulate: int) -> Iterator[None]:
    """Say what would help where memory runs out in a step all the same: other programs or kernels took it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        samples = -(-batch // (world * accumulate))
        raise TrainingError(
            f"{asked}: memory ran out in a pass of {samples} samples ({first_line(error)}). A new run needs less with "
            f"--set run.accumulate={2 * accumulate}, which is the same batch in more passes, --set "
            "run.gradient_checkpointing=true, or a smaller schedule.batch_size"
        ) from error
