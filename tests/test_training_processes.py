"""Several processes: the losses of one at the same global batch, every sample once, and a resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import numpy as np
import pytest
import torch
from runs import final_state, launched
from torch import Tensor, nn

from leanify.core import recipe as recipes
from leanify.data.sampling import Order, evaluation_batches
from leanify.runs.run_directory import RunDirectory
from leanify.tasks import get_logits
from leanify.training import start as training
from leanify.training.engine import freeze_unused

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


def same_losses(one: Path, two: Path, apart: float = 1e-4) -> None:
    """Up to the order in which gradients are added."""
    pairs = list(zip(*(RunDirectory.open(run).rows() for run in (one, two)), strict=True))
    assert pairs
    for mine, theirs in pairs:
        assert theirs["step"] == mine["step"]
        assert theirs["loss"] == pytest.approx(mine["loss"], abs=apart)
        assert theirs.get("top1") == mine.get("top1")


def test_two_processes_match_one(tmp_path: Path) -> None:
    recipe = tmp_path / "two.toml"
    recipe.write_text(RECIPE.replace("epochs = 2", "epochs = 1"))
    done = commands.start("runs:launch", str(recipe), "one:1", "two:2").wait()
    assert done.stdout.splitlines() == ["[0]", "[0, 0]"], done.stderr
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
