"""What a study makes of its runs: qualities, margins, pairs, looks and answers, in folders filled without training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import RECIPE

from leanify.runs import recipe as recipes
from leanify.study import statistics
from leanify.study.folder import Outcome, StudyFolder
from leanify.study.plan import PlannedDesign, StudyPlan, ranked
from leanify.study.results import Study, _needed, study_of
from leanify.study.statistics import Estimate, Noise, Run
from leanify.units import digits

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
    made = StudyPlan("made", recipe, "0.5", tuple(range(seeds)), ranked(designs), 1, tokens=17)
    folder = StudyFolder.create(path, replace(made, **dict(plan or {})))
    for key in folder.plan.runs():
        print_ = folder.plan.fingerprint(key)
        if key.seed < (failed or {}).get(key.design, 0):
            folder.record(Outcome(key.design, key.seed, print_, "failed", "the loss of step 7 is not finite"))
            continue
        found = outcomes_of(key.design, key.seed) if sign > 0 else losses_of(key.design, key.seed)
        metric = "top1" if sign > 0 else "loss"
        done = Outcome(key.design, key.seed, print_, "finished", "", metric, "validation", sign, None)
        done = replace(done, quality=float(found.mean()), step=20, best=best, **dict(changes or {}))
        folder.record(done)
        folder.run(key).mkdir(exist_ok=True)
        if kept:
            folder.record_samples(key, found)
    return folder


def noise_of(names: tuple[str, ...], seeds: int, sign: int = 1) -> Noise:
    made = outcomes_of if sign > 0 else losses_of
    found = {
        (name, seed): sign * made(name, seed).astype("float32").astype(float) for seed in range(seeds) for name in names
    }
    return Noise(
        [Run(name, seed, sign * float(made(name, seed).mean()), value) for (name, seed), value in found.items()]
    )


def test_a_quality_is_the_mean_over_seeds_with_the_interval_of_all_runs(tmp_path: Path) -> None:
    found = study_of(folder_of(tmp_path / "s", failed={"wide": 1}))
    noise = Noise([
        Run(name, seed, float(outcomes_of(name, seed).mean()), outcomes_of(name, seed))
        for name in NAMES for seed in range(4) if (name, seed) != ("wide", 0)
    ])  # fmt: skip
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
    rows = found.frame()
    assert list(rows["design"]) == [name for name in [r.name for r in found.results] for _ in range(4)]
    assert set(rows.loc[rows["design"] == "lean", "params"]) == {2000}


def test_a_loss_is_better_where_it_is_lower_and_never_below_a_perfect_one(tmp_path: Path) -> None:
    found = study_of(folder_of(tmp_path / "s", sign=-1, best=0.0))
    noise = noise_of(NAMES, 4, -1)
    lean = found.result("lean").quality
    low, high = noise.mean("lean").interval() or (0, 0)
    assert (lean.mean, lean.low, lean.high) == pytest.approx((-noise.mean("lean").mean, max(0, -high), -low))
    assert not found.higher_is_better
    pair = next(pair for pair in found.pairs if (pair.design, pair.against) == ("lean", "baseline"))
    assert pair.difference > 0
    baseline = found.result("baseline").quality.mean
    assert baseline is not None
    assert found.margin == pytest.approx(0.05 * baseline)
    assert "5%" in found.margin_words
    assert "loss" in found.margin_words
    perfect = folder_of(tmp_path / "p", ("baseline", "lean"), 3, sign=-1, best=3.0)  # clipped from below
    for result in study_of(perfect).results:
        assert result.quality.low is not None
        assert result.quality.low >= 0.8


@pytest.mark.parametrize(("best", "sign"), [(75.5, 1), (1.024, -1)])
def test_an_interval_ends_at_a_perfect_model(best: float, sign: int, tmp_path: Path) -> None:
    found = (
        study_of(folder_of(tmp_path / "s", ("baseline", "lean"), 3, sign=sign, best=best)).result("baseline").quality
    )
    assert found.low is not None
    assert found.high is not None
    assert (found.high if sign > 0 else found.low) == best
    assert found.low < found.high


def test_a_margin_is_that_asked_for_or_a_share_of_what_is_left_to_lose(tmp_path: Path) -> None:
    errors = 100 - float(np.mean([outcomes_of("baseline", seed).mean() for seed in range(4)]))
    share = study_of(folder_of(tmp_path / "share"))
    assert share.margin == pytest.approx(0.05 * errors)
    assert "errors" in share.margin_words
    asked = study_of(folder_of(tmp_path / "asked", plan={"margin": 2.5}))
    assert asked.margin == 2.5
    assert "2.5" in asked.margin_words
    assert "5%" not in asked.margin_words
    older = study_of(folder_of(tmp_path / "older", best=None, changes={"margin": 1.5}))
    assert older.margin == 1.5
    alone = study_of(folder_of(tmp_path / "alone", ("lean", "wide"), changes={"margin": 0.7}))
    assert alone.margin == 0.7
    assert alone.verdicts == ()
    other = study_of(folder_of(tmp_path / "other", changes={"metric": "correlation", "unit": "points"}))
    assert "distance to 100" in other.margin_words
    assert "points" in other.margin_words


def test_every_design_is_compared_with_baseline_and_control_and_only_questions_keep_their_p(tmp_path: Path) -> None:
    found = study_of(folder_of(tmp_path / "s"))
    noise = noise_of(NAMES, 4)
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
        assert (pair.low, pair.high) == pytest.approx(difference.interval(statistics.alpha_of(1)))
        assert pair.asked == ((pair.design, pair.against) in asked)
        if pair.asked:
            assert pair.p == pytest.approx(statistics.two_sided(difference, 1))
        assert [seed for seed, _ in pair.seeds] == [0, 1, 2, 3]
        for seed, value in pair.seeds:
            difference_of_one = outcomes_of(pair.design, seed) - outcomes_of(pair.against, seed)
            assert value == pytest.approx(float(difference_of_one.mean()))


def test_two_questions_one_with_the_margin_and_one_without(tmp_path: Path) -> None:
    found = study_of(folder_of(tmp_path / "s"))
    noise = noise_of(NAMES, 4)
    assert found.margin is not None
    margins = {"baseline": found.margin, "control": 0.0}
    assert len(found.verdicts) == 2
    for verdict, (against, margin) in zip(found.verdicts, margins.items(), strict=True):
        decision = statistics.decide(noise.difference("lean", against), margin, 1)
        assert against in verdict.question
        assert verdict.answer == decision.answer
        assert verdict.p == pytest.approx(decision.p)
        assert decision.needed is not None
        assert verdict.seeds_needed == decision.needed.seeds
        assert verdict.seeds_range == (decision.needed.low, decision.needed.high)
        assert verdict.samples_needed == decision.needed.samples
        assert "4 seeds on 400 samples" in verdict.words


def test_each_look_after_the_third_seed_costs(tmp_path: Path) -> None:
    two = folder_of(tmp_path / "two", seeds=2)
    two.look(2)
    assert study_of(two).look == 0
    assert all(verdict.answer == "undecided" for verdict in study_of(two).verdicts)
    assert all("below 3 seeds" in verdict.words for verdict in study_of(two).verdicts)
    folder = folder_of(tmp_path / "four")
    assert study_of(folder).look == 1
    for seeds in (2, 4, 7):  # too few to answer, this one, and one that is still to come
        folder.look(seeds)
    assert study_of(folder).look == 1
    folder.look(3)
    found = study_of(folder)
    assert found.look == 2
    assert all("look 2" in verdict.words for verdict in found.verdicts)
    difference = noise_of(NAMES, 4).difference("lean", "baseline")
    pair = next(pair for pair in found.pairs if (pair.design, pair.against) == ("lean", "baseline"))
    assert (pair.low, pair.high) == pytest.approx(difference.interval(statistics.alpha_of(2)))
    assert pair.p == pytest.approx(statistics.two_sided(difference, 2))


def test_what_is_missing_is_said_instead_of_an_answer(tmp_path: Path) -> None:
    unknown = study_of(folder_of(tmp_path / "unknown", kept=False))
    assert unknown.evaluated == 0
    assert all(verdict.answer == "undecided" for verdict in unknown.verdicts)
    assert all("did not keep" in verdict.words for verdict in unknown.verdicts)
    single = study_of(folder_of(tmp_path / "single", seeds=2, failed=dict.fromkeys(NAMES, 1)))
    assert single.pairs[0].low is None
    assert all("1 seed;" in verdict.words for verdict in single.verdicts)
    nothing = study_of(folder_of(tmp_path / "nothing", failed=dict.fromkeys(NAMES, 4)))
    assert (nothing.metric, nothing.verdicts, nothing.pairs) == (None, (), ())
    assert all(result.quality.mean is None and result.quality.failed == 4 for result in nothing.results)


def reference(folder: StudyFolder, right: int) -> None:
    found = 100.0 * (np.arange(SAMPLES) < right)
    data = {"name": "a straight line", "value": float(found.mean()), "outcomes": found.tolist()}
    (folder.path / "reference.json").write_text(json.dumps(data))


@pytest.mark.parametrize(("right", "learnt"), [(200, True), (299, False), (398, False)])
def test_models_no_better_than_the_reference_answer_nothing(right: int, learnt: bool, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "s")
    reference(folder, right)
    found = study_of(folder)
    assert found.learnt is learnt
    assert "a straight line" in found.learnt_why
    assert found.reference is not None
    assert found.reference.value == pytest.approx(right / 4)
    if not learnt:
        assert "by more than the noise" in found.learnt_why
        assert {verdict.answer for verdict in found.verdicts} == {"undecided"}
        assert all("not learnt" in verdict.words for verdict in found.verdicts)


def test_without_a_baseline_the_best_design_is_judged(tmp_path: Path) -> None:
    """Between the worst design's and the best one's: only the best beats it."""
    for sign, best in ((1, 100.0), (-1, 0.0)):
        folder = folder_of(tmp_path / f"s{sign}", ("lean", "control", "wide"), sign=sign, best=best)
        made = outcomes_of if sign > 0 else losses_of
        middle = (made("wide", 0) if sign > 0 else losses_of("wide", 0) - 0.01).tolist()
        data = {"name": "a line", "value": float(np.mean(middle)), "outcomes": middle}
        (folder.path / "reference.json").write_text(json.dumps(data))
        assert "lean" in study_of(folder).learnt_why


@pytest.mark.parametrize(("falling", "learnt"), [(4, False), (3, False), (2, True), (0, True)])
def test_runs_whose_loss_still_falls_have_not_learnt_if_they_are_most(
    falling: int, learnt: bool, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "s")
    for key in folder.plan.runs():
        losses = [2.0, 1.9, 1.8, 1.0] if key.seed < falling else [2.0, 1.2, 1.01, 1.0]
        rows = [
            {"step": step, "epoch": 1.0, "split": "validation", "loss": loss}
            for step, loss in zip((0, 8, 16, 20), losses, strict=True)
        ]
        (folder.run(key) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = study_of(folder)
    assert found.learnt is learnt
    assert ("still falls" in found.learnt_why) is not learnt


def test_a_condition_number_is_the_mean_over_runs_first_and_last(tmp_path: Path) -> None:
    kappas = {"kappas": ((0, 900.0), (10, 50.0), (20, 40.0)), "kappa_bounds": (39.0, 42.0)}
    found = study_of(folder_of(tmp_path / "s", ("baseline", "lean"), 3, changes=kappas)).result("lean")
    assert (found.kappa_begin, found.kappa, found.kappa_bounds) == (900.0, 40.0, (39.0, 42.0))
    open_ended = kappas | {"kappa_bounds": (39.0, None)}
    endless = study_of(folder_of(tmp_path / "e", ("baseline", "lean"), 3, changes=open_ended)).result("lean")
    assert endless.kappa_bounds == (39.0, math.inf)
    assert endless.to_json()["kappa_bounds"] == [39.0, "inf"]
    without = study_of(folder_of(tmp_path / "w", ("baseline", "lean"), 3)).result("lean")
    assert (without.kappa_begin, without.kappa, without.kappa_bounds) == (None, None, None)
    folder = folder_of(tmp_path / "m", ("baseline", "lean"), 3, changes=kappas)
    key = next(key for key in folder.plan.runs() if key.design == "lean")
    known = folder.outcome(key)
    assert known is not None
    folder.record(replace(known, kappa_bounds=None, kappas=((0, 300.0), (20, 10.0))))
    mixed = study_of(folder).result("lean")
    assert mixed.kappa_bounds is None
    assert (mixed.kappa_begin, mixed.kappa) == pytest.approx((700.0, 30.0))


def test_a_tournaments_winner_is_judged_by_seeds_that_did_not_choose_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "s", plan={"tournament": True, "winner": "wide"})
    found: Study = study_of(folder)
    noise = noise_of(NAMES, 4)
    fresh = Noise([run for run in noise.runs.values() if run.seed > 0 and run.design in ("baseline", "lean", "wide")])
    assert found.plan.focus == "wide"
    pair = next(pair for pair in found.pairs if (pair.design, pair.against) == ("wide", "baseline"))
    assert [seed for seed, _ in pair.seeds] == [1, 2, 3]
    assert pair.difference == pytest.approx(fresh.difference("wide", "baseline").mean)


def test_one_run_that_has_ended_is_a_study_already(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "s", ("baseline", "lean"), 2, failed={"baseline": 1, "lean": 2})
    found = study_of(folder)
    assert (found.metric, found.split, found.steps) == ("top1", "validation", 20)
    assert found.result("baseline").quality.seeds == 1
    assert found.pairs == ()


def test_a_row_shows_a_quality_with_its_interval_where_it_has_one(tmp_path: Path) -> None:
    found = study_of(folder_of(tmp_path / "s", failed={"wide": 4}))
    rows = {row["design"]: row for row in found.cells()}
    lean = found.result("lean").quality
    assert lean.mean is not None
    assert lean.low is not None
    assert lean.high is not None
    shown = [digits(one) for one in (lean.mean, lean.low, lean.high)]
    assert rows["lean"]["top1"] == f"{shown[0]} ({shown[1]} … {shown[2]})"
    assert rows["wide"]["top1"] == "–"
    single = study_of(folder_of(tmp_path / "one", ("baseline", "lean"), 2, failed={"lean": 1}, kept=False))
    alone = single.result("lean").quality
    assert alone.mean is not None
    assert (alone.low, alone.high) == (None, None)
    assert {row["design"]: row["top1"] for row in single.cells()}["lean"] == digits(alone.mean)


def test_a_margins_unit_is_the_runs_own_or_points_of_a_metric_that_grows(tmp_path: Path) -> None:
    assert "points of top1" in study_of(folder_of(tmp_path / "share")).margin_words
    loss = study_of(folder_of(tmp_path / "loss", sign=-1, best=0.0)).margin_words
    assert "points" not in loss
    assert " loss (" in loss
    own = study_of(folder_of(tmp_path / "own", changes={"unit": "nats per token"})).margin_words
    assert "nats per token" in own
    assert "points" not in own


def test_who_is_judged_against_the_reference_is_named(tmp_path: Path) -> None:
    for names, said in ((NAMES, "the baseline ("), (("lean", "control"), "lean (")):
        folder = folder_of(tmp_path / str(len(names)), names)
        reference(folder, 200)
        assert study_of(folder).learnt_why.startswith(said)


def test_the_look_is_that_of_the_question_with_the_most_seeds(tmp_path: Path) -> None:
    """Three seeds were looked at before the fourth; that the control has only three of them does not undo that."""
    folder = folder_of(tmp_path / "s", failed={"control": 1})
    folder.look(3)
    assert study_of(folder).look == 2


NEARLY = Estimate(1.0, 5, 300, statistics.Part(1.0, 4.0), statistics.Part(1.0, 299.0))


@pytest.mark.parametrize(
    ("needed", "facts", "others"),
    [
        (statistics.Needed(12, 8, 30), ("about 12 seeds", "8 to 30"), ("samples",)),
        (statistics.Needed(12, 8, None), ("about 12 seeds", f"8 to more than {statistics.MOST_SEEDS}"), ("samples",)),
        (statistics.Needed(None, 9, None), (f"more than {statistics.MOST_SEEDS} seeds",), ("samples", "about")),
        (statistics.Needed(None, None, None, 5_000), ("300 validation samples", "5,000"), ("more than",)),
        (None, ("unknown",), ("about",)),
    ],
)
def test_what_would_decide_is_said_in_seeds_or_in_samples(
    needed: statistics.Needed | None, facts: tuple[str, ...], others: tuple[str, ...]
) -> None:
    words = _needed(NEARLY, needed)
    assert all(fact in words for fact in facts)
    assert not any(other in words for other in others)
    assert "below 3 seeds" in _needed(replace(NEARLY, seeds=2), needed)
    assert "did not keep" in _needed(replace(NEARLY, of_samples=None), needed)
