"""Start, resume or rehearse the training of a recipe."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from leanify.core import machine
from leanify.core import recipe as recipes
from leanify.core.errors import RecipeError, raised_by_all
from leanify.core.files.writing import check_new_directory
from leanify.core.path_kinds import unused_path
from leanify.core.recipe import Recipe
from leanify.core.recipe_code import is_code
from leanify.core.terminal import note
from leanify.data.data_checks import inspect_splits
from leanify.data.samples import Splits
from leanify.data.texts import tokenizers
from leanify.profiling.counting import parameters
from leanify.runs.run_directory import RunDirectory
from leanify.training import default_recipe, rates
from leanify.training.callbacks import Callback, ProgressBar
from leanify.training.engine import disable_malloc_trim
from leanify.training.loop import Trainer
from leanify.upstream import user_modules
from leanify.upstream.libraries import reraise_as

MAX_TIMED_STEPS, MAX_SECONDS = 8, 2.0  # steps that a rehearsal times at most, and the seconds after which it stops
LONG_STEP = 10.0  # seconds of a first step in which the warm-up no longer counts


@dataclass(frozen=True)
class Request:
    """A request to train, as the command line and `train` both make it: `make_request`."""

    recipe: Recipe  # with settings and teacher
    name: str = "run"  # of the run's folder in runs/
    has_open_rate: bool = False  # whether the learning rate is a default, so that a test may choose it


def train(
    recipe: str | Path | Recipe | Request | None = None,
    output: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    settings: tuple[str, ...] | list[str] = (),
    teacher: str | None = None,
    accept_changed_data: bool = False,
    callback: Callback | None = None,
) -> Path:
    """Train a recipe and return the run's folder. Raises LeanifyError.

    Ctrl-C, SIGTERM and SIGHUP end the run after its step, write a checkpoint and raise KeyboardInterrupt.

    ``recipe`` is a recipe, its file or built-in name, a run, or any other SOURCE: a model gets the usual recipe of
    its kind, on the data that ``settings`` name in ``data.path``. ``settings`` change the recipe:
    ``["optim.lr=1e-3"]``. ``output`` is the run's folder, by default ``runs/NAME``. ``teacher`` is a SOURCE with
    weights that the model learns from. ``callback`` receives the progress, instead of a progress bar.

    ``resume`` continues a run from its newest intact checkpoint. A recipe given with it must equal the run's own,
    and the data must be unchanged unless ``accept_changed_data``.
    """
    with ExitStack() as stack:
        listener = ProgressBar(stack) if callback is None else callback
        # resume: the recipe, the tokenizer and the data are the run's own
        if resume is not None:
            run = RunDirectory.open(resume)
            run.check_unedited()
            value = run.recipe
            if recipe is not None or settings or teacher is not None:
                asked = make_request(value if recipe is None else recipe, settings, teacher).recipe
                # pictures are decoded as the run chose from the data, unless the recipe sets it
                if asked.data is not None and value.data is not None:
                    background = asked.data.background or value.data.background
                    pixel_range = asked.data.pixel_range or value.data.pixel_range
                    asked = replace(asked, data=replace(asked.data, background=background, pixel_range=pixel_range))
                run.check_recipe(asked)
            with raised_by_all():
                trainer = Trainer(recorded_recipe(run), listener)
            return trainer.fit(run, accept_changed_data).path
        if recipe is None:
            raise RecipeError(
                "a recipe is needed: a file, a name (leanify train --list) or a leanify.core.recipe.Recipe"
            )
        request = make_request(recipe, settings, teacher)
        value = request.recipe

        # no rate was chosen: a short test finds a good one for weights that heal
        test = rates.range_test(value) if request.has_open_rate else None
        if test is not None and value.optim is not None:
            note(test.summary)
            value = replace(value, optim=replace(value.optim, lr=test.best))

        # build everything before the run's folder is created
        folder = Path(output) if output is not None else unused_path(Path("runs") / request.name)
        if folder.parent.is_dir():
            check_new_directory(folder)
        with raised_by_all():
            trainer = Trainer(value, listener)
            _report_look(trainer)
        return trainer.fit(trainer.new_run(folder)).path


def _report_look(trainer: Trainer) -> None:
    """Report the properties of the user's own data. Raises DataError for data from which nothing can be learnt."""
    if trainer.recipe.data.path is None:
        return
    look = inspect_splits(trainer.splits)
    if trainer.main:
        note(f"data: {look.line}")
        for warning in look.warnings:
            trainer.callback.on_warning(warning)


def recorded_recipe(run: RunDirectory) -> Recipe:
    """The recipe of a run as it began, with the tokenizer that it keeps."""
    value, data = run.recipe, run.recipe.data
    if data is not None and tokenizers.has_tokenizer(run.path):
        data = replace(data, tokenizer=str(run.path))
    return replace(value, data=data)


@raised_by_all()
@reraise_as("the recipe cannot be found", RecipeError)
def make_request(
    recipe: str | Path | Recipe | Request,
    settings: Sequence[str] = (),
    teacher: str | None = None,
    name: str | None = None,
) -> Request:
    """The recipe of this name, of a run, or the usual one of a model or data, with a teacher and settings applied.

    ``name`` is the run's, by default the recipe's. Raises LeanifyError.
    """
    if isinstance(recipe, Request):
        return recipe
    # the recipe; the user's data decide which one a model gets
    path = next((setting.partition("=")[2].strip() for setting in settings if setting.startswith("data.path=")), None)
    value = recipe if isinstance(recipe, Recipe) else default_recipe.read_recipe(str(recipe), path)
    is_default = value is None
    if value is None:
        columns = default_recipe.parse_columns(settings)
        value = default_recipe.make_recipe(str(recipe), path, teacher is not None, columns)
    value = default_recipe.add_teacher(value, teacher)

    # the settings, which may name code of the user's: it may run, as the code of a SOURCE may
    for key, text in map(recipes.split_setting, settings):
        code = recipes.parse_value(text) if key in ("data.name", "model.source") and text else None
        if isinstance(code, str) and is_code(code):
            user_modules.parse_module_source(code)
    value = recipes.apply_settings(value, settings) if settings else value
    if value.data is not None and is_code(value.data.name):  # a run finds its data's code from anywhere
        value = replace(value, data=replace(value.data, name=user_modules.origin_of_code(value.data.name).name))
    if not isinstance(recipe, Recipe):
        default_recipe.check_data(recipe, value)
    title = name or ("run" if isinstance(recipe, Recipe) else str(recipe))
    sets_rate = any(setting.strip().startswith("optim.lr=") for setting in settings)
    return Request(value, Path(title).stem, is_default and not sets_rate)


def resolve(recipe: str | Path | Recipe, settings: Sequence[str] = (), teacher: str | None = None) -> Recipe:
    """The recipe of `make_request` alone."""
    return make_request(recipe, settings, teacher).recipe


def rehearse(
    recipe: Recipe,
    callback: Callback | None = None,
    *,
    model: nn.Module | None = None,
    splits: Splits | None = None,
    teacher: nn.Module | None = None,
    evaluates: bool = False,
    looks: bool = False,
) -> dict[str, Any]:
    """Build everything and time a few steps to predict the run's duration.

    ``model``, ``splits`` and ``teacher`` are those of `Trainer`; the model is trained in place. ``evaluates`` times the
    validation split, too; ``looks`` reports the properties of the data.
    """
    trainer = Trainer(recipe, callback, model=model, splits=splits, teacher=teacher)
    if looks:
        _report_look(trainer)
    # time a few steps, from where the batch has grown to its size
    first = min(trainer.order.ramp, max(trainer.steps - MAX_TIMED_STEPS, 0))
    batches, times = trainer.batches(first), list[float]()
    with disable_malloc_trim():
        for step in range(first, min(first + MAX_TIMED_STEPS, trainer.steps)):
            start_time = time.perf_counter()
            trainer.step(step, batches)
            times.append(time.perf_counter() - start_time)
            if sum(times) > MAX_SECONDS and (len(times) > 1 or times[0] > LONG_STEP):
                break
    seconds = statistics.median(times[1:] or times)  # the first step warms up
    timings: dict[str, Any] = {"seconds_a_step": seconds}
    if evaluates:
        began = time.perf_counter()
        trainer.evaluate(trainer.splits.validation)
        timings |= {"evaluation_seconds": time.perf_counter() - began, "timed_steps": len(times)}

    # memory of one pass over a part of the batch
    pass_size = -(-trainer.order.batch_size // (trainer.accelerator.num_processes * recipe.run.accumulate))
    available = machine.available_memory(trainer.accelerator.device)
    return {
        "model": recipe.model.source,
        "parameters": parameters(trainer.unwrapped_model),
        "data": trainer.splits.description,
        "validated": len(trainer.splits.validation),
        "steps": trainer.steps,
        **timings,
        "training_hours_predicted": seconds * trainer.order.position(trainer.steps) / 3600,
        "memory_predicted_bytes": None if trainer.need is None else trainer.need.of(pass_size),
        "memory_available_bytes": available,
    }
