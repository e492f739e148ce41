"""A study's results, read from its folder: quality with uncertainty, paired differences, verdicts and costs.

Answer, interval and p of a difference are computed once, for text and table alike (`statistics`, `verdicts`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from leanify.comparison import learning, rates, verdicts
from leanify.comparison.folder import Outcome, StudyFolder
from leanify.comparison.plan import BASELINE, Key, PlannedDesign
from leanify.comparison.statistics import MIN_SEEDS, Run, RunTable
from leanify.comparison.values import Costs, DesignResult, Quality, RunResult, Study
from leanify.core.errors import DirectoryError
from leanify.core.units import format_digits
from leanify.upstream.libraries import reraise_as


def read_study(folder: StudyFolder) -> Study:
    """Read a study's current results. Raises DirectoryError if a file is damaged."""
    with reraise_as(f"a file of {folder.path} is damaged", DirectoryError):
        return _study(folder)


def _study(folder: StudyFolder) -> Study:
    plan, outcomes = folder.plan, folder.outcomes()

    # runs that count: finished and not diverged
    diverged = learning.diverged_runs(folder, outcomes)
    runs = []
    for outcome in outcomes:
        if outcome.status == "finished" and outcome.quality is not None and outcome.key not in diverged:
            samples = folder.run_samples(outcome.key)
            signed_samples = None if samples is None else outcome.sign * samples
            runs.append(Run(outcome.design, outcome.seed, outcome.sign * outcome.quality, signed_samples))
    table = RunTable(runs)

    # quality, κ and costs of each design
    costs = {entry["name"]: _costs(entry) for entry in folder.results().get("designs", [])}
    results = []
    for design in plan.designs:
        design_outcomes = [outcome for outcome in outcomes if outcome.design == design.name]
        results.append(_design(folder, design, design_outcomes, diverged, table, costs.get(design.name)))
    study = Study(folder.path, plan, tuple(results), margin=plan.margin)
    if not runs:
        return study

    # the metric and the margin, and whether the models have learnt
    first = next(outcome for outcome in outcomes if outcome.status == "finished" and outcome.key not in diverged)
    study = replace(study, metric=first.metric, split=first.split, higher_is_better=first.sign > 0, steps=first.step)
    margin, margin_words = verdicts.resolve_margin(study, first)
    study = replace(study, margin=margin, margin_words=margin_words, evaluated=table.samples)
    study = replace(study, **_learnt(folder, study, table, first))

    # the number of this look: one plus the earlier looks with fewer seeds
    margins = verdicts.question_margins(plan, margin)
    seeds = max((len(table.common_seeds(str(plan.focus), against)) for against in margins), default=0)
    if seeds >= MIN_SEEDS:
        study = replace(study, look=1 + sum(MIN_SEEDS <= before < seeds for before in folder.looks()))

    # differences, and the answers to the questions
    study = replace(study, pairs=tuple(verdicts.make_pairs(plan, table, margins, max(study.look, 1))))
    unlearnt: set[str] = set()
    if study.reference is not None:
        trained = [design.name for design in plan.designs if table.common_seeds(design.name)]
        unlearnt = {name for name in trained if not learning.beats_reference(table, name, study.reference, first.sign)}
    answers = []
    for pair in study.pairs:
        if pair.asked:
            difference = table.difference(pair.design, pair.against)
            answers.append(verdicts.make_verdict(study, pair, difference, margins[pair.against], unlearnt))
    return replace(study, verdicts=tuple(answers))


def _design(
    folder: StudyFolder,
    design: PlannedDesign,
    outcomes: Sequence[Outcome],
    diverged: Mapping[Key, str],
    table: RunTable,
    costs: Costs | None,
) -> DesignResult:
    runs, trained_runs = [], []
    for outcome in outcomes:
        place = str(folder.run(outcome.key).relative_to(folder.path))
        status: str = outcome.status
        reason = outcome.reason
        if outcome.key in diverged:
            status, reason = "diverged", diverged[outcome.key]
        elif outcome.status == "finished":
            trained_runs.append(outcome)
        runs.append(RunResult(outcome.seed, status, outcome.quality, reason, place))

    # κ of the concatenated heads at the start and at the end, a mean over seeds, and the bounds of the latter
    probed = [outcome for outcome in trained_runs if outcome.kappas]
    begin = _mean([outcome.kappas[0][1] for outcome in probed])
    end = _mean([outcome.kappas[-1][1] for outcome in probed])
    bounds = [outcome.kappa_bounds for outcome in probed if outcome.kappa_bounds is not None]
    low = _mean([low for low, _ in bounds])
    high = _mean([math.inf if high is None else high for _, high in bounds])
    kappa_bounds = None if low is None or high is None or len(bounds) < len(probed) else (low, high)

    failed = sum(run.status == "failed" for run in runs)
    quality = _quality(design.name, trained_runs, failed, len(runs) - failed - len(trained_runs), table)
    optim = folder.plan.run_recipe(Key(design.name, folder.plan.seeds[0])).optim
    is_known = design.rate is not None or len(folder.plan.rates) == 1
    rate = optim.lr if optim is not None and is_known else None
    trials = rates.rate_trials(folder, design.name)
    return DesignResult(design, quality, tuple(runs), begin, end, kappa_bounds, costs, rate, trials)


def _costs(entry: Mapping[str, Any]) -> Costs | None:
    """Return the measured costs of a design from its entry in ``results.json``; None if it was not measured."""
    if not entry.get("latency_s"):
        return None
    fields = {key: entry[key] for key in Costs.__dataclass_fields__ if key in entry}
    for key, value in fields.items():
        if key.endswith("_range") and value:
            fields[key] = tuple(value)
    return Costs(**fields)


def _quality(name: str, outcomes: Sequence[Outcome], failed: int, diverged: int, table: RunTable) -> Quality:
    if not outcomes:
        return Quality(None, None, None, 0, failed, diverged)
    estimate, sign, best = table.mean(name), outcomes[0].sign, outcomes[0].best
    bounds = estimate.interval()
    low, high = (None, None) if bounds is None else sorted(sign * bound for bound in bounds)
    if best is not None and low is not None and high is not None:  # no model is better than a perfect one
        low, high = (low, min(high, best)) if sign > 0 else (max(low, best), high)
    return Quality(sign * estimate.mean, low, high, estimate.seeds, failed, diverged)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# -- have the models learnt? ------------------------------------------------------------------------------------------


def _learnt(folder: StudyFolder, study: Study, table: RunTable, first: Outcome) -> dict[str, Any]:
    """Check whether the baseline (or the best design) beats the reference, and whether its loss has settled."""
    # the design to judge: the baseline, or the best one
    results = {result.name: result for result in study.results if result.quality.mean is not None}
    best = max(results.values(), key=lambda result: first.sign * float(result.quality.mean or 0))
    main_result = results.get(BASELINE, best)
    name = f"the {main_result.name}" if main_result.name == BASELINE else main_result.name
    quality = f"{name} ({format_digits(float(main_result.quality.mean or 0))})"

    # its logs, and the reference, if the task has one
    keys = [Key(main_result.name, run.seed) for run in main_result.runs if run.status == "finished"]
    rows = [folder.rows(key) for key in keys]
    steps = study.steps or 0
    falling = sum(learning.still_falls(run_rows, steps) for run_rows in rows)
    trivial = learning.stored_reference(folder)
    reference = ""
    if trivial is None or trivial.value is None:
        trivial = None
    else:
        reference = f"{trivial.name} ({format_digits(trivial.value)})"

    # it must beat the reference, and the losses of most of its runs must have settled
    has_learnt, why, more_steps = True, f"{quality} beats {reference}" if trivial else "", None
    if trivial is not None and not learning.beats_reference(table, main_result.name, trivial, first.sign):
        has_learnt, more_steps = False, learning.suggested_steps(steps, False, rows)
        help_text = (
            "more steps do not help, since its validation loss rises while its training loss falls; what helps: more "
            "data"
        )
        if more_steps:
            help_text = f"what helps: about {more_steps:,} steps instead of {steps:,}"
        why = f"{quality} does not beat {reference} by more than the noise"
        why = f"{why}; {help_text}, or pretrained weights (--weights)"
    elif 2 * falling > len(keys):
        has_learnt, more_steps = False, learning.suggested_steps(steps, True, rows)
        why = (
            f"the validation loss of {name} still falls steeply at the end: its models have not learnt what they can; "
            f"what helps: about {more_steps or 2 * steps:,} steps instead of {steps:,}"
        )
    return {"reference": trivial, "learnt": has_learnt, "learnt_why": why, "suggested_steps": more_steps}
