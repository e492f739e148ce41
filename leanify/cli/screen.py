"""Show a training run on the terminal: progress, then the results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from shlex import quote
from typing import Any

from leanify.cli.output import print_next, print_table, table
from leanify.core.architecture import Architecture
from leanify.core.path_kinds import path_kind
from leanify.core.recipe import DataSection
from leanify.core.recipe_code import is_code
from leanify.core.task_names import can_be_applied
from leanify.core.terminal import bars, console, fold, progress
from leanify.core.units import (
    format_bytes,
    format_digits,
    format_forecast,
    format_metric,
    format_metric_cell,
    format_seconds,
    metric_heading,
)
from leanify.runs.run_directory import RunDirectory
from leanify.training.callbacks import Callback

NO_METRICS = ("step", "epoch", "split", "lr", "samples_per_s")
NARROW = 60  # columns; narrower terminals get no bar


class Screen(Callback):
    """Progress of a run: on a terminal a bar and a line an evaluation, elsewhere a line for each row of the log."""

    def __init__(self) -> None:
        self.console = console(stderr=True)
        self.stack = ExitStack()
        self.metric, self.sign = "loss", -1
        self.best: float | None = None

    def __enter__(self) -> Screen:
        self.stack.enter_context(progress("preparing the model and the data", None))
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.stack.close()
        if error is None and self.console.is_terminal:
            self.console.print()  # the results follow

    def on_train_begin(self, summary: str, first_step: int, last_step: int, metric: str, sign: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

        # a summary replaces the spinner of the preparations
        self.stack.close()
        resume_text = f" · from step {first_step:,}" if first_step else ""
        self.console.print(fold(summary + resume_text), soft_wrap=True)
        self.metric, self.sign, self.best = metric, sign, None

        # the bar, with the loss as its description
        bar = [BarColumn()] if self.console.width >= NARROW else []
        numbers = (MofNCompleteColumn(), TimeRemainingColumn(compact=True))
        loss = TextColumn("{task.description}", markup=False)
        self.bar = self.stack.enter_context(bars(SpinnerColumn(), *bar, *numbers, loss))
        self.task = self.bar.add_task("", total=last_step, completed=first_step)

    def on_warning(self, message: str) -> None:
        self.console.print(fold(f"leanify: {message}"), soft_wrap=True)

    def on_step_end(self, step: int) -> None:
        self.bar.update(self.task, completed=step)

    def on_log(self, row: Mapping[str, Any]) -> None:
        # the training loss moves to the bar; an evaluation may be the best one
        is_best = False
        if row["split"] == "train":
            self.bar.update(self.task, description=f"loss {format_digits(row['loss'])}")
            if self.console.is_terminal:
                return
        elif row["split"] == "validation":
            value = self.sign * row[self.metric]
            is_best = self.best is None or value > self.sign * self.best
            self.best = row[self.metric] if is_best else self.best

        # step 50 · epoch 1 · validation loss 1.250, top1 61.50% · best
        hidden = NO_METRICS if self.console.is_terminal else NO_METRICS[:-1]
        values = [format_metric(name, value) for name, value in row.items() if name not in hidden]
        line = f"step {row['step']:,} · epoch {row['epoch']:.4g} · {row['split']} {', '.join(values)}"
        if is_best:
            line += " · best"
        time_left = self.bar.tasks[0].time_remaining
        if time_left is not None and not self.console.is_terminal:
            line += f" · {timedelta(seconds=round(time_left))} left"
        self.console.print(line, soft_wrap=True)


def format_value(value: Any) -> str:
    """Format a number of the log with four digits."""
    if isinstance(value, float):
        return format_digits(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def is_own(data: DataSection) -> bool:
    """Whether a run's data is the user's own and of a kind that `leanify predict` takes."""
    return data.path is not None and can_be_applied(data.task) and not is_code(data.name)


def print_facts(facts: Mapping[str, Any], command: str) -> None:
    """Print facts, one per line in readable units, then the command that trains."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        if name.endswith("_bytes"):
            name, text = name.removesuffix("_bytes"), format_bytes(value)
        elif name == "seconds_a_step":
            name, text = "a step", format_seconds(value)
        elif name == "training_hours_predicted":
            name, text = "training predicted", format_forecast(3600 * value)
        else:
            text = "–" if value is None else format_value(value)
        grid.add_row(name.replace("_", " "), text)
    console().print(grid)
    print_next(command)


def print_end(run: RunDirectory, recipe: str | None, judgement: str | None = None) -> None:
    """Print the best, last and test evaluations, their meaning, the run's folder, and commands to type next."""
    # the evaluations, in the order of the table
    best = run.best()
    validations = [row for row in run.rows() if row["split"] == "validation"]
    tests = [row for row in run.rows() if row["split"] == "test"]
    evaluations: dict[str, Mapping[str, Any]] = {}
    for row in validations:
        if best is not None and row["step"] == best.step:
            evaluations.setdefault("best", row)
    if validations:
        evaluations["last"] = validations[-1]
    if tests:
        evaluations["test"] = tests[-1]

    # a row for each, with the metrics of the first
    out = console()
    if evaluations:
        first = next(iter(evaluations.values()))
        metrics = [key for key in first if key not in NO_METRICS]
        grid = table(("", "step", "epoch", *map(metric_heading, metrics)), [])
        for name, evaluation in evaluations.items():
            values = [format_metric_cell(key, evaluation.get(key)) for key in metrics]
            grid.add_row(name, f"{evaluation['step']:,}", f"{evaluation['epoch']:g}", *values)
        print_table(out, grid)
    if judgement is not None:
        out.print(f"\n{fold(judgement, out.width)}", soft_wrap=True)

    # the run's folder
    path = quote(str(run.path))
    best_text = f", its best weights in {best.path}" if best else ""
    out.print(f"\nrun   {path}{best_text}", soft_wrap=True)
    if skipped_samples := run.skipped_samples():
        out.print(
            f"could not be read and were left out: {len(skipped_samples):,} samples, {run.path}/skipped.json",
            soft_wrap=True,
        )

    # the commands to type next; profile gives ratios to its first model: the baseline of a reshaped model
    model, data = run.recipe.model, run.recipe.data
    baseline = f"{quote(model.source)} " if model.reshapes and not model.override else ""
    commands = [f"leanify show {path}", f"leanify profile {baseline}{path}"]
    if data is not None and is_own(data):
        commands.append(f"leanify predict {path} FILES")
    print_next(*commands, *_study_command(recipe, run))


def _study_command(recipe: str | None, run: RunDirectory) -> list[str]:
    """The command that studies the same model on the same data; none for a lean directory, which has an original."""
    from leanify.search.rules import Rules
    from leanify.training.default_recipe import OWN_RECIPES, further_settings

    data = run.recipe.data
    can_be_leaner = False
    if recipe is not None and path_kind(recipe) != "lean directory":
        # compare takes a model that the rules of redesign allow fewer layers
        stages = Architecture.from_json(run.card()["architecture"]).stages
        can_be_leaner = any(stage.primary and 2 < stage.depth > Rules().depth_floor(stage) for stage in stages)
    if recipe is None or not can_be_leaner:
        is_digits = data is not None and data.name == "digits"  # whose own study has a model that is deep enough
        return ["leanify compare"] if is_digits else []

    # the recipe, the data, or else the run, which names both
    if data is None or data.path is None:
        return [f"leanify compare {quote(recipe)}"]
    if recipe in OWN_RECIPES:
        return [f"leanify compare {quote(data.path)}{further_settings(data)}"]
    return [f"leanify compare {quote(str(run.path))}"]
