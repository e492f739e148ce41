"""Statistics of a study: the uncertainty of differences between designs, given few runs and the validation samples.

The quality of a run varies with its seed (initial weights, order of samples), and the result of a study with its
validation samples. Every interval includes both, as in the crossed random-effects variance of seeds × samples (Gallas
2006 for readers × cases), with a Student's t for each part (Graybill and Wang 1980):

    runs      designs of one seed share samples, order and luck, so a difference has the variance of its differences
              seed by seed, with seeds − 1 degrees of freedom (Student's paired t). Pooling the noise of all designs
              would assume that they are equally noisy, and gives 20% wrong answers where 2.5% are meant
    samples   the difference of two designs on each validation sample, averaged over seeds; its variance over samples.
              If outcomes do not differ at all, one sample's worth of difference is assumed: no equality is certain
        both      noise of a single run on a single sample is in both of the above, and is subtracted once; from three
                  seeds on the runs' part is at least this noise, which seeds × samples determine better than few runs

A run can lose more accuracy than it can gain, so the variance of accuracies is that at the value in question, as in
Wilson's (1927) interval of a share: ``recipes/results/statistics.md`` has the rule, and simulated studies.

Differences are signed so that positive is better. Two questions are asked, each one-sided: non-inferiority (is the loss
against a reference smaller than a margin? Schuirmann 1987, one side of TOST) and superiority (is there a gain at all?).

Look number k at a study may use only 0.6 · 0.4^(k−1) of the error rate: 60%, 24%, 10%, … which adds up to the whole
rate for any number of looks (a union bound, so it holds without a planned end). Intervals are widened in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

CONFIDENCE, POWER = 0.95, 0.8
ALPHA = (1 - CONFIDENCE) / 2
FIRST_LOOK, LATER_LOOKS = 0.6, 0.4  # share of the first look, and ratio of each later look to the previous one
MIN_SEEDS = 3  # with fewer seeds, nothing is shown or refuted
MAX_SEEDS = 1000  # larger numbers of seeds are not practical and are not reported
ROUNDING = 1e-12  # relative to the quality: smaller differences are rounding errors
SKEW = 2.5  # the spread of a share p over seeds is proportional to (p (1 − p))^SKEW
MOST_GROWTH = 9.0  # of a variance after a shift: three seeds whose spread is 6 points say nothing of 50 points away
LEAST_SPREAD = 0.005  # p (1 − p) of a share near 0 or 1 counts as at least this
MAX_STEPS, TOLERANCE = 200, 1e-9  # of the search for the end of an interval
LIKELY = 0.8  # the effect lies within the range behind `Needed` with this probability

Answer = Literal["shown", "refuted", "undecided"]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A finished run: its quality, and the validation samples' values (N,), of which the quality is the mean.

    ``outcomes`` is None if the run stored none. Both are signed so that more is better.
    """

    design: str
    seed: int
    quality: float
    outcomes: Array | None = None


@dataclass(frozen=True)
class Part:
    """A part of an estimate's variance, with its degrees of freedom."""

    variance: float
    freedom: float


@dataclass(frozen=True)
class Shares:
    """Two designs' mean shares of right answers, of whose difference an estimate is.

    first, second   the shares, from 0 to 1
    part            the first design's part of the sum of both designs' variances over seeds
    unit            the difference in quality between shares of 1 and 0
    """

    first: float
    second: float
    part: float
    unit: float

    def growth(self, distance: float) -> float:
        """How many times larger the variance of the runs is if the truth is ``distance`` below the observed difference.

        The designs move towards each other, the noisier one more.
        """
        shift = distance / self.unit
        first = _growth(self.first, -self.part * shift)
        return self.part * first + (1 - self.part) * _growth(self.second, (1 - self.part) * shift)


def _growth(share: float, shift: float) -> float:
    """How many times larger the variance of a share is after a shift: from 1 to that at one half, and `MOST_GROWTH`."""
    low, high = min(share, 0.5), max(share, 0.5)
    new_share = min(max(share + shift, low), high)
    if new_share == share:
        return 1.0
    growth: float = (new_share * (1 - new_share) / max(share * (1 - share), LEAST_SPREAD)) ** (2 * SKEW)
    return min(growth, MOST_GROWTH)


@dataclass(frozen=True)
class Estimate:
    """A mean, or a difference of two means, with the parts of its variance.

    seeds, samples   numbers of seeds and samples in the estimate; ``samples`` is 0 if the runs stored no outcomes
    run_part         the variance of the runs over seeds; None for fewer than two seeds
    sample_part      the variance due to the validation samples, without the noise that ``seed_part`` already contains;
                     None if it is unknown
    noise_part       the noise of single runs on single samples, below which the runs' part cannot be; None if unknown
    shares           the shares whose difference this is; None unless it is a difference of accuracies
    """

    mean: float
    seeds: int
    samples: int
    run_part: Part | None
    sample_part: Part | None
    noise_part: Part | None = None
    shares: Shares | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is an interval: a variance above 0."""
        return self.seed_part is not None and self.variance > 0

    @property
    def seed_part(self) -> Part | None:
        """The variance due to the runs; None for fewer than two seeds."""
        return self._shifted_seed_part(0.0)

    def _shifted_seed_part(self, distance: float) -> Part | None:
        """The variance due to the runs if the truth is ``distance`` below the mean."""
        part = self.run_part
        if part is not None and self.shares is not None:
            part = replace(part, variance=part.variance * self.shares.growth(distance))
        if part is not None and self.noise_part is not None and self.noise_part.variance > part.variance:
            return self.noise_part
        return part

    @property
    def variance(self) -> float:
        return sum(part.variance for part in (self.seed_part, self.sample_part) if part is not None)

    def half(self, alpha: float = ALPHA, distance: float = 0.0) -> float:
        """How far the mean may be from the truth with probability 1 − ``alpha``, if the truth is ``distance`` below it;
        NaN if unknown.
        """
        if not self.is_known:
            return math.nan
        parts = [part for part in (self._shifted_seed_part(distance), self.sample_part) if part is not None]
        squares = [stats.t.isf(alpha, part.freedom) ** 2 * part.variance for part in parts]
        return math.sqrt(sum(squares))

    def interval(self, alpha: float = ALPHA) -> tuple[float, float] | None:
        """Return the bounds that err with probability ``alpha`` on each side; None if unknown."""
        if not self.is_known:
            return None
        low, high = self.mean - self._reach(alpha, 1), self.mean + self._reach(alpha, -1)
        if self.shares is not None:  # shares differ by 1 at most
            low, high = max(low, -self.shares.unit), min(high, self.shares.unit)
        return low, high

    def _reach(self, alpha: float, side: Literal[1, -1]) -> float:
        """The farthest distance of the truth that the mean allows, below the mean for side 1."""
        if self.shares is None:
            return self.half(alpha)
        # from the largest variance down to the distance that equals its own half
        reach = self.half(alpha, side * self.shares.unit)
        for _ in range(MAX_STEPS):
            nearer = self.half(alpha, side * reach)
            if reach - nearer <= TOLERANCE * reach:
                break
            reach = nearer
        return reach

    def probability_above(self, bound: float) -> float:
        """Return the p-value of the null hypothesis that the truth is ≤ ``bound``; NaN if unknown.

        At this error rate per side, the interval ends at ``bound``.
        """
        if not self.is_known:
            return math.nan
        distance = self.mean - bound
        if not distance:
            return 0.5
        # the p at which the interval's end on that side is the bound, found on a logarithmic scale; 0 below exp(-300)
        side: Literal[1, -1] = 1 if distance > 0 else -1
        p = 0.0
        if self._reach(math.exp(-300), side) > abs(distance):  # the reach falls to 0 as alpha goes to 1/2
            p = math.exp(
                optimize.brentq(lambda x: self._reach(math.exp(x), side) - abs(distance), -300.0, math.log(0.5))
            )
        return p if distance > 0 else 1 - p


class RunTable:
    """The finished runs of a study by design and seed, from which its means and differences are estimated."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = {(run.design, run.seed): run for run in runs}

        # validation samples per run; 0 unless all runs have outcomes of the same samples, at least two
        lengths = {0 if run.outcomes is None else len(run.outcomes) for run in runs}
        self.samples = max(lengths) if len(lengths) == 1 and max(lengths) > 1 else 0

        # maximum difference between two runs on one sample: the largest range of a run's outcomes
        known_outcomes = [run.outcomes for run in runs if run.outcomes is not None] if self.samples else []
        self.unit = max((float(np.ptp(outcomes)) for outcomes in known_outcomes), default=0.0)

        # the quality of a share of 0, if every outcome is either right or wrong
        self.lowest: float | None = None
        if self.unit:
            low = min(float(outcomes.min()) for outcomes in known_outcomes)
            if all(np.isin(outcomes, (low, low + self.unit)).all() for outcomes in known_outcomes):
                self.lowest = low

    def common_seeds(self, *designs: str) -> list[int]:
        """Return the seeds with which all of these designs have finished."""
        seeds = []
        for name in designs:
            seeds.append({seed for design, seed in self.runs if design == name})
        return sorted(set.intersection(*seeds)) if seeds else []

    def mean(self, design: str) -> Estimate:
        """Return a design's mean quality over seeds."""
        runs = [self.runs[design, seed] for seed in self.common_seeds(design)]
        values = np.array([run.quality for run in runs])
        return self._estimate(values, self._outcomes(runs), _variance(values), is_pair=False)

    def difference(self, design: str, against: str) -> Estimate:
        """Return ``design`` − ``against`` over their common seeds."""
        seeds = self.common_seeds(design, against)
        first = [self.runs[design, seed] for seed in seeds]
        second = [self.runs[against, seed] for seed in seeds]
        first_values = np.array([run.quality for run in first])
        second_values = np.array([run.quality for run in second])

        # the variance of the differences seed by seed; differences within rounding count as zero
        largest = max(np.abs(np.concatenate([first_values, second_values])), default=0.0)
        differences = first_values - second_values
        outcomes, other_outcomes = self._outcomes(first), self._outcomes(second)
        if outcomes is not None and other_outcomes is not None:
            outcomes = outcomes - other_outcomes
        estimate = self._estimate(differences, outcomes, _variance(differences, largest), is_pair=True)
        if abs(estimate.mean) < ROUNDING * largest:
            estimate = replace(estimate, mean=0.0)
        if self.lowest is None or len(seeds) < 2:
            return estimate

        # shares of right answers are skewed
        variances = _variance(first_values), _variance(second_values)
        shares = Shares(
            float(first_values.mean() - self.lowest) / self.unit,
            float(second_values.mean() - self.lowest) / self.unit,
            variances[0] / sum(variances) if sum(variances) else 0.5,
            self.unit,
        )
        return replace(estimate, shares=shares)

    def difference_from(self, design: str, value: float, outcomes: Array | None) -> Estimate:
        """A design's mean − a fixed model's quality, with that model's outcomes on the same samples."""
        runs = [self.runs[design, seed] for seed in self.common_seeds(design)]
        values = np.array([run.quality - value for run in runs])
        own_outcomes = self._outcomes(runs)
        if own_outcomes is None or outcomes is None or len(outcomes) != self.samples:
            return self._estimate(values, None, _variance(values), is_pair=False)
        return self._estimate(values, own_outcomes - outcomes, _variance(values), is_pair=False)

    def _outcomes(self, runs: Sequence[Run]) -> Array | None:
        """The outcomes (seeds, N) of these runs; None if they are unknown."""
        outcomes = [run.outcomes for run in runs if run.outcomes is not None]
        return np.stack(outcomes) if self.samples and outcomes else None

    def _estimate(self, values: Array, table: Array | None, variance: float, *, is_pair: bool) -> Estimate:
        """Estimate the mean of values (seeds,) whose runs have this variance and these outcomes (seeds, N)."""
        count = len(values)
        mean = float(values.mean()) if count else math.nan

        # the runs' part: the variance of a mean over seeds
        seed_part = Part(variance / count, count - 1) if count > 1 else None
        if table is None:
            return Estimate(mean, count, 0, seed_part, None)

        # the samples' part; the normal interval of an accuracy near 100% is too narrow, and one more sample, as in
        # Agresti and Coull (1998), corrects it
        over_samples = table.mean(0) - table.mean()  # (N,)
        squares = float(over_samples @ over_samples)
        squares = max(squares, self.unit**2 / count) if is_pair else squares + self.unit**2
        sample_part = Part(squares / (self.samples - 1) / self.samples, self.samples - 1)
        if seed_part is None:
            return Estimate(mean, count, self.samples, seed_part, sample_part)

        # without the noise of single runs on single samples, which the runs' part already contains
        freedom = (count - 1) * (self.samples - 1)
        rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
        rest[np.abs(rest) < ROUNDING * float(np.abs(table).max())] = 0
        noise_part = Part(float((rest**2).sum()) / freedom / self.samples / count, freedom)
        noise = noise_part.variance if count >= MIN_SEEDS else min(noise_part.variance, seed_part.variance)
        sample_part = replace(sample_part, variance=max(sample_part.variance - noise, 0.0))
        return Estimate(mean, count, self.samples, seed_part, sample_part, noise_part if count >= MIN_SEEDS else None)


def _variance(values: Array, largest: float = 0.0) -> float:
    """Return the variance of values (seeds,) over seeds; 0 for one run, or if they differ only by rounding, which is
    relative to the largest quality.
    """
    if len(values) < 2:
        return 0.0
    rest = values - values.mean()
    rest[np.abs(rest) < ROUNDING * max(1.0, largest, float(np.abs(values).max()))] = 0
    return float(rest @ rest) / (len(values) - 1)


# -- answers ----------------------------------------------------------------------------------------------------------


def alpha_of(look: int) -> float:
    """Return the error rate per side that look number ``look`` may use, counted from 1."""
    return ALPHA * FIRST_LOOK * LATER_LOOKS ** (look - 1)


@dataclass(frozen=True)
class Needed:
    """The total number of seeds that would decide a question with 80% power, if the true effect is the observed one.

    seeds       None if more than `MAX_SEEDS`, or if no number of seeds is sufficient
    low, high   the same for the ends of the range that contains the effect with 80% probability; ``high`` is None if no
                number up to `MAX_SEEDS` is sufficient
    samples     the sufficient number of validation samples, if no number of seeds is
    """

    seeds: int | None
    low: int | None
    high: int | None
    samples: int | None = None


@dataclass(frozen=True)
class Decision:
    """The outcome of a one-sided test, by the side of the margin on which the whole interval is, if any.

    ``p`` is against the claim's null hypothesis, and counts the looks.
    """

    answer: Answer
    p: float
    needed: Needed | None


def decide(estimate: Estimate, margin: float = 0.0, look: int = 1) -> Decision:
    """Whether a difference is above −margin: non-inferiority, or superiority for margin 0.

    Undecided below `MIN_SEEDS` seeds, and where the samples' outcomes are unknown.
    """
    answer: Answer = "undecided"
    bounds = estimate.interval(alpha_of(look))
    if bounds is not None and estimate.seeds >= MIN_SEEDS and estimate.sample_part is not None:
        low, high = bounds
        if low > -margin:
            answer = "shown"
        elif high < -margin:
            answer = "refuted"
    p = over_looks(estimate.probability_above(-margin), look)
    return Decision(answer, p, needed(estimate, margin, look + 1))


def over_looks(p: float, look: int) -> float:
    """Return a p-value that can be compared with the whole error rate, at look number ``look``."""
    return min(1.0, p * ALPHA / alpha_of(look))


def two_sided(estimate: Estimate, look: int = 1) -> float:
    """Return the two-sided p-value of no difference, corrected for the looks. NaN if unknown."""
    p = estimate.probability_above(0.0)
    return over_looks(2 * min(p, 1 - p), look)


def needed(estimate: Estimate, margin: float, look: int) -> Needed | None:
    """Return the seeds or samples that would decide a question at the next look; None if the noise is unknown."""
    sample_part = estimate.sample_part
    if not estimate.is_known or estimate.seed_part is None or sample_part is None:
        return None
    alpha = alpha_of(look)

    # seeds for the observed effect, and for the ends of its 80% range
    gain = abs(estimate.mean + margin)
    if estimate.shares is not None and estimate.run_part is not None:  # at the variance of the bound in question
        growth = estimate.shares.growth(estimate.mean + margin)
        run_part = replace(estimate.run_part, variance=growth * estimate.run_part.variance)
        estimate = replace(estimate, run_part=run_part, shares=None)
    reach = float(stats.norm.isf((1 - LIKELY) / 2)) * math.sqrt(estimate.variance)
    seeds = _seeds(estimate, gain, alpha)
    low, high = _seeds(estimate, gain + reach, alpha), _seeds(estimate, gain - reach, alpha)

    # no number of seeds is sufficient: the samples that make their part of the error small enough
    samples = None
    errors = float(stats.norm.isf(alpha) + stats.norm.ppf(POWER))  # standard errors between the margin and the effect
    needed_square = errors**2 * sample_part.variance
    if seeds is None and gain and needed_square > gain**2:
        samples = math.ceil(estimate.samples * needed_square / gain**2)
    return Needed(seeds, low, high, samples)


def _seeds(estimate: Estimate, gain: float, alpha: float) -> int | None:
    """Return the smallest total number of seeds that gives the test its power for a true ``gain``."""
    assert estimate.seed_part is not None
    assert estimate.sample_part is not None
    if gain <= 0:
        return None

    # for each number of seeds (MAX_SEEDS − 2,): the runs' part, half of the interval, the error of the mean
    counts = np.arange(MIN_SEEDS, MAX_SEEDS + 1)
    seed_variance = estimate.seed_part.variance * estimate.seeds / counts
    freedom = estimate.seed_part.freedom * (counts - 1) / (estimate.seeds - 1)
    sample_square = stats.t.isf(alpha, estimate.sample_part.freedom) ** 2 * estimate.sample_part.variance
    half = np.sqrt(stats.t.isf(alpha, freedom) ** 2 * seed_variance + sample_square)
    error = np.sqrt(seed_variance + estimate.sample_part.variance)
    enough = counts[stats.norm.sf((half - gain) / error) >= POWER]
    return int(enough[0]) if len(enough) else None


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's (1979) step-down method. NaN stays NaN and is not counted."""
    adjusted_ps, worst = list(ps), 0.0
    sorted_ps = sorted((p, index) for index, p in enumerate(ps) if not math.isnan(p))
    for rank, (p, index) in enumerate(sorted_ps):
        worst = max(worst, min(1.0, (len(sorted_ps) - rank) * p))
        adjusted_ps[index] = worst
    return adjusted_ps
