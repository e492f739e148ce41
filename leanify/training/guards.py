"""Checks around a run: that its data has not changed, that it fits into memory, what was skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from leanify import machine
from leanify.data import fingerprint
from leanify.data.samples import Splits
from leanify.design.measure import profiling
from leanify.errors import DataError, LeanifyError, RecipeError
from leanify.runs.recipe import DataSection
from leanify.runs.run_directory import RunDirectory
from leanify.training import memory

if TYPE_CHECKING:
    from accelerate import Accelerator

Warn = Callable[[str], None]


@contextmanager
def raised_by_all() -> Iterator[None]:
    """Mark errors of what every process of a launch does alike."""
    try:
        yield
    except LeanifyError as error:
        error.shared = True
        raise


def check_data(run: RunDirectory, data: DataSection, splits: Splits, accept: bool, warn: Warn) -> None:
    """Raise DataError, naming what changed since the run was begun, unless changed data is accepted."""
    before, now = run.data(), fingerprint.taken(data, splits)
    words = fingerprint.changes(before, now)
    if words is not None and not accept:
        raise DataError(
            f"the data changed since {run.path} was begun: {words}. Its numbers would mix two data sets; restore the "
            "data, or go on all the same with --accept-changed-data"
        )
    if words is not None:
        warn(f"going on with changed data: {words}")
    if words is not None or not before:
        run.note_data(now)


def check_arithmetic(engine: Accelerator, warn: Warn) -> None:
    """Warn where bf16 is only emulated: on such a processor a step takes many times as long as in fp32."""
    if engine.mixed_precision != "bf16" or engine.device.type != "cpu":
        return
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # AVX-512 on x86; torch has no public name for it
        warn("this processor has no bf16 arithmetic, so torch emulates it, slowly: run.precision=fp32 is faster here")


def note_skipped(run: RunDirectory, skipped: Iterable[str], warn: Warn) -> None:
    """Keep the names of skipped samples with the run, and report them."""
    run.note_skipped(skipped)
    if known := run.skipped():
        words = "; ".join(known[:3]) + ("; …" if len(known) > 3 else "")
        warn(f"{len(known):,} sample{'s were' if len(known) != 1 else ' was'} skipped (data.on_error = skip): {words}")


def check_processes(world: int, samples: int, batch: int) -> None:
    """Raise RecipeError where processes would have nothing to do, in every step or in some."""
    if world > min(samples, batch):
        what = f"{samples} samples to train" if samples < batch else f"a batch of {batch} samples"
        raise RecipeError(f"{world} processes share {what}: at least one has none. Start at most {min(samples, batch)}")
    if batch % world:
        lower, upper = batch // world * world, -(-batch // world) * world
        raise RecipeError(
            f"schedule.batch_size is {batch}, which {world} processes do not divide: some would wait for others in "
            f"every step. --set schedule.batch_size={upper}{f' or {lower}' if lower else ''}, or start another number"
        )


def check_memory(need: memory.Need | None, model: nn.Module, engine: Accelerator, batch: int, accumulate: int) -> None:
    """Raise TrainingError, in every process, for what will not fit in one, before anything is written."""
    mine = machine.available(engine.device)
    available = int(engine.gather(torch.tensor([-1 if mine is None else mine], device=engine.device)).min())
    if need is None or available < 0:
        return
    held = profiling.weights_bytes(model) if engine.device.type == "cpu" else 0
    memory.check(need, available + held, batch, engine.num_processes, accumulate, str(engine.device))
