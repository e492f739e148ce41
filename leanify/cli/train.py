"""``leanify train``"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.options import Format, Json, complete_recipe

if TYPE_CHECKING:
    from leanify.sources.recipe import Recipe

MODELS = ("recipe.toml", "leanify.json", "config.json", "adapter_config.json")  # what a folder of a model holds


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
        Path | None, typer.Option(metavar="RUN", help="go on with a run from its newest intact checkpoint")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe: optim.lr=1e-3")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="a model with weights whose outputs are learnt, too")
    ] = None,
    accept_changed_data: Annotated[
        bool, typer.Option("--accept-changed-data", help="with --resume: go on although the data has changed")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="build everything, run two steps, predict memory and time, write nothing")
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="list the built-in recipes")] = False,
    format: Format = None,
    json: Json = False,
) -> None:
    """Train a recipe, on one CPU or on many GPUs under torchrun or accelerate launch.

    A run's folder brings its recipe along; any other model is trained by the usual recipe of its kind, on --set
    data.path=DIR. With --teacher the model's head decides: next or masked words, classes, or, without one, embeddings.

    Killed at any moment, a run goes on to the same numbers with --resume RUN. Ctrl-C, SIGTERM and SIGHUP end the step
    and write a checkpoint first; the exit code is 130, 143 or 129.
    """
    if show_list:
        from leanify.cli.recipes import recipes

        return recipes(format=format, as_json=json)
    kind = kind_of(format, json)
    chosen = recipe if recipe is not None or resume is not None else "digits"
    _check(chosen, output, resume, settings or [], dry_run)
    from leanify.terminal import progress

    with progress("loading PyTorch", None):
        from leanify import training

        value = None if chosen is None else training.resolve(chosen, settings or [], teacher)
    if dry_run:
        assert value is not None
        facts: Mapping[str, Any] = training.rehearse(value)
        rows = [(key.replace("_", " "), _shown(key, number)) for key, number in facts.items()]
    else:
        run = _trained(training, value, output, resume, chosen, settings or [], teacher, accept_changed_data)
        if run is None:
            return  # the first process speaks
        facts = run.summary()
        rows = [(key, _shown(key, number)) for key, number in facts.items()]
    show(kind, facts, [facts], lambda: _print(rows))


def _print(rows: list[tuple[str, str]]) -> None:
    """Facts, one a line; long ones fold."""
    from rich.table import Table

    from leanify.terminal import console

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value)
    console().print(grid)


def _check(chosen: str | None, output: Path | None, resume: Path | None, settings: list[str], dry_run: bool) -> None:
    """Raise for what is wrong whatever the model, before anything is imported that takes seconds."""
    from leanify.errors import LeanifyError
    from leanify.sources import recipe as recipes
    from leanify.sources.settings import check_settings

    if resume is not None and (output is not None or dry_run):
        other = "-o" if output is not None else "--dry-run"
        raise LeanifyError(f"--resume goes on in its own folder: {other} cannot be given beside it")
    check_settings(settings)
    if chosen is None:
        return
    if recipes.find(chosen) is not None or chosen.endswith(".toml"):
        recipes.with_settings(recipes.load(chosen), settings)
    elif Path(chosen).exists() and not any((Path(chosen) / name).is_file() for name in MODELS):
        _say_what_was_found(chosen)


def _say_what_was_found(path: str) -> None:
    """Raise, with the lines to type, where a path holds data instead of a model."""
    from shlex import quote

    from leanify.data import found as data
    from leanify.errors import SourceError

    found = data.look(path)
    if found is None:
        return
    place = quote(path)
    rest = "" if found.validated or found.kind == "text" else " (no validation part: a share of it is held out)"
    raise SourceError(
        f"{path} is data, not a model: {found.words}{rest}. Train a model on it:\n"
        f"  leanify train {data.MODELS[found.kind]} --set data.path={place}\n"
        f"or compare baseline, lean and control on it, small enough for a laptop:\n  leanify compare {place}"
    )


def _trained(
    training: Any,
    value: Recipe | None,
    output: Path | None,
    resume: Path | None,
    chosen: str | None,
    settings: list[str],
    teacher: str | None,
    accept: bool,
) -> Any:
    import os

    from leanify.sources.run_directory import RunDirectory

    main = int(os.environ.get("RANK", "0")) == 0
    folder = output if resume is not None or output is not None or chosen is None else training.new_folder(chosen)
    if resume is not None and value is None and (settings or teacher is not None):
        value = training.resolve(RunDirectory.open(resume).recipe, settings, teacher)
    with Screen() as screen:
        path = training.train(value, folder, resume=resume, accept_changed_data=accept, watcher=screen)
    return RunDirectory.open(path) if main else None


def _shown(key: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Screen:
    """A bar with loss, metric, throughput and time left on a terminal; a line for every row of the log otherwise."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True, highlight=False)
        self.live = self.console.is_terminal
        columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.progress = Progress(*columns, console=self.console, transient=True, disable=not self.live)
        self.words: dict[str, str] = {}
        self.left = self.done = 0
        self.start = 0.0

    def __enter__(self) -> Screen:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def began(self, words: str, first: int, last: int) -> None:
        self.console.print(f"{words}{f' · from step {first:,}' if first else ''}", soft_wrap=True)
        self.left, self.done, self.start = last - first, 0, time.perf_counter()
        self.first, self.task = first, self.progress.add_task("", total=last, completed=first)

    def warned(self, words: str) -> None:
        self.console.print(f"leanify: {words}", soft_wrap=True)

    def stepped(self, step: int) -> None:
        self.done = step - self.first
        self.progress.update(self.task, completed=step)

    def logged(self, row: Mapping[str, Any]) -> None:
        hidden = ("step", "epoch", "split", "lr")
        told = [f"{key} {_shown(key, value)}" for key, value in row.items() if key not in hidden]
        self.words[row["split"]] = f"{row['split']} " + " ".join(told)
        if self.live:
            self.progress.update(
                self.task, description=" · ".join(part.split(" samples")[0] for part in self.words.values())
            )
            return
        done = row["step"] - self.first
        left = (time.perf_counter() - self.start) * (self.left - done) / max(done, 1)
        self.console.print(
            f"step {row['step']:,} · epoch {row['epoch']:g} · {self.words[row['split']]} · {left:,.0f} s left",
            soft_wrap=True,
        )
