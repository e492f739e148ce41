"""Statistics for a few seeds: intervals, paired differences, non-inferiority and superiority.

Runs with the same seed see the same samples in the same order, so differences are taken per seed and the tests are
paired t-tests. Intervals are two-sided 95 % intervals and both questions are tested one-sided at 2.5 %, so that answers
agree with the intervals shown:

    non-inferiority   is the loss against a reference smaller than a margin? (Schuirmann 1987, one side of TOST)
    superiority       is there a gain over a reference at all?

Differences are signed so that positive is better, whatever the metric.
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
MOST_SEEDS = 1000  # larger numbers of seeds are not practical and are not reported

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
    """The outcome of a one-sided test. ``p`` is the p-value against the claim's null hypothesis.

    ``seeds_needed`` is the total number of seeds at which the test has 80 % power, given the observed difference and
    spread; None if that is above `MOST_SEEDS`, or if there are fewer than two seeds.
    """

    answer: Answer
    p: float
    seeds_needed: int | None


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % t-interval of independent values."""
    count = len(values)
    mean = float(np.mean(values)) if count else math.nan
    if count < 2:
        return Interval(mean, math.nan, math.nan, count)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * _error(values)
    return Interval(mean, mean - half, mean + half, count)


def two_sided(differences: Sequence[float]) -> float:
    """The two-sided p-value of the paired t-test for a mean difference of zero; NaN for fewer than two values."""
    upper = one_sided(differences, 0.0)
    return 2 * min(upper, 1 - upper)


def one_sided(differences: Sequence[float], margin: float) -> float:
    """The p-value for the null hypothesis that the mean difference is ≤ −margin; NaN for fewer than two values."""
    count = len(differences)
    if count < 2:
        return math.nan
    error, gain = _error(differences), float(np.mean(differences)) + margin
    if error == 0:  # all differences are equal, so there is no sampling error
        return 0.5 if gain == 0 else float(gain < 0)
    return float(stats.t.sf(gain / error, count - 1))


def decide(differences: Sequence[float], margin: float = 0.0, p: float | None = None) -> Decision:
    """Test whether the mean difference is above −margin: non-inferiority, or superiority for margin 0.

    ``p`` replaces the test's own p-value if several tests were corrected together.
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
    """The number of seeds that gives the one-sided paired t-test 80 % power at the observed effect and spread."""
    if len(differences) < 2:
        return None
    gain, spread = abs(float(np.mean(differences)) + margin), float(np.std(differences, ddof=1))
    if spread == 0:
        return 2 if gain else None
    counts = np.arange(2, MOST_SEEDS + 1)
    enough = counts[power(gain / spread, counts) >= POWER]
    return int(enough[0]) if len(enough) else None


def power(effect: float, counts: np.ndarray) -> np.ndarray:
    """Power (n,) of the one-sided t-test at `ALPHA`, by the non-central t; ``effect`` in standard deviations."""
    bound = stats.t.ppf(1 - ALPHA, counts - 1)
    found: np.ndarray = stats.nct.sf(bound, counts - 1, effect * np.sqrt(counts))
    return found


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's (1979) step-down method. NaN stays NaN and is not counted."""
    adjusted, worst = list(ps), 0.0
    known = sorted((p, index) for index, p in enumerate(ps) if not math.isnan(p))
    for done, (p, index) in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - done) * p))
        adjusted[index] = worst
    return adjusted


def _error(values: Sequence[float]) -> float:
    """The standard error of the mean; exactly zero if all values are equal."""
    if len(set(values)) == 1:
        return 0.0
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
