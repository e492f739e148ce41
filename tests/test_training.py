"""Runs: killed, damaged, interrupted and resumed, in real processes with real signals; and what a step computes."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import DIGITS, final_state, refused, run_modes
from test_hostile_runs import Warnings

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import DataError, DirectoryError, RecipeError, TrainingError
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop, preparation
from leanify.training import start as training

TINY = recipes.parse(DIGITS)
STILL = ("data.mixup=", "data.cutmix=", "model.override.drop_path_rate=0", "model.override.proj_drop_rate=0")


def tiny(*settings: str) -> recipes.Recipe:
    return recipes.apply_settings(TINY, settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run; not to be written to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert run_modes(run, "whole") == [(0, 24)]
    return run


# -- killed ---------------------------------------------------------------------------------------------------------


def broken_and_resumed(run: Path, kills: list[str]) -> dict[str, Any]:
    codes = run_modes(run, *kills, "whole")
    assert codes[-1] == (0, 24)
    assert {code for code, _ in codes[:-1]} <= {-9, 0}
    assert sum(code == -9 for code, _ in codes) >= len(kills) // 2
    return final_state(run)


def test_resume_after_kill_is_bit_identical(whole: Path, tmp_path: Path) -> None:
    """Inside the third checkpoint's writing, inside a row of the log, and wherever the clock says."""
    assert broken_and_resumed(tmp_path / "run", ["event:30", "event:21", "time:0.8"]) == final_state(whole)


def test_ctrl_c_writes_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    """The rest of the run is the same."""
    assert run_modes(tmp_path / "run", "int:7", "whole") == [(130, 7), (0, 24)]
    assert final_state(tmp_path / "run") == final_state(whole)


# -- damaged --------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "checkpoint.json"])
def test_damaged_checkpoint_falls_back(copied: Path, whole: Path, name: str) -> None:
    """It is named, and the one before serves."""
    file = RunDirectory.open(copied).checkpoints()[-1].path / name
    file.write_bytes(file.read_bytes()[:-7])
    callback = Warnings()
    training.train(resume=copied, callback=callback)
    assert "the checkpoint of step 24 is damaged" in callback.warnings[0]
    assert "continuing from step 22" in callback.warnings[0]
    assert final_state(copied) == final_state(whole)


@pytest.mark.parametrize("kind", [hashlib.blake2b, hashlib.sha256])
def test_old_checksums_are_intact(copied: Path, kind: Any) -> None:
    found = RunDirectory.open(copied).checkpoints()[-1]
    assert int(found.sums["state.pt"], 16) == zlib.crc32((found.path / "state.pt").read_bytes())
    sums = {name: kind((found.path / name).read_bytes()).hexdigest() for name in found.sums}
    assert replace(found, sums=sums).find_damage() is None
    (found.path / "state.pt").write_bytes(b"")
    assert replace(found, sums=sums).find_damage() == found.find_damage() == "state.pt has changed since it was written"


def test_no_intact_checkpoint_does_nothing(copied: Path) -> None:
    for found in RunDirectory.open(copied).checkpoints():
        (found.path / "state.pt").unlink()
    before = (copied / "metrics.jsonl").read_bytes()
    with pytest.raises(DirectoryError, match=r"no checkpoint to resume from: .*step 24.*; .*step 22"):
        training.train(resume=copied)
    assert (copied / "metrics.jsonl").read_bytes() == before


def test_finished_run_stays_unchanged(copied: Path, whole: Path) -> None:
    training.train(resume=copied)
    assert (copied / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_resume_names_recipe_differences(copied: Path) -> None:
    words = r"data.cutmix: 1.0 → unset; optim.lr: 0.002 → 0.01"
    with pytest.raises(RecipeError, match=words):
        training.train(tiny("optim.lr=0.01", "data.cutmix="), resume=copied)
    with pytest.raises(RecipeError, match=r"run.seed: unset → 3"):
        training.train(resume=copied, settings=["run.seed=3"])


def test_growing_batch_resumes_identically(tmp_path: Path) -> None:
    run = RunDirectory.open(
        training.train(tiny("schedule.batch_ramp=0.4", "run.keep=0", "run.eval_every="), tmp_path / "run")
    )
    expected = final_state(run.path)
    assert expected["step"] > 24  # smaller batches, as many samples
    evaluated = [row["epoch"] for row in expected["rows"] if row["split"] == "validation"]
    assert evaluated == [1, 2, 3]
    for found in run.checkpoints()[4:]:  # the fourth is of a step within the ramp
        shutil.rmtree(found.path)
    training.train(resume=run.path)
    assert final_state(run.path) == expected


def test_run_has_one_writer(copied: Path) -> None:
    with RunDirectory.open(copied).lock(), pytest.raises(DirectoryError, match="another process"):
        training.train(resume=copied)


def test_nan_loss_stops_the_run(tmp_path: Path) -> None:
    """It names the step and the last good checkpoint."""
    with pytest.raises(TrainingError, match=r"step \d+ is not finite.* step \d+") as e:
        training.train(tiny("optim.lr=1e30", "optim.ema=", "schedule.warmup=0", "run.log_every=50"), tmp_path / "run")
    assert "optim.lr" in str(e.value)
    assert "the loss of step 2 is" in str(e.value)  # the first step makes weights of 1e30
    found = RunDirectory.open(tmp_path / "run").checkpoints()
    assert all(torch.isfinite(t).all() for t in found[-1].weights().values())
    assert str(found[-1].step) in str(e.value)


# -- the folder -------------------------------------------------------------------------------------------------------


def test_last_and_best_checkpoints_stay(whole: Path) -> None:
    found = RunDirectory.open(whole).checkpoints()
    scored = [row for row in RunDirectory.open(whole).rows() if row["split"] == "validation" and row["step"] % 2 == 0]
    best = max(scored, key=lambda row: row["top1"])
    assert [entry.step for entry in found] == sorted({best["step"], 22, 24})
    assert RunDirectory.open(whole).best() == next(entry for entry in found if entry.step == best["step"])


def test_run_records_its_environment(whole: Path) -> None:
    """It holds what was asked and where it ran."""
    assert recipes.load(whole / "recipe.toml") == TINY
    entry = json.loads((whole / "environment.json").read_text())[0]
    assert entry["versions"]["torch"] == version("torch")
    assert {"git", "command", "threads", "processes", "device"} <= entry.keys()
    assert {tuple(row)[:3] for row in RunDirectory.open(whole).rows()} == {("step", "epoch", "split")}


def test_row_has_its_steps_rate(whole: Path, tmp_path: Path) -> None:
    """And a run that learns is not said to be no better than what it started from."""
    trainer, callback = loop.Trainer(TINY), Warnings()
    rows = [row for row in RunDirectory.open(whole).rows() if row["split"] == "train"]
    assert [row["lr"] for row in rows] == [trainer.schedule.lr(row["step"] - 1) for row in rows]
    assert len({row["lr"] for row in rows}) == len(rows)
    training.train(tiny("schedule.epochs=1", "schedule.warmup=0"), tmp_path / "run", callback=callback)
    assert not any("better than" in words for words in callback.warnings)


def test_run_is_a_source(whole: Path) -> None:
    model = leanify.load(whole)
    best = RunDirectory.open(whole).best()
    weights = best.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert leanify.read(model).stages[0].depth == 2


# -- what a step computes -------------------------------------------------------------------------------------------


def take_steps(value: recipes.Recipe, steps: int) -> list[tuple[float, torch.Tensor]]:
    """The mean loss and a weight after each of the first steps."""
    trainer = loop.Trainer(value)
    batches, found = trainer.batches(0), []
    for step in range(steps):
        trainer.step(step, batches)
        loss, targets, _ = trainer.window.read()
        found.append((loss / targets, trainer.unwrapped_model.head.weight.detach().clone()))
    return found


@pytest.mark.parametrize("mixing", [[], ["data.mixup=0.8", "data.cutmix=1.0"]])
def test_accumulation_equals_full_batch(mixing: list[str]) -> None:
    """Over an epoch of eight steps and the first of another."""
    one, three = (take_steps(tiny(*STILL, "optim.ema=", *mixing, *more), 9) for more in ((), ("run.accumulate=3",)))
    for (loss, weight), (loss3, weight3) in zip(one, three, strict=True):
        assert loss3 == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(weight3, weight, rtol=0, atol=2e-5)


def test_bare_loop_finds_same_weights() -> None:
    """An oracle: torch's AdamW and cross-entropy on the same batches."""
    trainer = loop.Trainer(tiny(*STILL, "optim.ema=", "optim.weight_decay=0"))
    model = preparation.build_model(trainer.recipe)
    model.load_state_dict(trainer.unwrapped_model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    data, batches = trainer.splits.train, trainer.batches(0)
    for step in range(5):
        trainer.step(step, batches)
        optimizer.param_groups[0]["lr"] = 2e-3 * step / 8
        images, labels = data.batch(trainer.order.batch(step))  # type: ignore[attr-defined]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trainer.unwrapped_model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["data.name=dogits"], DataError, "no data.path for dogits"),
        (["data.task=masked-lm"], RecipeError, "for classification, not for masked-lm"),
        (["data.mask=0.2"], RecipeError, "data.mask is for masked-lm"),
        (["data.test=test"], RecipeError, "there is no such split"),
        (["schedule.batch_ramp=1.0"], RecipeError, "a share of the run"),
        (["schedule.batch_ramp=-0.1"], RecipeError, "a share of the run"),
        (["schedule.warmup=9"], RecipeError, "exceed 3"),
        (["schedule.kind=one-cycle", "schedule.warmup=0"], RecipeError, "one-cycle"),
        (["schedule.cooldown=1"], RecipeError, "triangular"),
        (["schedule.batch_size=0"], RecipeError, "batch_size is below 1"),
        (["data.prefetch=0"], RecipeError, "prefetch is below 1"),
        (["run.compile=true", "run.compile_mode=reduce-overhead", "run.accumulate=2"], RecipeError, "overwrites"),
        (["data.holdout=1.5"], RecipeError, "a share"),
        (["data.samples=1"], DataError, "would be empty"),
        (["data.img_size=16"], RecipeError, "do not apply"),
        (["model.override.num_classes=9"], DataError, "9 outputs; --set model.override.num_classes=10"),
        (["model.override.img_size=16"], DataError, "1 × 8 × 8, but the model takes 1 × 16 × 16"),
    ],
)
def test_conflicting_settings_write_nothing(
    settings: list[str], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with refused(error, words):
        training.train(TINY, tmp_path / "run", settings=settings)
    assert list(tmp_path.iterdir()) == []


def test_mixing_allows_extra_outputs(tmp_path: Path) -> None:
    """Mixed classes train a head with more outputs than classes."""
    settings = ["data.mixup=0.8", "model.override.num_classes=12", "schedule.steps=1", "schedule.epochs="]
    run = training.train(recipes.apply_settings(TINY, settings), tmp_path / "run")
    assert RunDirectory.open(run).rows()[0]["loss"] > 0
