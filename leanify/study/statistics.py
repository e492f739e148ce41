"""Statistics of a study: one model for all of its runs, and two sources of chance, the runs and the samples.

The quality of a run varies with its seed (initial weights, order of samples), and a whole study with the validation
samples that it happens to have. Both are in every interval:

    runs      y[design, seed] = design + seed + noise, fitted by least squares to all finished runs; the noise is pooled
              over designs, so that three designs with three seeds give 4 degrees of freedom where one pair gives 2
    samples   the difference of two designs on each validation sample, averaged over seeds; its variance over samples
    both      noise that belongs to one run and one sample is in both of the above, and is subtracted once; from three
              seeds on the runs' part is at least this noise, which seeds × samples tell far better than few runs do

This is the crossed random-effects variance of seeds × samples (Gallas 2006 for readers × cases). An interval adds the
two parts with a Student's t of their own degrees of freedom each (Graybill and Wang 1980). Where the samples' outcomes
do not differ at all, one sample's worth of difference is assumed, so that equal outcomes are never certainty.

Differences are signed so that positive is better, whatever the metric. Two questions are asked, each one-sided:

    non-inferiority   is the loss against a reference smaller than a margin? (Schuirmann 1987, one side of TOST)
    superiority       is there a gain over a reference at all?

**Looks.** Whoever adds seeds and looks again has another chance of a wrong answer. Look number k may therefore spend
only 0.6 · 0.4^(k−1) of the error rate: 60%, 24%, 10%, … which adds up to the whole rate for any number of looks
(a union bound, so it holds without an end planned in advance). The intervals that go with the answers are widened in
the same way: with 95% probability, all of those that a study ever shows of one difference cover the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

CONFIDENCE, POWER = 0.95, 0.8
ALPHA = (1 - CONFIDENCE) / 2
FIRST_LOOK, LATER_LOOKS = 0.6, 0.4  # the share of the first look, and of each later one in that of the look before
FEWEST = 3  # seeds below which nothing is shown or refuted
MOST_SEEDS = 1000  # larger numbers of seeds are not practical and are not reported
ROUNDING = 1e-12  # of a quality: smaller differences are those of floating-point arithmetic
LIKELY = 0.8  # the effect lies within the range behind `Needed` with this probability

Answer = Literal["shown", "refuted", "undecided"]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A finished run: its quality, and what it is the mean of, one value (N,) for each validation sample.

    ``outcomes`` is None if the run kept none. Both are signed so that more is better.
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
class Estimate:
    """A mean, or a difference of two means, with the parts of its variance.

    seeds, samples   how many of each it rests on; ``samples`` is 0 if the runs kept no outcomes
    of_seeds         the variance due to the runs; None for fewer than two seeds
    of_samples       the variance due to the validation samples, without the noise that ``of_seeds`` already has; None
                     if it is unknown
    """

    mean: float
    seeds: int
    samples: int
    of_seeds: Part | None
    of_samples: Part | None

    @property
    def known(self) -> bool:
        """Whether there is an interval: a variance above 0."""
        return self.of_seeds is not None and sum(part.variance for part in self.parts) > 0

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in (self.of_seeds, self.of_samples) if part is not None)

    def half(self, alpha: float = ALPHA) -> float:
        """Half of the interval that errs with probability ``alpha`` on each side; NaN if unknown."""
        if not self.known:
            return math.nan
        squares = [stats.t.isf(alpha, part.freedom) ** 2 * part.variance for part in self.parts]
        return math.sqrt(sum(squares))

    def interval(self, alpha: float = ALPHA) -> tuple[float, float] | None:
        """Lower and upper bound; None if unknown."""
        return (self.mean - self.half(alpha), self.mean + self.half(alpha)) if self.known else None

    def above(self, bound: float) -> float:
        """The p-value of the null hypothesis that the truth is ≤ ``bound``: where the interval ends just there.

        NaN if unknown.
        """
        if not self.known:
            return math.nan
        distance = self.mean - bound
        if not distance:
            return 0.5
        smallest = math.exp(-300)
        p = 0.0
        if self.half(smallest) > abs(distance):  # half() falls to 0 as alpha goes to 1/2
            p = math.exp(optimize.brentq(lambda x: self.half(math.exp(x)) - abs(distance), -300.0, math.log(0.5)))
        return p if distance > 0 else 1 - p


class Noise:
    """The model of a study's runs, from which its means and differences are estimated."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = {(run.design, run.seed): run for run in runs}
        self.between = _residual(runs, with_seeds=True)
        self.within = _residual(runs, with_seeds=False)
        lengths = {0 if run.outcomes is None else len(run.outcomes) for run in runs}
        self.samples = max(lengths) if len(lengths) == 1 else 0  # 0: not every run has those of the same samples
        if self.samples < 2:
            self.samples = 0
        self.unit = _unit(runs) if self.samples else 0.0

    def seeds_of(self, *designs: str) -> list[int]:
        """The seeds with which all of these designs have finished."""
        seeds = [{seed for design, seed in self.runs if design == name} for name in designs]
        return sorted(set.intersection(*seeds)) if seeds else []

    def mean(self, design: str) -> Estimate:
        """A design's mean quality over seeds."""
        seeds = self.seeds_of(design)
        runs = [self.runs[design, seed] for seed in seeds]
        values = np.array([run.quality for run in runs])
        return self._estimate(values, [run.outcomes for run in runs], self.within, 1)

    def difference(self, design: str, against: str) -> Estimate:
        """``design`` − ``against`` over the seeds that both have."""
        pairs = [(self.runs[design, seed], self.runs[against, seed]) for seed in self.seeds_of(design, against)]
        values = np.array([one.quality - other.quality for one, other in pairs])
        outcomes: list[Array | None] = [None] * len(pairs)
        if self.samples:  # every run kept as many
            outcomes = [one.outcomes - other.outcomes for one, other in pairs]  # type: ignore[operator]
        found = self._estimate(values, outcomes, self.between, 2)
        largest = max((max(abs(one.quality), abs(other.quality)) for one, other in pairs), default=0.0)
        return replace(found, mean=0.0) if abs(found.mean) < ROUNDING * largest else found

    def above(self, design: str, value: float, outcomes: Array | None) -> Estimate:
        """A design's mean − a fixed model's quality, with that model's outcomes on the same samples."""
        runs = [self.runs[design, seed] for seed in self.seeds_of(design)]
        values = np.array([run.quality - value for run in runs])
        same = outcomes if outcomes is not None and len(outcomes) == self.samples else None
        rest = [None if run.outcomes is None or same is None else run.outcomes - same for run in runs]
        return self._estimate(values, rest, self.within, 1)

    def _estimate(
        self, values: Array, outcomes: Sequence[Array | None], noise: Part | None, runs_each: int
    ) -> Estimate:
        """``runs_each`` is the number of runs behind each value: 2 for a difference."""
        count = len(values)
        mean = float(values.mean()) if count else math.nan
        of_seeds = None
        if noise is not None and count > 1:
            of_seeds = Part(runs_each * noise.variance / count, noise.freedom)
        known = [found for found in outcomes if found is not None]
        if not self.samples or not count or len(known) < count:
            return Estimate(mean, count, 0, of_seeds, None)
        table = np.stack(known)
        of_samples = self._of_samples(table, mean_of_one=runs_each == 1)
        if of_seeds is not None:
            both = _of_both(table)
            if count >= FEWEST and both.variance > of_seeds.variance:
                of_seeds = both
            rest = of_samples.variance - min(both.variance, of_seeds.variance)
            of_samples = replace(of_samples, variance=max(rest, 0.0))
        return Estimate(mean, count, self.samples, of_seeds, of_samples)

    def _of_samples(self, table: Array, mean_of_one: bool) -> Part:
        """The samples' part of the variance of a table's mean (seeds, N).

        An accuracy near 100% has a normal interval that is too narrow; one more sample, as in Agresti and Coull
        (1998), mends it.
        """
        seeds, samples = table.shape
        over_samples = table.mean(0) - table.mean()
        squares = float(over_samples @ over_samples)
        if mean_of_one:
            squares += self.unit**2
        else:
            squares = max(squares, self.unit**2 / seeds)
        return Part(squares / (samples - 1) / samples, samples - 1)


def _of_both(table: Array) -> Part:
    """The part of the noise that belongs to one run and one sample in the variance of a table's mean (seeds, N)."""
    seeds, samples = table.shape
    freedom = (seeds - 1) * (samples - 1)
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    rest[np.abs(rest) < ROUNDING * float(np.abs(table).max())] = 0
    return Part(float((rest**2).sum()) / freedom / samples / seeds, freedom)


def _residual(runs: Sequence[Run], with_seeds: bool) -> Part | None:
    """The variance of a run around design (+ seed), by least squares; None without degrees of freedom."""
    labels: list[list[Any]] = [[run.design for run in runs]]
    if with_seeds:
        labels.append([run.seed for run in runs])
    columns = []
    for each in labels:
        for one in dict.fromkeys(each):
            columns.append([label == one for label in each])
    if not columns:
        return None
    matrix, values = np.array(columns, float).T, np.array([run.quality for run in runs])
    fitted, _, rank, _ = np.linalg.lstsq(matrix, values, rcond=None)
    freedom = len(runs) - int(rank)
    if freedom < 1:
        return None
    rest = values - matrix @ fitted
    rest[np.abs(rest) < 1e-12 * max(1.0, float(np.abs(values).max()))] = 0  # rounding is no noise
    return Part(float(rest @ rest) / freedom, freedom)


def _unit(runs: Sequence[Run]) -> float:
    """How far apart the outcomes of two runs on one sample can be: the largest range of a run's outcomes."""
    ranges = [float(np.ptp(run.outcomes)) for run in runs if run.outcomes is not None]
    return max(ranges, default=0.0)


# -- answers ----------------------------------------------------------------------------------------------------------


def alpha_of(look: int) -> float:
    """The error rate of a side that look number ``look`` may spend, from 1 on."""
    return ALPHA * FIRST_LOOK * LATER_LOOKS ** (look - 1)


@dataclass(frozen=True)
class Needed:
    """How many seeds in all would decide a question with 80% power, if the effect is the one seen.

    seeds       None if more than `MOST_SEEDS`, or if no number of seeds would do
    low, high   the same for the ends of the range in which the effect lies with 80% probability; ``high`` is None if
                no number up to `MOST_SEEDS` would do
    samples     where no number of seeds would do: how many validation samples would
    """

    seeds: int | None
    low: int | None
    high: int | None
    samples: int | None = None


@dataclass(frozen=True)
class Decision:
    """The outcome of a one-sided test. ``p`` is against the claim's null hypothesis, and counts the looks."""

    answer: Answer
    p: float
    needed: Needed | None


def decide(found: Estimate, margin: float = 0.0, look: int = 1) -> Decision:
    """Whether a difference is above −margin: non-inferiority, or superiority for margin 0.

    Undecided below `FEWEST` seeds, and where the samples' outcomes are unknown.
    """
    p = over_looks(found.above(-margin), look)
    return Decision(answer_of(found, margin, look), p, needed(found, margin, look + 1))


def answer_of(found: Estimate, margin: float, look: int) -> Answer:
    """The answer of `decide`: on which side of −margin the whole interval lies."""
    bounds = found.interval(alpha_of(look))
    if bounds is None or found.seeds < FEWEST or found.of_samples is None:
        return "undecided"
    low, high = bounds
    return "shown" if low > -margin else "refuted" if high < -margin else "undecided"


def over_looks(p: float, look: int) -> float:
    """A p-value that may be compared with the whole error rate, at look number ``look``."""
    return min(1.0, p * ALPHA / alpha_of(look))


def two_sided(found: Estimate, look: int = 1) -> float:
    """The two-sided p-value of no difference; counts the looks. NaN if unknown."""
    p = found.above(0.0)
    return over_looks(2 * min(p, 1 - p), look)


def needed(found: Estimate, margin: float, look: int) -> Needed | None:
    """What would decide a question at the next look; None if the noise is unknown."""
    if not found.known or found.of_seeds is None or found.of_samples is None:
        return None
    gain = abs(found.mean + margin)
    spread = float(stats.norm.isf((1 - LIKELY) / 2)) * math.sqrt(sum(part.variance for part in found.parts))
    alpha = alpha_of(look)
    seeds = _seeds(found, gain, alpha)
    samples = None
    reach = float(stats.norm.isf(alpha) + stats.norm.ppf(POWER))  # the errors between the margin and the effect
    if seeds is None and gain and reach**2 * found.of_samples.variance > gain**2:
        samples = math.ceil(found.samples * reach**2 * found.of_samples.variance / gain**2)
    return Needed(seeds, _seeds(found, gain + spread, alpha), _seeds(found, gain - spread, alpha), samples)


def _seeds(found: Estimate, gain: float, alpha: float) -> int | None:
    """The least number of seeds, above those there are, that gives the test its power for a true ``gain``."""
    assert found.of_seeds is not None
    assert found.of_samples is not None
    if gain <= 0:
        return None
    counts = np.arange(FEWEST, MOST_SEEDS + 1)
    of_seeds = found.of_seeds.variance * found.seeds / counts
    freedom = found.of_seeds.freedom * (counts - 1) / (found.seeds - 1)
    error = np.sqrt(of_seeds + found.of_samples.variance)
    half = np.sqrt(
        stats.t.isf(alpha, freedom) ** 2 * of_seeds
        + stats.t.isf(alpha, found.of_samples.freedom) ** 2 * found.of_samples.variance
    )
    enough = counts[stats.norm.sf((half - gain) / error) >= POWER]
    return int(enough[0]) if len(enough) else None


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's (1979) step-down method. NaN stays NaN and is not counted."""
    adjusted, worst = list(ps), 0.0
    known = sorted((p, index) for index, p in enumerate(ps) if not math.isnan(p))
    for done, (p, index) in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - done) * p))
        adjusted[index] = worst
    return adjusted
