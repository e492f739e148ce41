"""The statistics of a study against independent oracles, and against simulated studies."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from leanify.comparison import statistics
from leanify.comparison.statistics import Estimate, Part, Run, RunTable, Shares
from recipes.research.statistics_simulated import LIMIT, LOOKS, World, halves, simulate

RNG = np.random.default_rng(20250601)
TIED = np.array([np.zeros((3, 6)), [[3, 0, 0, -3, 1, -1], [0, 3, -3, 0, -1, 1], [-3, -3, 3, 3, 0, 0]]])


def runs(table: np.ndarray) -> list[Run]:
    """Runs with outcomes (designs, seeds, samples)."""
    designs, seeds, _ = table.shape
    return [Run(f"d{d}", s, float(table[d, s].mean()), table[d, s]) for d in range(designs) for s in range(seeds)]


def without_samples(values: np.ndarray) -> list[Run]:
    """Runs (designs, seeds) that kept no outcomes."""
    return [Run(f"d{d}", s, float(value)) for (d, s), value in np.ndenumerate(values)]


# -- against oracles --------------------------------------------------------------------------------------------------


def test_difference_is_paired_t_test() -> None:
    """Without samples: SciPy's paired t-test over the seeds."""
    for count in (2, 3, 5, 20):
        values = RNG.normal(0.3, 1.0, (2, count)) * [[1.0], [3.0]] + RNG.normal(0, 5.0, count)
        found = RunTable(without_samples(values)).difference("d1", "d0")
        oracle = stats.ttest_rel(values[1], values[0])
        bounds = oracle.confidence_interval(0.95)
        assert found.interval() == pytest.approx((bounds.low, bounds.high), rel=1e-9)
        for bound in (0.0, -0.7):
            t = stats.ttest_rel(values[1], values[0] + bound).statistic
            assert found.probability_above(bound) == pytest.approx(stats.t.sf(t, count - 1), rel=1e-6)


def test_designs_have_their_own_noise() -> None:
    """Neither a noisier design nor one that joins later changes what is said of two others."""
    values = RNG.normal(size=(4, 5)) * [[1.0], [2.0], [9.0], [0.01]]
    pair, study = RunTable(without_samples(values[:2])), RunTable(without_samples(values))
    assert study.difference("d1", "d0") == pair.difference("d1", "d0")
    assert study.mean("d1") == pair.mean("d1")
    assert study.mean("d2").half() == pytest.approx(stats.t.isf(0.025, 4) * stats.sem(values[2]))


def test_samples_use_paired_test() -> None:
    """One design against another with one answer each: the variance over samples is that of SciPy's paired t-test."""
    table = np.repeat(RNG.normal(size=(2, 1, 50)), 3, axis=1)  # all seeds give the same answers
    found = RunTable(runs(table)).difference("d1", "d0")
    assert found.seed_part.variance == 0
    oracle = stats.ttest_rel(table[1, 0], table[0, 0])
    assert 2 * min(found.probability_above(0.0), 1 - found.probability_above(0.0)) == pytest.approx(
        oracle.pvalue, rel=1e-6
    )


def test_seeds_and_samples_match_anova() -> None:
    """(MS of seeds + MS of samples − MS of the rest) / (seeds · samples), by statsmodels on the differences."""
    pandas = pytest.importorskip("pandas", reason="an oracle: pip install pandas")
    formula = pytest.importorskip("statsmodels.formula.api", reason="an oracle: pip install statsmodels")
    anova = pytest.importorskip("statsmodels.stats.anova", reason="an oracle: pip install statsmodels")
    seeds, samples = 4, 9
    table = RNG.normal(size=(2, seeds, samples)) + RNG.normal(0, 2, (2, seeds, 1)) + RNG.normal(0, 2, (2, 1, samples))
    found = RunTable(runs(table)).difference("d1", "d0")
    rows = [(str(s), str(n), value) for (s, n), value in np.ndenumerate(table[1] - table[0])]
    squares = anova.anova_lm(formula.ols("y ~ C(s) + C(n)", pandas.DataFrame(rows, columns=["s", "n", "y"])).fit())
    of = squares["mean_sq"] / (seeds * samples)
    assert found.sample_part.variance > 0
    assert (found.seeds, found.samples) == (seeds, samples)
    spread = (table[1] - table[0]).mean(1).var(ddof=1) / seeds
    assert (found.seed_part.variance, found.seed_part.freedom) == pytest.approx((spread, seeds - 1))
    assert (found.sample_part.variance, found.sample_part.freedom) == pytest.approx(
        (of["C(n)"] - of["Residual"], samples - 1)
    )
    share = stats.t.isf(0.01, seeds - 1) ** 2 * spread
    share += stats.t.isf(0.01, samples - 1) ** 2 * (of["C(n)"] - of["Residual"])
    difference = (table[1] - table[0]).mean()
    assert found.interval(0.01) == pytest.approx((difference - math.sqrt(share), difference + math.sqrt(share)))
    one = RunTable(runs(table)).mean("d1")
    assert one.seed_part.variance == pytest.approx(table[1].mean(1).var(ddof=1) / seeds)
    assert one.seed_part.freedom == seeds - 1


@pytest.mark.parametrize("seeds", [2, 3])
def test_samples_part_leaves_out_noise_of_runs(seeds: int) -> None:
    """Also with two seeds, which answer nothing but are shown with an interval."""
    table = RNG.normal(size=(2, seeds, 60)) + RNG.normal(0, 2, (2, seeds, 1)) + RNG.normal(0, 5, (2, 1, 60))
    found = RunTable(runs(table)).difference("d1", "d0")
    rows = table[1] - table[0]
    rest = rows - rows.mean(0) - rows.mean(1, keepdims=True) + rows.mean()
    noise = (rest**2).sum() / (seeds - 1) / 59 / 60 / seeds
    assert noise < found.seed_part.variance
    assert found.sample_part.variance == pytest.approx(rows.mean(0).var(ddof=1) / 60 - noise)


def test_noise_is_subtracted_once() -> None:
    """Runs whose outcomes have nothing in common: what the seeds' part already has is all of the samples' part."""
    found = RunTable(runs(TIED + np.arange(3)[:, None] * [[[1]], [[-1]]])).difference("d1", "d0")
    assert found.seed_part.variance > 0
    assert found.sample_part.variance == 0.0


def test_tied_runs_keep_sample_noise() -> None:
    """Runs of equal means that answer differently: what belongs to one run and one sample is known all the same."""
    found = RunTable(runs(TIED)).difference("d1", "d0")
    rest = TIED[1] - TIED[1].mean(0)  # runs and the whole have a mean of 0
    assert found.seed_part.variance == pytest.approx((rest**2).sum() / 10 / 6 / 3)
    assert found.seed_part.freedom == 10  # (3 − 1) · (6 − 1)
    floor = 6.0**2 / 3 / 5 / 6  # one sample's worth of difference in each run, averaged over 3 runs
    assert found.seed_part.variance + found.sample_part.variance == pytest.approx(max(floor, found.seed_part.variance))
    two = RunTable(runs(TIED[:, :2])).difference("d1", "d0")  # two seeds answer nothing, and stay careful
    assert two.seed_part.variance == 0.0


def test_accuracy_noise_counts_one_more() -> None:
    """An accuracy counts one sample more, and two models that agree differ by one."""
    right = np.zeros((2, 3, 20))
    right[:, :, :17] = 100.0
    noise = RunTable(runs(right))
    found, tie = noise.mean("d0"), noise.difference("d0", "d1")
    assert found.sample_part.variance == pytest.approx((20 * 85 * 15 + 100**2) / 19 / 20)
    assert tie.sample_part.variance == pytest.approx(100**2 / 3 / 19 / 20)
    fixed = np.zeros(20)
    fixed[:10] = 100.0
    against = noise.difference_from("d0", 50.0, fixed)
    assert (against.mean, against.samples) == (35.0, 20)
    assert against.sample_part.variance == pytest.approx((20 * 35 * 65 + 100**2) / 19 / 20)


def test_unknown_part_is_left_out() -> None:
    table = RNG.normal(size=(2, 3, 8))
    some = runs(table)
    assert RunTable(some).difference_from("d0", 0.5, table[0, 0][:7]).sample_part is None  # of other samples
    assert RunTable(some).difference_from("d0", 0.5, None).sample_part is None
    single = RunTable([*some[:3], some[3]]).mean("d1")  # one seed, beside a design with three
    assert (single.seeds, single.seed_part, single.is_known) == (1, None, False)
    spread = float(
        ((table[1, 0] - table[1, 0].mean()) ** 2).sum() + max(np.ptp(one) for one in (*table[0], table[1, 0])) ** 2
    )
    assert single.sample_part.variance == pytest.approx(spread / 7 / 8)
    for odd in (Run("d1", 2, 0.1, table[1, 2][:7]), Run("d1", 2, 0.1)):
        mixed = RunTable([*some[:5], odd])
        assert (mixed.samples, mixed.difference("d0", "d1").sample_part) == (0, None)
        assert mixed.difference("d0", "d1").seeds == 3
    one_sample = RunTable(runs(table[:, :, :1]))
    assert (one_sample.samples, one_sample.mean("d0").sample_part) == (0, None)
    two_samples = RunTable(runs(table[:, :, :2])).mean("d0")
    assert two_samples.sample_part.freedom == 1
    assert RunTable(some).common_seeds() == []
    assert math.isnan(RunTable(some).mean("d9").mean)
    assert RunTable([Run("a", 0, 1.0), Run("b", 0, 2.0)]).difference("a", "b").seed_part is None  # no run to spare
    assert RunTable([Run("a", 0, 1.0), Run("a", 1, 2.0)]).mean("a").seed_part == Part(0.25, 1)
    assert (single.interval(), math.isnan(single.probability_above(0))) == (None, True)
    assert RunTable(without_samples(np.full((2, 3), 0.1))).difference("d0", "d1").interval() is None  # no spread


def test_p_value_matches_interval_end() -> None:
    found = Estimate(1.3, 4, 50, Part(0.2, 6), Part(0.05, 49))
    for bound in (-1.0, 0.0, 1.29, 1.31, 2.0):
        p = found.probability_above(bound)
        low, high = found.interval(min(p, 1 - p)) or (0, 0)
        assert (low if bound < 1.3 else high) == pytest.approx(bound)
        assert (p < 0.5) == (bound < 1.3)
        both = 2 * min(p, 1 - p) * statistics.ALPHA / statistics.alpha_of(1)
        assert statistics.two_sided(replace(found, mean=1.3 - bound)) == pytest.approx(min(1, both))
    assert found.probability_above(1.3) == 0.5
    far = replace(found, run_part=Part(1e-12, 1000), sample_part=Part(1e-12, 1000))
    assert (far.probability_above(-1e6), far.probability_above(1e6)) == (0.0, 1.0)
    assert statistics.over_looks(0.9, 3) == 1.0


def test_rounding_difference_is_zero() -> None:
    """1 and 7 of 60 samples right, or 4 and 4: the mean difference is -4e-16 in floating-point arithmetic."""
    right = {("a", 0): 1, ("a", 1): 7, ("b", 0): 4, ("b", 1): 4}
    runs = [Run(design, seed, 100 * count / 60) for (design, seed), count in right.items()]
    assert RunTable(runs).difference("a", "b").mean == 0.0


def test_holm_matches_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="an oracle: pip install statsmodels")
    for count in (1, 2, 7):
        ps = (RNG.uniform(0, 1, count) ** 3).tolist()
        assert statistics.holm(ps) == pytest.approx(multitest.multipletests(ps, method="holm")[1].tolist(), rel=1e-12)


def test_holm_leaves_missing_tests_out() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.04, math.nan, 0.01])[0::2] == pytest.approx([0.04, 0.02])


# -- ties, few seeds, many looks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [2, 3, 8])
@pytest.mark.parametrize("same", [0.0, 100.0])
def test_equal_outcomes_have_an_interval(seeds: int, same: float) -> None:
    """All designs answer alike, or all but one sample of one design."""
    alike = np.zeros((3, seeds, 120))
    alike[:, :, :60] = 100
    alike[0, :, 60] = same
    for pair in (("d0", "d1"), ("d1", "d2")):
        found = RunTable(runs(alike)).difference(*pair)
        low, high = found.interval() or (0, 0)
        assert low < 0 < high
        assert statistics.decide(found).answer == "undecided"


def test_too_few_seeds_answer_nothing() -> None:
    """Below three seeds, and without outcomes, nothing is answered."""
    far = np.stack([np.full((2, 200), 90.0), np.full((2, 200), 10.0)]) + RNG.normal(0, 1, (2, 2, 200))
    assert statistics.decide(RunTable(runs(far)).difference("d0", "d1")).answer == "undecided"
    values = np.array([[90.0, 90.1, 89.9, 90.2], [10.0, 10.1, 10.2, 9.9]])
    assert statistics.decide(RunTable(without_samples(values)).difference("d0", "d1")).answer == "undecided"
    three = np.concatenate([far, far[:, :1] + 0.1], axis=1)
    assert statistics.decide(RunTable(runs(three)).difference("d0", "d1")).answer == "shown"
    assert statistics.decide(RunTable(runs(three)).difference("d1", "d0")).answer == "refuted"


def test_looks_spend_the_error_rate() -> None:
    spent = [statistics.alpha_of(look) for look in range(1, 60)]
    assert sum(spent) == pytest.approx(statistics.ALPHA)
    assert spent == sorted(spent, reverse=True)
    found = Estimate(1.0, 3, 100, Part(0.1, 10), Part(0.1, 99))
    assert statistics.two_sided(found, 2) == pytest.approx(2.5 * statistics.two_sided(found, 1))
    assert statistics.decide(found) == statistics.decide(found, 0.0, 1)


def test_answer_matches_shown_interval() -> None:
    for _ in range(200):
        table = RNG.normal(0, 1, (3, 4, 60)) + RNG.normal(0.2, 0.3, (3, 1, 1))
        found = RunTable(runs(table)).difference("d1", "d0")
        for look in (1, 3):
            answer = statistics.decide(found, 0.3, look)
            low, high = found.interval(statistics.alpha_of(look)) or (0, 0)
            assert (answer.answer == "shown") == (low > -0.3) == (answer.p < statistics.ALPHA)
            assert (answer.answer == "refuted") == (high < -0.3)


# -- how many seeds ---------------------------------------------------------------------------------------------------


def test_seeds_needed_give_80_percent_power() -> None:
    """With the number of seeds that is named, 80 studies in 100 decide."""
    found = Estimate(0.8, 3, 2000, Part(2 * 0.5 / 3, 6), Part(0.001, 1999))
    needed = statistics.needed(found, 0.0, look=2)
    assert needed.low < needed.seeds
    assert needed.high is None or needed.high > needed.seeds
    rng, decided = np.random.default_rng(3), 0
    for _ in range(1000):
        freedom = 6 * (needed.seeds - 1) / 2
        variance = 0.5 * rng.chisquare(freedom) / freedom
        mean = rng.normal(0.8, math.sqrt(2 * 0.5 / needed.seeds + 0.001))
        then = Estimate(mean, needed.seeds, 2000, Part(2 * variance / needed.seeds, freedom), Part(0.001, 1999))
        decided += statistics.decide(then, 0.0, look=2).answer == "shown"
    assert decided / 1000 == pytest.approx(0.8, abs=0.08)


@pytest.mark.parametrize("mean", [0.8, 0.35, -0.6])
def test_seeds_needed_are_minimal(mean: float) -> None:
    """One number of seeds after the other, and the range as the answers for the effects at its two ends."""
    found = Estimate(mean, 4, 500, Part(0.1, 9), Part(0.002, 499))
    margin, alpha = 0.1, statistics.alpha_of(2)
    needed = statistics.needed(found, margin, look=2)

    def enough(seeds: int) -> bool:
        seed_part, freedom = 0.1 * 4 / seeds, 9 * (seeds - 1) / 3
        half = math.sqrt(stats.t.isf(alpha, freedom) ** 2 * seed_part + stats.t.isf(alpha, 499) ** 2 * 0.002)
        power = stats.norm.cdf((abs(mean + margin) - half) / math.sqrt(seed_part + 0.002))
        return bool(power >= 0.8)

    assert needed.seeds == next(seeds for seeds in range(3, 1001) if enough(seeds))
    spread = stats.norm.isf(0.1) * math.sqrt(0.102)
    for end, shift in ((needed.low, spread), (needed.high, -spread)):
        gain = abs(mean + margin) + shift
        moved = statistics.needed(replace(found, mean=gain), 0.0, look=2) if gain > 0 else None
        assert end == (moved.seeds if moved else None)
    assert needed.samples is None
    assert statistics.needed(replace(found, sample_part=None), margin, look=2) is None
    assert statistics.needed(replace(found, run_part=None), margin, look=2) is None


def test_too_much_noise_names_nothing() -> None:
    """More than a thousand seeds, and more samples would not do either: neither is named. Or samples alone do."""
    found = statistics.needed(Estimate(0.05, 3, 500, Part(4.0, 6), Part(1e-6, 499)), 0.0, look=2)
    assert (found.seeds, found.high, found.samples) == (None, None, None)
    assert found.low is not None
    noisy = Estimate(0.5, 3, 100, Part(0.01, 6), Part(1.0, 99))
    more = statistics.needed(noisy, 0.0, look=2)
    reach = stats.norm.isf(statistics.alpha_of(2)) + stats.norm.ppf(0.8)
    assert (more.seeds, more.samples) == (None, math.ceil(100 * reach**2 * 1.0 / 0.25))
    even = statistics.needed(replace(noisy, mean=0.0), 0.0, look=2)
    assert (even.seeds, even.samples) == (None, None)


# -- skewed accuracies ------------------------------------------------------------------------------------------------

SKEWED = Estimate(6.0, 4, 500, Part(2.0, 3), Part(0.1, 499), Part(0.05, 1497), Shares(0.92, 0.86, 0.7, 100.0))


def test_interval_of_few_seeds_stays_within_what_is_possible() -> None:
    """Its ends are at most three times as far away as a t interval's, and shares differ by at most 1."""
    one_bad_run = Estimate(-1.1, 3, 120, Part(4.0, 2), Part(2.0, 119), Part(1.0, 238), Shares(0.93, 0.94, 0.5, 100.0))
    low, high = one_bad_run.interval()
    plain = replace(one_bad_run, shares=None).half()
    assert plain < one_bad_run.mean - low < 3 * plain
    assert plain < high - one_bad_run.mean < 3 * plain
    assert replace(one_bad_run, run_part=Part(4000.0, 2)).interval() == (-100.0, 100.0)


def test_variance_is_that_of_the_bound() -> None:
    """It grows as the designs move towards each other, each by its part of the variance, up to one half."""
    assert SKEWED.shares.growth(0.0) == 1.0
    moved, other = 0.92 - 0.7 * 0.06, 0.86 + 0.3 * 0.06
    first = (moved * (1 - moved) / (0.92 * 0.08)) ** (2 * statistics.SKEW)
    assert other * (1 - other) < 0.86 * 0.14  # a spread is never below the observed one
    assert SKEWED.shares.growth(6.0) == pytest.approx(0.7 * first + 0.3)
    assert SKEWED.shares.growth(1e9) == pytest.approx(0.7 * statistics.MOST_GROWTH + 0.3)
    below = Shares(0.14, 0.08, 0.3, 100.0)  # wrong answers instead of right ones
    assert below.growth(6.0) == pytest.approx(SKEWED.shares.growth(6.0))
    distances = [SKEWED.shares.growth(distance) for distance in range(60)]
    assert distances == sorted(distances)
    second = ((0.842 * 0.158) / (0.86 * 0.14)) ** (2 * statistics.SKEW)
    assert SKEWED.shares.growth(-6.0) == pytest.approx(0.7 + 0.3 * second)


def test_skewed_interval_ends_at_its_own_bound() -> None:
    even = replace(SKEWED, shares=None)
    for alpha in (0.015, 0.1):
        low, high = SKEWED.interval(alpha)
        for bound, side in ((low, 1), (high, -1)):
            assert SKEWED.half(alpha, SKEWED.mean - bound) == pytest.approx(abs(SKEWED.mean - bound), rel=1e-6)
            p = SKEWED.probability_above(bound)
            assert (p if side > 0 else 1 - p) == pytest.approx(alpha, rel=1e-4)
        assert low < even.interval(alpha)[0]
        assert high > even.interval(alpha)[1]


def test_p_agrees_with_the_interval() -> None:
    """Also where half the interval meets the distance more than once, as next to perfect answers."""
    drawn = np.random.default_rng(5)
    for _ in range(100):
        first, gain = drawn.uniform(0.994, 0.999), drawn.uniform(0.2, 1.0)
        shares = Shares(first, first - gain / 100, drawn.uniform(0.6, 0.95), 100.0)
        run_part = Part((gain / drawn.uniform(3, 8)) ** 2, 2)
        estimate = Estimate(gain, 3, 4000, run_part, Part(1e-4, 3999), None, shares)
        p = estimate.probability_above(0.0)
        assert estimate.interval(0.9 * p)[0] < 0 < estimate.interval(1.1 * p)[0]


def test_only_right_and_wrong_answers_are_shares() -> None:
    right = 100.0 * (RNG.random((2, 3, 40)) < 0.8)
    shares = RunTable(runs(right)).difference("d1", "d0").shares
    assert (shares.first, shares.second, shares.unit) == pytest.approx(
        (right[1].mean() / 100, right[0].mean() / 100, 100)
    )
    variances = right.mean(2).var(1, ddof=1)
    assert shares.part == pytest.approx(variances[1] / variances.sum())
    wrong = RunTable(runs(right - 100)).difference("d1", "d0").shares  # an error rate, signed
    assert (wrong.first, wrong.second) == pytest.approx((shares.first, shares.second))
    assert RunTable(runs(right * RNG.random(40))).difference("d1", "d0").shares is None
    assert RunTable(runs(right)).mean("d1").shares is None


# -- simulated studies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_loss", [False, True])
def test_simulation_decides_as_studies_do(is_loss: bool) -> None:
    """What `recipes.research.statistics_simulated` computes for many studies at once is what a study computes."""
    world = World((1.0, 3.0), is_loss=is_loss)
    outcomes = world.draw(np.random.default_rng(0), 6, 50, 5)
    for seeds in (3, 5):
        for border in (-2.0, 0.0, 3.0):
            mean, half = halves(outcomes, seeds, "after", statistics.ALPHA, border, is_loss)
            for study in range(6):
                found = RunTable(runs(outcomes.values[study, :, :seeds].astype(float))).difference("d1", "d0")
                expected = found.half(distance=found.mean - border)
                assert (found.mean, expected) == pytest.approx((mean[study], half[study]), rel=1e-4)


@pytest.mark.parametrize("samples", [30, 120])
@pytest.mark.parametrize("noise", [(1.0, 1.0), (1.0, 3.0), (3.0, 3.0), (1.0, 4.0)])
def test_unequal_noise_makes_few_errors(samples: int, noise: tuple[float, float]) -> None:
    """1,000 studies have a standard error of 0.6 points."""
    found = simulate(World(noise), samples, LOOKS, 1000)["after"]
    assert found.worst <= LIMIT + 2 * 0.6
    assert found.covered / found.intervals >= 0.94


def test_bad_runs_answer_nothing() -> None:
    """One run of lean in three loses a quarter of its fall, and is named."""
    world = World(level=-2.2, is_loss=True, lost=0.25, bad=1 / 3)
    assert world.names_bad_runs
    assert simulate(world, 120, LOOKS, 500)["after"].worst <= LIMIT
    assert not replace(world, lost=0.05).names_bad_runs
