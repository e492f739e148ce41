"""``leanify train``"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.next_lines import typed_without
from leanify.cli.options import Format, Json, complete_recipe


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE | SOURCE",
            help="a recipe file or a built-in name (default: digits), a run, or any model",
            autocompletion=complete_recipe,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="RUN", help="the run's folder (default: runs/NAME)")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="resume a run from its newest intact checkpoint")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe: optim.lr=1e-3")
    ] = None,
    teacher: Annotated[str | None, typer.Option(metavar="SOURCE", help="a model with weights to distil from")] = None,
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda|cuda:N", help="where to train (default: a GPU if any)")
    ] = None,
    accept_changed_data: Annotated[
        bool, typer.Option("--accept-changed-data", help="with --resume: continue even if the data has changed")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="build everything, run two steps, predict memory and time, write nothing")
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="list the built-in recipes")] = False,
    format: Format = None,
    json: Json = False,
) -> None:
    """Train a recipe, on one CPU or on many GPUs under torchrun or accelerate launch.

    A run's folder contains its recipe; any other model is trained with the usual recipe for its kind, on --set
    data.path=DIR. With --teacher, the model's head decides what is distilled: tokens, classes or, without a head,
    embeddings.

    A run that is killed at any moment continues with --resume RUN to the same numbers. Ctrl-C, SIGTERM and SIGHUP
    finish the step and write a checkpoint first; the exit code is then 130, 143 or 129.
    """
    if show_list:
        from leanify.cli.recipes import recipes

        return recipes(format=format, as_json=json)
    kind = kind_of(format, json)
    chosen = recipe if recipe is not None or resume is not None else "digits"
    _check(chosen, output, resume, settings or [], dry_run)
    from leanify.cli import screen
    from leanify.terminal import progress

    if device is not None:
        _choose(device)
    with progress("loading PyTorch", None):
        from leanify import machine
        from leanify.runs.run_directory import RunDirectory
        from leanify.training import start as training

        value = None if chosen is None else training.resolve(chosen, settings or [], teacher)
    if dry_run:
        assert value is not None
        with progress("building the model and taking two steps", None):
            facts: Mapping[str, Any] = training.rehearse(value)
        return show(kind, facts, [facts], lambda: screen.print_facts(facts, typed_without("--dry-run")))
    if value is None and resume is not None and (settings or teacher is not None):
        value = training.resolve(RunDirectory.open(resume).recipe, settings or [], teacher)
    folder = training.new_folder(chosen) if output is None and resume is None and chosen is not None else output
    with screen.Screen() as watcher:
        path = training.train(value, folder, resume=resume, accept_changed_data=accept_changed_data, watcher=watcher)
    if machine.launched("RANK", 0) > 0:
        return None  # only the first process prints
    run = RunDirectory.open(path)
    facts = run.summary()
    return show(kind, facts, [facts], lambda: screen.print_end(run, chosen))


def _choose(device: str) -> None:
    """Hide the other devices from torch, which has not looked for them yet. Raises LeanifyError."""
    from leanify.errors import LeanifyError

    if (asked := re.fullmatch(r"cpu|cuda(?::(\d+))?", device)) is None:
        raise LeanifyError(f"--device takes cpu, cuda or cuda:N, not {device!r}; several GPUs are used under torchrun")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    if asked[1] is not None:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = dict(enumerate(seen.split(","))) if seen else {}
        os.environ["CUDA_VISIBLE_DEVICES"] = names.get(int(asked[1]), asked[1] if seen is None else "")
    import torch

    if not torch.cuda.is_available():
        raise LeanifyError(f"--device {device} is not available here: leave it out, or choose --device cpu")


def _check(chosen: str | None, output: Path | None, resume: Path | None, settings: list[str], dry_run: bool) -> None:
    """Raise LeanifyError for mistakes that are detectable without the slow imports."""
    from leanify.errors import LeanifyError
    from leanify.runs import recipe as recipes
    from leanify.runs.settings import check_settings

    if resume is not None and (output is not None or dry_run):
        other = "-o" if output is not None else "--dry-run"
        raise LeanifyError(f"--resume continues in the run's own folder and cannot be combined with {other}")
    if output is not None and (output / "recipe.toml").is_file() and (output / "checkpoints").is_dir():
        line = f"leanify train --resume {quote(str(output))}"
        raise LeanifyError(f"{output} already contains a run; resume it with {line}, or name another folder")
    check_settings(settings)
    if chosen is None:
        return
    if recipes.find(chosen) is not None or chosen.endswith(".toml"):
        recipes.with_settings(recipes.load(chosen), settings)
    elif Path(chosen).exists():
        from leanify.data.unrecognised import check_is_no_data

        check_is_no_data(chosen, say_why=True)
