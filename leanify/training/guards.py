"""Checks around a run: that its data has not changed, that it fits into memory, and which samples were skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from leanify import machine
from leanify.data import fingerprint
from leanify.data.samples import Splits
from leanify.design import profiling
from leanify.errors import DataError
from leanify.sources.recipe import DataSection
from leanify.sources.run_directory import RunDirectory
from leanify.training import memory

Warn = Callable[[str], None]


def check_data(run: RunDirectory, data: DataSection, splits: Splits, accept: bool, warn: Warn) -> None:
    """Raise DataError, naming what changed, unless the data is what the run was begun on, or any is accepted."""
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


def note_skipped(run: RunDirectory, skipped: Iterable[str], warn: Warn) -> None:
    """Keep the names of skipped samples with the run, and report them."""
    run.note_skipped(skipped)
    if known := run.skipped():
        words = "; ".join(known[:3]) + ("; …" if len(known) > 3 else "")
        warn(f"{len(known)} samples were skipped (data.on_error = skip): {words}")


def check_memory(need: memory.Need | None, model: nn.Module, engine: Any, batch: int, accumulate: int) -> None:
    """Raise TrainingError for what will not fit, before anything is written."""
    available = machine.available(engine.device)
    if need is None or available is None:
        return
    held = profiling.weights_bytes(model) if engine.device.type == "cpu" else 0
    memory.check(need, available + held, batch, engine.num_processes, accumulate, str(engine.device))
