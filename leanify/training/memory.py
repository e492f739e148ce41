"""Predict the memory of a training step before the first one, and compare it with the free memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from leanify.core.errors import TrainingError, UnsupportedModel
from leanify.core.units import format_bytes
from leanify.profiling import training_memory as peak
from leanify.profiling.training_memory import MemoryNeed as MemoryNeed
from leanify.training import sharding
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
    fused_attention: bool = False,
    keeps_gradients: bool = False,
    parts: int = 1,
) -> MemoryNeed | None:
    """The memory a process needs to train a model (see `peak`); None for a model that cannot run without values.

    Arguments:
        tokens: the length of a text.
        half: activations and a copy of the weights have 16 bits.
        fused_attention: attention with dropout is fused too.
        keeps_gradients: gradients stay from pass to pass, as with several passes or DDP.
        parts: processes that share weights, gradients and moments. Each then gathers the weights and gradients of
            two blocks, and all weights outside the blocks.
    """
    # sharded weights are gathered in 16 bits, not cast by autocast
    cast = torch.bfloat16 if half and parts > 1 else None
    try:
        lines = peak.fit_lines(
            model,
            tokens,
            loss=peak.cross_entropy,
            half=half and cast is None,
            weights=cast,
            is_fused=fused_attention,
            again=keeps_gradients or parts > 1,
        )
    except UnsupportedModel:
        return None

    # weights, moments, averaged weights and the teacher, for any batch
    weights = _bytes(model)
    fixed_bytes = (1 + MOMENTS[optimiser] + average) * weights
    if teacher is not None:
        fixed_bytes += _bytes(teacher)
    if parts == 1:
        return MemoryNeed(fixed_bytes, lines)

    # sharded: the lines contain full gradients, of which a process keeps its part, in float32
    word = 2 if half else 1  # gathered numbers take 1 / word of a float32
    lines = tuple((constant - weights // word, slope) for constant, slope in lines)

    # gathered at once: everything outside the blocks, and the weights and gradients of two blocks
    block_bytes = [_bytes(block) for block in sharding.shardable_blocks(model)]
    two_blocks = 2 * max(block_bytes, default=0)
    gathered_bytes = (weights - sum(block_bytes) + two_blocks) // word + two_blocks
    return MemoryNeed((fixed_bytes + weights) // parts + gathered_bytes, lines)


def _bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def fitting_passes(step_need: MemoryNeed, available: int, batch: int, world: int, accumulate: int, where: str) -> int:
    """The passes of a step, at least ``accumulate``, that fit into this process's memory. Raises TrainingError."""
    samples = -(-batch // (world * accumulate))
    if step_need.of(samples) <= available:
        return accumulate
    largest = step_need.largest(available)
    if largest:
        return math.ceil(batch / (world * largest))
    several = f"{accumulate * world} pass{'es' * (accumulate * world > 1)}"
    summary = (
        f"a step of {batch} samples in {several} of {samples} needs {format_bytes(step_need.of(samples))} and "
        f"{where} has {format_bytes(available)}"
    )
    raise TrainingError(f"{summary}: not even a pass of one sample fits ({format_bytes(step_need.of(1))})")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; torch has a class for accelerators only."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def explain_out_of_memory(prefix: str, batch: int, world: int, accumulate: int) -> Iterator[None]:
    """Raise TrainingError with advice if a step runs out of memory in spite of the prediction."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        samples = -(-batch // (world * accumulate))
        raise TrainingError(
            f"{prefix}: memory ran out in a pass of {samples} samples ({first_line(error)}). A new run needs less with "
            f"--set run.accumulate={2 * accumulate}, which is the same batch in more passes, --set "
            "run.gradient_checkpointing=true, or a smaller schedule.batch_size"
        ) from error
