"""Classes of unequal size: weights in the loss, the macro-F1 beside accuracy, and a warning before the first step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from runs import Warnings
from sklearn.metrics import f1_score
from torch import nn

import leanify
from leanify.runs.run_directory import RunDirectory
from leanify.tasks.classification import Classification, macro_f1

COUNTS = (36, 6, 6)


class Table(nn.Module):
    """A model whose logits are its inputs."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unbalanced")
    rng = np.random.default_rng(0)
    for name, level, count in zip(("many", "few", "rare"), (60, 120, 190), COUNTS, strict=True):
        (root / name).mkdir()
        for number in range(count):
            Image.fromarray(rng.integers(level - 30, level + 30, (8, 8), np.uint8)).save(root / name / f"{number}.png")
    return root


@pytest.mark.parametrize("outputs", [3, 5])
def test_each_class_counts_alike(outputs: int) -> None:
    """The weighted sum is torch's; with as many samples as were counted, each class has a third of it."""
    counts = torch.tensor(COUNTS)
    weights = counts.sum() / (3 * counts)
    task = Classification(3, 0, 0, 0.0, None, weights)
    targets = torch.repeat_interleave(torch.arange(3), counts)
    logits = torch.zeros(len(targets), outputs)
    torch.testing.assert_close(task.loss(Table(), logits, targets), F.cross_entropy(logits, targets, reduction="sum"))
    by_class = [task.loss(Table(), logits[targets == label], targets[targets == label]) for label in range(3)]
    torch.testing.assert_close(by_class[0], by_class[1])


@pytest.mark.parametrize("seed", range(3))
def test_macro_f1_is_scikit_learns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    predicted, target = rng.integers(0, 4, 50), rng.integers(seed, 6, 50)
    expected = f1_score(target, predicted, average="macro", zero_division=0)
    assert macro_f1(torch.tensor(predicted), torch.tensor(target)) == pytest.approx(expected)


def test_unbalanced_run_reports_macro_f1(folder: Path, tmp_path: Path) -> None:
    heard = Warnings()
    small = [
        "data.workers=0",
        "model.override.depth=1",
        "schedule.steps=2",
        "schedule.warmup=0",
        "optim.class_weights=true",
    ]
    run = RunDirectory.open(leanify.train(str(folder), tmp_path / "run", settings=small, callback=heard))
    row = next(row for row in run.rows() if row["split"] == "validation")
    assert 0 <= row["macro_f1"] <= 100
    assert any("of one class (many): look at macro_f1" in message for message in heard.warnings)
    with pytest.raises(leanify.RecipeError, match=r"class_weights and data\.mixup"):
        leanify.train(str(folder), tmp_path / "mixed", settings=[*small, "data.mixup=0.5"])
