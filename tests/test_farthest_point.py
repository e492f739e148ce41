"""The farthest point: what is drawn, what its targets are, what is measured, and the encoder it is put to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from runs import refused
from scipy.spatial.distance import cdist
from sklearn.metrics import mean_squared_error

from farthest_point import FarthestPoint
from leanify.core.errors import DataError, RecipeError
from leanify.data.sampling import HOLDOUT, SAMPLE
from leanify.tasks.regression import Regression
from leanify.training import start as training
from point_encoder import PointEncoder

TINY = ["model.mlp=8", "model.override.width=6", "model.head_dim=6", "data.length=5", "data.samples=64",
        "schedule.steps=4", "schedule.warmup=1", "schedule.batch_size=16", "run.eval_every=2"]  # fmt: skip
KEYS = [(0, 3), (0, 4), (1, 3)]


def test_targets_are_farthest_points() -> None:
    points, targets = FarthestPoint(100, 16, 8, SAMPLE).draw(0, KEYS)
    found = points["points"].numpy()
    assert found.shape == (3, 16, 8)
    for sample, wanted in zip(found, targets.numpy(), strict=True):
        assert np.array_equal(wanted, sample[cdist(sample, sample).argmax(1)])
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, rtol=1e-6)


def test_points_are_uniform_on_sphere() -> None:
    points = FarthestPoint(4000, 2, 3, SAMPLE).draw(0, [(0, i) for i in range(4000)])[0]["points"].flatten(0, 1)
    height = points[:, 2].sort().values  # Archimedes: uniform in −1 … 1
    assert (height - torch.linspace(-1, 1, len(height))).abs().max() < 0.05
    assert points.mean(0).norm() < 0.03


def test_seed_epoch_index_decide_samples() -> None:
    samples = FarthestPoint(100, 4, 3, SAMPLE)
    whole = samples.draw(7, KEYS)[0]["points"]
    assert torch.equal(whole[1:2], samples.draw(7, KEYS[1:2])[0]["points"])
    assert not torch.equal(whole[0], whole[2])  # the next epoch has others
    assert not torch.equal(whole, samples.draw(8, KEYS)[0]["points"])
    held = FarthestPoint(100, 4, 3, HOLDOUT)
    assert torch.equal(held.draw(7, KEYS)[0]["points"], held.draw(8, KEYS)[0]["points"])
    assert not torch.equal(whole, held.draw(7, KEYS)[0]["points"])
    drawn = samples.draw(0, [(epoch, index) for epoch in range(3) for index in range(100)])[0]["points"]
    assert len(drawn.flatten(1).unique(dim=0)) == 300


def test_full_rank_heads_can_answer() -> None:
    """One head with query and key the identity, sharpened: softmax(−βXXᵀ)X is the farthest point (Amsel et al.)."""
    points, targets = FarthestPoint(100, 16, 64, SAMPLE).draw(0, [(0, i) for i in range(64)])
    x = points["points"]
    near = torch.softmax(-5000 * x @ x.mT, -1) @ x - targets
    assert near.square().sum(-1).mean() < 0.01
    tally = Regression().tally_batch(lambda points: 0 * points, points, targets)
    loss = Regression().metrics({name: value.double() for name, value in tally.items()})["loss"]
    assert loss == pytest.approx(1, abs=1e-6)


def test_error_matches_scikit_learn() -> None:
    torch.manual_seed(0)
    guess, targets = torch.randn(4, 5, 3), torch.randn(4, 5, 3)
    found = Regression().tally_batch(lambda points: guess, {"points": guess}, targets)  # type: ignore[arg-type]
    theirs = 3 * mean_squared_error(targets.flatten(0, 1).numpy(), guess.flatten(0, 1).numpy())
    assert Regression().metrics(found)["loss"] == pytest.approx(theirs, rel=1e-6)


def test_encoder_matches_torch_without_norms() -> None:
    torch.manual_seed(0)
    model = PointEncoder(width=8, depth=1, heads=2, head_dim=4, mlp=16)
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    [block] = model.blocks
    with torch.no_grad():
        block.norm1.scale.fill_(1.5)
        block.norm2.scale.fill_(0.5)
        theirs.self_attn.in_proj_weight.copy_(block.attention.qkv.weight)
        theirs.self_attn.in_proj_bias.copy_(block.attention.qkv.bias)
        theirs.self_attn.out_proj.load_state_dict(block.attention.proj.state_dict())
        theirs.linear1.load_state_dict(block.mlp.fc1.state_dict())
        theirs.linear2.load_state_dict(block.mlp.fc2.state_dict())
    theirs.norm1, theirs.norm2 = block.norm1, block.norm2
    points = model.example_inputs(3)["points"]
    torch.testing.assert_close(model(points), theirs.train()(points))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["data.task=classification"], RecipeError, "is a regression task; data.task is classification"),
        (["data.path=/tmp"], RecipeError, "data.path does not apply to .*farthest_point.py"),
        (["data.length=1"], RecipeError, "needs at least 2 points"),
        (
            ["model.source=nystromformer.py:Nystromformer", "model.override=", "model.head_dim="],
            DataError,
            "takes points",
        ),
        (["data.name=nearest-point"], RecipeError, "not a data set for regression; name the function that reads it"),
    ],
)
def test_bad_input_is_one_message(settings: list[str], error: type[Exception], words: str, tmp_path: Path) -> None:
    with refused(error, words, tmp_path / "run"):
        training.train("farthest-point", tmp_path / "run", settings=[*TINY, *settings])
