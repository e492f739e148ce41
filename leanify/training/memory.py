"""Predict the memory of a training step before the first one, and split its batch into passes that fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from leanify.core import machine
from leanify.core.errors import TrainingError, UnsupportedModel
from leanify.core.recipe import TrainingRecipe
from leanify.core.units import format_bytes
from leanify.data.samples import Splits
from leanify.profiling import counting
from leanify.profiling import training_memory as peak
from leanify.profiling.training_memory import MemoryNeed as MemoryNeed
from leanify.training import sharding
from leanify.training.preparation import trainable
from leanify.upstream.libraries import first_line

if TYPE_CHECKING:
    from accelerate import Accelerator

MOMENTS = {"adamw": 2, "sgd": 1}  # tensors of the weights' size that an optimiser keeps; sgd's is its momentum


def need(
    model: nn.Module,
    tokens: int | None,  # the length of a text
    *,
    optimiser: str = "adamw",
    average: bool = False,
    teacher: nn.Module | None = None,
    half: bool = False,  # activations and a copy of the weights have 16 bits
    fused_attention: bool = False,  # attention with dropout is fused too
    keeps_gradients: bool = False,  # from pass to pass, as with several passes or DDP
    parts: int = 1,  # processes that share weights, gradients and moments
) -> MemoryNeed | None:
    """The memory a process needs to train a model (see `peak`); None for a model that cannot run without values.

    A process that shares the model gathers weights and gradients of two blocks, and all weights outside the blocks.
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


def predict_memory(
    recipe: TrainingRecipe, model: nn.Module, engine: Accelerator, teacher: nn.Module | None, tokens: int | None
) -> MemoryNeed | None:
    """The memory that this process needs to train the recipe; ``tokens`` is the length of the longest text."""
    return need(
        model,
        tokens,
        optimiser=recipe.optim.name,
        average=recipe.optim.ema is not None,
        teacher=teacher,
        half=engine.mixed_precision != "no",
        fused_attention=engine.device.type == "cuda",
        keeps_gradients=engine.num_processes > 1 or recipe.run.accumulate > 1,
        parts=engine.num_processes if sharding.is_requested(recipe) else 1,
    )


def longest_sample(splits: Splits, length: int | None) -> int | None:
    """The tokens of the longest training text: a batch is padded to its own longest, not to ``length``."""
    lengths = getattr(splits.train, "lengths", None)
    if lengths is None or not len(lengths):
        return length
    longest = max(2, int(lengths.max()))
    return longest if length is None else min(length, longest)


def fit_memory(
    recipe: TrainingRecipe, model: nn.Module, engine: Accelerator, teacher: nn.Module | None, tokens: int | None
) -> tuple[TrainingRecipe, MemoryNeed | None]:
    """The recipe with its batch in as many passes as fit into every process's memory, and the memory of a step."""
    passes, step_need = 0, None
    while passes != recipe.run.accumulate:  # several passes keep gradients, which need memory, too
        passes = recipe.run.accumulate
        step_need = predict_memory(recipe, model, engine, teacher, tokens)
        recipe = split_to_fit(step_need, model, engine, recipe)
    return recipe, step_need


def split_to_fit(
    step_need: MemoryNeed | None, model: nn.Module, engine: Accelerator, recipe: TrainingRecipe
) -> TrainingRecipe:
    """The recipe with its batch in as many passes as fit into every process's memory: the same gradients.

    Raises TrainingError, in every process, where not even one sample fits.
    """
    free_here = machine.available_memory(engine.device)
    available = int(engine.gather(torch.tensor([-1 if free_here is None else free_here], device=engine.device)).min())
    if step_need is None or available < 0:
        return recipe
    batch, accumulate = recipe.schedule.batch_size, recipe.run.accumulate
    weights = counting.weights_bytes(model) if engine.device.type == "cpu" else 0
    world, device = engine.num_processes, str(engine.device)
    passes = fitting_passes(step_need, available + weights, batch, world, accumulate, device)
    if passes == accumulate:
        return recipe
    return trainable(replace(recipe, run=replace(recipe.run, accumulate=passes)))


def fitting_passes(step_need: MemoryNeed, available: int, batch: int, world: int, accumulate: int, where: str) -> int:
    """The passes of a step, at least ``accumulate``, that fit into this process's memory. Raises TrainingError."""
    samples = -(-batch // (world * accumulate))
    if step_need.of(samples) <= available:
        return accumulate
    largest = step_need.largest(available)
    if largest:
        return math.ceil(batch / (world * largest))
    raise TrainingError(
        f"a step of {batch} samples in passes of {samples} needs {format_bytes(step_need.of(samples))} and {where} has "
        f"{format_bytes(available)}: not even a pass of one sample fits ({format_bytes(step_need.of(1))})"
    )


def split_batch(
    recipe: TrainingRecipe, splits: Splits, model: nn.Module, engine: Accelerator
) -> tuple[TrainingRecipe, MemoryNeed | None]:
    """The recipe with its batch in as many passes as fit into the free memory, and the memory of a step.

    ``model`` is the recipe's on meta, so that this takes seconds before any work. Where not even one sample fits, the
    recipe stays as it is, and training refuses it.
    """
    # a teacher called in each step is also in memory, and at most as large as the model
    distill = recipe.distill
    is_called = distill is not None and (distill.hidden_weight > 0 or recipe.data.task != "sentence-embedding")
    teacher = model if is_called else None
    tokens = longest_sample(splits, recipe.data.length)
    step_need = predict_memory(recipe, model, engine, teacher, tokens)
    available = machine.available_memory(engine.device)
    if step_need is None or available is None:
        return recipe, step_need
    # a fifth is reserved for objects still in memory when healing begins
    limit, accumulate = int(0.8 * available), recipe.run.accumulate
    batch = -(-recipe.schedule.batch_size // engine.num_processes)
    if step_need.of(-(-batch // accumulate)) <= limit:
        return recipe, step_need
    # with several passes gradients stay from one to the next, which takes more memory
    several = replace(recipe, run=replace(recipe.run, accumulate=max(2, accumulate)))
    step_need = predict_memory(several, model, engine, teacher, tokens)
    largest = 0 if step_need is None else step_need.largest(limit)
    if largest == 0:
        return recipe, step_need
    return replace(recipe, run=replace(recipe.run, accumulate=-(-batch // largest))), step_need


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
