"""Runs: killed, damaged, interrupted and resumed, in real processes with real signals; and what a step computes."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import zlib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import DIGITS, forked, outcome

import leanify
from leanify.errors import DataError, DirectoryError, LeanifyError, RecipeError, TrainingError
from leanify.runs import recipe as recipes
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop, preparation
from leanify.training import start as training

TINY = recipes.parse(DIGITS)


def tiny(*settings: str) -> recipes.Recipe:
    return recipes.with_settings(TINY, settings)


class Watcher(loop.Silent):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, words: str) -> None:
        self.warnings.append(words)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run; not to be written to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert forked(run, "whole") == [(0, 24)]
    return run


# -- killed ---------------------------------------------------------------------------------------------------------


def broken_and_resumed(run: Path, kills: list[str]) -> dict[str, Any]:
    codes = forked(run, *kills, "whole")
    assert codes[-1] == (0, 24)
    assert {code for code, _ in codes[:-1]} <= {-9, 0}
    assert sum(code == -9 for code, _ in codes) >= len(kills) // 2
    return outcome(run)


def test_killed_at_three_moments_a_run_ends_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """Inside the third checkpoint's writing, inside a row of the log, and wherever the clock says."""
    assert broken_and_resumed(tmp_path / "run", ["event:30", "event:21", "time:0.8"]) == outcome(whole)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_ten_random_moments_a_run_ends_with_the_same_bits(whole: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    kills = [f"event:{draw.randint(1, 80)}" for _ in range(6)] + [f"time:{draw.uniform(0.2, 2):.2f}" for _ in range(4)]
    draw.shuffle(kills)
    assert broken_and_resumed(tmp_path / "run", kills) == outcome(whole)


def test_ctrl_c_writes_a_checkpoint_of_that_step_and_the_rest_is_the_same(whole: Path, tmp_path: Path) -> None:
    assert forked(tmp_path / "run", "int:7", "whole") == [(130, 7), (0, 24)]
    assert outcome(tmp_path / "run") == outcome(whole)


# -- damaged --------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "checkpoint.json"])
def test_a_damaged_last_checkpoint_is_named_and_the_one_before_serves(copied: Path, whole: Path, name: str) -> None:
    file = RunDirectory.open(copied).checkpoints()[-1].path / name
    file.write_bytes(file.read_bytes()[:-7])
    watcher = Watcher()
    training.train(resume=copied, watcher=watcher)
    assert "the checkpoint of step 24 is damaged" in watcher.warnings[0]
    assert "going on from step 22" in watcher.warnings[0]
    assert outcome(copied) == outcome(whole)


@pytest.mark.parametrize("kind", [hashlib.blake2b, hashlib.sha256])
def test_a_checkpoint_with_sums_of_an_earlier_kind_is_intact(copied: Path, kind: Any) -> None:
    found = RunDirectory.open(copied).checkpoints()[-1]
    assert int(found.sums["state.pt"], 16) == zlib.crc32((found.path / "state.pt").read_bytes())
    sums = {name: kind((found.path / name).read_bytes()).hexdigest() for name in found.sums}
    assert replace(found, sums=sums).broken() is None
    (found.path / "state.pt").write_bytes(b"")
    assert replace(found, sums=sums).broken() == found.broken() == "state.pt has changed since it was written"


def test_without_an_intact_checkpoint_nothing_is_done(copied: Path) -> None:
    for found in RunDirectory.open(copied).checkpoints():
        (found.path / "state.pt").unlink()
    before = (copied / "metrics.jsonl").read_bytes()
    with pytest.raises(DirectoryError, match=r"no checkpoint to resume from: .*step 24.*; .*step 22"):
        training.train(resume=copied)
    assert (copied / "metrics.jsonl").read_bytes() == before


def test_a_finished_run_that_is_resumed_stays_as_it_is(copied: Path, whole: Path) -> None:
    training.train(resume=copied)
    assert (copied / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_a_resume_with_another_recipe_names_the_differences(copied: Path) -> None:
    words = r"data.cutmix: 1.0 → unset; optim.lr: 0.002 → 0.01"
    with pytest.raises(RecipeError, match=words):
        training.train(tiny("optim.lr=0.01", "data.cutmix="), resume=copied)
    with pytest.raises(RecipeError, match=r"run.seed: unset → 3"):
        training.train(resume=copied, settings=["run.seed=3"])


def test_a_run_with_a_growing_batch_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    run = RunDirectory.open(
        training.train(tiny("schedule.batch_ramp=0.4", "run.keep=0", "run.eval_every="), tmp_path / "run")
    )
    expected = outcome(run.path)
    assert expected["step"] > 24  # smaller batches, as many samples
    evaluated = [row["epoch"] for row in expected["rows"] if row["split"] == "validation"]
    assert evaluated == [1, 2, 3]
    for found in run.checkpoints()[4:]:  # the fourth is of a step within the ramp
        shutil.rmtree(found.path)
    training.train(resume=run.path)
    assert outcome(run.path) == expected


def test_a_run_is_written_by_one_process(copied: Path) -> None:
    with RunDirectory.open(copied).held(), pytest.raises(DirectoryError, match="another process"):
        training.train(resume=copied)


def test_a_loss_that_is_no_number_stops_with_its_step_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"step \d+ is not finite.* step \d+") as e:
        training.train(tiny("optim.lr=1e30", "optim.ema=", "schedule.warmup=0", "run.log_every=50"), tmp_path / "run")
    assert "optim.lr" in str(e.value)
    assert "the loss of step 2 is" in str(e.value)  # the first step makes weights of 1e30
    found = RunDirectory.open(tmp_path / "run").checkpoints()
    assert all(torch.isfinite(t).all() for t in found[-1].weights().values())
    assert str(found[-1].step) in str(e.value)


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses the file that grows beyond a limit, as a full disk does."""
    import resource

    recipe, run = tiny(), tmp_path / "run"
    before = RunDirectory.save

    def limited(self: RunDirectory, step: int, *rest: Any) -> Path:
        if step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
        return before(self, step, *rest)

    monkeypatch.setattr(RunDirectory, "save", limited)
    try:
        with pytest.raises(TrainingError, match=r"step 4 .*step 2 "):
            training.train(recipe, run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert [found.step for found in RunDirectory.open(run).checkpoints()] == [0, 2]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["00000000", "00000002"]


# -- the folder -------------------------------------------------------------------------------------------------------


def test_the_last_checkpoints_and_the_best_are_kept(whole: Path) -> None:
    found = RunDirectory.open(whole).checkpoints()
    scored = [row for row in RunDirectory.open(whole).rows() if row["split"] == "validation" and row["step"] % 2 == 0]
    best = max(scored, key=lambda row: row["top1"])
    assert [entry.step for entry in found] == sorted({best["step"], 22, 24})
    assert RunDirectory.open(whole).best() == next(entry for entry in found if entry.step == best["step"])


def test_a_run_holds_what_was_asked_and_where_it_ran(whole: Path) -> None:
    assert recipes.load(whole / "recipe.toml") == TINY
    entry = json.loads((whole / "environment.json").read_text())[0]
    assert entry["versions"]["torch"] == version("torch")
    assert {"git", "command", "threads", "processes", "device"} <= entry.keys()
    assert {tuple(row)[:3] for row in RunDirectory.open(whole).rows()} == {("step", "epoch", "split")}


def test_a_row_has_the_rate_of_its_own_step(whole: Path, tmp_path: Path) -> None:
    """And a run that learns is not said to be no better than what it started from."""
    trainer, watcher = loop.Trainer(TINY), Watcher()
    rows = [row for row in RunDirectory.open(whole).rows() if row["split"] == "train"]
    assert [row["lr"] for row in rows] == [trainer.lr(row["step"] - 1) for row in rows]
    assert len({row["lr"] for row in rows}) == len(rows)
    training.train(tiny("schedule.epochs=1", "schedule.warmup=0"), tmp_path / "run", watcher=watcher)
    assert not any("better than" in words for words in watcher.warnings)


def test_a_run_is_a_source(whole: Path) -> None:
    model = leanify.load(whole)
    best = RunDirectory.open(whole).best()
    assert best is not None
    weights = best.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert leanify.read(model).stages[0].depth == 2


def test_an_output_folder_that_is_not_empty_is_refused(whole: Path) -> None:
    with pytest.raises(DirectoryError, match="not empty"):
        training.train(TINY, whole)


# -- what a step computes -------------------------------------------------------------------------------------------


def losses(*settings: str) -> list[tuple[float, torch.Tensor]]:
    """The mean loss and a weight after each of the first steps."""
    trainer = loop.Trainer(
        tiny(
            "data.mixup=",
            "data.cutmix=",
            "model.override.drop_path_rate=0",
            "model.override.proj_drop_rate=0",
            "optim.ema=",
            *settings,
        )
    )
    batches, found = trainer.batches(0), []
    for step in range(trainer.order.steps_per_epoch + 1):
        trainer.step(step, batches)
        loss, targets, _ = trainer.window.read()
        found.append((loss / targets, trainer.bare.head.weight.detach().clone()))
    return found


@pytest.mark.parametrize("mixing", [[], ["data.mixup=0.8", "data.cutmix=1.0"]])
def test_gradients_accumulate_to_those_of_the_whole_batch(mixing: list[str]) -> None:
    for (loss, weight), (loss3, weight3) in zip(losses(*mixing), losses(*mixing, "run.accumulate=3"), strict=True):
        assert loss3 == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(weight3, weight, rtol=0, atol=2e-5)


def test_workers_change_nothing() -> None:
    one, two = losses(), losses("data.workers=1")
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in zip(one, two, strict=True))


def test_a_bare_loop_of_torch_finds_the_same_weights() -> None:
    """An oracle: torch's AdamW and cross-entropy on the same batches."""
    trainer = loop.Trainer(
        tiny(
            "data.mixup=",
            "data.cutmix=",
            "model.override.drop_path_rate=0",
            "model.override.proj_drop_rate=0",
            "optim.ema=",
            "optim.weight_decay=0",
        )
    )
    model = preparation.build(trainer.recipe)
    model.load_state_dict(trainer.bare.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    data, batches = trainer.splits.train, trainer.batches(0)
    for step in range(5):
        trainer.step(step, batches)
        optimizer.param_groups[0]["lr"] = 1e-9 if step == 0 else 2e-3 * step / 8
        if step == 0:
            optimizer.param_groups[0]["lr"] = 0.0
        images, labels = data.batch(trainer.order.batch(step))  # type: ignore[attr-defined]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trainer.bare.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["data.name=dogits"], DataError, "no data.path for dogits"),
        (["data.task=masked-lm"], RecipeError, "for classification, not for masked-lm"),
        (["data.mask=0.2"], RecipeError, "data.mask is for masked-lm"),
        (["data.test=test"], RecipeError, "there is no such split"),
        (["data.options.seed=1"], RecipeError, "data.options apply only to"),
        (["schedule.batch_ramp=1.5"], RecipeError, "a share of the run"),
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
        (["model.source=vit_bsae"], LeanifyError, "nearest: vit_base"),
        (["data.nmae=digits"], RecipeError, "nearest: name"),
    ],
)
def test_what_does_not_go_together_is_one_message_and_nothing_is_written(
    settings: list[str], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words) as found:
        training.train(TINY, tmp_path / "run", settings=settings)
    assert "\n" not in str(found.value)
    assert list(tmp_path.iterdir()) == []


def test_mixed_classes_train_a_head_with_more_outputs_than_classes(tmp_path: Path) -> None:
    settings = ["data.mixup=0.8", "model.override.num_classes=12", "schedule.steps=1", "schedule.epochs="]
    run = training.train(recipes.with_settings(TINY, settings), tmp_path / "run")
    assert RunDirectory.open(run).rows()[0]["loss"] > 0
