"""What a step computes, with a teacher too, a batch that grows, a loss that is not finite, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from runs import digits, final_state, refused

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import DataError, LeanifyError, RecipeError, ShapeError, TrainingError
from leanify.core.recipe import DistillSection
from leanify.data.sampling import MODEL, seed_everything
from leanify.runs.run_directory import RunDirectory
from leanify.training import distillation, loop, preparation
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
        (["data.img_size=16"], RecipeError, "does not apply"),
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


# -- a teacher: what its loss is, and what is learnt beside the model -------------------------------------------------

STUDENT = (*STILL[2:], "data.samples=200", "schedule.epochs=2")


def student(*settings: str) -> recipes.Recipe:
    return digits(*STUDENT, *settings)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The student itself, and one that is wider and deeper."""
    folder, found = tmp_path_factory.mktemp("teachers"), {}
    for name, settings in (("same", []), ("wide", ["model.override.embed_dim=24", "model.override.depth=4"])):
        seed_everything(MODEL, 0)
        leanify.save(preparation.build_model(student(*settings)), folder / name)
        found[name] = folder / name
    return found


def test_logit_loss_matches_torch() -> None:
    mine, theirs = torch.randn(5, 7, 11), torch.randn(5, 7, 11)
    softened = [torch.distributions.Categorical(logits=logits / 3) for logits in (theirs, mine)]
    wanted = torch.distributions.kl_divergence(*softened)
    torch.testing.assert_close(distillation.divergence(mine, theirs, 3.0), wanted)


def test_layer_loss_matches_torch_mse() -> None:
    mine, theirs, mask = torch.randn(3, 4, 6), torch.randn(3, 4, 6), torch.tensor([[1, 1, 0, 0]] * 3)
    mean = torch.nn.functional.mse_loss(mine, theirs)
    torch.testing.assert_close(distillation.difference(mine, theirs, None).mean(), mean)
    mean = torch.nn.functional.mse_loss(mine[:, :2], theirs[:, :2])
    torch.testing.assert_close(distillation.difference(mine, theirs, mask).mean(), mean)


def test_token_loss_matches_torch_cosine_loss() -> None:
    """Of a sample it is the mean over its own tokens, however many others it is padded to."""
    mine, theirs, mask = torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
    found = distillation.token_distance(mine, theirs, mask)
    for count, x, y, loss in zip((5, 3), mine, theirs, found, strict=True):
        wanted = torch.nn.functional.cosine_embedding_loss(x[:count], y[:count], torch.ones(count))
        torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(distillation.token_distance(mine[:1], theirs[:1], None), found[:1])


def losses(value: recipes.Recipe, steps: int = 4) -> list[float]:
    return [loss for loss, _ in take_steps(value, steps)]


def test_self_distillation_loss_is_zero(teachers: dict[str, Path]) -> None:
    words = [f"distill.teacher={teachers['same']}", "distill.weight=1", "distill.hidden_weight=1", "optim.ema="]
    trainer = loop.Trainer(student(*words, "optim.weight_decay=0"))
    before = {name: tensor.clone() for name, tensor in trainer.unwrapped_model.state_dict().items()}
    trainer.descend(0, *next(trainer.batches(0)), 1.0)
    assert trainer.window.read()[0] == pytest.approx(0, abs=1e-5)
    assert all(p.grad is None or p.grad.abs().max() < 1e-5 for p in trainer.unwrapped_model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.unwrapped_model.state_dict().items())


def test_loss_is_weighted_sum(teachers: dict[str, Path]) -> None:
    """At the first step, with no mixing: every part alone, then together."""
    base = ["data.mixup=", "data.cutmix=", f"distill.teacher={teachers['wide']}", "distill.temperature=2"]

    def first(weight: float, hidden: float) -> float:
        return losses(student(*base, f"distill.weight={weight}", f"distill.hidden_weight={hidden}"), 1)[0]

    task = losses(student("data.mixup=", "data.cutmix="), 1)[0]
    say, both, layers = first(1, 0), first(0.25, 3), first(0, 1) - task
    assert min(task, say, layers) > 0
    assert both == pytest.approx(0.75 * task + 0.25 * say + 3 * layers, rel=1e-5)


def test_batch_parts_add_up(teachers: dict[str, Path]) -> None:
    words = ["data.mixup=", "data.cutmix=", f"distill.teacher={teachers['wide']}", "distill.hidden_weight=1"]
    assert losses(student(*words)) == pytest.approx(losses(student(*words, "run.accumulate=3")), rel=1e-5)


def test_maps_resume_bit_identically(teachers: dict[str, Path], tmp_path: Path) -> None:
    """Maps are learnt, kept, and not loaded into the model."""
    words = [f"distill.teacher={teachers['wide']}", "distill.hidden_weight=0.5", "run.keep=0"]
    run = RunDirectory.open(training.train(student(*words), tmp_path / "run"))
    whole, (first, *_, last) = final_state(run.path), run.checkpoints()
    assert last.weights().keys() == leanify.load(run.path).state_dict().keys()
    before, after = (found.state()["maps"] for found in (first, last))
    assert [tuple(tensor.shape) for tensor in after.values()] == [(24, 16)] * 2
    assert not any(torch.equal(before[name], after[name]) for name in after)
    for found in run.checkpoints()[2:]:
        shutil.rmtree(found.path)
    training.train(resume=run.path)
    assert final_state(run.path) == whole


def test_layers_spread_or_follow_setting() -> None:
    assert distillation.pair_layers(DistillSection("x"), 3, 12) == [(0, 3), (1, 7), (2, 11)]
    assert distillation.pair_layers(DistillSection("x"), 5, 7) == [(0, 1), (1, 2), (2, 4), (3, 5), (4, 6)]
    assert distillation.pair_layers(DistillSection("x"), 2, 2) == [(0, 0), (1, 1)]
    value = student("distill.teacher=x", "distill.layers=[[1, 3]]")
    assert recipes.parse(value.to_toml()) == value
    assert distillation.pair_layers(value.distill, 2, 4) == [(1, 3)]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["distill.teacher=vit_tiny"], RecipeError, "a model without weights"),
        (["distill.weight=1.5"], RecipeError, "between 0 and 1"),
        (["run.compile=true"], RecipeError, "do not go together"),
        (["distill.weight=0"], RecipeError, "nothing is learnt from the teacher"),
        (["distill.layers=[[0, 4]]", "distill.hidden_weight=1"], RecipeError, "teacher layer 0 … 3"),
        (["distill.layers=odd"], RecipeError, "distill.layers is"),
        (["model.override.num_classes=11"], RecipeError, "give 11 and 10 logits"),
        (["model.override.patch_size=4", "distill.hidden_weight=1"], ShapeError, "5 × 16 and .* 17 × 24"),
    ],
)
def test_unteachable_pairs_are_refused(
    settings: list[str], error: type[LeanifyError], words: str, teachers: dict[str, Path], tmp_path: Path
) -> None:
    with refused(error, words, tmp_path / "run"):
        training.train(student(f"distill.teacher={teachers['wide']}", *settings), tmp_path / "run")
