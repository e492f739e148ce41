"""Checks before and after a run: unchanged data, enough memory, skipped samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch

from leanify.core.errors import DataError, RecipeError
from leanify.core.recipe import DataSection
from leanify.data import fingerprint
from leanify.data.samples import Splits
from leanify.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from accelerate import Accelerator

Warn = Callable[[str], None]


def check_data(run: RunDirectory, data: DataSection, splits: Splits, accept: bool, warn: Warn) -> None:
    """Raise DataError, naming what changed since the run was begun, unless changed data is accepted."""
    before, now = run.data(), fingerprint.take_fingerprint(data, splits)
    difference = fingerprint.describe_changes(before, now)
    if difference is not None:
        if not accept:
            raise DataError(
                f"the data changed since {run.path} was begun: {difference}. Its numbers would mix two data sets; "
                "restore the data, or continue with --accept-changed-data"
            )
        warn(f"continuing with changed data: {difference}")
    if difference is not None or not before:
        run.note_data(now)


def check_arithmetic(engine: Accelerator, warn: Warn) -> None:
    """Warn where bf16 is only emulated: on such a processor a step takes many times as long as in fp32."""
    if engine.mixed_precision != "bf16" or engine.device.type != "cpu":
        return
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # AVX-512 on x86; torch has no public name for it
        warn("this processor has no bf16 arithmetic, so torch emulates it, slowly: run.precision=fp32 is faster here")


def note_skipped(run: RunDirectory, names: Iterable[str], warn: Warn) -> None:
    """Record the names of skipped samples in the run's folder, and report them."""
    run.note_skipped(names)
    if skipped_names := run.skipped_samples():
        first = "; ".join(skipped_names[:3]) + ("; …" if len(skipped_names) > 3 else "")
        samples = "1 sample was" if len(skipped_names) == 1 else f"{len(skipped_names):,} samples were"
        warn(f"{samples} skipped (data.on_error = skip): {first}")


def check_processes(world: int, samples: int, batch: int) -> None:
    """Raise RecipeError where processes would have nothing to do, in every step or in some."""
    if world > min(samples, batch):
        share = f"{samples} samples to train" if samples < batch else f"a batch of {batch} samples"
        raise RecipeError(
            f"{world} processes share {share}: at least one has none. Start at most {min(samples, batch)}"
        )
    if batch % world:
        lower, upper = batch // world * world, -(-batch // world) * world
        sizes = f"{upper} or {lower}" if lower else f"{upper}"
        raise RecipeError(
            f"schedule.batch_size is {batch}, which {world} processes do not divide: some would wait for others in "
            f"every step. --set schedule.batch_size={sizes}, or start another number"
        )
