"""Show a study while its runs are trained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from leanify.cli.screen import NARROW, fitted, left, shown
from leanify.terminal import ROOM, bars, console, showing
from leanify.units import metric, percent

if TYPE_CHECKING:
    from leanify.study.folder import StudyFolder
    from leanify.study.plan import Key, StudyPlan

LEAST = 11  # columns of a bar, with the blank behind it
SPINNER = 2


@dataclass
class Running:
    """A run's place on the screen, the step and time at which it began here, and how far it is."""

    task: Any
    steps: int = 0
    first: int = 0
    done: int = 0
    since: float = 0.0
    words: str = "preparing"

    @property
    def share(self) -> float:
        return self.done / self.steps if self.steps else 0.0


class Board:
    """On a terminal, one bar for the study and one per run; otherwise one line per finished run."""

    def __init__(self, folder: StudyFolder) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn

        from leanify.study.tournament import is_open

        self.folder, self.plan = folder, folder.plan
        self.console = console(stderr=True)
        narrow = self.console.width < NARROW
        name, rest = (TextColumn(f"{{task.{what}}}", markup=False) for what in ("description", "fields[words]"))
        bar = [] if narrow else [BarColumn(bar_width=None)]
        self.progress = bars(self.console, SpinnerColumn(), name, *bar, rest)
        longest = max(len(str(key)) for key in (*self.plan.runs(), *self.plan.trials()))
        self.room = self.console.width - ROOM - SPINNER - longest - 1 - (0 if narrow else LEAST)
        self.cut = is_open(self.plan)
        self.running: dict[Key, Running] = {}
        self.stack, self.lock = ExitStack(), Lock()

    def __enter__(self) -> Board:
        self.known, self.before = _amounts(self.folder, self.plan)
        opening = _opening(self.folder, self.plan, self.known, self.before)
        self.console.print(opening, soft_wrap=not self.console.is_terminal)
        self.stack.enter_context(showing(self.progress))
        self.ended_here, self.since = 0, 0.0
        self.whole = self.progress.add_task("runs", total=self.known, words="")
        self._update()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.stack.close()
        if error is None and self.console.is_terminal:
            self.console.print()  # the results follow

    def row(self, key: Key, row: Mapping[str, Any]) -> None:
        """Show that a run is prepared, that it began, or a row of its log; called from threads of the runs."""
        with self.lock:
            if key not in self.running:
                self.running[key] = Running(self.progress.add_task(str(key), total=None, words=""))
            run = self.running[key]
            if "began" in row:
                run.steps, run.since, run.words = row["steps"], time.perf_counter(), ""
                self.since = self.since or run.since
                run.first = run.done = row["step"]
            elif "loss" in row:
                run.done, run.words = row["step"], f"{row['split']} loss {shown(row['loss'])}"
            self._update()

    def ended(self, key: Key) -> None:
        """Show that a run has finished or failed."""
        with self.lock:
            if key in self.running:
                self.progress.remove_task(self.running.pop(key).task)
            self.ended_here += 1
            self._update()
        outcome = self.folder.outcome(key)
        if outcome is None:
            return
        if outcome.status == "failed":
            self.console.print(f"{key} failed: {outcome.reason}", soft_wrap=not self.console.is_terminal)
        else:
            said = metric(outcome.metric, outcome.quality) if outcome.quality is not None else outcome.status
            self.console.print(f"{key} · {said}", soft_wrap=True)

    def _update(self) -> None:
        """Write every bar's words anew. The study's time left counts what its running runs have done so far."""
        running = list(self.running.values())
        for run in running:
            parts = [run.words] if run.words else []
            if run.steps:
                ahead = left(run.since, run.done - run.first, run.steps - run.done)
                parts = [f"{run.done:,}/{run.steps:,}", ahead, *parts]
            self._show(run.task, parts, total=run.steps or None, completed=run.done)
        done = self.before + self.ended_here
        parts = [f"{done:,}/{self.known:,}"]
        shares = 0.0
        if not self.cut:  # else runs end early, and go on later
            shares = sum(run.share for run in running)
            here = self.ended_here + sum(run.share - run.first / run.steps for run in running if run.steps)
            parts.append(left(self.since, here, self.known - done - shares))
        self._show(self.whole, parts, completed=done + shares)

    def _show(self, task: Any, parts: list[str], **amounts: Any) -> None:
        self.progress.update(task, words=fitted(parts, self.room), **amounts)


def _amounts(folder: StudyFolder, plan: StudyPlan) -> tuple[int, int]:
    """How many runs there are to end, and how many have ended; of a tournament, each of its rounds counts anew."""
    from leanify.study.plan import ALWAYS
    from leanify.study.tournament import is_open, shares

    if not is_open(plan):
        keys = [*plan.runs(), *plan.trials()]
        return len(keys), sum(folder.outcome(key) is not None for key in keys)
    each, done = len(plan.kept) + len(ALWAYS), sum(rung.step > 0 for rung in folder.rungs())
    last = len(plan.kept) + (len(ALWAYS) + 1) * len(plan.judging)
    return each * len(shares(plan)) + last, each * done


def _opening(folder: StudyFolder, plan: StudyPlan, runs: int, ended: int) -> str:
    from leanify.study import tournament

    names = ", ".join(design.name for design in plan.designs)
    if tournament.is_open(plan):
        return f"{plan.title} in {folder.path}: {_field(plan)} ({names})"
    tried = f", after trials of {len(plan.rates)} learning rates each" if list(plan.trials()) else ""
    words = f"{plan.title} in {folder.path}: {names} × {len(plan.seeds)} seeds{tried} = {runs} runs"
    if ended:
        words += f", {ended} done"
    schedule = plan.recipe.schedule
    if schedule is not None and schedule.steps is not None:
        words += f", {schedule.steps:,} steps each"
    return words


def _field(plan: StudyPlan) -> str:
    from leanify.study.tournament import cost, shares

    cuts = " and ".join(percent(share) for share in shares(plan))
    least, most = cost(plan)
    if cuts:
        dropped = f"after {cuts} of the schedule those go that are worse than the best by more than the noise"
        times = f"{least:.1f} to {most:.1f}"
    else:
        dropped, times = "the schedule is too short to drop any before its end", f"{most:.1f}"
    return (
        f"{len(plan.designs)} designs; {dropped}: {times} × the multiply-adds of training the baseline once; then the "
        f"winner is judged by {len(plan.judging)} other seed{'s' * (len(plan.judging) != 1)}"
    )
