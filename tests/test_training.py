"""What a step computes, a batch that grows, a loss that is not finite, and settings that are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from runs import digits, final_state, refused

from leanify.core import recipe as recipes
from leanify.core.errors import DataError, RecipeError, TrainingError
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop, preparation
from leanify.training import start as training

STILL = ("data.mixup=", "data.cutmix=", "model.override.drop_path_rate=0", "model.override.proj_drop_rate=0")


def test_growing_batch_resumes_identically(tmp_path: Path) -> None:
    recipe = digits("schedule.batch_ramp=0.4", "run.keep=0", "run.eval_every=")
    run = RunDirectory.open(training.train(recipe, tmp_path / "run"))
    expected = final_state(run.path)
    assert expected["step"] > 24  # smaller batches, as many samples
    evaluated = [row["epoch"] for row in expected["rows"] if row["split"] == "validation"]
    assert evaluated == [1, 2, 3]
    for found in run.checkpoints()[4:]:  # the fourth is of a step within the ramp
        shutil.rmtree(found.path)
    training.train(resume=run.path)
    assert final_state(run.path) == expected


def test_nan_loss_stops_the_run(tmp_path: Path) -> None:
    """It names the step and the last good checkpoint."""
    with pytest.raises(TrainingError, match=r"step \d+ is not finite.* step \d+") as e:
        training.train(digits("optim.lr=1e30", "optim.ema=", "schedule.warmup=0", "run.log_every=50"), tmp_path / "run")
    assert "optim.lr" in str(e.value)
    assert "the loss of step 2 is" in str(e.value)  # the first step makes weights of 1e30
    found = RunDirectory.open(tmp_path / "run").checkpoints()
    assert all(torch.isfinite(t).all() for t in found[-1].weights().values())
    assert str(found[-1].step) in str(e.value)


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
    one, three = (take_steps(digits(*STILL, "optim.ema=", *mixing, *more), 9) for more in ((), ("run.accumulate=3",)))
    for (loss, weight), (loss3, weight3) in zip(one, three, strict=True):
        assert loss3 == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(weight3, weight, rtol=0, atol=2e-5)


def test_bare_loop_finds_same_weights() -> None:
    """An oracle: torch's AdamW and cross-entropy on the same batches."""
    trainer = loop.Trainer(digits(*STILL, "optim.ema=", "optim.weight_decay=0"))
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
        (['run.trackers=["wendb"]'], RecipeError, r"run\.trackers .*'wendb'"),
        (["model.source=gpt2.py:Gpt2", "model.override=", "run.gradient_checkpointing=true"], RecipeError,
         r"run\.gradient_checkpointing: Gpt2 has none"),
        (["data.holdout=1.5"], RecipeError, "a share"),
        (["data.samples=1"], DataError, "would be empty"),
        (["data.img_size=16"], RecipeError, "do not apply"),
        (["model.override.num_classes=9"], DataError, "9 outputs; --set model.override.num_classes=10"),
        (["model.override.img_size=16"], DataError, "1 × 8 × 8, but the model takes 1 × 16 × 16"),
    ],
)  # fmt: skip
def test_conflicting_settings_write_nothing(
    settings: list[str], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with refused(error, words):
        training.train(digits(), tmp_path / "run", settings=settings)
    assert list(tmp_path.iterdir()) == []


def test_mixing_allows_extra_outputs(tmp_path: Path) -> None:
    """Mixed classes train a head with more outputs than classes."""
    settings = ["data.mixup=0.8", "model.override.num_classes=12", "schedule.steps=1", "schedule.epochs="]
    run = training.train(digits(*settings), tmp_path / "run")
    assert RunDirectory.open(run).rows()[0]["loss"] > 0
