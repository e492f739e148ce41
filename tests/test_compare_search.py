"""Interrupted runs, engines, and warm starts of a study."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from studies import NARROW, outcomes, recipe_file

import leanify
from leanify.comparison import comparing as studies
from leanify.comparison import planning, runner, warm_start, worker
from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import Key, PlannedDesign, StudyPlan
from leanify.core import recipe as recipes
from leanify.core.errors import LeanifyError, RecipeError

# -- interruptions ----------------------------------------------------------------------------------------------------


def _interrupt_at(step: int, row: dict[str, Any]) -> None:
    """Interrupt a run as Ctrl-C does, when it logs this step."""
    if row.get("step") == step and "loss" in row:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_resumed_runs_probe_alike(tmp_path: Path) -> None:
    """A run that goes on from a step without evaluation probed κ there, so its outcome was another."""
    recipe, key = recipes.load(recipe_file(tmp_path)), Key("baseline", 0)
    design = PlannedDesign("baseline", recipe.model, 4, 2, 8, 64, 1000, 1000)
    for name, stops in (("whole", ()), ("parts", (4, 8, 16))):  # of 40 steps
        folder = StudyFolder.create(tmp_path / name, StudyPlan("x", recipe, None, (0, 1), (design,), 1))
        for stop in stops:
            with pytest.raises(KeyboardInterrupt):
                worker.execute_run(folder, key, partial(_interrupt_at, stop))
        worker.execute_run(folder, key)
    found = [StudyFolder.open(tmp_path / name).outcome(key) for name in ("whole", "parts")]
    assert found[0] == found[1]
    assert [step for step, _ in found[0].kappas] == [0, 10, 20, 30, 40]


# -- who starts the runs ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_engines_give_equal_results(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Slurm submitit starts its jobs as processes here; Ray makes a cluster of this machine."""
    package = pytest.importorskip(runner.PACKAGES[engine], reason="an extra")
    monkeypatch.setattr(runner, "check_engine", lambda name: package)
    request = planning.Request(recipe=str(recipe_file(tmp_path)), designs=("baseline", NARROW), seeds=2, jobs=4)
    for name, place in (("local", "here"), (engine, "there")):
        folder = planning.open_folder(request, tmp_path / place)
        with runner.open_engine(name, folder, 2) as runs:
            studies.train_all(folder, runs)
    assert len(outcomes(tmp_path / "there")) >= 10  # of 2 designs: 3 trials of rates and 2 seeds each, or more rates
    assert outcomes(tmp_path / "there") == outcomes(tmp_path / "here")


# -- warm starts ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny recipe."""
    folder = tmp_path_factory.mktemp("trained")
    return leanify.train(recipe_file(folder), folder / "run", settings=["schedule.epochs=1"])


def test_designs_share_start_and_teacher(trained: Path, tmp_path: Path) -> None:
    """The baseline takes them as they are, others carried over; every seed of a design has the same start."""
    file = str(recipe_file(tmp_path))
    request = planning.Request(recipe=file, designs=("baseline", NARROW), seeds=2, weights=trained, teacher=trained)
    folder = planning.open_folder(request, tmp_path / "s")
    warm_start.prepare(folder)
    old, kept, carried = (leanify.load(path) for path in (trained, folder.start("baseline"), folder.start("narrow")))
    assert all(torch.equal(a, b) for a, b in zip(old.state_dict().values(), kept.state_dict().values(), strict=True))
    assert leanify.read(carried).stages[0].depth == 2
    for key in folder.plan.runs():
        recipe = folder.run_recipe(key)
        assert (recipe.model.source, recipe.run.seed) == (str(folder.start(key.design)), key.seed)
        assert recipe.distill.teacher == str(trained)
    cold = planning.make_plan(replace(request, weights=None))
    assert not {cold.fingerprint(key) for key in cold.runs()} & {folder.plan.fingerprint(key) for key in cold.runs()}
    with pytest.raises(RecipeError, match=r"weights: .*run → random"):
        planning.open_folder(replace(request, weights=None), tmp_path / "s")
    with pytest.raises(LeanifyError, match="has no weights"):
        planning.open_folder(replace(request, weights="vit_tiny_patch16_224"), tmp_path / "t")
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
