"""Show a training run on the terminal: progress, then the results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from leanify.cli.next_lines import print_next
from leanify.runs.task_names import can_be_applied
from leanify.terminal import ROOM, bars, console, progress, showing
from leanify.units import about, below_heading, binary, digits, heading, metric, seconds

if TYPE_CHECKING:
    from leanify.runs.recipe import DataSection
    from leanify.runs.run_directory import RunDirectory

NO_METRICS = ("step", "epoch", "split", "lr", "samples_per_s")
NARROW = 60  # columns; narrower terminals get no bar


class Screen:
    """Progress of a run: on a terminal a bar and one line per evaluation; otherwise one line per log row."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn

        self.console = console(stderr=True)
        self.live = self.console.is_terminal
        narrow = self.console.width < NARROW
        words = TextColumn("{task.description}", markup=False)
        columns = [SpinnerColumn(), *([] if narrow else [BarColumn(bar_width=None)]), words]
        self.bar = bars(self.console, *columns)
        self.stack = ExitStack()
        self.training: float | None = None  # the last training loss
        self.metric, self.sign = "loss", -1
        self.best: float | None = None
        self.first = self.last = self.done = 0
        self.start = 0.0
        self.task: Any = None

    def __enter__(self) -> Screen:
        self.stack.enter_context(progress("preparing the model and the data", None))
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.stack.close()
        if error is None and self.live:
            self.console.print()  # the results follow

    def prepares(self, name: str) -> None:
        """Show the name of the run that is prepared now, of several with one screen."""
        self.stack.close()
        self.console.print(name, style="bold")
        self.stack.enter_context(progress("preparing the model and the data", None))

    def _print(self, line: str, soft_wrap: bool) -> None:
        console(stderr=True).print(line, soft_wrap=soft_wrap)  # above what is shown, be it the run's bar or another

    def began(self, words: str, first: int, last: int, metric: str, sign: int) -> None:
        self.stack.close()  # the spinner of the preparations
        self._print(f"{words}{f' · from step {first:,}' if first else ''}", soft_wrap=not self.live)
        self.first, self.last, self.done, self.start = first, last, first, time.perf_counter()
        self.training = self.best = None
        self.metric, self.sign = metric, sign
        self.stack.enter_context(showing(self.bar))
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(self._words(), total=last, completed=first)

    def warned(self, words: str) -> None:
        self._print(f"leanify: {words}", soft_wrap=not self.live)

    def stepped(self, step: int) -> None:
        self.done = step
        if self.live:
            self.bar.update(self.task, completed=step, description=self._words())

    def logged(self, row: Mapping[str, Any]) -> None:
        is_best = False
        if row["split"] == "train":
            self.training = row["loss"]
        elif row["split"] == "validation":
            value = row[self.metric]
            is_best = self.best is None or self.sign * value > self.sign * self.best
            self.best = value if is_best else self.best
        if self.live:
            if row["split"] != "train":
                self._print(fitted(self._line(row, is_best), self.console.width), soft_wrap=True)
            self.bar.update(self.task, description=self._words())
        else:
            numbers = " ".join(f"{key} {shown(value)}" for key, value in row.items() if key not in NO_METRICS[:4])
            place = f"step {row['step']:,} · epoch {row['epoch']:g}"
            self._print(f"{place} · {row['split']} {numbers} · {self._left(row['step'])}", soft_wrap=True)

    def _line(self, row: Mapping[str, Any], best: bool) -> Iterator[str]:
        """The parts of an evaluation's line, most important first."""
        yield f"epoch {row['epoch']:.4g}"
        yield metric(self.metric, row[self.metric]) + (" best" if best else "")
        yield f"step {row['step']:,}"
        if self.training is not None:
            yield f"training loss {shown(self.training)}"
        for name, value in row.items():
            if name not in (*NO_METRICS, self.metric):
                yield metric(name, value) if isinstance(value, float) else f"{name} {shown(value)}"

    def _words(self) -> str:
        """The bar's text: step, time left, loss and best, as far as they fit."""
        parts = [f"{self.done:,}/{self.last:,}", self._left(self.done)]
        if self.training is not None:
            parts.append(f"loss {shown(self.training)}")
        if self.best is not None:
            parts.append(f"best {metric(self.metric, self.best)}")
        return fitted(parts, self.console.width - ROOM - (2 if self.console.width < NARROW else 14))

    def _left(self, step: int) -> str:
        return left(self.start, step - self.first, self.last - step)


def fitted(parts: Iterable[str], width: int) -> str:
    """Join as many leading parts as fit into the width, separated by dots."""
    line = ""
    for part in parts:
        longer = f"{line} · {part}" if line else part
        if line and len(longer) > width:
            break
        line = longer
    return line


def left(since: float, done: float, rest: float) -> str:
    """The predicted remaining time at the mean speed since then."""
    return f"{clock((time.perf_counter() - since) * rest / done)} left" if done > 0 else "–:–– left"


def clock(seconds: float) -> str:
    """3723 → 1:02:03; 63 → 1:03"""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def shown(value: Any) -> str:
    """Format a number of the log with four digits."""
    if isinstance(value, float):
        return digits(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def is_own(data: DataSection) -> bool:
    """Whether a run's data is the user's own, of a kind that its model can be applied to more of."""
    return data.path is not None and can_be_applied(data.task)


# -- the end ----------------------------------------------------------------------------------------------------------


def print_facts(facts: Mapping[str, Any], command: str) -> None:
    """Print facts, one per line, in units that people read; long ones are wrapped. Then the command that does it."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        if name.endswith("_bytes"):
            name, words = name.removesuffix("_bytes"), binary(value)
        elif name == "seconds_a_step":
            name, words = "a step", seconds(value)
        elif name == "training_hours_predicted":
            name, words = "training predicted", about(3600 * value)
        else:
            words = "–" if value is None else shown(value)
        grid.add_row(name.replace("_", " "), words)
    console().print(grid)
    print_next(command)


def print_end(run: RunDirectory, recipe: str | None) -> None:
    """Print the best, last and test evaluations, the run's folder, and commands to type next."""
    from shlex import quote

    from leanify.cli.tables import print_table, table

    best = run.best()
    found: dict[str, Mapping[str, Any] | None] = {"best": None, "last": None, "test": None}
    for row in run.rows():
        if row["split"] == "test":
            found["test"] = row
        elif row["split"] == "validation":
            found["last"] = row
            if best is not None and row["step"] == best.step:
                found["best"] = found["best"] or row
    out = console()
    if evaluations := {name: row for name, row in found.items() if row is not None}:
        first = next(iter(evaluations.values()))
        metrics = [key for key in first if key not in NO_METRICS]
        made = table(("", "step", "epoch", *map(heading, metrics)), [])
        for name, one in evaluations.items():
            values = [below_heading(key, one.get(key)) for key in metrics]
            made.add_row(name, f"{one['step']:,}", f"{one['epoch']:g}", *values)
        print_table(out, made)
    path = quote(str(run.path))
    out.print(f"\nrun   {path}" + (f", its best weights in {best.path}" if best else ""), soft_wrap=True)
    if skipped := run.skipped():
        out.print(
            f"could not be read and were left out: {len(skipped):,} samples, {run.path}/skipped.json", soft_wrap=True
        )
    model, data = run.recipe.model, run.recipe.data
    beside = f" {quote(model.source)}" if model.reshapes and not model.override else ""  # else its source is another
    commands = [f"leanify show {path}", f"leanify profile {path}{beside}"]
    if data is not None and is_own(data):
        recipe = data.path  # a model's name does not determine the data
        commands.append(f"leanify predict {path} FILES")
    if recipe is not None and _can_be_leaner(run):
        commands.append(f"leanify compare {quote(recipe)}")
    elif data is not None and data.name == "digits":
        commands.append("leanify compare")  # its own model is deep enough
    print_next(*commands)


def _can_be_leaner(run: RunDirectory) -> bool:
    """Whether the rules of redesign leave the run's model fewer layers, so that it can be compared without more ado."""
    from leanify.architecture import Architecture
    from leanify.design.search.rules import Rules

    stages = Architecture.from_json(run.card()["architecture"]).stages
    return any(stage.primary is not None and 2 < stage.depth > Rules().depth_floor(stage) for stage in stages)
