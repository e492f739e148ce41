"""List the runs below a folder with their model, data, progress and state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leanify.core.errors import DirectoryError, LeanifyError
from leanify.core.files.reading import read_json, walk_folders
from leanify.core.path_kinds import is_run
from leanify.core.recipe import DataSection
from leanify.core.recipe_code import is_code
from leanify.runs.run_directory import ENVIRONMENT, RunDirectory

State = Literal["running", "done", "interrupted", "broken"]


@dataclass(frozen=True)
class RunOverview:
    """One run as ``leanify runs`` lists it."""

    path: Path
    source: str  # the model that its recipe names
    data: str  # the name of the user's folder or file, or of the built-in set
    step: int | None  # the last completed checkpoint's; None before the first
    steps: int | None  # the length of the schedule; None for a broken run
    metric: str  # the first that the evaluation reports after the loss
    best: float | None  # its best value
    state: State  # running: a process holds it · interrupted: ``--resume`` continues · broken: unreadable
    problem: str | None = None  # why a broken one cannot be read

    @property
    def progress(self) -> str:
        """Steps done and planned: "1,200 of 3,000"."""
        if self.step is None:
            return "–"
        return f"{self.step:,} of {self.steps:,}" if self.steps else f"{self.step:,}"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


def find_runs(folder: Path, skip: Callable[[Path], bool] = lambda folder: False) -> Iterator[RunOverview]:
    """Yield the runs in a folder and below it, by path, except those inside runs or in folders to ``skip``."""
    for place in walk_folders(folder, lambda place: is_run(place) or skip(place)):
        if is_run(place) and not skip(place):
            yield overview(place)


def overview(place: Path) -> RunOverview:
    """The overview of one run. A damaged folder gives state ``broken``, not an error."""
    try:
        run = RunDirectory.open(place)
        recipe = run.recipe

        # steps done and planned
        checkpoints = run.checkpoints()
        step = checkpoints[-1].step if checkpoints else None
        entries = read_json(run.path / ENVIRONMENT)
        steps = next((entry["steps"] for entry in reversed(entries) if "steps" in entry), None)
        if steps is not None and not isinstance(steps, int):
            raise DirectoryError(f"{run.path / ENVIRONMENT}: steps must be a whole number, not {steps!r}")

        # the metric of the best checkpoint
        best = run.best()
        metrics = dict(best.metrics) if best is not None else {}
        metric = next((name for name in metrics if name != "loss"), "loss")

        state: State = "done" if step is not None and step == steps else "interrupted"
        if run.is_locked():
            state = "running"
        data = data_name(recipe.data) if recipe.data else ""
        return RunOverview(place, recipe.model.source, data, step, steps, metric, metrics.get(metric), state)
    except Exception as error:  # one damaged folder must not hide the others
        problem = str(error) if isinstance(error, LeanifyError) else f"{place}: {type(error).__name__}: {error}"
        return RunOverview(place, "", "", None, None, "", None, "broken", " ".join(problem.split()))


def data_name(data: DataSection) -> str:
    """The name of the user's folder or file, or of the built-in data set."""
    if data.path is None:
        return Path(data.name).name if is_code(data.name) else data.name
    return Path(data.path).name or data.path
