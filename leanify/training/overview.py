"""List the runs below a folder: what was trained, how far it got, and whether it is still running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leanify.errors import DirectoryError, LeanifyError
from leanify.runs.files import folders_below, read_json
from leanify.runs.places import is_run
from leanify.runs.recipe import DataSection
from leanify.runs.run_directory import ENVIRONMENT, RunDirectory

State = Literal["running", "done", "interrupted", "broken"]


@dataclass(frozen=True)
class RunOverview:
    """One run as ``leanify runs`` lists it."""

    path: Path
    source: str  # the model that its recipe names
    data: str  # the name of the user's folder or file, else of the built-in set
    step: int | None  # the last completed checkpoint's; None before the first
    steps: int | None  # the length of the schedule; None for runs of leanify 0.1.0, which did not record it
    metric: str  # what the evaluation reports first after the loss
    best: float | None  # its best value
    state: State  # running: a process holds it · interrupted: ``--resume`` continues · broken: unreadable
    problem: str | None = None  # why a broken one cannot be read

    @property
    def done(self) -> str:
        """How far it is: "1,200 of 3,000"."""
        if self.step is None:
            return "–"
        return f"{self.step:,} of {self.steps:,}" if self.steps else f"{self.step:,}"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


def runs_below(folder: Path, apart: Callable[[Path], bool] = lambda folder: False) -> Iterator[RunOverview]:
    """The runs in a folder and below it, by path; not those inside runs, or in folders that are ``apart``."""
    for place in folders_below(folder, lambda place: is_run(place) or apart(place)):
        if is_run(place) and not apart(place):
            yield overview(place)


def overview(place: Path) -> RunOverview:
    """The overview of one run. A damaged folder gives state ``broken``, not an error."""
    try:
        run = RunDirectory.open(place)
        recipe = run.recipe
        checkpoints = run.checkpoints()
        step = checkpoints[-1].step if checkpoints else None
        steps = _steps(run)
        best = run.best()
        metrics = dict(best.metrics) if best is not None else {}
        metric = next((name for name in metrics if name != "loss"), "loss")
        state: State = "done" if step is not None and step == steps else "interrupted"
        if run.is_held():
            state = "running"
        data = data_name(recipe.data) if recipe.data else ""
        return RunOverview(place, recipe.model.source, data, step, steps, metric, metrics.get(metric), state)
    except Exception as error:  # whatever is wrong with one folder, the others are listed
        problem = str(error) if isinstance(error, LeanifyError) else f"{place}: {type(error).__name__}: {error}"
        return RunOverview(place, "", "", None, None, "", None, "broken", " ".join(problem.split()))


def data_name(data: DataSection) -> str:
    """What the user calls the data: the name of their folder or file, else that of the built-in set."""
    return data.name if data.path is None else Path(data.path).name or data.path


def _steps(run: RunDirectory) -> int | None:
    entries = read_json(run.path / ENVIRONMENT)
    steps = next((entry["steps"] for entry in reversed(entries) if "steps" in entry), None)
    if steps is not None and not isinstance(steps, int):
        raise DirectoryError(f"{run.path / ENVIRONMENT}: steps must be a whole number, not {steps!r}")
    return steps
