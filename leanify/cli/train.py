"""``leanify train``"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from json import dumps
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from leanify.cli import screen
from leanify.cli.options import Format, Json, complete_recipe, spare_busy_cores
from leanify.cli.output import output_kind, show, typed_without
from leanify.core import recipe as recipes
from leanify.core.errors import LeanifyError, raised_by_all
from leanify.core.terminal import progress
from leanify.runs.run_directory import RunDirectory
from leanify.sources.names import check_names

run_option = partial(typer.Option, rich_help_panel="Run")
recipe_option = partial(typer.Option, rich_help_panel="Recipe")


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE | SOURCE | DATA",
            help="a recipe file or a built-in name (default: digits), a run, any model, or your data",
            autocompletion=complete_recipe,
            callback=check_names,
        ),
    ] = None,
    output: Annotated[
        Path | None, run_option("--output", "-o", metavar="RUN", help="the run's folder (default: runs/NAME)")
    ] = None,
    resume: Annotated[
        Path | None, run_option(metavar="RUN", help="resume a run from its newest intact checkpoint")
    ] = None,
    settings: Annotated[
        list[str] | None, recipe_option("--set", metavar="KEY=VALUE", help="change the recipe: optim.lr=1e-3")
    ] = None,
    teacher: Annotated[str | None, recipe_option(metavar="SOURCE", help="a model with weights to distil from")] = None,
    device: Annotated[
        str | None, run_option(metavar="cpu|cuda|cuda:N", help="where to train (default: a GPU if any)")
    ] = None,
    accept_changed_data: Annotated[
        bool, run_option("--accept-changed-data", help="with --resume: continue even if the data has changed")
    ] = False,
    dry_run: Annotated[
        bool, run_option("--dry-run", help="build everything, run two steps, predict memory and time, write nothing")
    ] = False,
    show_list: Annotated[bool, recipe_option("--list", help="list the built-in recipes")] = False,
    format: Format = None,
    json: Json = False,
) -> None:
    """Train a recipe, on one CPU or on many GPUs under torchrun or accelerate launch.

    A run's folder contains its recipe; your data get the recipe that fits them; any other model is trained with the
    usual recipe for its kind, on --set data.path=DIR. With --teacher, a model distils tokens, classes or, without a
    head, embeddings.

    A run that is killed at any moment continues with --resume RUN to the same numbers. Ctrl-C, SIGTERM and SIGHUP
    finish the step and write a checkpoint first; the exit code is then 130, 143 or 129.

    \b
    Examples:
      leanify train digits
      leanify train FOLDER -o run
    """
    if show_list:
        from leanify.cli.recipes import list_recipes

        return list_recipes(output_kind(format, json))

    # mistakes that need no torch to be found
    kind = output_kind(format, json)
    chosen = recipe if recipe is not None or resume is not None else "digits"
    known_facts = _check(chosen, output, resume, settings or [], teacher, dry_run)
    if device is not None:
        _choose(device)
    spare_busy_cores()
    with progress("loading PyTorch", None):
        from leanify.core import machine
        from leanify.training import start as training
        from leanify.training.reference import judge_run

        request = None if known_facts is None else training.make_request(known_facts, settings or [], teacher, chosen)

    # rehearse
    if dry_run:
        assert request is not None
        with progress("building the model and taking two steps", None):
            facts: Mapping[str, Any] = training.rehearse(request.recipe, screen.Screen(), looks=True)
        return show(kind, facts, [facts], lambda: screen.print_facts(facts, typed_without("--dry-run")))

    # train, or resume with the run's own settings
    with screen.Screen() as callback:
        path = training.train(
            request,
            output,
            resume=resume,
            settings=settings or [],
            teacher=teacher,
            accept_changed_data=accept_changed_data,
            callback=callback,
        )
    if machine.launcher_variable("RANK", 0) > 0:
        return None  # only the first process prints
    run = RunDirectory.open(path)
    with progress("holding the model against a trivial one", None):
        judgement = judge_run(run)
    facts = run.summary() | ({} if judgement is None else judgement.to_json())
    message = None if judgement is None else judgement.message
    return show(kind, facts, [facts], lambda: screen.print_end(run, chosen, message))


def _choose(device: str) -> None:
    """Hide the other devices before torch is imported and looks for them. Raises LeanifyError."""
    if (match := re.fullmatch(r"cpu|cuda(?::(\d+))?", device)) is None:
        raise LeanifyError(f"--device takes cpu, cuda or cuda:N, not {device!r}; several GPUs are used under torchrun")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return

    # cuda:N is the Nth of the visible devices
    if match[1] is not None:
        visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = dict(enumerate(visible_devices.split(","))) if visible_devices else {}
        device_number = match[1] if visible_devices is None else ""
        os.environ["CUDA_VISIBLE_DEVICES"] = names.get(int(match[1]), device_number)
    import torch

    if not torch.cuda.is_available():
        raise LeanifyError(f"--device {device} is not available here: leave it out, or choose --device cpu")


@raised_by_all()
def _check(
    chosen: str | None,
    output: Path | None,
    resume: Path | None,
    settings: list[str],
    teacher: str | None,
    dry_run: bool,
) -> str | recipes.Recipe | None:
    """The request to train, a recipe read already. Raises LeanifyError for mistakes that are found without torch."""
    # options that contradict each other
    if resume is not None and (output is not None or dry_run):
        other = "-o" if output is not None else "--dry-run"
        raise LeanifyError(f"--resume continues in the run's own folder and cannot be combined with {other}")
    if output is not None and (output / "recipe.toml").is_file() and (output / "checkpoints").is_dir():
        line = f"leanify train --resume {quote(str(output))}"
        raise LeanifyError(f"{output} already contains a run; resume it with {line}, or name another folder")

    # settings, the recipe, and a folder that is neither a model nor data
    for setting in settings:
        recipes.split_setting(setting)
    if chosen is None:
        return None
    file = recipes.find(chosen)
    if file is not None or chosen.endswith(".toml"):
        recipe = recipes.load(file or Path(chosen))
        # what is set of [distill] needs its teacher
        taught = [] if teacher is None else [f"distill.teacher={dumps(teacher)}"]
        recipes.apply_settings(recipe, [*taught, *settings])
        return chosen if recipe.data is not None and recipe.data.name == "data" else recipe  # made for the data
    if Path(chosen).exists():
        from leanify.layouts.recognition import find_own_data

        find_own_data(chosen)
    return chosen
