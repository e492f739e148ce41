"""What a study makes of its runs: qualities, margins, pairs, looks and answers, in folders filled without training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from studies import RECIPE

from leanify.comparison import rates, report, statistics
from leanify.comparison.folder import Outcome, StudyFolder
from leanify.comparison.plan import Key, PlannedDesign, StudyPlan, rank_designs
from leanify.comparison.results import read_study
from leanify.comparison.statistics import Estimate, Run, RunTable
from leanify.comparison.values import Pair, Study
from leanify.comparison.verdicts import describe_needed
from leanify.core import recipe as recipes
from leanify.core.units import format_digits

SAMPLES = 400
NAMES = ("baseline", "lean", "control", "wide")
RIGHT = {"baseline": 300, "lean": 318, "control": 290, "wide": 308}  # of SAMPLES, with the first seed


def outcomes_of(design: str, seed: int) -> np.ndarray:
    """100 for each sample that is answered, at places that differ a little from design to design and seed to seed."""
    places = np.random.default_rng([seed, RIGHT[design]]).permutation(SAMPLES)
    return 100.0 * (places < RIGHT[design] + 2 * seed)


def losses_of(design: str, seed: int) -> np.ndarray:
    return (SAMPLES - RIGHT[design]) / 100 + np.random.default_rng([seed, RIGHT[design]]).uniform(0, 0.05, SAMPLES)


def folder_of(
    path: Path,
    names: tuple[str, ...] = NAMES,
    seeds: int = 4,
    *,
    sign: int = 1,
    best: float | None = 100.0,
    failed: Mapping[str, int] | None = None,
    kept: bool = True,
    changes: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
) -> StudyFolder:
    """A study whose runs have ended; ``failed`` says how many of a design's first runs did not."""
    recipe = recipes.parse(RECIPE)
    designs = tuple(
        PlannedDesign(name, recipe.model, 4, 2 + place, 8, 64, 1000 * (place + 1), 10**6, 0, float(place))
        for place, name in enumerate(names)
    )
    made = StudyPlan("made", recipe, "0.5", tuple(range(seeds)), rank_designs(designs), 1, tokens=17)
    folder = StudyFolder.create(path, replace(made, **dict(plan or {})))
    for key in folder.plan.runs():
        print_ = folder.plan.fingerprint(key)
        if key.seed < (failed or {}).get(key.design, 0):
            folder.record(Outcome(key.design, key.seed, print_, "failed", "the loss of step 7 is not finite"))
            continue
        found = outcomes_of(key.design, key.seed) if sign > 0 else losses_of(key.design, key.seed)
        metric = "top1" if sign > 0 else "loss"
        done = Outcome(key.design, key.seed, print_, "finished", "", metric, "validation", sign)
        done = replace(done, quality=float(found.mean()), step=20, best=best, **dict(changes or {}))
        folder.record(done)
        folder.run(key).mkdir(exist_ok=True)
        if kept:
            folder.record_samples(key, found)
    return folder


def study_of(path: Path, *arguments: Any, **options: Any) -> Study:
    return read_study(folder_of(path, *arguments, **options))


def pair_of(found: Study, design: str, against: str) -> Pair:
    return next(pair for pair in found.pairs if (pair.design, pair.against) == (design, against))


def noise_of(sign: int = 1, missing: tuple[str, int] | None = None) -> RunTable:
    """Of four seeds of every design, but for a run that is missing."""
    runs = []
    for seed, name in product(range(4), NAMES):
        found = sign * (outcomes_of if sign > 0 else losses_of)(name, seed)
        runs.append(Run(name, seed, float(found.mean()), found.astype("float32").astype(float)))
    return RunTable([run for run in runs if (run.design, run.seed) != missing])


# -- qualities --------------------------------------------------------------------------------------------------------


def test_quality_averages_over_seeds(tmp_path: Path) -> None:
    """Its interval is that of all runs."""
    found = study_of(tmp_path / "s", failed={"wide": 1})
    noise = noise_of(missing=("wide", 0))
    for result in found.results:
        low, high = noise.mean(result.name).interval() or (0, 0)
        assert result.quality.mean == pytest.approx(noise.mean(result.name).mean)
        assert (result.quality.low, result.quality.high) == pytest.approx((low, min(high, 100.0)))
        assert (result.quality.seeds, result.quality.failed) == ((3, 1) if result.name == "wide" else (4, 0))
        assert [run.status for run in result.runs].count("failed") == result.quality.failed
        assert result.runs[1].quality == pytest.approx(float(outcomes_of(result.name, 1).mean()))
        assert (found.path / result.runs[1].path).is_dir()
        assert result.rate == 3e-3
    assert (found.metric, found.split, found.higher_is_better, found.steps) == ("top1", "validation", True, 20)
    assert (found.evaluated, found.missing) == (SAMPLES, 0)


def test_lower_loss_is_better(tmp_path: Path) -> None:
    """No interval goes below a perfect loss."""
    found = study_of(tmp_path / "s", sign=-1, best=0.0)
    noise = noise_of(-1)
    lean = found.result("lean").quality
    low, high = noise.mean("lean").interval() or (0, 0)
    assert (lean.mean, lean.low, lean.high) == pytest.approx((-noise.mean("lean").mean, max(0, -high), -low))
    assert not found.higher_is_better
    assert pair_of(found, "lean", "baseline").difference > 0
    assert found.margin == pytest.approx(0.05 * found.result("baseline").quality.mean)
    assert "5% of its loss" in found.margin_words
    assert "points" not in found.margin_words


@pytest.mark.parametrize(("best", "sign"), [(75.5, 1), (1.0245, -1)])
def test_interval_ends_at_perfection(best: float, sign: int, tmp_path: Path) -> None:
    found = study_of(tmp_path / "s", ("baseline", "lean"), 3, sign=sign, best=best).result("baseline").quality
    assert (found.high if sign > 0 else found.low) == best
    assert found.low < found.high


def test_margin_is_share_of_errors_or_given(tmp_path: Path) -> None:
    """Its words have the metric's unit."""
    errors = 100 - float(np.mean([outcomes_of("baseline", seed).mean() for seed in range(4)]))
    share = study_of(tmp_path / "share")
    assert share.margin == pytest.approx(0.05 * errors)
    assert "points of top1" in share.margin_words
    assert f"errors, from {errors:.3g} to {1.05 * errors:.3g}%" in share.margin_words
    asked = study_of(tmp_path / "asked", plan={"margin": 2.5})
    assert asked.margin == 2.5
    assert asked.margin_words.startswith("2.5 points")
    assert f"errors may grow from {errors:.3g} to {errors + 2.5:.3g}%" in asked.margin_words
    assert study_of(tmp_path / "alone", ("lean", "wide")).verdicts == ()
    other = study_of(tmp_path / "other", changes={"metric": "correlation", "unit": "nats per token"}).margin_words
    assert "distance to 100" in other
    assert "nats per token" in other
    assert "points" not in other


def test_kappa_averages_over_runs(tmp_path: Path) -> None:
    """First and last values."""
    names = ("baseline", "lean")
    kappas = {"kappas": ((0, 900.0), (10, 50.0), (20, 40.0)), "kappa_bounds": (39.0, 42.0)}
    folder = folder_of(tmp_path / "s", names, 3, changes=kappas)
    found = read_study(folder).result("lean")
    assert (found.kappa_begin, found.kappa, found.kappa_bounds) == (900.0, 40.0, (39.0, 42.0))
    endless = study_of(tmp_path / "e", names, 3, changes=kappas | {"kappa_bounds": (39.0, None)}).result("lean")
    assert endless.kappa_bounds == (39.0, math.inf)
    assert endless.to_json()["kappa_bounds"] == [39.0, "inf"]
    without = study_of(tmp_path / "w", names, 3).result("lean")
    assert (without.kappa_begin, without.kappa, without.kappa_bounds) == (None, None, None)
    # one run without bounds
    known = folder.outcome(Key("lean", 0))
    folder.record(replace(known, kappa_bounds=None, kappas=((0, 300.0), (20, 10.0))))
    mixed = read_study(folder).result("lean")
    assert mixed.kappa_bounds is None
    assert (mixed.kappa_begin, mixed.kappa) == pytest.approx((700.0, 30.0))


# -- pairs, looks and answers -----------------------------------------------------------------------------------------


def test_designs_face_baseline_and_control(tmp_path: Path) -> None:
    """Only questions keep their p."""
    found = study_of(tmp_path / "s")
    noise = noise_of()
    wanted = {(name, "baseline") for name in NAMES if name != "baseline"}
    wanted |= {(name, "control") for name in NAMES if name not in ("baseline", "control")}
    assert {(pair.design, pair.against) for pair in found.pairs} == wanted
    asked = {("lean", "baseline"), ("lean", "control")}
    others = [pair for pair in found.pairs if (pair.design, pair.against) not in asked]
    alone = [statistics.two_sided(noise.difference(pair.design, pair.against), 1) for pair in others]
    assert [pair.p for pair in others] == pytest.approx(statistics.holm(alone))
    for pair in found.pairs:
        difference = noise.difference(pair.design, pair.against)
        assert pair.difference == pytest.approx(difference.mean)
        alpha = statistics.alpha_of(1) / (1 if (pair.design, pair.against) in asked else len(others))
        assert (pair.low, pair.high) == pytest.approx(difference.interval(alpha))
        assert pair.asked == ((pair.design, pair.against) in asked)
        if pair.asked:
            assert pair.p == pytest.approx(statistics.two_sided(difference, 1))
        assert [seed for seed, _ in pair.seeds] == [0, 1, 2, 3]
        for seed, value in pair.seeds:
            difference_of_one = outcomes_of(pair.design, seed) - outcomes_of(pair.against, seed)
            assert value == pytest.approx(float(difference_of_one.mean()))


def test_questions_with_and_without_margin(tmp_path: Path) -> None:
    found = study_of(tmp_path / "s")
    noise = noise_of()
    margins = {"baseline": found.margin, "control": 0.0}
    for verdict, (against, margin) in zip(found.verdicts, margins.items(), strict=True):
        decision = statistics.decide(noise.difference("lean", against), margin, 1)
        assert against in verdict.question
        assert verdict.answer == decision.answer
        assert verdict.p == pytest.approx(decision.p)
        assert verdict.seeds_needed == decision.needed.seeds
        assert verdict.seeds_range == (decision.needed.low, decision.needed.high)
        assert verdict.samples_needed == decision.needed.samples
        assert "4 seeds on 400 samples" in verdict.words


def test_later_looks_cost(tmp_path: Path) -> None:
    """Each look after the third seed costs, also where another design has only three seeds."""
    two = folder_of(tmp_path / "two", seeds=2)
    two.look(2)
    found = read_study(two)
    assert found.look == 0
    assert all(verdict.answer == "undecided" and "below 3 seeds" in verdict.words for verdict in found.verdicts)
    folder = folder_of(tmp_path / "four")
    assert read_study(folder).look == 1
    for seeds in (2, 4, 7):  # too few to answer, this one, and one that is still to come
        folder.look(seeds)
    assert read_study(folder).look == 1
    folder.look(3)
    found = read_study(folder)
    assert found.look == 2
    assert all("look 2" in verdict.words for verdict in found.verdicts)
    difference, pair = noise_of().difference("lean", "baseline"), pair_of(found, "lean", "baseline")
    assert (pair.low, pair.high) == pytest.approx(difference.interval(statistics.alpha_of(2)))
    assert pair.p == pytest.approx(statistics.two_sided(difference, 2))
    fewer = folder_of(tmp_path / "fewer", failed={"control": 1})
    fewer.look(3)
    assert read_study(fewer).look == 2


def test_missing_answers_are_explained(tmp_path: Path) -> None:
    unknown = study_of(tmp_path / "unknown", kept=False)
    assert unknown.evaluated == 0
    for verdict in unknown.verdicts:
        assert verdict.answer == "undecided"
        assert "samples are unknown" in verdict.words
    single = study_of(tmp_path / "single", seeds=2, failed=dict.fromkeys(NAMES, 1))
    assert single.pairs[0].low is None
    assert all("1 seed;" in verdict.words for verdict in single.verdicts)
    one = study_of(tmp_path / "one", ("baseline", "lean"), 2, failed={"baseline": 1, "lean": 2})
    assert (one.metric, one.steps, one.result("baseline").quality.seeds, one.pairs) == ("top1", 20, 1, ())
    nothing = study_of(tmp_path / "nothing", failed=dict.fromkeys(NAMES, 4))
    assert (nothing.metric, nothing.verdicts, nothing.pairs) == (None, (), ())
    assert all(result.quality.mean is None and result.quality.failed == 4 for result in nothing.results)


@pytest.mark.parametrize("failed", [0, 1])
def test_failed_design_shows_nothing(failed: int, tmp_path: Path) -> None:
    """The runs that survive are the lucky ones."""
    verdict, _ = study_of(tmp_path / "s", failed={"lean": failed}).verdicts
    assert verdict.answer == ("undecided" if failed else "shown")
    assert ("1 of 4 runs of lean failed" in verdict.words) == bool(failed)


NEARLY = Estimate(1.0, 5, 300, statistics.Part(1.0, 4.0), statistics.Part(1.0, 299.0))


@pytest.mark.parametrize(
    ("needed", "facts", "others"),
    [
        (statistics.Needed(12, 8, 30), ("about 12 seeds", "8 to 30"), ("samples",)),
        (statistics.Needed(12, 8, None), ("about 12 seeds", f"8 to more than {statistics.MAX_SEEDS}"), ("samples",)),
        (statistics.Needed(None, 9, None), (f"more than {statistics.MAX_SEEDS} seeds",), ("samples", "about")),
        (statistics.Needed(None, None, None, 5_000), ("300 validation samples", "5,000"), ("more than",)),
        (None, ("unknown",), ("about",)),
    ],
)
def test_needed_seeds_or_samples_are_named(
    needed: statistics.Needed | None, facts: tuple[str, ...], others: tuple[str, ...]
) -> None:
    words = describe_needed(NEARLY, needed)
    assert all(fact in words for fact in facts)
    assert not any(other in words for other in others)


# -- models that have not learnt --------------------------------------------------------------------------------------


def write_reference(folder: StudyFolder, found: np.ndarray) -> None:
    data = {"name": "a straight line", "value": float(found.mean()), "outcomes": found.tolist()}
    (folder.path / "reference.json").write_text(json.dumps(data))


def first_right(count: int) -> np.ndarray:
    return 100.0 * (np.arange(SAMPLES) < count)


def write_losses(folder: StudyFolder, key: Key, losses: Sequence[float], split: str = "train") -> None:
    rows = [{"step": 5 * i + 5, "epoch": 1.0, "split": split, "loss": loss} for i, loss in enumerate(losses)]
    (folder.run(key) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(("right", "learnt"), [(200, True), (299, False), (398, False)])
def test_weak_models_answer_nothing(right: int, learnt: bool, tmp_path: Path) -> None:
    """Models no better than the reference."""
    folder = folder_of(tmp_path / "s")
    write_reference(folder, first_right(right))
    found = read_study(folder)
    assert found.learnt is learnt
    assert found.learnt_why.startswith("the baseline (")
    assert "a straight line" in found.learnt_why
    assert found.reference.value == pytest.approx(right / 4)
    if not learnt:
        assert "by more than the noise" in found.learnt_why
        assert {verdict.answer for verdict in found.verdicts} == {"undecided"}
        assert all("not learnt" in verdict.words for verdict in found.verdicts)


@pytest.mark.parametrize(("sign", "best"), [(1, 100.0), (-1, 0.0)])
def test_best_design_replaces_baseline(sign: int, best: float, tmp_path: Path) -> None:
    """Between the worst design's and the best one's: only the best beats it."""
    folder = folder_of(tmp_path / "s", ("lean", "control", "wide"), sign=sign, best=best)
    write_reference(folder, outcomes_of("wide", 0) if sign > 0 else losses_of("wide", 0) - 0.01)
    assert read_study(folder).learnt_why.startswith("lean (")


def test_design_at_chance_answers_nothing(tmp_path: Path) -> None:
    """The baseline beats the reference, and the control does not: its shape is not to blame."""
    folder = folder_of(tmp_path / "s")
    write_reference(folder, first_right(280))  # of 400: the control has 290 and a little more
    found = read_study(folder)
    assert found.learnt
    to_baseline, to_control = found.verdicts
    assert (to_baseline.answer, to_control.answer) == ("shown", "undecided")
    assert "control does not beat a straight line" in to_control.words


@pytest.mark.parametrize(("falling", "learnt"), [(4, False), (3, False), (2, True), (0, True)])
def test_falling_losses_have_not_learnt(falling: int, learnt: bool, tmp_path: Path) -> None:
    """Runs whose loss still falls have not learnt, if they are most."""
    folder = folder_of(tmp_path / "s")
    for key in folder.plan.runs():
        losses = [2.0, 1.9, 1.8, 1.0] if key.seed < falling else [2.0, 1.2, 1.01, 1.0]
        write_losses(folder, key, losses, "validation")
    found = read_study(folder)
    assert found.learnt is learnt
    assert ("still falls" in found.learnt_why) is not learnt


def test_diverged_runs_are_named(tmp_path: Path) -> None:
    """A run that loses what it has learnt counts in no mean, and what is left answers nothing."""
    folder = folder_of(tmp_path / "s")
    for key in folder.plan.runs():
        write_losses(folder, key, [2.0, 1.1, 0.6, 0.5])
    before = read_study(folder)
    assert [verdict.answer for verdict in before.verdicts] == ["shown", "shown"]
    write_losses(folder, Key("lean", 2), [2.0, 1.0, 2.2, 2.3])
    write_losses(folder, Key("wide", 0), [2.0, 2.0, 2.0, 2.0])  # never began
    write_losses(folder, Key("control", 1), [2.0, 1.2, 0.7, 0.6])  # a little worse
    found = read_study(folder)
    lean = found.result("lean")
    assert (lean.quality.seeds, lean.quality.diverged, lean.quality.failed) == (3, 1, 0)
    rest = [float(outcomes_of("lean", seed).mean()) for seed in (0, 1, 3)]
    assert lean.quality.mean == pytest.approx(np.mean(rest))
    assert [run.status for run in lean.runs] == ["finished", "finished", "diverged", "finished"]
    assert (found.result("wide").quality.diverged, found.result("control").quality.diverged) == (1, 0)
    assert {verdict.answer for verdict in found.verdicts} == {"undecided"}
    assert all("1 of 4 runs of lean diverged" in verdict.words for verdict in found.verdicts)
    assert "lean, seed 2, diverged: its training loss ended at 2.3" in report.render(found)


# -- rates ------------------------------------------------------------------------------------------------------------


def test_unfinished_study_counts_what_remains(tmp_path: Path) -> None:
    """Runs and trials, and no number that is not known yet."""
    folder = folder_of(tmp_path / "s", ("baseline", "lean"), 3, plan={"rates": (0.5, 1.0, 2.0)})
    for file in (tmp_path / "s" / "runs").glob("*.json"):
        file.unlink()
    trial = next(folder.plan.trials())
    print_ = folder.plan.fingerprint(trial)
    folder.record(Outcome(trial.design, 0, print_, "finished", metric="top1", quality=61.5, rate=trial.rate))
    found = read_study(folder)
    assert (found.missing_runs, found.missing_trials, found.missing) == (6, 5, 11)
    assert found.describe_missing() == "6 runs and 5 trials of learning rates to go"
    assert [result.rate for result in found.results] == [None, None]
    page = report.render(found)
    assert found.describe_missing() in page
    assert "None" not in page
    assert "<h2>Figures" not in page


class InlineEngine:
    """Every run ends at once, with the quality that its design has at its rate."""

    def __init__(self, folder: StudyFolder, qualities: Mapping[str, Mapping[float, float]]) -> None:
        self.folder, self.qualities = folder, qualities

    def submit(self, function: Any, study: str, design: str, seed: int, rate: float) -> Any:
        quality = self.qualities[design][rate]
        print_ = self.folder.plan.fingerprint(Key(design, seed, rate))
        self.folder.record(Outcome(design, seed, print_, "finished", metric="top1", quality=quality, rate=rate))
        return SimpleNamespace(done=lambda: True, result=lambda: None)


@pytest.mark.parametrize(
    ("lean", "more", "chosen"),
    [
        ({0.5: 1, 1.0: 3, 2.0: 2}, (), 1.0),
        ({0.5: 1, 1.0: 2, 2.0: 3, 4.0: 4}, (4.0,), 4.0),
        ({0.5: 1, 1.0: 2, 2.0: 3, 4.0: 2}, (4.0,), 2.0),
        ({0.25: 4, 0.5: 3, 1.0: 2, 2.0: 1}, (0.25,), 0.25),
    ],
)
def test_rates_move_once_for_all(
    lean: dict[float, float], more: tuple[float, ...], chosen: float, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "s", ("baseline", "lean"), 3, plan={"rates": (0.5, 1.0, 2.0)})
    baseline = {0.25: 0.0, 0.5: 1.0, 1.0: 9.0, 2.0: 2.0, 4.0: 8.0}
    rates.select_rates(folder, InlineEngine(folder, {"baseline": baseline, "lean": lean}), lambda key: None)
    plan = StudyFolder.open(folder.path).plan
    assert (plan.rates, plan.more_rates) == ((0.5, 1.0, 2.0), more)
    assert [design.rate for design in plan.designs] == [1.0, chosen]
    tried = [trial.factor for trial in rates.rate_trials(folder, "baseline")]
    assert tried == sorted((0.5, 1.0, 2.0, *more))
    assert plan.merge(replace(plan, more_rates=(), designs=())).more_rates == more


# -- as a table -------------------------------------------------------------------------------------------------------


def test_study_shows_itself_as_table(tmp_path: Path) -> None:
    """With the intervals that there are."""
    study = study_of(tmp_path / "s", failed={"wide": 4})
    lines = repr(study).splitlines()
    assert lines[0].startswith("made · 4 seeds · top1")
    assert [line.split()[0] for line in lines[3:7]] == list(NAMES)
    assert study.verdicts[0].words in lines
    rows = {row["design"]: row["top1"] for row in study.cells()}
    lean = study.result("lean").quality
    shown = [format_digits(one) for one in (lean.mean, lean.low, lean.high)]
    assert (rows["lean"], rows["wide"]) == (f"{shown[0]} ({shown[1]} … {shown[2]})", "–")
    single = study_of(tmp_path / "one", ("baseline", "lean"), 2, failed={"lean": 1}, kept=False)
    alone = single.result("lean").quality
    assert (alone.low, alone.high) == (None, None)
    assert single.cells()[1]["top1"] == format_digits(alone.mean)
