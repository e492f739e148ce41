"""The results of a study as frozen dataclasses: runs, designs with quality and costs, paired differences, verdicts.

Differences are signed so that positive is better, whatever the metric.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.comparison import report, tables
from leanify.comparison.plan import PlannedDesign, StudyPlan
from leanify.comparison.statistics import Answer
from leanify.core.tabular import Tabular
from leanify.core.units import format_count, format_digits, format_sizes, metric_heading
from leanify.training.overview import data_name

if TYPE_CHECKING:
    from leanify.training.reference import ReferenceScore

Range = tuple[float, float]


@dataclass(frozen=True)
class Quality:
    """The mean metric over seeds with its 95% interval, None if unknown; without failed and diverged runs."""

    mean: float | None
    low: float | None
    high: float | None
    seeds: int
    failed: int
    diverged: int = 0


@dataclass(frozen=True)
class Costs:
    """Costs measured in interleaved rounds, ``batch`` samples at a time except for the latency of one sample.

    Rates are in samples per second; bytes are of training, measured and predicted. Each value is the median over the
    rounds; its range has the middle half of them.
    """

    latency_s: float
    throughput_per_s: float
    train_per_s: float
    train_peak_bytes: int | None
    train_predicted_bytes: int | None
    batch: int
    device: str
    latency_range: Range | None = None
    throughput_range: Range | None = None
    train_range: Range | None = None


@dataclass(frozen=True)
class RunResult:
    """One run, finished, failed or diverged; ``path`` is its folder relative to the study's."""

    seed: int
    status: str
    quality: float | None
    reason: str
    path: str


@dataclass(frozen=True)
class Trial:
    """One learning rate of a design, as a multiple of the recipe's and in full; ``quality`` is None if it failed."""

    factor: float
    rate: float
    quality: float | None


@dataclass(frozen=True)
class DesignResult:
    """One design: shape and prices, quality, κ at the start and the end of training, and measured costs."""

    plan: PlannedDesign
    quality: Quality
    runs: tuple[RunResult, ...]
    kappa_begin: float | None
    kappa: float | None
    kappa_bounds: tuple[float, float] | None  # bounds of ``kappa`` given the rounding of its inputs
    costs: Costs | None
    rate: float | None = None  # learning rate of its runs
    trials: tuple[Trial, ...] = ()  # all tried rates

    @property
    def name(self) -> str:
        return self.plan.name

    def to_json(self) -> dict[str, Any]:
        costs = dict.fromkeys(Costs.__dataclass_fields__) if self.costs is None else asdict(self.costs)
        # JSON has no infinity
        bounds = self.kappa_bounds and ["inf" if math.isinf(bound) else bound for bound in self.kappa_bounds]
        return {
            **self.plan.to_json(),
            "quality": asdict(self.quality),
            **costs,
            "kappa_begin": self.kappa_begin,
            "kappa": self.kappa,
            "kappa_bounds": bounds,
            "rate": self.rate,
            "rates": [asdict(trial) for trial in self.trials],
            "runs": [asdict(run) for run in self.runs],
        }


@dataclass(frozen=True)
class Pair:
    """The difference ``design`` − ``against``, positive if better, with its interval and two-sided p (`statistics`).

    Both count the looks. ``asked`` is whether one of the study's questions is about it; the p of the others are
    corrected together (Holm). ``seeds`` are the differences by seed.
    """

    design: str
    against: str
    difference: float
    low: float | None
    high: float | None
    p: float | None
    asked: bool
    seeds: tuple[tuple[int, float], ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seeds": [{"seed": seed, "difference": value} for seed, value in self.seeds]}


@dataclass(frozen=True)
class Verdict:
    """The answer to a question, with effect and interval in ``words``.

    ``seeds_needed`` in total would decide it at the observed effect, None if unknown; ``seeds_range`` is the same at
    the ends of the range that probably contains the effect, with None as upper end if no number is sufficient.
    ``samples_needed`` is the number of validation samples if no number of seeds is sufficient.
    """

    question: str
    answer: Answer
    words: str
    seeds_needed: int | None
    seeds_range: tuple[int | None, int | None] | None
    samples_needed: int | None
    p: float | None


@dataclass(frozen=True, repr=False)
class Study(Tabular):
    """A study and its results so far, displayed as a table followed by the answers.

    Before the first run has finished, ``metric`` is None and the tuples are empty.

    margin     the acceptable loss in the metric's unit; ``margin_words`` adds the unit and the meaning of its share
    evaluated  validation samples behind each quality, or blocks of them; 0 if the runs stored no outcomes
    reference  a trivial model on the same samples; None if there is none for the task
    learnt     whether the baseline has learnt, with the reason in ``learnt_why``; if not, nothing is answered
    suggested_steps  steps with which models probably learn that have not yet; None if more steps do not help
    look       number of looks at the answers, including this one; 0 if nothing can be answered yet
    """

    path: Path
    plan: StudyPlan
    results: tuple[DesignResult, ...]
    metric: str | None = None
    split: str | None = None
    higher_is_better: bool = True
    margin: float | None = None
    margin_words: str = ""
    evaluated: int = 0
    pairs: tuple[Pair, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    look: int = 0
    reference: ReferenceScore | None = None
    learnt: bool = True
    learnt_why: str = ""
    suggested_steps: int | None = None
    steps: int | None = None

    @property
    def samples(self) -> int | None:
        """The samples that a run processes, over all epochs; None before one has finished."""
        schedule = self.plan.recipe.schedule
        return None if schedule is None or self.steps is None else self.steps * schedule.batch_size

    @property
    def missing_trials(self) -> int:
        """Trials of rates that have not ended."""
        ended = {(result.name, trial.factor) for result in self.results for trial in result.trials}
        return sum((key.design, key.rate) not in ended for key in self.plan.trials())

    @property
    def missing_runs(self) -> int:
        """Runs that have not ended, without trials."""
        return len(list(self.plan.runs())) - sum(len(result.runs) for result in self.results)

    @property
    def missing(self) -> int:
        """Runs and trials that have not ended."""
        return self.missing_runs + self.missing_trials

    def describe_missing(self) -> str:
        """``12 runs and 6 trials of learning rates to go``; "" if everything has ended."""
        parts = [(self.missing_runs, "run"), (self.missing_trials, "trial")]
        words = [f"{count:,} {name}{'s' * (count != 1)}" for count, name in parts if count]
        return f"{' and '.join(words)}{' of learning rates' * bool(self.missing_trials)} to go" if words else ""

    def result(self, name: str) -> DesignResult:
        return next(result for result in self.results if result.name == name)

    def headline(self) -> str:
        metric = f" · {metric_heading(self.metric)}" if self.metric else ""
        return f"{self.plan.title} · {len(self.plan.seeds)} seeds{metric}"

    def rows(self) -> list[dict[str, Any]]:
        table_rows = []
        for result in self.results:
            row = result.to_json()
            for key in ("runs", "quality", "kappa_bounds"):
                del row[key]
            table_rows.append(row | asdict(result.quality))
        return table_rows

    def cells(self) -> list[dict[str, str]]:
        table_cells = []
        for result in self.results:
            row = {"design": result.name}
            for axis in ("depth", "heads", "mlp"):
                row[axis] = format_sizes(getattr(result.plan, axis), ", ")
            row["params"] = format_count(result.plan.params)
            row[self.metric or "quality"] = _format_quality(result.quality)
            table_cells.append(row)
        return table_cells

    def notes(self) -> list[str]:
        notes = [] if self.learnt else [f"Not learnt: {self.learnt_why}."]
        return notes + [verdict.words for verdict in self.verdicts]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``leanify compare --json`` prints and ``results.json`` stores."""
        return {
            "study": str(self.path),
            "task": self.plan.recipe.data and self.plan.recipe.data.task,
            "data": self.plan.recipe.data and data_name(self.plan.recipe.data),
            "metric": self.metric,
            "split": self.split,
            "higher_is_better": self.higher_is_better,
            "margin": self.margin,
            "margin_words": self.margin_words,
            "evaluated": self.evaluated,
            "look": self.look,
            "reference": self.reference and self.reference.to_json(),
            "learnt": self.learnt,
            "learnt_why": self.learnt_why,
            "suggested_steps": self.suggested_steps,
            "seeds": list(self.plan.seeds),
            "missing": self.missing,
            "designs": [result.to_json() for result in self.results],
            "pairs": [pair.to_json() for pair in self.pairs],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "fronts": {cost: list(names) for cost, names in tables.fronts(self).items()},
        }

    def html(self, path: str | Path) -> Path:
        """Write the study as one self-contained page. Raises DirectoryError."""
        return report.write(self, Path(path))


def _format_quality(quality: Quality) -> str:
    if quality.mean is None:
        return "–"
    if quality.low is None or quality.high is None:
        return format_digits(quality.mean)
    return f"{format_digits(quality.mean)} ({format_digits(quality.low)} … {format_digits(quality.high)})"
