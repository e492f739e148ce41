"""Surfaces over shapes, tournaments, and who starts the runs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from studies import NARROW, command, environment, outcomes, recipe_file, starts
from test_compare_page import study as study  # a study that is trained by nobody

import leanify
from leanify.cli.board import _field
from leanify.design.redesign import redesign
from leanify.errors import LeanifyError, RecipeError
from leanify.runs import recipe as recipes
from leanify.study import comparing as studies
from leanify.study import engines, tables, tournament, warm_start
from leanify.study.designs import Designer
from leanify.study.folder import Outcome, Rung, StudyFolder
from leanify.study.measure import on_meta
from leanify.study.plan import Key
from leanify.study.results import Study
from leanify.study.surface import Surface, features, of_design, of_grid, surface_of

RNG = np.random.default_rng(11)


def quality(points: np.ndarray) -> np.ndarray:
    """A task on which depth pays up to a point, and wide MLPs a little."""
    return 70 + 6 * points[:, 0] - 2 * points[:, 0] ** 2 + 1.5 * points[:, 3]


def shapes(count: int) -> np.ndarray:
    sizes = (RNG.integers(2, 12, count), RNG.integers(2, 16, count), RNG.choice([16, 32, 64], count))
    return features(*sizes, RNG.integers(32, 512, count))


def test_a_surface_predicts_designs_that_were_never_trained() -> None:
    known, unknown = shapes(25), shapes(200)
    surface = Surface(known, quality(known) + RNG.normal(0, 0.05, 25), 1)
    mean, deviation = surface.predict(unknown)
    assert np.corrcoef(mean, quality(unknown))[0, 1] > 0.97
    inside = np.abs(mean - quality(unknown)) < 3 * deviation + 0.05
    assert inside.mean() > 0.85


def test_what_would_teach_most_is_what_is_least_known() -> None:
    """Against the definition: fit again with each choice added, hyperparameters as they were."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    known, candidates = shapes(8), shapes(40)
    surface = Surface(known, quality(known), 1)
    chosen = surface.most_telling(candidates, 4)
    assert len(set(chosen)) == 4
    for place, row in enumerate(chosen):
        points = np.vstack([known, candidates[chosen[:place]]])
        process = GaussianProcessRegressor(surface.process.kernel_, optimizer=None).fit(points, np.zeros(len(points)))
        left = process.predict(candidates, return_std=True)[1]
        left[chosen[:place]] = 0
        assert left[row] == pytest.approx(left.max(), rel=1e-6)


def test_redesign_ranks_by_a_surface() -> None:
    """A surface that knows only depth makes redesign choose the deepest design of the budget."""
    recipe = recipes.load("digits-study")
    known = shapes(30)
    deep = Surface(known, known[:, 0], 1)
    plans = [
        redesign(recipe.model.source, overrides=dict(recipe.model.override), target_params=0.5, ranking=ranking)
        for ranking in (deep.ranking, lambda grid: -deep.ranking(grid))
    ]
    assert plans[0].chosen.depth > plans[1].chosen.depth


def test_a_surface_is_fitted_to_every_run_that_finished(study: Study) -> None:
    surface = surface_of(study)
    assert len(surface.points) == 15  # one of sixteen failed
    found = surface.of(4, 5, 16, 64)
    assert found.low < found.mean < found.high
    assert found.mean == pytest.approx(study.result("lean").quality.mean, abs=1)
    few = StudyFolder(study.path)
    few.replan(type(study.plan)(**{**vars(study.plan), "designs": study.plan.designs[:3]}))
    with pytest.raises(LeanifyError, match="has 3 trained designs"):
        surface_of(studies.finished(few))


# -- tournaments ------------------------------------------------------------------------------------------------------


def test_the_field_spends_the_budget_and_is_spread_out() -> None:
    designer = Designer(recipes.load("digits-study"), "0.5")
    field = tournament.field_of(designer, 8)
    names = [design.name for design in field]
    assert names[:4] == ["baseline", "lean", "control", "depth-only"]
    assert tournament.shallow(designer.plan).request.options.min_depth == 2  # of eight
    assert len(set(names)) == 8
    budget = designer.plan.request.limits["params"]
    assert all(0.85 * budget <= design.params <= budget for design in field[4:])
    grid, inside = tournament.spending(tournament.shallow(designer.plan), 16)
    assert grid.params[inside].min() == np.sort(grid.params[grid.params <= budget])[-len(inside)]
    points, known = of_grid(grid)[inside], np.concatenate([of_design(design) for design in field[:4]])
    span = np.ptp(np.concatenate([points, known]), axis=0)
    span = np.where(span, span, 1)
    taken = known
    for place in tournament.spread(points, known, 4):  # each is the farthest from all that were taken before
        nearest = cdist(points / span, taken / span).min(1)
        assert nearest[place] == pytest.approx(nearest.max())
        taken = np.concatenate([taken, points[[place]]])
    with pytest.raises(RecipeError, match="must be above"):
        tournament.field_of(designer, 4)
    with pytest.raises(RecipeError, match="at most 100"):
        tournament.field_of(designer, 99999)


def test_no_cut_lies_in_the_warm_up() -> None:
    plan = studies.planned(studies.Request(recipe="digits-study", tournament=6))
    assert tournament.shares(plan) == (0.25, 0.5)
    for warmup, expected in ((6, (0.6,)), (4, (0.4, 0.5)), (12, ())):  # of 20 epochs
        late = replace(
            plan, recipe=recipes.with_settings(plan.recipe, ["schedule.epochs=20", f"schedule.warmup={warmup}"])
        )
        assert tournament.shares(late) == expected


def test_the_cost_of_a_tournament_is_a_sum_over_its_parts() -> None:
    plan = studies.planned(studies.Request(recipe="digits-study", tournament=7))
    assert (len(plan.designs), plan.seeds, plan.judging) == (7, (0, 1, 2, 3), (1, 2, 3))
    assert {"baseline", "lean", "control", "depth-only"} <= {design.name for design in plan.designs}
    assert plan.baseline_macs is not None
    sizes = {design.name: design.macs / plan.baseline_macs for design in plan.designs}
    fixed = sum(sizes[name] for name in ("baseline", "lean", "control"))
    others = sum(sizes.values()) - fixed
    assert tournament.cost(plan) == pytest.approx((1.25 * fixed + 0.25 * others, 1.5 * fixed + others))
    assert plan.recipe.schedule is not None
    brief = replace(plan, recipe=replace(plan.recipe, schedule=replace(plan.recipe.schedule, warmup=1e6)))
    assert tournament.shares(brief) == ()
    assert tournament.cost(brief) == pytest.approx((fixed + others, fixed + others))  # nobody is dropped
    assert "too short" in _field(brief)
    assert f"{fixed + others:.1f} ×" in _field(brief)


def test_noise_decides_who_goes() -> None:
    """Baseline, lean and control have two seeds; the others one."""
    losses = {"baseline": 2.30, "lean": 2.32, "control": 2.34, "near": 2.31, "far": 2.60}
    quiet = tournament.noise_of(losses, {"baseline": 2.301, "lean": 2.318, "control": 2.343})
    loud = tournament.noise_of(losses, {"baseline": 2.50, "lean": 2.10, "control": 2.30})
    assert quiet is not None
    assert loud is not None
    assert quiet < 0.3 < loud
    assert tournament.noise_of(losses, {}) is None
    assert tournament.noise_of(losses, {"baseline": 2.4, "lean": None, "control": None}) is None


def test_a_winner_is_judged_by_seeds_that_did_not_choose_it(study: Study) -> None:
    """The page's study as a tournament: seed 0 chooses, and is left out of differences and answers."""
    folder = StudyFolder(study.path)
    folder.replan(replace(study.plan, tournament=True, winner="wide"))
    found = studies.finished(folder)
    assert found.plan.focus == "wide"
    pairs = {(pair.design, pair.against): [seed for seed, _ in pair.seeds] for pair in found.pairs}
    assert pairs["wide", "baseline"] == [1, 2]  # seed 3 has failed
    assert pairs["lean", "baseline"] == [1, 2, 3]
    assert found.look == 0
    assert found.result("wide").quality.seeds == 3
    page = found.html(study.path / "report.html").read_text()
    assert "Winner of the tournament: wide, the best of 4 designs on seed 0" in page
    assert "the others (1, 2, 3) judge it" in page
    dropped = [replace(design, dropped=design.name == "lean") for design in study.plan.designs]
    folder.replan(replace(study.plan, tournament=True, winner="wide", designs=tuple(dropped)))
    assert [result.name for result in studies.finished(folder).results] == ["baseline", "control", "wide"]


def test_a_cut_says_why_a_design_behind_the_noise_stays(study: Study) -> None:
    """Baseline, lean and control are compared however they stand. Every design of the field has its shape."""
    found = studies.finished(StudyFolder(study.path))
    rung = Rung(0.25, {"baseline": 2.0, "lean": 2.5, "wide": 2.6, "control": None}, ("baseline", "lean"))
    rows = {row[0]: row[1:] for row in tables.cut(found, replace(rung, noise=0.2)).rows}
    assert rows["baseline"][-1] == "stays"
    assert "compared in any case" in rows["lean"][-1]
    assert rows["wide"][-1] == rows["control"][-1] == "dropped"
    assert rows["wide"][-3:-1] == ("2.60", "0.60")  # two digits of the noise
    assert rows["control"][-3] == "failed"
    early = Rung(0.25, dict.fromkeys(("baseline", "lean"), None), ("baseline", "lean"))  # a cut before the first row
    assert [row[-3] for row in tables.cut(found, early).rows] == ["not logged"] * 2
    for design in found.plan.designs:
        assert rows[design.name][0] == tables.sizes(design.depth)
    assert all(row[-1] in ("stays", "dropped") for row in tables.cut(found, rung).rows)


@pytest.mark.long
def test_a_tournament_is_played_goes_on_and_takes_new_designs(tmp_path: Path) -> None:
    settings = ["schedule.epochs=3", "data.samples=300", "run.log_every=1", "schedule.warmup=0.2"]
    asked: dict[str, Any] = {"settings": settings, "jobs": 2, "measure": False}
    found = leanify.compare("digits-study", tmp_path / "t", tournament=6, seeds=3, **asked)
    folder = StudyFolder(tmp_path / "t")
    plan = folder.plan
    assert plan.winner in {design.name for design in plan.kept}
    assert [rung.share for rung in found.rungs] == [0.25, 0.5]
    assert found.missing == 0
    for design in plan.designs:
        done = [seed for seed in plan.seeds if folder.outcome(Key(design.name, seed)) is not None]
        judged = design.name in (plan.winner, "baseline", "lean", "control")
        assert done == ([] if design.dropped else [0, 1, 2] if judged else [0])
    before = starts(tmp_path / "t")
    more = leanify.compare(tmp_path / "t", designs=["flat=depth:2,heads:12,mlp:300"], jobs=2, measure=False)
    assert "flat" in more.rungs[0].losses
    assert {name: starts(tmp_path / "t")[name] for name in before} == before
    again = leanify.compare(tmp_path / "t", designs=["flat=depth:2,heads:12,mlp:300"], jobs=2, measure=False)
    assert again.plan == more.plan


# -- who starts the runs ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_every_engine_gives_the_same_results(engine: str, tmp_path: Path) -> None:
    """submitit's own local executor, and a Ray cluster on this machine, beside threads."""
    pytest.importorskip({"slurm": "submitit"}.get(engine, engine), reason="an extra")
    request = studies.Request(recipe=str(recipe_file(tmp_path)), designs=("baseline", NARROW), seeds=2, jobs=4)
    for name in ("here", "there"):
        folder = studies.folder_of(request, tmp_path / name)
        if name == "here":
            with engines.engine_of("local", folder, 2) as runs:
                studies.train_all(folder, runs)
        elif engine == "slurm":
            studies.train_all(folder, engines.slurm(folder, cluster="local"))
        else:
            with engines.engine_of("ray", folder, 1) as runs:
                studies.train_all(folder, runs)
    assert len(outcomes(tmp_path / "there")) == 10  # of 2 designs: 3 trials of rates and 2 seeds each
    assert outcomes(tmp_path / "there") == outcomes(tmp_path / "here")


# -- warm starts ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny recipe."""
    folder = tmp_path_factory.mktemp("trained")
    return leanify.train(recipe_file(folder), folder / "run", settings=["schedule.epochs=1"])


def test_all_designs_start_from_the_same_weights_and_learn_from_the_same_teacher(trained: Path, tmp_path: Path) -> None:
    """The baseline takes them as they are, others carried over; every seed of a design has the same start."""
    import torch

    file = str(recipe_file(tmp_path))
    request = studies.Request(recipe=file, designs=("baseline", NARROW), seeds=2, weights=trained, teacher=trained)
    folder = studies.folder_of(request, tmp_path / "s")
    warm_start.prepare(folder)
    old, kept, carried = (leanify.load(path) for path in (trained, folder.start("baseline"), folder.start("narrow")))
    assert all(torch.equal(a, b) for a, b in zip(old.state_dict().values(), kept.state_dict().values(), strict=True))
    assert leanify.read(carried).stages[0].depth == 2
    for key in folder.plan.runs():
        recipe = folder.recipe_of(key)
        assert (recipe.model.source, recipe.run.seed) == (str(folder.start(key.design)), key.seed)
        assert recipe.distill is not None
        assert recipe.distill.teacher == str(trained)
    cold = studies.planned(replace(request, weights=None))
    assert not {cold.fingerprint(key) for key in cold.runs()} & {folder.plan.fingerprint(key) for key in cold.runs()}
    with pytest.raises(RecipeError, match=r"weights: .*run → random"):
        studies.folder_of(replace(request, weights=None), tmp_path / "s")
    with pytest.raises(LeanifyError, match="has no weights"):
        studies.folder_of(replace(request, weights="vit_tiny_patch16_224"), tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.long
def test_runs_begin_with_the_weights_of_their_start(trained: Path, tmp_path: Path) -> None:
    """One step at no learning rate leaves them as they were."""
    file, settings = recipe_file(tmp_path), ["schedule.epochs=1", "optim.lr=1e-30"]
    asked = {"designs": ["baseline", NARROW], "seeds": 2, "settings": settings, "measure": False}
    found = leanify.compare(file, tmp_path / "s", weights=trained, **asked)
    folder = StudyFolder(tmp_path / "s")
    for key in folder.plan.runs():
        start, end = (leanify.load(path).state_dict() for path in (folder.start(key.design), folder.run(key)))
        assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(start.values(), end.values(), strict=True))
    assert [result.quality.seeds for result in found.results] == [2, 2]


# -- a study that teaches ---------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path: Path) -> StudyFolder:
    """Five shapes of the digits' study, two seeds each, on which depth alone pays; trained by nobody."""
    names = [f"d{depth}=depth:{depth},heads:{heads},mlp:{mlp}" for depth, heads, mlp in SHAPES]
    plan = studies.planned(studies.Request(recipe="digits-study", designs=names, seeds=2))
    folder = StudyFolder.create(tmp_path / "measured", plan)
    for key in plan.runs():
        quality = 60 + 5 * plan.design(key.design).depth + 0.1 * key.seed  # type: ignore[operator]
        done = Outcome(
            key.design, key.seed, plan.fingerprint(key), "finished", "", "top1", "validation", 1, 1.0, quality
        )
        folder.record(done)
    return folder


SHAPES = ((3, 5, 80), (4, 3, 64), (5, 2, 64), (6, 2, 40), (7, 2, 32))


def test_more_adds_the_designs_that_would_teach_most(measured: StudyFolder) -> None:
    folder = studies.folder_of(studies.Request(recipe=str(measured.path), more=2))
    plan = folder.plan
    assert [design.name for design in plan.designs][5:] == ["more-1", "more-2"]
    assert {str(key) for key in folder.missing()} == {"more-1-0", "more-1-1", "more-2-0", "more-2-1"}
    taken = {(d.depth, d.heads, d.head_dim, d.mlp) for d in plan.designs}
    assert len(taken) == 7
    whole = sum(p.numel() for p in on_meta(plan.recipe.model).parameters())
    assert all(0.4 * whole < plan.design(name).params <= 0.5 * whole for name in ("more-1", "more-2"))


def test_redesign_ranks_by_a_study(measured: StudyFolder) -> None:
    """The command proposes deeper designs, and says what it expects of each.

    Of the lean ones only those count that have a control of the same size, so the plain one shows it.
    """
    arguments = ["redesign", "digits-study", "--target-params", "0.5", "--json"]
    plain, ranked = (
        json.loads(
            subprocess.run([*command()[:-1], *arguments, *more], stdout=-1, check=True, env=environment()).stdout
        )
        for more in ([], ["--study", str(measured.path)])
    )
    assert ranked["plain"]["depth"] > plain["plain"]["depth"]
    predicted = ranked["predicted"]
    assert predicted["metric"] == "top1"
    assert len(predicted["candidates"]) == len(ranked["candidates"])
    for entry in (predicted["baseline"], predicted["chosen"], *predicted["candidates"]):
        assert entry["low"] <= entry["mean"] <= entry["high"]
    assert predicted["chosen"]["mean"] == pytest.approx(60 + 5 * ranked["chosen"]["depth"], abs=3)
