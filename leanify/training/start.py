"""Start, resume or rehearse the training of a recipe."""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanify import machine
from leanify.data.samples import Splits
from leanify.data.texts import vocabulary
from leanify.errors import RecipeError
from leanify.runs import recipe as recipes
from leanify.runs.new_directory import check_new_directory
from leanify.runs.recipe import Recipe
from leanify.runs.run_directory import RunDirectory
from leanify.terminal import note
from leanify.training import defaults, guards, rates
from leanify.training.engine import heap_kept
from leanify.training.loop import Trainer, Watcher
from leanify.training.watcher import Bar
from leanify.upstream.wall import wall

TIMED, ENOUGH = 8, 2.0  # steps that a rehearsal times at most, and the seconds after which it stops


def train(
    recipe: str | Path | Recipe | None = None,
    output: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    settings: tuple[str, ...] | list[str] = (),
    teacher: str | None = None,
    accept_changed_data: bool = False,
    watcher: Watcher | None = None,
) -> Path:
    """Train a recipe and return the run's folder: ``output``, else ``runs/NAME``. Raises LeanifyError.

    ``recipe`` is a recipe, its file or built-in name, a run, or any other SOURCE: then the usual recipe of
    the model's kind, on the data that ``settings`` name in ``data.path``. ``settings`` change the recipe:
    ``["optim.lr=1e-3"]``. ``teacher`` is a SOURCE with weights that it learns from.

    ``resume`` continues a run from its newest intact checkpoint. A recipe given with it must be the run's
    own, and the data that of its beginning unless ``accept_changed_data``. Ctrl-C, SIGTERM and SIGHUP end the
    step, write a checkpoint and raise KeyboardInterrupt.
    """
    with nullcontext(watcher) if watcher is not None else Bar() as seen:
        if resume is not None:
            run = RunDirectory.open(resume)
            run.check_unedited()
            value = run.recipe
            if recipe is not None or settings or teacher is not None:
                run.check_recipe(resolve(value if recipe is None else recipe, settings, teacher))
            with guards.raised_by_all():
                trainer = Trainer(with_tokenizer_of(run), seen)
            return trainer.fit(run, accept_changed_data).path
        if recipe is None:
            raise RecipeError(
                "a recipe is needed: a file, a name (leanify train --list) or a leanify.runs.recipe.Recipe"
            )
        value = resolve(recipe, settings, teacher)
        if defaults.is_usual(recipe) and not any(each.startswith("optim.lr=") for each in settings):
            tested = rates.range_test(value) if value.distill is not None else None
            if tested is not None and value.optim is not None:  # the rate that a short test finds best
                note(tested.words)
                value = replace(value, optim=replace(value.optim, lr=tested.best))
        folder = Path(output) if output is not None else new_folder(recipe)
        if folder.parent.is_dir():
            check_new_directory(folder)
        with guards.raised_by_all():
            trainer = Trainer(value, seen)
        return trainer.fit(trainer.new_run(folder)).path


def with_tokenizer_of(run: RunDirectory) -> Recipe:
    """The recipe of a run as it was begun: with the tokenizer that it keeps; an old run's first samples."""
    value, data = run.recipe, run.recipe.data
    if data is not None and vocabulary.lies_in(run.path):
        data = replace(data, tokenizer=str(run.path))
    if data is not None and run.is_older:
        data = replace(data, subset="first")
    return replace(value, data=data)


@wall("the recipe cannot be found", RecipeError)
def resolve(
    recipe: str | Path | Recipe, settings: tuple[str, ...] | list[str] = (), teacher: str | None = None
) -> Recipe:
    """The recipe of this name, of a run, or the usual one of a model; with its teacher and its settings."""
    path = next((each.partition("=")[2].strip() for each in settings if each.startswith("data.path=")), None)
    if isinstance(recipe, Recipe):
        value = defaults.with_teacher(recipe, teacher)
    else:
        value = defaults.recipe_of(recipe, path, teacher, defaults.named_in(settings))
    value = recipes.with_settings(value, settings) if settings else value
    if not isinstance(recipe, Recipe):
        defaults.check_data(recipe, value)
    return value


def new_folder(recipe: str | Path | Recipe) -> Path:
    """runs/NAME, or the first of runs/NAME-2, … that does not exist."""
    name = "run" if isinstance(recipe, Recipe) else Path(recipe).stem
    names = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 10**6))
    return next(path for path in names if not path.exists())


def rehearse(recipe: Recipe, watcher: Watcher | None = None, splits: Splits | None = None) -> dict[str, Any]:
    """Build everything and time a few steps: what the run would take. ``splits`` may be read already."""
    trainer = Trainer(recipe, watcher, splits)
    first = min(trainer.order.ramp, max(trainer.steps - TIMED, 0))  # the batch has grown to its size
    batches, times = trainer.batches(first), list[float]()
    with heap_kept():
        for step in range(first, min(first + TIMED, trainer.steps)):
            begun = time.perf_counter()
            trainer.step(step, batches)
            times.append(time.perf_counter() - begun)
            if len(times) > 1 and sum(times) > ENOUGH:
                break
    seconds = statistics.median(times[1:] or times)  # the first step warms up
    passes = -(-trainer.order.batch_size // (trainer.accelerator.num_processes * recipe.run.accumulate))
    available = machine.available(trainer.accelerator.device)
    return {
        "model": recipe.model.source,
        "parameters": sum(p.numel() for p in trainer.bare.parameters()),
        "data": trainer.splits.description,
        "validated": len(trainer.splits.validation),
        "steps": trainer.steps,
        "seconds_a_step": seconds,
        "training_hours_predicted": seconds * trainer.order.position(trainer.steps) / 3600,
        "memory_predicted_bytes": None if trainer.need is None else trainer.need.of(passes),
        "memory_available_bytes": available,
    }
