"""Show a study while its runs are trained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from leanify.cli.screen import NARROW, format_value
from leanify.core.terminal import SECONDS, bars, console
from leanify.core.units import format_metric

if TYPE_CHECKING:
    from leanify.comparison.folder import StudyFolder
    from leanify.comparison.plan import Key


class Board:
    """On a terminal, a bar for the study and one per run; otherwise a line per finished run, and every half minute."""

    def __init__(self, folder: StudyFolder) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

        self.folder = folder
        self.console = console(stderr=True)

        # a bar for each task if the terminal is wide enough
        name = TextColumn("{task.description}", markup=False)
        loss = TextColumn("{task.fields[loss]}", markup=False)
        columns = [SpinnerColumn(), name, MofNCompleteColumn(), TimeRemainingColumn(compact=True)]
        if self.console.width >= NARROW:
            columns[2:2] = [BarColumn(bar_width=None)]
            columns.append(loss)
        self.progress = bars(*columns)
        self.tasks: dict[Key, Any] = {}
        self.stack = ExitStack()
        self.last_line = time.monotonic()

    def __enter__(self) -> Board:
        keys = [*self.folder.plan.runs(), *self.folder.plan.all_trials()]
        total, self.ended_runs = len(keys), sum(self.folder.outcome(key) is not None for key in keys)
        self.console.print(_opening(self.folder, total, self.ended_runs), soft_wrap=not self.console.is_terminal)
        self.stack.enter_context(self.progress)
        self.study = self.progress.add_task("runs", total=total, completed=self.ended_runs, loss="")
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.stack.close()
        if error is None and self.console.is_terminal:
            self.console.print()  # the results follow

    def row(self, key: Key, row: Mapping[str, Any]) -> None:
        """Show that a run is prepared, that it has begun, or a row of its log."""
        if key not in self.tasks:
            self.tasks[key] = self.progress.add_task(str(key), total=None, loss="preparing")
        task = self.tasks[key]

        # the run's first message has its length, the others are rows of its log
        if "began" in row:
            self.progress.reset(task, total=row["steps"], completed=row["step"], loss="")
        elif "loss" in row:
            loss = f"{row['split']} loss {format_value(row['loss'])}"
            self.progress.update(task, completed=row["step"], loss=loss)
            if not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS:
                self._print(f"{key} · step {row['step']:,} · {loss}")
        self._update()

    def on_end(self, key: Key) -> None:
        """Show that a run has finished or failed."""
        if key in self.tasks:
            self.progress.remove_task(self.tasks.pop(key))
        self.ended_runs += 1
        self._update()
        outcome = self.folder.outcome(key)
        if outcome is not None and outcome.status == "failed":
            self._print(f"{key} failed: {outcome.reason}")
        elif outcome is not None and outcome.quality is not None:
            self._print(f"{key} · {format_metric(outcome.metric, outcome.quality)}")

    def _print(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)
        self.last_line = time.monotonic()

    def _update(self) -> None:
        """Count the finished parts of runs, so that the time left is known before the first one ends."""
        running = [task for task in self.progress.tasks if task.id != self.study]
        parts = sum(task.completed / task.total for task in running if task.total)
        total = len([*self.folder.plan.runs(), *self.folder.plan.all_trials()])  # more if the range of rates moves
        self.progress.update(self.study, total=total, completed=self.ended_runs + parts)


def _opening(folder: StudyFolder, runs: int, ended_runs: int) -> str:
    plan = folder.plan
    names = ", ".join(design.name for design in plan.designs)
    trials = f", after trials of {len(plan.rates)} learning rates each" if list(plan.trials()) else ""
    text = f"{plan.title} in {folder.path}: {names} × {len(plan.seeds)} seeds{trials} = {runs} runs"
    if ended_runs:
        text += f", {ended_runs} done"
    schedule = plan.recipe.schedule
    if schedule is not None and schedule.steps is not None:
        text += f", {schedule.steps:,} steps each"
    return text
