"""A study's folder: the plan, one ordinary run per design and seed, and the results.

    study.toml             the resolved plan
    runs/DESIGN-SEED/      a run as from `leanify train`, usable with `leanify train --resume`, `leanify.load`, …
    runs/DESIGN-SEED.json  the run's outcome, written when it finishes or fails
    … outcomes.safetensors in a run's folder: the contribution of each validation sample to its quality
    looks.json             the numbers of seeds at which the study's answers were looked at
    runs/worker.log        standard error of the worker processes
    starts/DESIGN          with --weights: the initial weights of a design's runs
    results.json           the study as one JSON object, including costs
    report.html            the study as a page

Small files are written under a temporary name and renamed, so that a kill at any moment leaves no partial file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from leanify.comparison.plan import Key, StudyPlan
from leanify.core.errors import DirectoryError
from leanify.core.files import writing
from leanify.core.files.reading import check_regular, parse_json, read_text, walk_folders
from leanify.core.files.tensor_files import load_tensors
from leanify.core.files.writing import new_directory
from leanify.core.path_kinds import STUDY, is_run, is_study
from leanify.core.recipe import ModelSection, Recipe
from leanify.runs import run_directory
from leanify.runs.run_directory import METRICS, RunDirectory
from leanify.upstream.libraries import first_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RUNS, RESULTS, REPORT = "runs", "results.json", "report.html"
STARTS = "starts"
LOOKS = "looks.json"
PROBES = "kappa.json"  # κ by step, in a run's folder
SAMPLES = "outcomes.safetensors"  # contribution of each validation sample to the quality, in a run's folder
State = Literal["running", "done", "failed", "interrupted", "broken"]
T = TypeVar("T")


def read_content(file: Path, make: Callable[[Any], T], missing: T, remedy: str) -> T:
    """Return the result of ``make`` for a JSON file of a study, or ``missing`` without a file.

    Raises DirectoryError for a damaged file; ``remedy`` describes the effect of removing it.
    """
    if not file.exists():
        return missing
    try:
        return make(parse_json(read_text(file, DirectoryError)))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DirectoryError(f"{file} is damaged: {first_line(error)}; remove it, and {remedy}") from error


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. ``quality`` is the final metric on the test split, or on the validation split.

    ``sign`` is 1 if higher is better, −1 if lower is; ``best`` is a perfect model's quality; ``unit`` is that of the
    quality; ``rate`` marks a trial. ``kappas`` are (step, κ) pairs; ``kappa_bounds`` are the bounds of the last κ,
    without an upper one if it is infinite. ``reason`` explains a failure.
    """

    design: str
    seed: int
    fingerprint: str
    status: Literal["finished", "failed"]
    reason: str = ""
    metric: str = ""
    split: str = ""
    sign: int = 1
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

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Outcome:
        """Create an outcome from JSON: missing values stay unset, unknown ones are ignored."""
        fields_known = {name: data[name] for name in Outcome.__dataclass_fields__ if name in data}
        kappas = tuple((int(step), float(kappa)) for step, kappa in data.get("kappas", ()))
        bounds = data.get("kappa_bounds")
        return Outcome(**{**fields_known, "kappas": kappas, "kappa_bounds": bounds and tuple(bounds)})


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
        """Raise DirectoryError if files of the study would be written outside of it, because of links."""
        writing.check_folders(self.path / RUNS, self.path / STARTS)

    def replan(self, plan: StudyPlan) -> None:
        writing.write(self.path / STUDY, plan.to_toml())
        self.__dict__["plan"] = plan

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run(self, key: Key) -> Path:
        return self.path / RUNS / str(key)

    def start(self, design: str) -> Path:
        """Return the lean directory with a design's initial weights, in a study with ``weights``."""
        return self.path / STARTS / design

    def run_recipe(self, key: Key) -> Recipe:
        recipe = self.plan.run_recipe(key)
        if self.plan.weights is None:
            return recipe
        return replace(recipe, model=ModelSection(str(self.start(key.design).absolute()), cls=recipe.model.cls))

    def outcome(self, key: Key) -> Outcome | None:
        """A run's outcome; None if it has not ended. Raises DirectoryError if damaged, or if the plan has changed."""

        def parse(data: Mapping[str, Any]) -> Outcome:
            parsed_outcome = Outcome.from_json(data)
            if parsed_outcome.key != key:
                raise ValueError(f"it is the outcome of {parsed_outcome.key}")
            return parsed_outcome

        file = self.path / RUNS / f"{key}.json"
        result = read_content(file, parse, None, "the run will be evaluated again")
        if result is not None and result.fingerprint != self.plan.fingerprint(key):
            raise DirectoryError(
                f"{self.run(key)} was trained with another plan than the current {STUDY}; undo the edit"
            )
        return result

    def record(self, outcome: Outcome) -> None:
        writing.write(self.path / RUNS / f"{outcome.key}.json", json.dumps(asdict(outcome), indent=2) + "\n")

    def outcomes(self) -> list[Outcome]:
        """The outcomes of all ended runs, in the plan's order."""
        return [outcome for outcome in map(self.outcome, self.plan.runs()) if outcome is not None]

    def missing(self) -> list[Key]:
        """The runs that have not ended."""
        return [key for key in self.plan.runs() if self.outcome(key) is None]

    def run_samples(self, key: Key) -> NDArray[np.float64] | None:
        """Return each validation sample's contribution to a run's quality (N,); None if it has none.

        Raises DirectoryError if the file is damaged.
        """
        import numpy as np

        file = self.run(key) / SAMPLES
        if not file.exists():
            return None
        try:
            values: NDArray[np.float64] = load_tensors(file, DirectoryError)["outcomes"].double().numpy()
            if values.ndim != 1 or not np.isfinite(values).all():
                raise ValueError("it is not a list of finite numbers")
        except (DirectoryError, ValueError, LookupError, TypeError) as error:
            raise DirectoryError(
                f"{file} is damaged: {first_line(error)}; remove it, and intervals leave out the validation samples"
            ) from error
        return values

    def record_samples(self, key: Key, outcomes: NDArray[np.float64]) -> None:
        from safetensors.numpy import save

        writing.write(self.run(key) / SAMPLES, save({"outcomes": outcomes.astype("float32")}))

    def forget_failures(self) -> None:
        """Delete failed runs, so that they start again from scratch. What leanify did not write stays."""
        self.check_folders()
        for outcome in self.outcomes():
            if outcome.status == "failed":
                with suppress(FileNotFoundError):  # it failed before it began
                    run_directory.remove_run(self.run(outcome.key))
                (self.path / RUNS / f"{outcome.key}.json").unlink()

    def rows(self, key: Key) -> list[dict[str, Any]]:
        """The rows of a run's metrics.jsonl; [] if it has not started."""
        file = self.run(key) / METRICS
        return RunDirectory(self.run(key)).rows() if file.exists() else []

    @contextmanager
    def lock_run(self, key: Key) -> Iterator[None]:
        """Lock a run against other processes, waiting for the lock if necessary."""
        import fcntl  # Unix only

        self.check_folders()
        writing.check_folders(self.run(key))
        with writing.open_append(self.path / RUNS / f".{key}.lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # -- results ------------------------------------------------------------------------------------------------------

    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which the answers were looked at. Raises DirectoryError if their file is damaged."""
        file = self.path / LOOKS
        if not file.exists():
            return ()
        try:
            return tuple(sorted({int(seeds) for seeds in parse_json(read_text(file, DirectoryError))}))
        except (ValueError, TypeError, RecursionError) as error:
            raise DirectoryError(f"{file} is damaged: it must be a list of numbers of seeds, such as [3, 5]") from error

    def look(self, seeds: int) -> None:
        """Note that the answers were looked at with this number of seeds."""
        looks = self.looks()
        if seeds not in looks:
            writing.write(self.path / LOOKS, json.dumps(sorted((*looks, seeds))) + "\n")

    def results(self) -> dict[str, Any]:
        """The contents of ``results.json``; {} if there is none yet. Raises DirectoryError if it is damaged."""

        def parse(content: Any) -> dict[str, Any]:
            if not isinstance(content, dict):
                raise ValueError("expected a JSON object")
            return content

        return read_content(self.path / RESULTS, parse, {}, "it will be rebuilt from the runs")

    def write_results(self, data: Mapping[str, Any]) -> None:
        writing.write(self.path / RESULTS, json.dumps(data, indent=2, allow_nan=False) + "\n")


# -- all studies below a folder, for ``leanify runs`` -----------------------------------------------------------------


@dataclass(frozen=True)
class StudyOverview:
    """One study as ``leanify runs`` lists it.

    designs  number of designs
    runs     number of runs, of which ``ended`` have ended and ``failed`` of those failed
    state    running (a process holds one of its runs), done, failed (done with failed runs), interrupted, or broken
    """

    path: Path
    title: str
    designs: int
    runs: int
    ended: int
    failed: int
    state: State

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


def find_studies(folder: Path) -> Iterator[StudyOverview]:
    """Yield the studies in a folder and its subfolders, sorted by path."""
    for place in walk_folders(folder, is_study):
        if is_study(place):
            yield overview(StudyFolder(place))


def overview(study: StudyFolder) -> StudyOverview:
    """Summarise a study; a damaged one has the state ``broken`` instead of raising an error."""
    try:
        plan = study.plan
        keys, outcomes = list(plan.runs()), study.outcomes()
        failed_count = sum(outcome.status == "failed" for outcome in outcomes)
        state: State = "interrupted"
        if any(is_run(study.run(key)) and RunDirectory(study.run(key)).is_locked() for key in keys):
            state = "running"
        elif len(outcomes) == len(keys):
            state = "failed" if failed_count else "done"
        return StudyOverview(study.path, plan.title, len(plan.designs), len(keys), len(outcomes), failed_count, state)
    except Exception:  # whatever is wrong with one folder, the others are listed
        return StudyOverview(study.path, "", 0, 0, 0, 0, "broken")
