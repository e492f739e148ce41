"""A study's folder: the plan, one ordinary run per design and seed, and the results.

    study.toml             the resolved plan
    runs/DESIGN-SEED/      a run as from `leanify train`, usable with `leanify train --resume`, `leanify.load`, …
    runs/DESIGN-SEED.json  the run's outcome, written when it finishes or fails
    … outcomes.safetensors in a run's folder: what each validation sample adds to its quality
    looks.json             the numbers of seeds at which the study's answers were looked at
    runs/worker.log        standard error of the worker processes
    tournament.json        the cuts of a tournament
    starts/DESIGN          with --weights: the initial weights of a design's runs
    results.json           the study as one JSON object, including costs
    report.html            the study as a page

Small files are written under a temporary name and renamed, so that a kill at any moment leaves no partial file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from leanify.errors import DirectoryError
from leanify.runs import removing, run_directory, writing
from leanify.runs.files import check_regular, parsed, read_text
from leanify.runs.new_directory import new_directory
from leanify.runs.places import STUDY, is_study
from leanify.runs.recipe import ModelSection, Recipe
from leanify.runs.run_directory import METRICS
from leanify.study.plan import Key, StudyPlan
from leanify.upstream.libraries import first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RUNS, RESULTS, REPORT = "runs", "results.json", "report.html"
TOURNAMENT = "tournament.json"
STARTS = "starts"
LOOKS = "looks.json"
PROBES = "kappa.json"  # κ by step, in a run's folder
SAMPLES = "outcomes.safetensors"  # what each validation sample adds to the quality, in a run's folder
T = TypeVar("T")


def content_of(file: Path, make: Callable[[Any], T], missing: T, remedy: str) -> T:
    """What ``make`` reads from a JSON file of a study, ``missing`` if there is no file.

    Raises DirectoryError for a damaged file; ``remedy`` is what happens once it is removed.
    """
    if not file.exists():
        return missing
    try:
        return make(parsed(read_text(file, DirectoryError)))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DirectoryError(f"{file} is damaged: {first_line(error)}; remove it, and {remedy}") from error


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. ``quality`` is the final metric on the test split, or on validation if there is no test.

    ``sign`` is 1 if higher is better, −1 if lower is; ``best`` is a perfect model's quality, None in runs of earlier
    versions, which had an absolute ``margin`` instead; ``unit`` is that of the quality; ``rate`` marks a trial.
    ``kappas`` are (step, κ) pairs; ``kappa_bounds`` are those of the last κ, without an upper one if that is infinite.
    ``reason`` explains a failure.
    """

    design: str
    seed: int
    fingerprint: str
    status: Literal["finished", "failed"]
    reason: str = ""
    metric: str = ""
    split: str = ""
    sign: int = 1
    margin: float | None = None
    quality: float | None = None
    step: int = 0
    kappas: tuple[tuple[int, float], ...] = field(default=())
    kappa_bounds: tuple[float, float | None] | None = None
    best: float | None = None
    unit: str = ""
    rate: float | None = None

    @property
    def key(self) -> Key:
        return Key(self.design, self.seed, self.rate)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Outcome:
        """Values that an earlier version did not write are missing; those of a later one are left out."""
        known = {name: data[name] for name in Outcome.__dataclass_fields__ if name in data}
        kappas = tuple((int(step), float(kappa)) for step, kappa in data.get("kappas", ()))
        bounds = data.get("kappa_bounds")
        return Outcome(**{**known, "kappas": kappas, "kappa_bounds": bounds and tuple(bounds)})


@dataclass(frozen=True)
class Rung:
    """One cut of a tournament: training loss of each design up to ``step`` (None if it failed), and those kept.

    A design goes if it is behind the best by more than ``noise``, which follows from ``again``, losses on a second
    seed; None if it is unknown. Earlier versions wrote neither and no step.
    """

    share: float
    losses: dict[str, float | None]
    kept: tuple[str, ...]
    step: int = 0
    noise: float | None = None
    again: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk; use `create` for a new study, `open` for an existing one."""

    path: Path

    def __post_init__(self) -> None:
        if self.path.is_dir():
            check_regular(self.path, DirectoryError, RUNS, f"{RUNS}/*", f"{RUNS}/*/*", f"{STARTS}/*")

    @staticmethod
    def create(path: Path, plan: StudyPlan) -> StudyFolder:
        """Create a study's folder atomically. Raises DirectoryError."""
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with new_directory(path) as folder:
            writing.write(folder / STUDY, plan.to_toml())
            (folder / RUNS).mkdir()
        return StudyFolder(path)

    @staticmethod
    def open(path: Path) -> StudyFolder:
        if not is_study(path):
            raise DirectoryError(f"{path} is not a study: it has no {STUDY}")
        return StudyFolder(path)

    @cached_property
    def plan(self) -> StudyPlan:
        """Read once, and again after `replan`."""
        return StudyPlan.read(self.path / STUDY)

    def check_folders(self) -> None:
        """Raise DirectoryError if what is written into the study would be written elsewhere."""
        writing.check_folder(self.path / RUNS, self.path / STARTS)

    def replan(self, plan: StudyPlan) -> None:
        writing.write(self.path / STUDY, plan.to_toml())
        self.__dict__["plan"] = plan

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run(self, key: Key) -> Path:
        return self.path / RUNS / str(key)

    def start(self, design: str) -> Path:
        """The lean directory with a design's initial weights, in a study with ``weights``."""
        return self.path / STARTS / design

    def recipe_of(self, key: Key) -> Recipe:
        """The recipe of a run."""
        plan = self.plan
        recipe = plan.recipe_of(key)
        if plan.weights is None:
            return recipe
        return replace(recipe, model=ModelSection(str(self.start(key.design).absolute()), cls=recipe.model.cls))

    def outcome(self, key: Key) -> Outcome | None:
        """A run's outcome; None if it has not ended. Raises DirectoryError if damaged, or if the plan has changed."""

        def made(data: Mapping[str, Any]) -> Outcome:
            found = Outcome.from_json(data)
            if found.key != key:
                raise ValueError(f"it is the outcome of {found.key}")
            return found

        file = self.path / RUNS / f"{key}.json"
        found = content_of(file, made, None, "the run will be evaluated again")
        if found is not None and found.fingerprint != self.plan.fingerprint(key):
            raise DirectoryError(
                f"{self.run(key)} was trained with another plan than the current {STUDY}; undo the edit"
            )
        return found

    def record(self, outcome: Outcome) -> None:
        writing.write(self.path / RUNS / f"{outcome.key}.json", json.dumps(outcome.to_json(), indent=2) + "\n")

    def outcomes(self) -> list[Outcome]:
        """The outcomes of all ended runs, in the plan's order."""
        found = [self.outcome(key) for key in self.plan.runs()]
        return [outcome for outcome in found if outcome is not None]

    def missing(self) -> list[Key]:
        """The runs that have not ended."""
        return [key for key in self.plan.runs() if self.outcome(key) is None]

    def samples_of(self, key: Key) -> NDArray[np.float64] | None:
        """What each validation sample adds to a run's quality (N,); None in runs of earlier versions.

        Raises DirectoryError if the file is damaged.
        """
        import numpy as np
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        file = self.run(key) / SAMPLES
        if not file.exists():
            return None
        try:
            found = load_file(file)["outcomes"].astype(np.float64)
            if found.ndim != 1 or not np.isfinite(found).all():
                raise ValueError("it is no list of finite numbers")
        except (SafetensorError, ValueError, LookupError, TypeError, OSError) as error:
            raise DirectoryError(
                f"{file} is damaged: {first_line(error)}; remove it, and intervals leave out the validation samples"
            ) from error
        return found

    def record_samples(self, key: Key, outcomes: NDArray[np.float64]) -> None:
        from safetensors.numpy import save

        writing.write(self.run(key) / SAMPLES, save({"outcomes": outcomes.astype("float32")}))

    def forget_failures(self) -> None:
        """Delete failed runs, so that they start again from scratch. What leanify did not write stays."""
        self.check_folders()
        for outcome in self.outcomes():
            if outcome.status == "failed":
                with suppress(FileNotFoundError):  # it failed before it began
                    removing.remove_run(self.run(outcome.key))
                (self.path / RUNS / f"{outcome.key}.json").unlink()

    def rows(self, key: Key) -> list[dict[str, Any]]:
        """The rows of a run's metrics.jsonl; [] if it has not started."""
        file = self.run(key) / METRICS
        return run_directory.RunDirectory(self.run(key)).rows() if file.exists() else []

    @contextmanager
    def held(self, key: Key) -> Iterator[None]:
        """Lock a run against other processes, waiting for the lock if necessary."""
        import fcntl  # Unix only

        self.check_folders()
        writing.check_folder(self.run(key))
        with writing.appending(self.path / RUNS / f".{key}.lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def rungs(self) -> tuple[Rung, ...]:
        """The cuts of a tournament so far. Raises DirectoryError if their file is damaged."""

        def made(entries: Sequence[Mapping[str, Any]]) -> tuple[Rung, ...]:
            return tuple(Rung(**{**entry, "kept": tuple(entry["kept"])}) for entry in entries)

        return content_of(self.path / TOURNAMENT, made, (), "the designs will be compared again")

    def write_rungs(self, rungs: Sequence[Rung]) -> None:
        writing.write(self.path / TOURNAMENT, json.dumps([asdict(rung) for rung in rungs], indent=2) + "\n")

    # -- results ------------------------------------------------------------------------------------------------------

    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which the answers were looked at. Raises DirectoryError if their file is damaged."""
        file = self.path / LOOKS
        if not file.exists():
            return ()
        try:
            return tuple(sorted({int(seeds) for seeds in parsed(read_text(file, DirectoryError))}))
        except (ValueError, TypeError, RecursionError) as error:
            raise DirectoryError(f"{file} is damaged: it must be a list of numbers of seeds, such as [3, 5]") from error

    def look(self, seeds: int) -> None:
        """Note that the answers were looked at with this number of seeds."""
        known = self.looks()
        if seeds not in known:
            writing.write(self.path / LOOKS, json.dumps(sorted((*known, seeds))) + "\n")

    def results(self) -> dict[str, Any]:
        """The contents of ``results.json``; {} if there is none yet. Raises DirectoryError if it is damaged."""

        def made(found: Any) -> dict[str, Any]:
            if not isinstance(found, dict):
                raise ValueError("expected a JSON object")
            return found

        return content_of(self.path / RESULTS, made, {}, "it will be rebuilt from the runs")

    def write_results(self, data: Mapping[str, Any]) -> None:
        writing.write(self.path / RESULTS, json.dumps(data, indent=2, allow_nan=False) + "\n")
