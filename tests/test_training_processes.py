"""Several processes with the whole model or sharing it (FSDP2): the losses of one, every sample once, a resume."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import numpy as np
import pytest
import torch
from runs import final_state, launched
from safetensors.torch import load_file
from torch import Tensor, nn

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import RecipeError
from leanify.data.sampling import Order, evaluation_batches
from leanify.runs.run_directory import RunDirectory
from leanify.tasks import get_logits
from leanify.training import sharding
from leanify.training import start as training
from leanify.training.engine import freeze_unused
from leanify.training.schedule import check_processes

# 241 samples to train: the last step of an epoch has one, which is one process's alone
RECIPE = """
[model]
source = "vit_tiny_patch16_224"
override = { img_size = 8, patch_size = 2, in_chans = 1, num_classes = 10, embed_dim = 16, depth = 2, num_heads = 2 }
[data]
name = "digits"
task = "classification"
samples = 302
mixup = 0.8
cutmix = 1.0
[optim]
lr = 2e-3
clip = 1.0
ema = 0.9
[schedule]
epochs = 2
batch_size = 60
[run]
log_every = 1
"""


def runs(folder: Path, recipe: str, *phases: str) -> list[list[int]]:
    """The exit codes of phases (see runs.py), which all begin from one recipe."""
    (folder / "recipe.toml").write_text(recipe)
    done = commands.start("runs:launch", str(folder / "recipe.toml"), *phases).wait()
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def same_losses(one: Path, two: Path, apart: float = 1e-4) -> None:
    """Up to the order in which gradients are added."""
    pairs = list(zip(*(RunDirectory.open(run).rows() for run in (one, two)), strict=True))
    assert pairs
    for mine, theirs in pairs:
        assert theirs["step"] == mine["step"]
        assert theirs["loss"] == pytest.approx(mine["loss"], abs=apart)
        assert theirs.get("top1") == mine.get("top1")


def test_two_processes_match_one(tmp_path: Path) -> None:
    assert runs(tmp_path, RECIPE.replace("epochs = 2", "epochs = 1"), "one:1", "two:2") == [[0], [0, 0]]
    same_losses(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_launched_processes_match_and_resume(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(RECIPE)
    training.train(tmp_path / "two.toml", tmp_path / "one")
    done = launched("train", str(tmp_path / "two.toml"), "-o", str(tmp_path / "two"))
    _, said = done.communicate()
    assert done.returncode == 0, said
    assert "find_unused_parameters" not in said  # every parameter has a gradient: DDP is not told to look
    same_losses(tmp_path / "one", tmp_path / "two")

    shutil.copytree(tmp_path / "two", tmp_path / "again")
    shutil.rmtree(RunDirectory.open(tmp_path / "again").checkpoints()[-1].path)
    done = launched("train", "--resume", str(tmp_path / "again"))
    _, said = done.communicate()
    assert done.returncode == 0, said
    assert "from step 5" in said
    assert final_state(tmp_path / "again") == final_state(tmp_path / "two")


class Routed(nn.Module):
    """Two experts, of which the sign of the input chooses one."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[int(x.sum() > 0)](x)


class TwoHeaded(nn.Module):
    """Two outputs, of which a loss takes the first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head, self.other = nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.norm(x)), self.other(self.norm(x))


@pytest.mark.parametrize(
    ("model", "frozen", "looked_for"),
    [(TwoHeaded(), {"other.weight", "other.bias"}, False), (Routed(), set(), True), (nn.Linear(4, 2), set(), False)],
)
def test_unused_outputs_are_frozen(model: nn.Module, frozen: set[str], looked_for: bool) -> None:
    """What other samples may reach is looked for at each step."""
    sums = {name: buffer.clone() for name, buffer in model.named_buffers()}
    engine: Any = SimpleNamespace(ddp_handler=SimpleNamespace(static_graph=False, find_unused_parameters=False))
    freeze_unused(model, lambda model: get_logits(model(torch.randn(2, 4).abs())).square().sum(), engine)
    assert {name for name, weight in model.named_parameters() if not weight.requires_grad} == frozen
    assert engine.ddp_handler.find_unused_parameters == looked_for
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(buffer, sums[name]) for name, buffer in model.named_buffers())


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("samples", "size"), [(241, 60), (7, 7), (10, 4), (3, 8)])
@pytest.mark.parametrize(("ramp", "together"), [(0, 1), (0, 2), (1, 1), (9, 2)])
def test_epoch_covers_samples_once(
    world: int, accumulate: int, samples: int, size: int, ramp: int, together: int
) -> None:
    """Over all processes."""
    orders = [Order(samples, size, 0, rank, world, accumulate, ramp, together) for rank in range(world)]
    for epoch in range(2):
        seen: list[int] = []
        for step in range(*(orders[0].step_at(e * orders[0].steps_per_epoch) for e in (epoch, epoch + 1))):
            for order in orders:
                passes = order.passes(step)
                assert passes  # every process has something to do in every step
                assert all(passes)
                seen += [index for part in passes[: order.counted(step)] for _, index in part]
                assert {key[0] for part in passes for key in part} == {epoch}
                assert len(passes) <= accumulate
                assert len(passes) == len(orders[0].passes(step))  # else a gathered block would be waited for
                if together == 2:  # neighbours of a step are neighbours in a pass
                    place = {int(index): at for at, index in enumerate(order.batch(step))}
                    spots = [[place[index] for _, index in part] for part in passes[: order.counted(step)]]
                    assert all(a + 1 == b for part in spots for a, b in zip(part[::2], part[1::2], strict=False))
                    assert all(at % 2 == 0 for part in spots for at in part[::2])
        assert sorted(seen) == list(range(samples))
        assert orders[0].epochs(step + 1) == epoch + 1
    second = orders[0].batch(orders[0].step_at(orders[0].steps_per_epoch))
    assert not np.array_equal(orders[0].batch(0)[: len(second)], second[: len(orders[0].batch(0))]) or samples < 11


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_sees_exact_set(world: int) -> None:
    parts = [evaluation_batches(range(61), 8, rank, world) for rank in range(world)]
    assert sorted(index for part in parts for keys in part for _, index in keys) == list(range(61))


def test_seed_changes_order() -> None:
    orders = [Order(100, 100, seed).batch(0) for seed in (0, 1)]
    assert not np.array_equal(*orders)
    assert recipes.parse(RECIPE).run.seed == 0


# -- a model shared by several processes ------------------------------------------------------------------------------

SHARDED = RECIPE.replace("log_every = 1", "log_every = 1\ncheckpoint_every = 2\nkeep = 0\naccumulate = 2") + (
    "[parallel]\nshard = true\n"
)
GPT = recipes.apply_settings(
    recipes.load("chars"),
    ["model.override.n_embd=32", "model.override.n_layer=3", "model.override.n_head=2", "model.override.n_positions=32",
     "data.length=32", "data.samples=1", "optim.betas=", "schedule.steps=4", "schedule.batch_size=8",
     "schedule.warmup=0", "run.log_every=1", "run.eval_every=2", "run.eval_batches=1", "parallel.shard=true"],
)  # fmt: skip


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
