"""A model shared by several processes (FSDP2) on CPUs: the losses of one process, through kills and other numbers."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import commands
import pytest
from runs import launched
from safetensors.torch import load_file
from test_training_processes import RECIPE, same_losses

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import RecipeError
from leanify.runs.run_directory import RunDirectory
from leanify.training import sharding
from leanify.training.schedule import check_processes

SHARDED = RECIPE.replace("log_every = 1", "log_every = 1\ncheckpoint_every = 2\nkeep = 0\naccumulate = 2") + (
    "[parallel]\nshard = true\n"
)
GPT = recipes.apply_settings(
    recipes.load("chars"),
    ["model.override.n_embd=32", "model.override.n_layer=3", "model.override.n_head=2", "model.override.n_positions=32",
     "data.length=32", "data.samples=1", "optim.betas=", "schedule.steps=4", "schedule.batch_size=8",
     "schedule.warmup=0", "run.log_every=1", "run.eval_every=2", "run.eval_batches=1", "parallel.shard=true"],
)  # fmt: skip


def runs(folder: Path, recipe: str, *phases: str) -> list[list[int]]:
    """The exit codes of phases (see runs.py), which all begin from one recipe."""
    (folder / "recipe.toml").write_text(recipe)
    done = commands.start("runs:launch", str(folder / "recipe.toml"), *phases).wait()
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.mark.slow
def test_sharded_losses_survive_a_kill(tmp_path: Path) -> None:
    """Two processes are killed, and one goes on: weights, moments and averages are whole again."""
    short = SHARDED.replace("epochs = 2", "steps = 4")
    assert runs(tmp_path, short, "one:1", "many:2:4", "many:1") == [[0], [-signal.SIGKILL] * 2, [0]]
    same_losses(tmp_path / "one", tmp_path / "many")
    found = {point.step: point for point in RunDirectory.open(tmp_path / "many").checkpoints()}
    assert {step: point.is_sharded for step, point in found.items()} == {0: True, 2: True, 4: False}


@pytest.mark.long
def test_resume_with_other_process_counts(tmp_path: Path) -> None:
    """Killed in between; with mixed images, averaged weights, clipped gradients and two passes a step."""
    killed = -signal.SIGKILL
    codes = runs(tmp_path, SHARDED, "one:1", "many:2:5", "many:4:8", "many:1", "four:4", "grown:1:6", "grown:2")
    assert codes == [[0], [killed] * 2, [killed] * 4, [0], [0] * 4, [killed], [0] * 2]
    for name in ("many", "four", "grown"):
        same_losses(tmp_path / "one", tmp_path / name)
    found = {point.step: point for point in RunDirectory.open(tmp_path / "many").checkpoints()}
    counts = {step: sum(name.startswith("shards/") for name in point.sums) for step, point in found.items()}
    assert counts == {0: 2, 2: 2, 4: 2, 6: 4, 8: 0, 10: 0}
    assert all(point.find_damage() is None for point in found.values())
    ordinary = load_file(found[6].path / "model.safetensors")
    assert ordinary.keys() == leanify.load(tmp_path / "many").state_dict().keys()


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "apart"),
    [
        ((), 1e-4),
        (("run.gradient_checkpointing=true",), 1e-4),
        (("run.precision=bf16",), 2e-3),
        (("optim.name=sgd",), 1e-4),
    ],
)
def test_tied_embeddings_can_be_sharded(tmp_path: Path, settings: tuple[str, ...], apart: float) -> None:
    value = recipes.apply_settings(GPT, settings)
    assert runs(tmp_path, value.to_toml(), "one:1", "two:2:4", "two:2")[-1] == [0, 0]
    same_losses(tmp_path / "one", tmp_path / "two", apart)


@pytest.mark.long
def test_teacher_and_maps_can_be_sharded(tmp_path: Path) -> None:
    teacher = recipes.apply_settings(GPT, ["model.override.n_embd=48", "model.override.n_layer=4"])
    assert runs(tmp_path, teacher.to_toml(), "teacher:1") == [[0]]
    words = [f'distill.teacher="{tmp_path / "teacher"}"', "distill.hidden_weight=0.5"]
    value = recipes.apply_settings(GPT, words)
    assert runs(tmp_path, value.to_toml(), "one:1", "two:2:4", "two:4:4", "two:1") == [[0], [-9] * 2, [-9] * 4, [0]]
    same_losses(tmp_path / "one", tmp_path / "two")


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "samples", "batch", "words"),
    [
        (4, 3, 8, r"4 processes share 3 samples to train: at least one has none\. Start at most 3"),
        (4, 100, 2, r"4 processes share a batch of 2 samples"),
        (3, 100, 64, r"batch_size is 64, which 3 processes do not divide.*batch_size=66 or 63"),
    ],
)
def test_idle_processes_are_refused(world: int, samples: int, batch: int, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        check_processes(world, samples, batch)
    check_processes(1, samples, batch)


def test_unshardable_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    value = recipes.parse(SHARDED)
    assert not sharding.is_requested(value)  # one process has it all
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert sharding.is_requested(value)
    whole = recipes.apply_settings(value, ["parallel.shard=false"])
    assert not sharding.is_requested(whole)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # as accelerate launch --use_fsdp sets it
    assert sharding.is_requested(whole)
    with pytest.raises(RecipeError, match="fp16"):
        sharding.check(value, "fp16")
    monkeypatch.setattr(sharding, "OPTIMIZERS", ("sgd",))  # as for an optimiser of whole matrices
    with pytest.raises(RecipeError, match=r"optim\.name .*'adamw'.* sgd"):
        sharding.check(value, "fp32")


@pytest.mark.long
def test_bad_launches_exit_with_2(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(SHARDED)
    for settings, words in {
        ("data.samples=3", "data.holdout=0.4"): "processes share",
        ("schedule.batch_size=61",): "do not divide",
        ("optim.name=shampoo",): "optim.name",
    }.items():
        given = [part for each in settings for part in ("--set", each)]
        done = launched("train", str(tmp_path / "recipe.toml"), "-o", str(tmp_path / "run"), *given)
        _, said = done.communicate()
        lines = [line for line in said.splitlines() if line.startswith("leanify:") and "warning" not in line]
        assert len(lines) == 1, said
        assert words in lines[0]
        assert "exitcode  : 2" in said
        assert not (tmp_path / "run").exists()
