"""The statistics of a study against independent oracles, and against simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from leanify.study import statistics

RNG = np.random.default_rng(20250601)


def test_intervals_and_p_values_are_those_of_statsmodels() -> None:
    weightstats = pytest.importorskip("statsmodels.stats.weightstats", reason="an oracle: pip install statsmodels")
    for count in (2, 3, 5, 20):
        values = RNG.normal(0.3, 1.0, count).tolist()
        oracle = weightstats.DescrStatsW(values)
        found = statistics.interval(values)
        assert (found.low, found.high) == pytest.approx(oracle.tconfint_mean(0.05), rel=1e-12)
        assert statistics.two_sided(values) == pytest.approx(oracle.ttest_mean(0)[1], rel=1e-9)
        assert statistics.one_sided(values, 0.7) == pytest.approx(oracle.ttest_mean(-0.7, "larger")[1], rel=1e-9)


def test_non_inferiority_is_one_side_of_tost() -> None:
    weightstats = pytest.importorskip("statsmodels.stats.weightstats", reason="an oracle: pip install statsmodels")
    lean, baseline = RNG.normal(80.0, 1.0, 6), RNG.normal(80.1, 1.0, 6)
    _, (_, lower, _), _ = weightstats.ttost_paired(lean, baseline, -1.0, 1.0)
    assert statistics.one_sided((lean - baseline).tolist(), 1.0) == pytest.approx(lower, rel=1e-9)


def test_holm_is_that_of_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="an oracle: pip install statsmodels")
    for count in (1, 2, 7):
        ps = (RNG.uniform(0, 1, count) ** 3).tolist()
        assert statistics.holm(ps) == pytest.approx(multitest.multipletests(ps, method="holm")[1].tolist(), rel=1e-12)


def test_holm_of_a_textbook_example_and_of_a_missing_test() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.04, math.nan, 0.01])[0::2] == pytest.approx([0.04, 0.02])


def test_the_seeds_needed_are_those_of_statsmodels_power() -> None:
    module = pytest.importorskip("statsmodels.stats.power", reason="an oracle: pip install statsmodels")
    for effect in (0.3, 0.8, 2.0):
        base = np.array([-1.0, 0.0, 1.0])  # mean 0, standard deviation 1
        needed = statistics.seeds_needed((base + effect).tolist(), 0.0)
        solve = module.TTestPower()
        assert needed is not None
        assert solve.power(effect, needed, 0.025, alternative="larger") >= 0.8
        assert solve.power(effect, needed - 1, 0.025, alternative="larger") < 0.8


def simulated(mean: float, repetitions: int = 10_000, seeds: int = 5) -> np.ndarray:
    """Differences of many studies of five seeds: (repetitions, seeds)."""
    return np.random.default_rng(7).normal(mean, 1.0, (repetitions, seeds))


def test_the_interval_covers_the_truth_95_times_in_100() -> None:
    studies = [statistics.interval(values) for values in simulated(0.4).tolist()]
    covered = np.mean([found.low <= 0.4 <= found.high for found in studies])
    assert covered == pytest.approx(0.95, abs=0.01)


def test_non_inferiority_is_claimed_wrongly_25_times_in_1000() -> None:
    """At the margin itself, where the claim is only just false; and refuted as rarely where it is only just true."""
    claims = [statistics.one_sided(values, 1.0) for values in simulated(-1.0).tolist()]
    assert np.mean([p < statistics.ALPHA for p in claims]) == pytest.approx(0.025, abs=0.01)
    assert np.mean([1 - p < statistics.ALPHA for p in claims]) == pytest.approx(0.025, abs=0.01)


def test_the_seeds_needed_decide_80_times_in_100() -> None:
    needed = statistics.seeds_needed([0.0, 1.0, 2.0], 0.0)  # an effect of one standard deviation
    assert needed is not None
    studies = simulated(1.0, seeds=needed).tolist()
    assert np.mean([statistics.one_sided(values, 0.0) < 0.025 for values in studies]) == pytest.approx(0.83, abs=0.04)


def test_an_answer_is_what_the_interval_beside_it_shows() -> None:
    for values in simulated(0.7, 500).tolist():
        found, answer = statistics.interval(values), statistics.decide(values, 0.3).answer
        assert (answer == "shown") == (found.low > -0.3)
        assert (answer == "refuted") == (found.high < -0.3)


def test_answers() -> None:
    assert statistics.decide([0.1, -0.1, 0.0, 0.05], 1.0).answer == "shown"
    assert statistics.decide([-2.1, -1.9, -2.0, -2.05], 1.0).answer == "refuted"
    assert statistics.decide([-2.0, 1.0, 0.5], 1.0).answer == "undecided"
    assert statistics.decide([0.1, -0.1, 0.0, 0.05], 1.0, p=0.2).answer == "undecided"


def test_without_spread_and_with_one_seed() -> None:
    same = statistics.interval([2.0, 2.0, 2.0])
    assert (same.low, same.mean, same.high) == (2.0, 2.0, 2.0)
    assert statistics.decide([0.5, 0.5], 0.0).answer == "shown"
    assert statistics.decide([-0.5, -0.5], 0.1).answer == "refuted"
    assert statistics.decide([0.0, 0.0], 0.0).answer == "undecided"
    assert math.isnan(statistics.interval([1.0]).low)
    alone = statistics.decide([1.0], 0.0)
    assert (alone.answer, alone.seeds_needed) == ("undecided", None)


def test_ten_equal_values_in_binary_have_no_spread() -> None:
    values = [0.1] * 10  # their computed standard deviation is 1.5e-17, not 0
    assert statistics.interval(values).low == pytest.approx(0.1, rel=1e-15)
    assert stats.sem(values) >= 0
    assert statistics.two_sided(values) == 0
