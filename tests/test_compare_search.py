"""Tournaments, engines, and warm starts of a study."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from studies import NARROW, outcomes, recipe_file, start_counts
from test_compare_page import study as study  # a study that is trained by nobody

import leanify
from leanify.comparison import comparing as studies
from leanify.comparison import engines, tournament, warm_start, worker
from leanify.comparison.designs import Designer
from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import Key, PlannedDesign, StudyPlan
from leanify.comparison.results import Study
from leanify.comparison.tournament import Round
from leanify.core import recipe as recipes
from leanify.core.errors import LeanifyError, RecipeError
from leanify.core.units import format_sizes

# -- tournaments ------------------------------------------------------------------------------------------------------


def test_candidates_spend_budget_and_spread() -> None:
    designer = Designer(recipes.load("digits-study"), "0.5")
    designs = tournament.candidates(designer, 8)
    names = [design.name for design in designs]
    assert names[:4] == ["baseline", "lean", "control", "depth-only"]
    assert len(set(names)) == 8
    budget = designer.plan.request.limits["params"]
    assert all(0.85 * budget <= design.params <= budget for design in designs[4:])
    with pytest.raises(RecipeError, match="must be above"):
        tournament.candidates(designer, 4)
    with pytest.raises(RecipeError, match="at most 100"):
        tournament.candidates(designer, 99999)


@pytest.mark.slow
def test_resumed_runs_probe_alike(tmp_path: Path) -> None:
    """A run that goes on from a step without evaluation probed κ there, so its outcome was another."""
    recipe, key = recipes.load(recipe_file(tmp_path)), Key("baseline", 0)
    design = PlannedDesign("baseline", recipe.model, 4, 2, 8, 64, 1000, 1000)
    for name, shares in (("whole", (None,)), ("parts", (0.16, 0.25, 0.4, None))):  # stops at steps 6, 10 and 16 of 40
        folder = StudyFolder.create(tmp_path / name, StudyPlan("x", recipe, None, (0, 1), (design,), 1))
        for share in shares:
            worker.execute_run(folder, key, share)
    found = [StudyFolder.open(tmp_path / name).outcome(key) for name in ("whole", "parts")]
    assert found[0] == found[1]
    assert [step for step, _ in found[0].kappas] == [0, 10, 20, 30, 40]


def test_points_are_farthest_from_earlier() -> None:
    draw = np.random.default_rng(0)
    points, taken = draw.normal(size=(60, 4)) * [1, 5, 1, 20], draw.normal(size=(3, 4))
    span = np.ptp(np.concatenate([points, taken]), axis=0)
    chosen = tournament.farthest_points(points, taken, 5)
    assert len(set(chosen)) == 5
    for place in chosen:
        distance = cdist(points / span, taken / span).min(1)
        assert distance[place] == pytest.approx(distance.max())
        taken = np.concatenate([taken, points[[place]]])


def test_cuts_follow_the_warmup() -> None:
    """No cut lies in the warm-up."""
    plan = studies.make_plan(studies.Request(recipe="digits-study", tournament=6))
    assert tournament.shares(plan) == (0.25, 0.5)
    for warmup, expected in ((6, (0.6,)), (4, (0.4, 0.5)), (12, ())):  # of 20 epochs
        late = replace(
            plan, recipe=recipes.apply_settings(plan.recipe, ["schedule.epochs=20", f"schedule.warmup={warmup}"])
        )
        assert tournament.shares(late) == expected


def test_cost_adds_over_parts() -> None:
    plan = studies.make_plan(studies.Request(recipe="digits-study", tournament=9))
    assert (len(plan.designs), plan.seeds, plan.judging) == (9, (0, 1, 2, 3), (1, 2, 3))
    assert {"baseline", "lean", "control", "depth-only"} <= {design.name for design in plan.designs}
    sizes = {design.name: design.macs / plan.baseline_macs for design in plan.designs}
    fixed = sum(sizes[name] for name in ("baseline", "lean", "control"))
    others = (sum(sizes.values()) - fixed) / 6
    assert tournament.field_sizes(plan) == [9, 6, 5]
    assert tournament.cost(plan) == pytest.approx(fixed + others * (0.25 * 6 + 0.25 * 3 + 0.5 * 2))
    brief = replace(plan, recipe=replace(plan.recipe, schedule=replace(plan.recipe.schedule, warmup=1e6)))
    assert tournament.shares(brief) == ()
    assert tournament.cost(brief) == pytest.approx(fixed + 6 * others)  # nobody is dropped
    assert "too short" in tournament.summary(brief)


def test_better_half_survives() -> None:
    losses = {"baseline": 2.0, "lean": 9.0, "a": 2.6, "b": None, "c": 2.3, "d": 2.4, "e": 2.9}
    assert tournament.better_half(losses) == {"a", "c", "d"}
    assert tournament.better_half({"baseline": 2.0, "a": None}) == {"a"}


def test_winner_gets_fresh_seeds(study: Study) -> None:
    """The page's study as a tournament: seed 0 chooses, and is left out of differences and answers."""
    folder = StudyFolder(study.path)
    folder.replan(replace(study.plan, tournament=True, winner="wide"))
    found = studies.finish_study(folder)
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
    assert [result.name for result in studies.finish_study(folder).results] == ["baseline", "control", "wide"]


def test_cut_shows_every_design(study: Study) -> None:
    cut = Round(0.25, {"baseline": 2.0, "lean": 2.5, "wide": 2.6, "control": None, "gone": 3.0}, ("baseline", "lean"))
    (folder := StudyFolder(study.path)).replan(replace(study.plan, tournament=True))
    (study.path / "tournament.json").write_text(json.dumps([{**asdict(cut), "noise": 0.2, "again": {}}]))
    found = studies.finish_study(folder)
    assert found.rounds == (cut,)
    [table] = tournament.tables(found)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["wide"][-3:] == ("2.6000", "0.6000", "dropped")
    assert rows["lean"][-1] == "stays"
    assert rows["control"][-3:] == ("–", "–", "dropped")
    for design in found.plan.designs:
        assert rows[design.name][0] == format_sizes(design.depth)
    assert rows["gone"][0] == "–"
    assert "Tournament after 25% of the schedule" in found.html(study.path / "report.html").read_text()


@pytest.mark.long
def test_tournament_resumes_and_accepts_designs(tmp_path: Path) -> None:
    """It is played, goes on and takes new designs."""
    settings = ["schedule.epochs=3", "data.samples=300", "run.log_every=1", "schedule.warmup=0.2"]
    asked: dict[str, Any] = {"settings": settings, "jobs": 2, "measure": False}
    found = leanify.compare("digits-study", tmp_path / "t", tournament=6, seeds=3, **asked)
    folder = StudyFolder(tmp_path / "t")
    plan = folder.plan
    assert plan.winner in {design.name for design in plan.remaining}
    assert [len(cut.kept) for cut in found.rounds] == tournament.field_sizes(
        replace(plan, designs=tuple(replace(design, dropped=False) for design in plan.designs))
    )[1:]
    assert [cut.share for cut in found.rounds] == [0.25, 0.5]
    assert found.missing == 0
    for design in plan.designs:
        done = [seed for seed in plan.seeds if folder.outcome(Key(design.name, seed)) is not None]
        judged = design.name in (plan.winner, "baseline", "lean", "control")
        assert done == ([] if design.dropped else [0, 1, 2] if judged else [0])
    before = start_counts(tmp_path / "t")
    more = leanify.compare(tmp_path / "t", designs=["flat=depth:2,heads:12,mlp:300"], jobs=2, measure=False)
    assert "flat" in more.rounds[0].losses
    assert {name: start_counts(tmp_path / "t")[name] for name in before} == before
    again = leanify.compare(tmp_path / "t", designs=["flat=depth:2,heads:12,mlp:300"], jobs=2, measure=False)
    assert again.plan == more.plan


# -- who starts the runs ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_engines_give_equal_results(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Slurm submitit starts its jobs as processes here; Ray makes a cluster of this machine."""
    package = pytest.importorskip(engines.PACKAGES[engine], reason="an extra")
    monkeypatch.setattr(engines, "check_engine", lambda name: package)
    request = studies.Request(recipe=str(recipe_file(tmp_path)), designs=("baseline", NARROW), seeds=2, jobs=4)
    for name, place in (("local", "here"), (engine, "there")):
        folder = studies.open_folder(request, tmp_path / place)
        with engines.open_engine(name, folder, 2) as runs:
            studies.train_all(folder, runs)
    assert len(outcomes(tmp_path / "there")) == 10  # of 2 designs: 3 trials of rates and 2 seeds each
    assert outcomes(tmp_path / "there") == outcomes(tmp_path / "here")


# -- warm starts ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny recipe."""
    folder = tmp_path_factory.mktemp("trained")
    return leanify.train(recipe_file(folder), folder / "run", settings=["schedule.epochs=1"])


def test_designs_share_start_and_teacher(trained: Path, tmp_path: Path) -> None:
    """The baseline takes them as they are, others carried over; every seed of a design has the same start."""
    import torch

    file = str(recipe_file(tmp_path))
    request = studies.Request(recipe=file, designs=("baseline", NARROW), seeds=2, weights=trained, teacher=trained)
    folder = studies.open_folder(request, tmp_path / "s")
    warm_start.prepare(folder)
    old, kept, carried = (leanify.load(path) for path in (trained, folder.start("baseline"), folder.start("narrow")))
    assert all(torch.equal(a, b) for a, b in zip(old.state_dict().values(), kept.state_dict().values(), strict=True))
    assert leanify.read(carried).stages[0].depth == 2
    for key in folder.plan.runs():
        recipe = folder.run_recipe(key)
        assert (recipe.model.source, recipe.run.seed) == (str(folder.start(key.design)), key.seed)
        assert recipe.distill.teacher == str(trained)
    cold = studies.make_plan(replace(request, weights=None))
    assert not {cold.fingerprint(key) for key in cold.runs()} & {folder.plan.fingerprint(key) for key in cold.runs()}
    with pytest.raises(RecipeError, match=r"weights: .*run → random"):
        studies.open_folder(replace(request, weights=None), tmp_path / "s")
    with pytest.raises(LeanifyError, match="has no weights"):
        studies.open_folder(replace(request, weights="vit_tiny_patch16_224"), tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.long
def test_runs_load_start_weights(trained: Path, tmp_path: Path) -> None:
    """One step at no learning rate leaves them as they were."""
    file, settings = recipe_file(tmp_path), ["schedule.epochs=1", "optim.lr=1e-30"]
    asked = {"designs": ["baseline", NARROW], "seeds": 2, "settings": settings, "measure": False}
    found = leanify.compare(file, tmp_path / "s", weights=trained, **asked)
    folder = StudyFolder(tmp_path / "s")
    for key in folder.plan.runs():
        start, end = (leanify.load(path).state_dict() for path in (folder.start(key.design), folder.run(key)))
        assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(start.values(), end.values(), strict=True))
    assert [result.quality.seeds for result in found.results] == [2, 2]


def test_old_order_keeps_its_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A study of an earlier leanify opens, says so, and gives designs that are added later ranks."""
    plan = studies.make_plan(studies.Request(recipe="digits-study", designs=("baseline", "lean", "control")))
    lines = plan.to_toml().splitlines()
    assert "order = 2" in lines
    file = tmp_path / "study.toml"
    file.write_text("\n".join(line for line in lines if line != "order = 2"))
    old = StudyPlan.read(file)
    assert old.order == 1
    added = studies.make_plan(studies.Request(recipe="digits-study", designs=("baseline", "depth-only")))
    merged = old.merge(added)
    assert [design.rank for design in merged.designs[:3]] == [design.rank for design in old.designs]
    assert merged.designs[3].rank == 4
    assert merged.order == 1
    lean = added.designs[1]
    with pytest.raises(RecipeError, match=r"the shape of 'lean'\) \(an earlier leanify.*continues it"):
        old.merge(replace(added, designs=(*added.designs[:1], replace(lean, name="lean"))))
