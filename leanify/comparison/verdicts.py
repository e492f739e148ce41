"""The questions of a study and their answers: acceptable loss, paired differences, and verdicts as sentences.

The questions about the design in focus (usually lean) are fixed before the study, so each has the whole error rate:

    baseline       is it not worse by more than a margin?
    each rival     does it beat the control, which has its depth and parameters with the old heads?

All other differences are explored: their p-values are corrected together (Holm 1979), and so are their intervals
(Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from leanify.comparison import statistics
from leanify.comparison.folder import Outcome
from leanify.comparison.plan import BASELINE, NARROW, StudyPlan
from leanify.comparison.statistics import MIN_SEEDS, Estimate, RunTable
from leanify.comparison.values import DesignResult, Pair, Study, Verdict
from leanify.core.units import format_difference, format_share

MARGIN = 0.05  # share of the baseline's error or loss
ERRORS = ("top1", "accuracy", "majority")  # for these metrics, 100 − metric is the percentage of errors


def question_margins(plan: StudyPlan, margin: float) -> dict[str, float]:
    """Return the acceptable loss of the design in focus against each design in a question."""
    if plan.focus is None:
        return {}
    margins = {BASELINE: margin} | dict.fromkeys(plan.rivals, 0.0)
    return {name: loss for name, loss in margins.items() if plan.has(name)}


# -- the margin -------------------------------------------------------------------------------------------------------


def resolve_margin(study: Study, first: Outcome) -> tuple[float, str]:
    """The acceptable loss, set by the user or a share of the baseline's error or loss, and its description."""
    mean = study.result(BASELINE).quality.mean if study.plan.has(BASELINE) else None
    before = None if first.best is None or mean is None else abs(first.best - mean)
    margin = study.plan.margin
    if margin is None:
        margin = MARGIN * before if before is not None and mean else 0.0  # without a baseline nothing is asked of it
    name = first.metric.replace("_", " ")
    words = f"{margin:.2g} {first.unit or (f'points of {name}' if first.sign > 0 else name)}"
    if before is None:
        return margin, words
    # the errors that remain, and their bound by the margin
    what_remains, sign = f"distance to {first.best:g}", ""
    if first.metric in ERRORS:
        what_remains, sign = "errors", "%"
    elif first.sign < 0:
        what_remains = "loss"
    growth = f"from {before:.3g} to {before + margin:.3g}{sign}"
    if study.plan.margin is not None:
        return margin, f"{words} ({what_remains} may grow {growth})"
    return margin, f"{words} ({format_share(MARGIN)} of its {what_remains}, {growth})"


# -- differences ------------------------------------------------------------------------------------------------------


def make_pairs(plan: StudyPlan, table: RunTable, questions: Container[str], look: int) -> list[Pair]:
    """Compare every design with the baseline and its rivals; differences with a question keep their own p."""
    names = [design.name for design in plan.designs]
    differences: dict[tuple[str, str], Estimate] = {}
    for against in (BASELINE, *plan.rivals):
        for name in names:
            if against in names and name not in (BASELINE, against) and table.common_seeds(name, against):
                differences[name, against] = table.difference(name, against)

    # p-values; differences without a question are corrected together
    ps = {pair: statistics.two_sided(estimate, look) for pair, estimate in differences.items()}
    exploration = [pair for pair in differences if pair[0] != plan.focus or pair[1] not in questions]
    ps |= zip(exploration, statistics.holm([ps[pair] for pair in exploration]), strict=True)

    pairs = []
    for (name, against), estimate in differences.items():
        is_asked = (name, against) not in exploration
        alpha = statistics.alpha_of(look)
        if not is_asked:  # intervals of differences without a question hold simultaneously
            alpha /= len(exploration)
        low, high = estimate.interval(alpha) or (None, None)
        seeds = []
        for seed in table.common_seeds(name, against):
            seeds.append((seed, table.runs[name, seed].quality - table.runs[against, seed].quality))
        p = ps[name, against]
        p_or_none = None if math.isnan(p) else p  # JSON has no NaN
        pairs.append(Pair(name, against, estimate.mean, low, high, p_or_none, is_asked, tuple(seeds)))
    return pairs


# -- verdicts ---------------------------------------------------------------------------------------------------------


def make_verdict(study: Study, pair: Pair, estimate: Estimate, margin: float, unlearnt: Container[str]) -> Verdict:
    """Return the answer to a question; undecided if a run of either design is missing or has not learnt.

    ``unlearnt`` has the designs that do not beat the trivial reference.
    """
    name, against = pair.design, pair.against
    rival = "a narrower model of the same parameters" if against == NARROW else f"the {against}"
    if margin:
        worse = f"worse than {rival} by more than {study.margin_words}"
        claim, contrary = f"{name} is not {worse}", f"{name} is {worse}"
        question = f"Is {name} not {worse}?"
    else:
        claim, contrary = f"{name} beats {rival}", f"{name} does not beat {rival}: it is worse"
        question = f"Does {name} beat {rival}?"

    # obstacles to an answer: without the missing runs, the mean is biased
    decision = statistics.decide(estimate, margin, max(study.look, 1))
    obstacles = [*_missing_runs(study.result(name)), *_missing_runs(study.result(against))]
    shows_nothing = "models that have not learnt show nothing about their shapes"
    if not study.learnt:
        obstacles.append(shows_nothing)
    elif study.reference is not None:
        for design in (name, against):
            if design in unlearnt:
                obstacles.append(f"{design} does not beat {study.reference.name}, and {shows_nothing}")
    answer = "undecided" if obstacles else decision.answer

    # the sentence, the size of the difference, and the seeds that would decide it
    sentence = {"shown": claim, "refuted": contrary, "undecided": f"not decided whether {claim}"}[answer]
    parts = [_describe_size(study, pair, estimate), *obstacles]
    if answer == "undecided" and not obstacles:
        parts.append(describe_needed(estimate, decision.needed))
    words = f"{sentence[0].upper()}{sentence[1:]}: {'; '.join(parts)}."
    p = None if math.isnan(decision.p) else decision.p
    needed = decision.needed
    if needed is None:
        return Verdict(question, answer, words, None, None, None, p)
    return Verdict(question, answer, words, needed.seeds, (needed.low, needed.high), needed.samples, p)


def _missing_runs(result: DesignResult) -> Iterator[str]:
    """Describe the runs of a design that are missing from its mean, and possible remedies."""
    quality, runs = result.quality, f"{len(result.runs)} runs of {result.name}"
    if quality.failed:
        yield f"{quality.failed} of {runs} failed"
    if quality.diverged:
        yield (
            f"{quality.diverged} of {runs} diverged and count in no mean (a lower rate, a longer warm-up or optim.clip "
            "helps)"
        )


def _describe_size(study: Study, pair: Pair, estimate: Estimate) -> str:
    mean, span = format_difference(pair.difference, pair.low, pair.high)
    seeds = f"{estimate.seeds} seed{'s' * (estimate.seeds != 1)}"
    if pair.low is None or pair.high is None:
        return f"the difference is {mean}, {seeds}"
    samples = f" on {estimate.samples:,} samples" if estimate.samples else ""
    look = f", look {study.look} at this study" if study.look > 1 else ""
    return f"the difference is {mean}, 95% interval {span}, {seeds}{samples}{look}"


def describe_needed(estimate: Estimate, needed: statistics.Needed | None) -> str:
    """Describe the number of seeds or samples that would decide a question."""
    if estimate.seeds < MIN_SEEDS:
        return f"below {MIN_SEEDS} seeds nothing is answered"
    if estimate.sample_part is None:
        return "the outcomes of its samples are unknown"
    if needed is None:
        return "the noise of a run is unknown"
    if needed.samples is not None:
        return (
            f"no number of seeds would decide it at the effect seen: {estimate.samples:,} validation samples are too "
            f"few, about {needed.samples:,} would be needed"
        )
    if needed.seeds is None:
        return f"more than {statistics.MAX_SEEDS} seeds would be needed at the effect seen"
    high = f"more than {statistics.MAX_SEEDS}" if needed.high is None else str(needed.high)
    return (
        f"about {needed.seeds} seeds in all would decide it at the effect seen, {needed.low} to {high} at likely ones"
    )
