"""Surfaces over shapes, tournaments, and who starts the runs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import NARROW, command, environment, outcomes, recipe_file, starts
from test_compare_page import study as study  # a study that is trained by nobody

import leanify
from leanify import study as studies
from leanify.design.redesign import redesign
from leanify.errors import LeanifyError, RecipeError
from leanify.runs import recipe as recipes
from leanify.study import Request, engines, tournament, warm_start
from leanify.study.designs import Designer
from leanify.study.folder import Outcome, StudyFolder
from leanify.study.measure import on_meta
from leanify.study.results import Study
from leanify.study.surface import Surface, features, of_grid, surface_of

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
    assert names[:3] == ["lean", "control", "depth-only"]
    assert tournament.shallow(designer.plan).request.options.min_depth == 2  # of eight
    assert len(set(names)) == 8
    budget = designer.plan.request.limits["params"]
    assert all(0.85 * budget <= design.params <= budget for design in field[3:])
    grid, inside = tournament.spending(tournament.shallow(designer.plan), 16)
    assert grid.params[inside].min() == np.sort(grid.params[grid.params <= budget])[-len(inside)]
    points = of_grid(grid)[inside]
    apart = [np.linalg.norm(points[i] - points[j]) for i in range(len(points)) for j in range(i)]
    chosen = np.concatenate([features(d.depth, d.heads, d.head_dim, d.mlp) for d in field[3:]])
    among = [np.linalg.norm(chosen[i] - chosen[j]) for i in range(len(chosen)) for j in range(i)]
    assert np.median(among) > np.median(apart)
    with pytest.raises(RecipeError, match="must be above"):
        tournament.field_of(designer, 3)


def test_a_tournament_costs_four_trainings_where_it_can() -> None:
    """The first cut follows from the cost; what is said of it is a sum over its parts."""
    plan = studies.planned(Request(recipe="digits-study", tournament=12))
    assert (len(plan.designs), plan.seeds) == (12, (0, 1))
    assert {"lean", "control", "depth-only"} <= {design.name for design in plan.designs}
    mean = np.mean([design.macs for design in plan.designs]) / plan.baseline_macs
    first, last = tournament.shares(plan)
    parts = 6 * first + 3 * last + 3 + 3  # given up first, given up second, to the end, again with another seed
    assert tournament.cost(plan) == pytest.approx(parts * mean)
    assert 3.9 < tournament.cost(plan) <= 4
    for seeds, count in ((2, 6), (5, 12)):
        changed = replace(plan, seeds=tuple(range(seeds)), designs=plan.designs[:count])
        assert 0.1 <= tournament.shares(changed)[0] <= 0.2
    assert tournament.shares(replace(plan, designs=plan.designs[:6]))[0] > first


@pytest.mark.long
def test_a_tournament_ends_with_three_designs_that_were_trained_like_any_other(tmp_path: Path) -> None:
    """The field is cut, losers are left where they stopped, and the same call finds everything done."""
    settings = ["schedule.epochs=2", "data.samples=300", "run.log_every=1"]
    found = leanify.compare(
        "digits-study", tmp_path / "t", tournament=5, seeds=2, settings=settings, jobs=2, measure=False
    )
    [first] = found.rungs
    assert (len(first.losses), len(first.kept)) == (5, 3)
    assert sorted(first.losses, key=lambda name: first.losses[name] or 0)[:3] == list(first.kept)
    assert {result.name for result in found.results} == set(first.kept)
    assert [result.quality.seeds for result in found.results] == [2, 2, 2]
    assert found.missing == 0
    out = next(name for name in first.losses if name not in first.kept)
    rows = [
        json.loads(line) for line in (tmp_path / "t" / "runs" / f"{out}-0" / "metrics.jsonl").read_text().splitlines()
    ]
    whole = StudyFolder(tmp_path / "t").rows(next(iter(StudyFolder(tmp_path / "t").plan.runs())))
    assert rows[-1]["step"] <= 0.3 * whole[-1]["step"]
    before = starts(tmp_path / "t")
    again = leanify.compare(
        "digits-study", tmp_path / "t", tournament=5, seeds=2, settings=settings, jobs=2, measure=False
    )
    assert again == found
    assert starts(tmp_path / "t") == before


# -- who starts the runs ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_every_engine_gives_the_same_results(engine: str, tmp_path: Path) -> None:
    """submitit's own local executor, and a Ray cluster on this machine, beside threads."""
    pytest.importorskip({"slurm": "submitit"}.get(engine, engine), reason="an extra")
    request = Request(recipe=str(recipe_file(tmp_path)), designs=("baseline", NARROW), seeds=2, jobs=4)
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
    assert len(outcomes(tmp_path / "there")) == 4
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
    request = Request(recipe=file, designs=("baseline", NARROW), seeds=2, weights=trained, teacher=trained)
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
    plan = studies.planned(Request(recipe="digits-study", designs=names, seeds=2))
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
    folder = studies.folder_of(Request(recipe=str(measured.path), more=2))
    plan = folder.plan
    assert [design.name for design in plan.designs][5:] == ["more-1", "more-2"]
    assert {str(key) for key in folder.missing()} == {"more-1-0", "more-1-1", "more-2-0", "more-2-1"}
    taken = {(d.depth, d.heads, d.head_dim, d.mlp) for d in plan.designs}
    assert len(taken) == 7
    whole = sum(p.numel() for p in on_meta(plan.recipe.model).parameters())
    assert all(0.4 * whole < plan.design(name).params <= 0.5 * whole for name in ("more-1", "more-2"))


def test_redesign_ranks_by_a_study(measured: StudyFolder) -> None:
    """The command chooses the deepest design of the budget, and says what it expects of each."""
    arguments = ["redesign", "digits-study", "--target-params", "0.5", "--json"]
    plain, ranked = (
        json.loads(
            subprocess.run([*command()[:-1], *arguments, *more], stdout=-1, check=True, env=environment()).stdout
        )
        for more in ([], ["--study", str(measured.path)])
    )
    assert ranked["chosen"]["depth"] > plain["chosen"]["depth"]
    predicted = ranked["predicted"]
    assert predicted["metric"] == "top1"
    assert len(predicted["candidates"]) == len(ranked["candidates"])
    for entry in (predicted["baseline"], predicted["chosen"], *predicted["candidates"]):
        assert entry["low"] <= entry["mean"] <= entry["high"]
    assert predicted["chosen"]["mean"] == pytest.approx(60 + 5 * ranked["chosen"]["depth"], abs=3)
