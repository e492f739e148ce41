"""What a few seeds can say: intervals, paired differences, and two questions answered by their proper tests.

Runs of one seed see the same samples in the same order, so differences are taken seed by seed and the tests are paired
t-tests. All intervals are two-sided 95 % intervals, and both questions are tested one-sided at 2.5 %, so that an answer
is what the interval beside it shows:

    non-inferiority   is the loss against a reference smaller than a margin? (Schuirmann 1987, one side of TOST)
    superiority       is there a gain over a reference at all?

Differences are signed so that more is better, whatever the metric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

CONFIDENCE, POWER = 0.95, 0.8
ALPHA = (1 - CONFIDENCE) / 2
MOST_SEEDS = 1000  # beyond so many seeds nobody decides anything by training

Answer = Literal["shown", "refuted", "undecided"]


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % t-interval; the bounds are NaN for fewer than two values."""

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Decision:
    """The outcome of a one-sided test. ``p``: that the claim is true; ``seeds_needed``: to decide it at this effect.

    ``seeds_needed`` is the number of seeds in all at which the test has 80 % power if the difference and its spread
    are as seen; None where more than `MOST_SEEDS` would be needed, or fewer than two seeds are there to judge by.
    """

    answer: Answer
    p: float
    seeds_needed: int | None


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval of independent values, by Student's t."""
    count = len(values)
    mean = float(np.mean(values)) if count else math.nan
    if count < 2:
        return Interval(mean, math.nan, math.nan, count)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * _error(values)
    return Interval(mean, mean - half, mean + half, count)


def two_sided(differences: Sequence[float]) -> float:
    """The p-value of the paired t-test that the mean difference is zero; NaN for fewer than two values."""
    upper = one_sided(differences, 0.0)
    return 2 * min(upper, 1 - upper)


def one_sided(differences: Sequence[float], margin: float) -> float:
    """The p-value against the hypothesis that the mean difference is ``-margin`` or less; NaN for fewer than two."""
    count = len(differences)
    if count < 2:
        return math.nan
    error, gain = _error(differences), float(np.mean(differences)) + margin
    if error == 0:  # no spread at all: the mean is what it is
        return 0.5 if gain == 0 else float(gain < 0)
    return float(stats.t.sf(gain / error, count - 1))


def decide(differences: Sequence[float], margin: float = 0.0, p: float | None = None) -> Decision:
    """Is the mean difference above ``-margin``? Non-inferiority for a positive margin, superiority for none.

    ``p`` replaces the test's own p-value where several tests were corrected together.
    """
    own = one_sided(differences, margin)
    used = own if p is None else p
    answer: Answer = "undecided"
    if used < ALPHA:
        answer = "shown"
    elif 1 - own < ALPHA:
        answer = "refuted"
    return Decision(answer, used, seeds_needed(differences, margin))


def seeds_needed(differences: Sequence[float], margin: float) -> int | None:
    """The fewest seeds at which a one-sided paired t-test decides with 80 % power, at the effect and spread seen."""
    if len(differences) < 2:
        return None
    gain, spread = abs(float(np.mean(differences)) + margin), float(np.std(differences, ddof=1))
    if spread == 0:
        return 2 if gain else None
    counts = np.arange(2, MOST_SEEDS + 1)
    enough = counts[power(gain / spread, counts) >= POWER]
    return int(enough[0]) if len(enough) else None


def power(effect: float, counts: np.ndarray) -> np.ndarray:
    """Of the one-sided t-test at `ALPHA` for an effect in standard deviations: the non-central t beyond its bound."""
    bound = stats.t.ppf(1 - ALPHA, counts - 1)
    found: np.ndarray = stats.nct.sf(bound, counts - 1, effect * np.sqrt(counts))
    return found


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's (1979) step-down correction: p-values that hold together. NaN stays NaN and counts for nothing."""
    adjusted, worst = list(ps), 0.0
    known = sorted((p, index) for index, p in enumerate(ps) if not math.isnan(p))
    for done, (p, index) in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - done) * p))
        adjusted[index] = worst
    return adjusted


def _error(values: Sequence[float]) -> float:
    """The standard error of the mean; exactly zero where all values are equal."""
    if len(set(values)) == 1:
        return 0.0
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
