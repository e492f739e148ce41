"""The statistics of a study against independent oracles, and against simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.statistics_simulated import WORLDS, simulate

from leanify.study import statistics
from leanify.study.statistics import Estimate, Noise, Part, Run

RNG = np.random.default_rng(20250601)


def runs(table: np.ndarray) -> list[Run]:
    """Runs with outcomes (designs, seeds, samples)."""
    designs, seeds, _ = table.shape
    return [Run(f"d{d}", s, float(table[d, s].mean()), table[d, s]) for d in range(designs) for s in range(seeds)]


def without_samples(values: np.ndarray) -> list[Run]:
    """Runs (designs, seeds) that kept no outcomes."""
    return [Run(f"d{d}", s, float(value)) for (d, s), value in np.ndenumerate(values)]


# -- against oracles --------------------------------------------------------------------------------------------------


def test_without_samples_a_pair_is_the_paired_t_test() -> None:
    weightstats = pytest.importorskip("statsmodels.stats.weightstats", reason="an oracle: pip install statsmodels")
    for count in (2, 3, 5, 20):
        values = RNG.normal(0.3, 1.0, (2, count))
        oracle = weightstats.DescrStatsW(values[1] - values[0])
        found = Noise(without_samples(values)).difference("d1", "d0")
        assert found.interval() == pytest.approx(oracle.tconfint_mean(0.05), rel=1e-9)
        assert 2 * min(found.above(0.0), 1 - found.above(0.0)) == pytest.approx(oracle.ttest_mean(0)[1], rel=1e-6)
        assert found.above(-0.7) == pytest.approx(oracle.ttest_mean(-0.7, "larger")[1], rel=1e-6)


def test_the_noise_is_that_of_a_fit_of_design_and_seed() -> None:
    pandas = pytest.importorskip("pandas", reason="an oracle: pip install pandas")
    formula = pytest.importorskip("statsmodels.formula.api", reason="an oracle: pip install statsmodels")
    some = without_samples(RNG.normal(size=(4, 5)))[:-2]  # two runs have failed
    frame = pandas.DataFrame([{"d": run.design, "s": str(run.seed), "y": run.quality} for run in some])
    oracle = formula.ols("y ~ C(d) + C(s)", frame).fit()
    noise = Noise(some)
    assert noise.between is not None
    assert (noise.between.variance, noise.between.freedom) == pytest.approx((oracle.mse_resid, oracle.df_resid))
    assert noise.within is not None
    assert noise.within.variance == pytest.approx(formula.ols("y ~ C(d)", frame).fit().mse_resid)


def test_the_samples_are_the_paired_test_over_samples() -> None:
    """One design against another with one answer each: the variance over samples is that of SciPy's paired t-test."""
    from scipy import stats

    table = np.repeat(RNG.normal(size=(2, 1, 50)), 3, axis=1)  # all seeds give the same answers
    found = Noise(runs(table)).difference("d1", "d0")
    assert found.of_seeds is not None
    assert found.of_seeds.variance == 0
    oracle = stats.ttest_rel(table[1, 0], table[0, 0])
    assert 2 * min(found.above(0.0), 1 - found.above(0.0)) == pytest.approx(oracle.pvalue, rel=1e-6)


def test_a_difference_of_rounding_alone_is_none() -> None:
    """1 and 7 of 60 samples right, or 4 and 4: the mean difference is -4e-16 in floating-point arithmetic."""
    right = {("a", 0): 1, ("a", 1): 7, ("b", 0): 4, ("b", 1): 4}
    runs = [Run(design, seed, 100 * count / 60) for (design, seed), count in right.items()]
    assert Noise(runs).difference("a", "b").mean == 0.0


def test_holm_is_that_of_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="an oracle: pip install statsmodels")
    for count in (1, 2, 7):
        ps = (RNG.uniform(0, 1, count) ** 3).tolist()
        assert statistics.holm(ps) == pytest.approx(multitest.multipletests(ps, method="holm")[1].tolist(), rel=1e-12)


def test_holm_of_a_textbook_example_and_of_a_missing_test() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.04, math.nan, 0.01])[0::2] == pytest.approx([0.04, 0.02])


# -- ties, few seeds, many looks --------------------------------------------------------------------------------------


def test_two_seeds_that_tie_are_no_certainty() -> None:
    """Both seeds differ by the same two of 120 sentences: this was once shown, with p < 0.001."""
    table = np.zeros((3, 2, 120))
    table[0, :, :46], table[1, :, 2:46], table[2, :, :40] = 100, 100, 100
    found = Noise(runs(table)).difference("d0", "d1")
    assert found.mean == pytest.approx(200 / 120)
    assert statistics.decide(found).answer == "undecided"
    low, high = found.interval() or (0, 0)
    assert low < 0 < high


@pytest.mark.parametrize("seeds", [2, 3, 8])
@pytest.mark.parametrize("same", [0.0, 100.0])
def test_equal_outcomes_have_an_interval_that_is_not_empty(seeds: int, same: float) -> None:
    """All designs answer alike, or all but one sample of one design."""
    alike = np.zeros((3, seeds, 120))
    alike[:, :, :60] = 100
    alike[0, :, 60] = same
    for pair in (("d0", "d1"), ("d1", "d2")):
        found = Noise(runs(alike)).difference(*pair)
        low, high = found.interval() or (0, 0)
        assert low < 0 < high
        assert statistics.decide(found).answer == "undecided"


def test_below_three_seeds_and_without_outcomes_nothing_is_answered() -> None:
    far = np.stack([np.full((2, 200), 90.0), np.full((2, 200), 10.0)]) + RNG.normal(0, 1, (2, 2, 200))
    assert statistics.decide(Noise(runs(far)).difference("d0", "d1")).answer == "undecided"
    values = np.array([[90.0, 90.1, 89.9, 90.2], [10.0, 10.1, 10.2, 9.9]])
    assert statistics.decide(Noise(without_samples(values)).difference("d0", "d1")).answer == "undecided"
    three = np.concatenate([far, far[:, :1] + 0.1], axis=1)
    assert statistics.decide(Noise(runs(three)).difference("d0", "d1")).answer == "shown"
    assert statistics.decide(Noise(runs(three)).difference("d1", "d0")).answer == "refuted"


def test_one_run_and_runs_without_spread_have_no_interval() -> None:
    alone = Noise([Run("a", 0, 90.0)])
    assert alone.mean("a").interval() is None
    assert math.isnan(alone.mean("a").above(0))
    assert Noise(without_samples(np.full((2, 3), 0.1))).difference("d0", "d1").interval() is None


def test_all_looks_together_spend_the_error_rate_and_each_costs_more() -> None:
    spent = [statistics.alpha_of(look) for look in range(1, 60)]
    assert sum(spent) == pytest.approx(statistics.ALPHA)
    assert spent == sorted(spent, reverse=True)
    found = Estimate(1.0, 3, 100, Part(0.1, 10), Part(0.1, 99))
    assert statistics.two_sided(found, 2) == pytest.approx(2.5 * statistics.two_sided(found, 1))


def test_an_answer_is_what_the_interval_beside_it_shows() -> None:
    for _ in range(200):
        table = RNG.normal(0, 1, (3, 4, 60)) + RNG.normal(0.2, 0.3, (3, 1, 1))
        found = Noise(runs(table)).difference("d1", "d0")
        for look in (1, 3):
            answer = statistics.decide(found, 0.3, look)
            low, high = found.interval(statistics.alpha_of(look)) or (0, 0)
            assert (answer.answer == "shown") == (low > -0.3) == (answer.p < statistics.ALPHA)
            assert (answer.answer == "refuted") == (high < -0.3)


# -- how many seeds ---------------------------------------------------------------------------------------------------


def test_the_seeds_needed_decide_80_times_in_100() -> None:
    found = Estimate(0.8, 3, 2000, Part(2 * 0.5 / 3, 6), Part(0.001, 1999))
    needed = statistics.needed(found, 0.0, look=2)
    assert needed is not None
    assert needed.seeds is not None
    assert needed.low is not None
    assert needed.low < needed.seeds
    assert needed.high is None or needed.high > needed.seeds
    rng, decided = np.random.default_rng(3), 0
    for _ in range(1000):
        freedom = 6 * (needed.seeds - 1) / 2
        variance = 0.5 * rng.chisquare(freedom) / freedom
        mean = rng.normal(0.8, math.sqrt(2 * 0.5 / needed.seeds + 0.001))
        then = Estimate(mean, needed.seeds, 2000, Part(2 * variance / needed.seeds, freedom), Part(0.001, 1999))
        decided += statistics.answer_of(then, 0.0, look=2) == "shown"
    assert decided / 1000 == pytest.approx(0.8, abs=0.08)


def test_where_seeds_would_not_do_the_samples_are_named() -> None:
    found = Estimate(0.5, 3, 100, Part(0.01, 6), Part(1.0, 99))
    needed = statistics.needed(found, 0.0, look=2)
    assert needed is not None
    assert needed.seeds is None
    assert needed.samples is not None
    assert needed.samples > 100 * 7.8 / 0.25  # (z of 2.5 % + z of 80 %)² times variance over the squared effect
    even = statistics.needed(Estimate(0.0, 3, 100, Part(0.01, 6), Part(1.0, 99)), 0.0, look=2)
    assert even is not None
    assert (even.seeds, even.samples) == (None, None)


# -- simulated studies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [30, 120])
@pytest.mark.parametrize("looks", [(2,), (3,), (3, 5, 8)])
def test_wrong_answers_are_as_rare_as_said_and_intervals_cover(samples: int, looks: tuple[int, ...]) -> None:
    """A small version of `tests.benchmarks.statistics_simulated`; 300 studies have a standard error of 0.9 points."""
    found = simulate(WORLDS[2], samples, looks, 300)
    assert found.shown / 300 <= 0.035 + 2 * 0.009
    assert found.refuted / 300 <= 0.035 + 2 * 0.009
    assert found.covered / 300 >= 0.93 - 2 * 0.0126
