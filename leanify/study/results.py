"""A study's results: quality with uncertainty, paired differences, answers to two questions, and costs.

The two questions about the design in focus (usually lean) are fixed before the study, so each has the whole error rate.
Differences that were not asked about are explored: their p-values are corrected together (Holm 1979). Answer, interval
and p of a difference are computed once, for text and table alike (`statistics`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leanify.errors import DirectoryError
from leanify.study import efficiency, rates, report, statistics
from leanify.study import reference as references
from leanify.study.folder import Outcome, StudyFolder
from leanify.study.plan import BASELINE, CONTROL, Key, PlannedDesign, StudyPlan
from leanify.study.statistics import FEWEST, Estimate, Noise, Run
from leanify.study.values import Costs, DesignResult, Findings, Pair, Quality, RunResult, Verdict
from leanify.tabular import Tabular
from leanify.training.overview import data_name
from leanify.units import digits, heading, millions, percent, spread
from leanify.upstream.wall import wall

if TYPE_CHECKING:
    import pandas

MARGIN = 0.05  # of what the baseline has left to lose: its error or its loss
ERRORS = ("top1", "accuracy", "majority")  # 100 − the metric is a share of errors


@dataclass(frozen=True, repr=False)
class Study(Findings, Tabular):
    """A study and its results so far, which show themselves as a table with the answers below it."""

    def headline(self) -> str:
        metric = f" · {heading(self.metric)}" if self.metric else ""
        return f"{self.plan.title} · {len(self.plan.seeds)} seeds{metric}"

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for result in self.results:
            row = result.to_json()
            for key in ("runs", "quality", "kappa_bounds"):
                del row[key]
            found.append(row | asdict(result.quality))
        return found

    def cells(self) -> list[dict[str, str]]:
        found = []
        for result in self.results:
            row = {"design": result.name}
            for axis in ("depth", "heads", "mlp"):
                size = getattr(result.plan, axis)
                row[axis] = str(size) if isinstance(size, int) else ", ".join(map(str, size))
            row["params"] = millions(result.plan.params)
            row[self.metric or "quality"] = _with_interval(result.quality)
            found.append(row)
        return found

    def notes(self) -> list[str]:
        return [verdict.words for verdict in self.verdicts]

    def to_json(self) -> dict[str, Any]:
        """The object that ``leanify compare --json`` prints and ``results.json`` stores."""
        return {
            "study": str(self.path),
            "task": None if self.plan.recipe.data is None else self.plan.recipe.data.task,
            "data": None if self.plan.recipe.data is None else data_name(self.plan.recipe.data),
            "metric": self.metric,
            "split": self.split,
            "higher_is_better": self.higher_is_better,
            "margin": self.margin,
            "margin_words": self.margin_words,
            "evaluated": self.evaluated,
            "look": self.look,
            "reference": None if self.reference is None else self.reference.to_json(),
            "learnt": self.learnt,
            "learnt_why": self.learnt_why,
            "seeds": list(self.plan.seeds),
            "missing": self.missing,
            "designs": [result.to_json() for result in self.results],
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

        rows = []
        for result in self.results:
            design = {"design": result.name, "params": result.plan.params, "macs": result.plan.macs}
            rows += [design | asdict(run) for run in result.runs]
        return pandas.DataFrame(rows)


def _with_interval(found: Quality) -> str:
    if found.mean is None:
        return "–"
    if found.low is None or found.high is None:
        return digits(found.mean)
    return f"{digits(found.mean)} ({digits(found.low)} … {digits(found.high)})"


# -- from a folder ----------------------------------------------------------------------------------------------------


def study_of(folder: StudyFolder) -> Study:
    """Read a study's current results. Raises DirectoryError if a file is damaged."""
    with wall(f"a file of {folder.path} is damaged", DirectoryError):
        return _study(folder)


def _study(folder: StudyFolder) -> Study:
    plan, outcomes = folder.plan, folder.outcomes()
    measured = {entry["name"]: entry for entry in folder.results().get("designs", [])}
    finished: list[Outcome] = []
    runs: list[Run] = []
    for outcome in outcomes:
        if outcome.status == "finished" and outcome.quality is not None:
            samples = folder.samples_of(outcome.key)
            signed = None if samples is None else outcome.sign * samples
            finished.append(outcome)
            runs.append(Run(outcome.design, outcome.seed, outcome.sign * outcome.quality, signed))
    noise = Noise(runs)
    results = []
    for design in plan.kept:
        own = [outcome for outcome in outcomes if outcome.design == design.name]
        results.append(_design(folder, design, own, noise, measured.get(design.name, {})))
    study = Study(folder.path, plan, tuple(results), margin=plan.margin, rungs=folder.rungs())
    if not finished:
        return study
    first = finished[0]
    study = replace(study, metric=first.metric, split=first.split, higher_is_better=first.sign > 0, steps=first.step)
    margin = _margin(study, first)
    study = replace(study, margin=margin, margin_words=_margin_words(study, first, margin), evaluated=noise.samples)
    study = replace(study, **_learnt(folder, study, noise, first))
    noise = Noise([run for run in runs if run.seed in plan.judging])
    allowed: dict[str, float] = {}  # what the design in focus may lose against the one that it is asked about
    if plan.focus is not None:
        allowed = {name: loss for name, loss in ((BASELINE, margin), (CONTROL, 0.0)) if plan.has(name)}
    seeds = max((len(noise.seeds_of(str(plan.focus), against)) for against in allowed), default=0)
    if seeds >= FEWEST:  # one look more for each smaller number of seeds at which the answers were looked at
        study = replace(study, look=1 + sum(FEWEST <= before < seeds for before in folder.looks()))
    study = replace(study, pairs=tuple(_pairs(plan, noise, list(allowed), max(study.look, 1))))
    verdicts = []
    for pair in study.pairs:
        if pair.asked:
            difference = noise.difference(pair.design, pair.against)
            verdicts.append(_verdict(study, pair, difference, allowed[pair.against]))
    return replace(study, verdicts=tuple(verdicts))


def _design(
    folder: StudyFolder, design: PlannedDesign, outcomes: Sequence[Outcome], noise: Noise, measured: dict[str, Any]
) -> DesignResult:
    runs, finished = [], []
    for one in outcomes:
        place = str(folder.run(one.key).relative_to(folder.path))
        runs.append(RunResult(one.seed, one.status, one.quality, one.reason, place))
        if one.status == "finished":
            finished.append(one)
    probed = [one.kappas for one in finished if one.kappas]
    begin = _mean([kappas[0][1] for kappas in probed])
    end = _mean([kappas[-1][1] for kappas in probed])
    costs = None
    if measured.get("latency_s"):
        known = {key: measured[key] for key in Costs.__dataclass_fields__ if key in measured}
        for key, value in known.items():
            if key.endswith("_range") and value:
                known[key] = tuple(value)
        costs = Costs(**known)
    quality = _quality(design.name, finished, len(outcomes) - len(finished), noise)
    optim = folder.plan.recipe_of(Key(design.name, folder.plan.seeds[0])).optim
    rate = None if optim is None else optim.lr
    trials = rates.trials_of(folder, design.name)
    return DesignResult(design, quality, tuple(runs), begin, end, _bounds(finished), costs, rate, trials)


def _quality(name: str, finished: Sequence[Outcome], failed: int, noise: Noise) -> Quality:
    if not finished:
        return Quality(None, None, None, 0, failed)
    found, sign, best = noise.mean(name), finished[0].sign, finished[0].best
    bounds = found.interval()
    low, high = (None, None) if bounds is None else sorted(sign * bound for bound in bounds)
    if best is not None and low is not None and high is not None:  # no model is better than a perfect one
        low, high = (low, min(high, best)) if sign > 0 else (max(low, best), high)
    return Quality(sign * found.mean, low, high, found.seeds, failed)


def _bounds(outcomes: Sequence[Outcome]) -> tuple[float, float] | None:
    """The mean bounds of the last κ; None if a run has none."""
    lows, highs = [], []
    for outcome in outcomes:
        if not outcome.kappas:
            continue
        if outcome.kappa_bounds is None:
            return None
        low, high = outcome.kappa_bounds
        lows.append(low)
        highs.append(math.inf if high is None else high)
    return (sum(lows) / len(lows), sum(highs) / len(highs)) if lows else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value


# -- has it learnt? ---------------------------------------------------------------------------------------------------


def _learnt(folder: StudyFolder, study: Findings, noise: Noise, first: Outcome) -> dict[str, Any]:
    """Whether the baseline (without one: the best design) beats the reference, and its loss has come to rest."""
    trained = [result for result in study.results if result.quality.mean is not None]
    judged = next((result for result in trained if result.name == BASELINE), None)
    if judged is None:
        judged = max(trained, key=lambda result: first.sign * float(result.quality.mean or 0))
    name, mean = f"the {judged.name}" if judged.name == BASELINE else judged.name, float(judged.quality.mean or 0)
    trivial = references.known(folder)
    words = ""
    if trivial is not None and trivial.value is None:
        trivial = None  # no model fits the task
    if trivial is not None:
        value = float(trivial.value or 0)
        above = noise.above(judged.name, first.sign * value, first.sign * np.array(trivial.outcomes))
        beside = f"{trivial.name} ({digits(value)})"
        if not references.beaten(above):
            why = (
                f"{name} ({digits(mean)}) does not beat {beside} by more than the noise. What helps: more steps, "
                "another rate (--rates), or pretrained weights (--weights)"
            )
            return {"reference": trivial, "learnt": False, "learnt_why": why}
        words = f"{name} ({digits(mean)}) beats {beside}"
    keys = [Key(judged.name, run.seed) for run in judged.runs if run.status == "finished"]
    falling = sum(references.still_falls(folder.rows(key), study.steps or 0) for key in keys)
    if 2 * falling > len(keys):
        why = (
            f"the validation loss of {name} still falls steeply at the end: its models have not learnt what they can. "
            "What helps: more steps, or another rate (--rates)"
        )
        return {"reference": trivial, "learnt": False, "learnt_why": why}
    return {"reference": trivial, "learnt": True, "learnt_why": words}


# -- questions --------------------------------------------------------------------------------------------------------


def _margin(study: Findings, first: Outcome) -> float:
    """The acceptable loss: as asked, else a share of what the baseline has left to lose."""
    if study.plan.margin is not None:
        return study.plan.margin
    reference = study.plan.has(BASELINE) and study.result(BASELINE).quality.mean
    if first.best is None or not reference:
        return first.margin or 0.0  # runs of earlier versions, and studies without a baseline
    return MARGIN * abs(first.best - reference)


def _margin_words(study: Findings, first: Outcome, margin: float) -> str:
    name = first.metric.replace("_", " ")
    unit = first.unit or (f"points of {name}" if first.sign > 0 else name)
    words = f"{margin:.2g} {unit}"
    if study.plan.margin is not None or first.best is None or not study.plan.has(BASELINE):
        return words
    left = "errors" if first.metric in ERRORS else f"distance to {first.best:g}"
    if first.sign < 0:
        left = "loss"
    return f"{words} ({percent(MARGIN)} of its {left})"


def _pairs(plan: StudyPlan, noise: Noise, asked: Container[str], look: int) -> list[Pair]:
    """Every design against the baseline and the control; those that the study asks about keep their own p."""
    names = [design.name for design in plan.kept]
    differences: dict[tuple[str, str], Estimate] = {}
    for against in (BASELINE, CONTROL):
        for name in names:
            if against in names and name not in (BASELINE, against) and noise.seeds_of(name, against):
                differences[name, against] = noise.difference(name, against)
    ps = {pair: statistics.two_sided(found, look) for pair, found in differences.items()}
    others = [pair for pair in differences if pair[0] != plan.focus or pair[1] not in asked]
    ps |= zip(others, statistics.holm([ps[pair] for pair in others]), strict=True)
    pairs = []
    for (name, against), found in differences.items():
        low, high = found.interval(statistics.alpha_of(look)) or (None, None)
        seeds = []
        for seed in noise.seeds_of(name, against):
            seeds.append((seed, noise.runs[name, seed].quality - noise.runs[against, seed].quality))
        is_asked, p = (name, against) not in others, _number(ps[name, against])
        pairs.append(Pair(name, against, found.mean, low, high, p, is_asked, tuple(seeds)))
    return pairs


# -- verdicts ---------------------------------------------------------------------------------------------------------


def _verdict(study: Findings, pair: Pair, found: Estimate, margin: float) -> Verdict:
    name = pair.design
    if margin:
        claim = f"{name} is not worse than the {pair.against} by more than {study.margin_words}"
        contrary = f"{name} is worse than the {pair.against} by more than {study.margin_words}"
        question = f"Is {name} not worse than the {pair.against} by more than {study.margin_words}?"
    else:
        claim, contrary = f"{name} beats the {pair.against}", f"{name} does not beat the {pair.against}: it is worse"
        question = f"Does {name} beat the {pair.against}?"
    decision = statistics.decide(found, margin, max(study.look, 1))
    broken = [study.result(one) for one in (name, pair.against) if study.result(one).quality.failed]
    answer = decision.answer
    if broken or not study.learnt:  # the mean over the runs that survived is biased
        answer = "undecided"
    said = {"shown": claim, "refuted": contrary, "undecided": f"not decided whether {claim}"}[answer]
    parts = [_size(study, pair, found)]
    parts += [f"{one.quality.failed} of {len(one.runs)} runs of {one.name} failed" for one in broken]
    if not study.learnt:
        parts.append("models that have not learnt say nothing about their shapes")
    elif answer == "undecided" and not broken:
        parts.append(_needed(found, decision.needed))
    words = f"{said[0].upper()}{said[1:]}: {'; '.join(parts)}."
    verdict = Verdict(question, answer, words, None, None, None, _number(decision.p))
    needed = decision.needed
    if needed is None:
        return verdict
    return replace(
        verdict, seeds_needed=needed.seeds, seeds_range=(needed.low, needed.high), samples_needed=needed.samples
    )


def _size(study: Findings, pair: Pair, found: Estimate) -> str:
    mean, span = spread(pair.difference, pair.low, pair.high)
    seeds = f"{found.seeds} seed{'s' * (found.seeds != 1)}"
    if pair.low is None or pair.high is None:
        return f"the difference is {mean}, {seeds}"
    samples = f" on {found.samples:,} samples" if found.samples else ""
    look = f", look {study.look} at this study" if study.look > 1 else ""
    return f"the difference is {mean}, 95% interval {span}, {seeds}{samples}{look}"


def _needed(found: Estimate, needed: statistics.Needed | None) -> str:
    """What would decide a question."""
    if found.seeds < FEWEST:
        return f"below {FEWEST} seeds nothing is answered"
    if found.of_samples is None:
        return "the outcomes of its samples are unknown, which runs of an earlier version did not keep"
    if needed is None:
        return "the noise of a run is unknown"
    if needed.samples is not None:
        return (
            f"no number of seeds would decide it at the effect seen: {found.samples:,} validation samples are too few, "
            f"about {needed.samples:,} would be needed"
        )
    if needed.seeds is None:
        return f"more than {statistics.MOST_SEEDS} seeds would be needed at the effect seen"
    high = f"more than {statistics.MOST_SEEDS}" if needed.high is None else str(needed.high)
    return (
        f"about {needed.seeds} seeds in all would decide it at the effect seen, {needed.low} to {high} at likely ones"
    )
