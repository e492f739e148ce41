"""What a run's folder records of its model and its data: the card, the fingerprint, the skipped samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import nn

from leanify.core.errors import DataError, SourceError
from leanify.core.path_kinds import FORMAT
from leanify.core.recipe import DataSection, Recipe, TrainingRecipe
from leanify.data import fingerprint
from leanify.data.samples import Splits
from leanify.profiling.counting import parameters
from leanify.reshaping import surgery
from leanify.runs.run_directory import RunDirectory
from leanify.sources import lean_directory
from leanify.upstream.origin import get_origin

Warn = Callable[[str], None]


def create_run(folder: Path, recipe: TrainingRecipe, model: nn.Module, splits: Splits) -> None:
    """Create a run's folder with its recipe, the card of its model and the fingerprint of its data."""
    facts = fingerprint.take_fingerprint(recipe.data, splits)
    RunDirectory.create(folder, recipe, describe_model(recipe, model, splits.names), splits.tokenizer, facts)


def describe_model(recipe: Recipe, model: nn.Module, classes: Sequence[str] = ()) -> str:
    """The text of a run's leanify.json: how upstream builds its model, and its shape. Raises SourceError."""
    origin = get_origin(model)
    if origin is None:
        raise SourceError(f"this {type(model).__name__} was not created by leanify, timm or transformers")
    card = {
        "format": FORMAT,
        "origin": origin.to_json(),
        "architecture": surgery.read(model).to_json(),
        "params": parameters(model),
        "tied": lean_directory.untie_tensors(model)[1],
        "requires": lean_directory.requirements(origin),
        "recipe": recipe.to_dict(),
        "classes": list(classes),
    }
    return json.dumps(card, indent=2) + "\n"


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


def note_skipped(run: RunDirectory, names: Iterable[str], warn: Warn) -> None:
    """Record the names of skipped samples in the run's folder, and report them."""
    run.note_skipped(names)
    if skipped_names := run.skipped_samples():
        first = "; ".join(skipped_names[:3]) + ("; …" if len(skipped_names) > 3 else "")
        samples = "1 sample was" if len(skipped_names) == 1 else f"{len(skipped_names):,} samples were"
        warn(f"{samples} skipped (data.on_error = skip): {first}")
