"""A study's results: quality with uncertainty, paired differences, two verdicts, and costs.

The two questions about the design in focus (usually lean) are fixed before the study, so each is answered by its own
interval. The table of pairs covers every comparison, so its p-values are corrected together (Holm 1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.errors import DirectoryError
from leanify.study import efficiency, report, statistics
from leanify.study.folder import Outcome, StudyFolder
from leanify.study.plan import BASELINE, CONTROL, Key, PlannedDesign, StudyPlan
from leanify.study.values import Costs, DesignResult, Findings, Pair, Quality, RunResult, Verdict
from leanify.units import PERCENT
from leanify.upstream.wall import wall

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Study(Findings):
    """A study and its results so far."""

    def to_json(self) -> dict[str, Any]:
        """The object that ``leanify compare --json`` prints and ``results.json`` stores."""
        per = efficiency.quality_per(self)
        return {
            "study": str(self.path),
            "task": None if self.plan.recipe.data is None else self.plan.recipe.data.task,
            "data": None if self.plan.recipe.data is None else self.plan.recipe.data.name,
            "metric": self.metric,
            "split": self.split,
            "higher_is_better": self.higher_is_better,
            "margin": self.margin,
            "seeds": list(self.plan.seeds),
            "missing": self.missing,
            "designs": [result.to_json() | {"quality_per": per[result.name]} for result in self.results],
            "pairs": [pair.to_json() for pair in self.pairs],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "tournament": [asdict(rung) for rung in self.rungs],
            "fronts": {cost: list(names) for cost, names in efficiency.fronts(self).items()},
        }

    def html(self, path: str | Path) -> Path:
        """Write the study as one self-contained page. Raises DirectoryError."""
        return report.write(self, Path(path))

    def frame(self) -> pandas.DataFrame:
        """Return a pandas data frame with one row per run. Raises ImportError if pandas is not installed."""
        import pandas

        rows = [
            {"design": result.name, "params": result.plan.params, "macs": result.plan.macs} | asdict(run)
            for result in self.results
            for run in result.runs
        ]
        return pandas.DataFrame(rows)


# -- from a folder ----------------------------------------------------------------------------------------------------


def study_of(folder: StudyFolder) -> Study:
    """Read a study's current results. Raises DirectoryError if a file is damaged."""
    with wall(f"a file of {folder.path} is damaged", DirectoryError):
        return _study(folder)


def _study(folder: StudyFolder) -> Study:
    plan, outcomes, known = folder.plan, folder.outcomes(), folder.results()
    costs = {entry["name"]: entry for entry in known.get("designs", [])}
    results = tuple(
        _design(folder, design, [o for o in outcomes if o.design == design.name], costs.get(design.name, {}))
        for design in plan.designs
    )
    first = next((outcome for outcome in outcomes if outcome.status == "finished"), None)
    if first is None:
        return Study(folder.path, plan, None, None, True, plan.margin, results, (), (), folder.rungs())
    margin = plan.margin if plan.margin is not None else first.margin
    pairs = _pairs(plan, outcomes, first.sign)
    verdicts = tuple(_verdicts(plan, results, pairs, first.metric, margin))
    known_of = (first.metric, first.split, first.sign > 0, margin)
    return Study(folder.path, plan, *known_of, results, pairs, verdicts, folder.rungs(), first.step)


def _design(
    folder: StudyFolder, design: PlannedDesign, outcomes: Sequence[Outcome], known: dict[str, Any]
) -> DesignResult:
    finished = [outcome for outcome in outcomes if outcome.status == "finished"]
    found = statistics.interval([outcome.quality for outcome in finished if outcome.quality is not None])
    failed = len(outcomes) - len(finished)
    quality = Quality(_number(found.mean), _number(found.low), _number(found.high), found.count, failed)
    runs = tuple(
        RunResult(o.seed, o.status, o.quality, o.reason, str(folder.run(o.key).relative_to(folder.path)))
        for o in outcomes
    )
    begin, end = ([o.kappas[i][1] for o in finished if o.kappas] for i in (0, -1))
    costs = Costs(**{key: known[key] for key in Costs.__dataclass_fields__}) if known.get("latency_s") else None
    return DesignResult(design, quality, runs, _mean(begin), _mean(end), _bounds(finished), costs)


def _bounds(outcomes: Sequence[Outcome]) -> tuple[float, float] | None:
    """The mean bounds of the last κ; None if a run has none."""
    found = [outcome.kappa_bounds for outcome in outcomes if outcome.kappas]
    known = [(low, math.inf if high is None else high) for low, high in (one for one in found if one is not None)]
    if not known or len(known) < len(found):
        return None
    lows, highs = zip(*known, strict=True)
    return sum(lows) / len(lows), sum(highs) / len(highs)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value


def _pairs(plan: StudyPlan, outcomes: Sequence[Outcome], sign: int) -> tuple[Pair, ...]:
    """Compare every design with the baseline and with the control; in a tournament, the winner with all others."""
    values = {o.key: sign * o.quality for o in outcomes if o.quality is not None}
    names = [design.name for design in plan.designs]
    wanted = [(name, BASELINE) for name in names if name != BASELINE and BASELINE in names]
    wanted += [(name, CONTROL) for name in names if name not in (BASELINE, CONTROL) and CONTROL in names]
    if plan.tournament and values:
        winner = _winner(names, values)
        wanted = [(winner, name) for name in names if name != winner]
    raw = [(a, b, _differences(plan, values, a, b)) for a, b in wanted]
    raw = [(a, b, found) for a, b, found in raw if found]
    ps = statistics.holm([statistics.two_sided([value for _, value in found]) for _, _, found in raw])
    return tuple(_pair(a, b, found, p) for (a, b, found), p in zip(raw, ps, strict=True))


def _winner(names: Sequence[str], values: dict[Key, float]) -> str:
    """The design with the best mean."""
    means = {name: _mean([value for key, value in values.items() if key.design == name]) for name in names}
    return max(names, key=lambda name: -math.inf if (mean := means[name]) is None else mean)


def _differences(plan: StudyPlan, values: dict[Key, float], design: str, against: str) -> tuple[tuple[int, float], ...]:
    both = [seed for seed in plan.seeds if Key(design, seed) in values and Key(against, seed) in values]
    return tuple((seed, values[Key(design, seed)] - values[Key(against, seed)]) for seed in both)


def _pair(design: str, against: str, found: tuple[tuple[int, float], ...], p: float) -> Pair:
    span = statistics.interval([value for _, value in found])
    return Pair(design, against, span.mean, _number(span.low), _number(span.high), _number(p), found)


# -- verdicts ---------------------------------------------------------------------------------------------------------


def _verdicts(
    plan: StudyPlan, results: Sequence[DesignResult], pairs: Sequence[Pair], metric: str, margin: float
) -> list[Verdict]:
    """Answer the two questions, against baseline and control, as far as the study has these designs."""
    focus = plan.focus
    failures = [result for result in results if result.quality.failed]
    found = []
    for against, allowed in ((BASELINE, margin), (CONTROL, 0.0)):
        pair = next((pair for pair in pairs if (pair.design, pair.against) == (focus, against)), None)
        if pair is not None:
            found.append(_verdict(pair, allowed, metric, failures))
    return found


def _verdict(pair: Pair, margin: float, metric: str, failures: Sequence[DesignResult]) -> Verdict:
    name, unit = pair.design, metric.replace("_", " ")
    if metric in PERCENT:
        unit = f"point{'s' * (margin != 1)} of {unit}"
    if margin:
        question = f"Is {name} not worse than the {pair.against} by more than {margin:g} {unit}?"
        claims = (
            f"{name} is not worse than the {pair.against} by more than {margin:g} {unit}",
            f"{name} is worse than the {pair.against} by more than {margin:g} {unit}",
        )
    else:
        question = f"Does {name} beat the {pair.against}?"
        claims = (f"{name} beats the {pair.against}", f"{name} does not beat the {pair.against}: it is worse")
    decision = statistics.decide([value for _, value in pair.seeds], margin)
    answer = decision.answer
    broken = [result for result in failures if result.name in (name, pair.against)]
    if answer == "shown" and any(result.name == name for result in broken):
        answer = "undecided"  # the mean over the surviving runs is biased in favour of a design with failures
    heads = {"shown": claims[0], "refuted": claims[1], "undecided": f"Not decided whether {claims[0]}"}
    text = f"{heads[answer][0].upper()}{heads[answer][1:]}: {_size(pair)}"
    text += "".join(
        f"; {result.quality.failed} of {len(result.runs)} runs of {result.name} failed" for result in broken
    )
    if answer == "undecided" and not broken:
        text += f"; {_needed(decision.seeds_needed)}"
    return Verdict(question, answer, text + ".", decision.seeds_needed, _number(decision.p))


def _size(pair: Pair) -> str:
    if pair.low is None or pair.high is None:
        return f"the difference is {pair.difference:+.3g} in the only pair"
    return (
        f"the difference is {pair.difference:+.3g}, 95% interval {pair.low:+.3g} to {pair.high:+.3g}, "
        f"{len(pair.seeds)} seeds"
    )


def _needed(seeds: int | None) -> str:
    if seeds is None:
        return f"more than {statistics.MOST_SEEDS} seeds would be needed at the effect seen"
    return f"about {seeds} seeds in all would decide it at the effect seen"
