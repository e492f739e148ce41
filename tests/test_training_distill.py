"""A teacher: what its loss is, what is learnt beside the model, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from runs import digits, final_state, refused
from test_training import take_steps

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import LeanifyError, RecipeError, ShapeError
from leanify.core.recipe import DistillSection
from leanify.data.sampling import MODEL, seed_everything
from leanify.runs.run_directory import RunDirectory
from leanify.training import distillation, loop, preparation
from leanify.training import start as training

STILL = ["model.override.drop_path_rate=0", "model.override.proj_drop_rate=0", "data.samples=200", "schedule.epochs=2"]


def student(*settings: str) -> recipes.Recipe:
    return digits(*STILL, *settings)


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
