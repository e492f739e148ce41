"""A study's folder: the plan, one ordinary run a design and seed, and what came of them.

    study.toml             the plan, as resolved
    runs/DESIGN-SEED/      the run, as `leanify train` leaves it: `leanify train --resume`, `leanify.load`, … take it
    runs/DESIGN-SEED.json  what came of it; it stands there once the run has ended, well or badly
    runs/worker.log        what the processes said
    tournament.json        the cuts of a tournament
    starts/DESIGN          with --weights: what every run of a design begins with
    results.json           the study as one object, costs included
    report.html            the same as a page

Small files are written beside their place and renamed, so that a kill at any moment leaves whole ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from leanify.errors import DirectoryError
from leanify.sources import lean_directory, run_directory
from leanify.sources.checkpoints import write_small
from leanify.sources.files import check_regular
from leanify.sources.recipe import ModelSection, Recipe
from leanify.sources.run_directory import METRICS
from leanify.study import plan as plans
from leanify.study.plan import Key, StudyPlan
from leanify.upstream.libraries import first_line

RUNS, RESULTS, REPORT = "runs", "results.json", "report.html"
TOURNAMENT = "tournament.json"
STARTS = "starts"
PROBES = "kappa.json"  # κ by step, in a run's folder


@dataclass(frozen=True)
class Outcome:
    """What came of a run. ``quality`` is the metric of the test split after training, else of the validation split.

    ``sign`` is 1 where more of the metric is better. ``kappas`` are pairs (step, κ). ``reason`` says why a run failed.
    """

    design: str
    seed: int
    fingerprint: str
    status: Literal["finished", "failed"]
    reason: str = ""
    metric: str = ""
    split: str = ""
    sign: int = 1
    margin: float = 0.0
    quality: float | None = None
    step: int = 0
    kappas: tuple[tuple[int, float], ...] = field(default=())

    @property
    def key(self) -> Key:
        return Key(self.design, self.seed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Outcome:
        kappas = tuple((int(step), float(kappa)) for step, kappa in data["kappas"])
        return Outcome(**{**data, "kappas": kappas})


@dataclass(frozen=True)
class Rung:
    """One cut: the mean training loss of every design that came so far, None if it failed; who goes on, best first."""

    share: float
    losses: dict[str, float | None]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk, made by `create` or found by `open`."""

    path: Path

    def __post_init__(self) -> None:
        if self.path.is_dir():
            check_regular(self.path, DirectoryError, below=True)

    @staticmethod
    def create(path: Path, plan: StudyPlan) -> StudyFolder:
        """A new folder with its plan; it stands whole or not at all. Raises DirectoryError."""
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with lean_directory.new_directory(path) as folder:
            (folder / plans.FILE).write_text(plan.to_toml(), encoding="utf-8")
            (folder / RUNS).mkdir()
        return StudyFolder(path)

    @staticmethod
    def open(path: Path) -> StudyFolder:
        if not is_study(path):
            raise DirectoryError(f"{path} is not a study: it has no {plans.FILE}")
        return StudyFolder(path)

    @property
    def plan(self) -> StudyPlan:
        return StudyPlan.read(self.path / plans.FILE)

    def replan(self, plan: StudyPlan) -> None:
        write_small(self.path / plans.FILE, plan.to_toml())

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run(self, key: Key) -> Path:
        return self.path / RUNS / str(key)

    def start(self, design: str) -> Path:
        """Where the weights lie that a design begins with, in a study that starts warm."""
        return self.path / STARTS / design

    def recipe_of(self, key: Key) -> Recipe:
        """What a run trains by."""
        plan = self.plan
        recipe = plan.recipe_of(key)
        if plan.weights is None:
            return recipe
        return replace(recipe, model=ModelSection(str(self.start(key.design).absolute()), cls=recipe.model.cls))

    def outcome(self, key: Key) -> Outcome | None:
        """What came of a run; None where it has not ended. Raises DirectoryError where another plan made it."""
        file = self.path / RUNS / f"{key}.json"
        if not file.exists():
            return None
        try:
            found = Outcome.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DirectoryError(
                f"{file} is damaged: {first_line(error)}; remove it, and the run is looked at again"
            ) from error
        if found.fingerprint != self.plan.fingerprint(key):
            raise DirectoryError(
                f"{self.run(key)} was trained by another plan than {plans.FILE} now says; undo the edit"
            )
        return found

    def record(self, outcome: Outcome) -> None:
        write_small(self.path / RUNS / f"{outcome.key}.json", json.dumps(outcome.to_json(), indent=2) + "\n")

    def outcomes(self) -> list[Outcome]:
        """Of all runs that have ended, in the plan's order."""
        return [found for key in self.plan.runs() if (found := self.outcome(key)) is not None]

    def missing(self) -> list[Key]:
        """The runs that have not ended."""
        return [key for key in self.plan.runs() if self.outcome(key) is None]

    def forget_failures(self) -> None:
        """Failed runs start again from nothing."""
        for outcome in self.outcomes():
            if outcome.status == "failed":
                shutil.rmtree(self.run(outcome.key), ignore_errors=True)
                (self.path / RUNS / f"{outcome.key}.json").unlink()

    def rows(self, key: Key) -> list[dict[str, Any]]:
        """The log of a run; empty where it never began."""
        file = self.run(key) / METRICS
        return run_directory.RunDirectory(self.run(key)).rows() if file.exists() else []

    @contextmanager
    def held(self, key: Key) -> Iterator[None]:
        """Nobody else works on a run meanwhile: whoever comes second waits."""
        import fcntl  # Unix alone

        with (self.path / RUNS / f".{key}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def rungs(self) -> tuple[Rung, ...]:
        """The cuts of a tournament so far. Raises DirectoryError where their file is damaged."""
        file = self.path / TOURNAMENT
        if not file.exists():
            return ()
        try:
            entries = json.loads(file.read_text(encoding="utf-8"))
            return tuple(Rung(entry["share"], entry["losses"], tuple(entry["kept"])) for entry in entries)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DirectoryError(
                f"{file} is damaged: {first_line(error)}; remove it, and the field is judged again"
            ) from error

    def write_rungs(self, rungs: Sequence[Rung]) -> None:
        write_small(self.path / TOURNAMENT, json.dumps([asdict(rung) for rung in rungs], indent=2) + "\n")

    # -- results ------------------------------------------------------------------------------------------------------

    def results(self) -> dict[str, Any]:
        """``results.json``; empty where there is none yet. Raises DirectoryError where it is damaged."""
        file = self.path / RESULTS
        if not file.exists():
            return {}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("it holds no object")
        except (ValueError, RecursionError) as error:
            raise DirectoryError(
                f"{file} is damaged: {first_line(error)}; remove it: the runs are whole, and it is made again from them"
            ) from error
        return found

    def write_results(self, data: Mapping[str, Any]) -> None:
        write_small(self.path / RESULTS, json.dumps(data, indent=2, allow_nan=False) + "\n")


def is_study(path: str | Path) -> bool:
    return (Path(path) / plans.FILE).is_file()
