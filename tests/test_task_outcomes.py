"""What every task says of its metric, held against models that are right, wrong or half right; scikit-learn counts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sklearn
import torch
import torch.nn.functional as F
from timm.data import Mixup
from torch import Tensor, nn

from leanify.data.samples import IGNORED
from leanify.tasks import Task, merge_tallies, outcomes
from leanify.tasks.classification import Classification
from leanify.tasks.language_modelling import CausalLm, MaskedLm, _max_targets
from leanify.tasks.regression import Regression, TextRegression
from leanify.tasks.sentence_embedding import SentenceEmbedding


class Says(nn.Module):
    """Gives what it was made with, whatever it is asked."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        return self.logits


def sure_of(targets: Tensor, classes: int) -> Tensor:
    return 1000.0 * F.one_hot(targets.clamp(min=0) % classes, classes).float()


def asked(shape: tuple[int, ...], classes: int) -> Tensor:
    """Targets of which some are ignored where there are several in a sample."""
    targets = torch.randint(classes, shape, generator=torch.Generator().manual_seed(3))
    if len(shape) > 1:
        targets[:, ::3] = IGNORED
    return targets


def cases() -> dict[str, tuple[Task, Tensor, Tensor]]:
    """Each task with targets and with what a perfect model says of them."""
    torch.manual_seed(0)
    found: dict[str, tuple[Task, Tensor, Tensor]] = {}
    for classes in (3, 5, 6, 8):
        targets = asked((40,), classes)
        found[f"images {classes}"] = Classification(classes, 0, 0, 0.0), targets, sure_of(targets, classes)
    targets = asked((40,), 7)
    found["a constant beside"] = Classification(7, 0, 0, 0.0, constant=2), targets, sure_of(targets, 7)
    tokens = asked((12, 9), 5)
    found["causal"] = CausalLm(0.0, 4.0), tokens, sure_of(tokens, 5)
    found["masked"] = MaskedLm(0.0), tokens, sure_of(tokens, 5)
    points = torch.randn(12, 5, 2)
    found["points"] = Regression(), points, points
    numbers = torch.randn(40)
    found["numbers"] = TextRegression(), numbers, numbers[:, None]
    vectors = torch.randn(40, 6)
    found["embeddings"] = SentenceEmbedding(("mean",)), vectors, vectors
    return found


CASES = cases()
SENTENCES = {"input_ids": torch.zeros(1, 1, dtype=torch.long)}


def told(task: Task, logits: Tensor, targets: Tensor) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The metrics of two batches, and their tally."""
    half = len(targets) // 2
    parts = [
        task.tally_batch(Says(logits[at]), dict(SENTENCES), targets[at]) for at in (slice(half), slice(half, None))
    ]
    tally = merge_tallies(parts)
    return task.metrics(tally), tally


@pytest.mark.parametrize("name", CASES)
def test_perfect_model_scores_best(name: str) -> None:
    """A worse one is worse by the metric's sign; the samples' outcomes average to the metric."""
    task, targets, right = CASES[name]
    best, _ = told(task, right, targets)
    assert best[task.metric] == pytest.approx(task.best, abs=1e-4)
    wrong = right[torch.randperm(len(right), generator=torch.Generator().manual_seed(1))]
    worse, _ = told(task, wrong, targets)
    assert task.sign in (1, -1)
    assert task.sign * (task.best - worse[task.metric]) > 1e-3
    assert task.sign * (best[task.metric] - worse[task.metric]) > 1e-3

    noisy = right / 1000 + torch.randn(right.shape, generator=torch.Generator().manual_seed(2))
    found, tally = told(task, noisy, targets)
    each = outcomes(task, tally)
    assert each.mean() == pytest.approx(found[task.metric], rel=1e-6, abs=1e-9)
    assert np.ptp(each) > 0


@pytest.mark.parametrize("classes", [2, 4, 5, 6, 9])
@pytest.mark.parametrize("constant", [None, 0, 1])
def test_class_shares_match_scikit_learn(classes: int, constant: int | None) -> None:
    rng = np.random.default_rng(classes)
    targets, logits = rng.integers(0, classes, 200), rng.normal(size=(200, classes)).astype(np.float32)
    task = Classification(classes, 0, 0, 0.1, constant)
    found, tally = told(task, torch.from_numpy(logits), torch.from_numpy(targets))
    top1 = 100 * sklearn.accuracy_score(targets, logits.argmax(1))
    assert found["top1"] == pytest.approx(top1)
    shares = torch.softmax(torch.from_numpy(logits).double(), 1).numpy()
    assert found["loss"] == pytest.approx(sklearn.log_loss(targets, shares, labels=range(classes)), rel=1e-5)
    if constant is not None:
        majority = 100 * sklearn.accuracy_score(targets, np.full(200, constant))
        assert found == {"loss": found["loss"], "top1": found["top1"], "accuracy": found["top1"],
                         "majority": pytest.approx(majority)}  # fmt: skip
    elif classes > 5:
        top5 = sklearn.top_k_accuracy_score(targets, logits, k=5, labels=range(classes))
        assert found == {"loss": found["loss"], "top1": found["top1"], "top5": pytest.approx(100 * top5)}
    else:
        assert set(found) == {"loss", "top1"}
    assert not tally["majority"].any() or constant is not None


@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0.0), (0.0, 1.0), (0.4, 1.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixing_matches_timm(count: int, mixup: float, cutmix: float, smoothing: float) -> None:
    """timm mixes the first sample with the last: neighbours are laid out so; an odd one is its own class, smoothed."""
    classes = 4
    torch.manual_seed(count)
    images, targets = torch.randn(count, 3, 8, 8), torch.randint(classes, (count,))
    head = nn.Sequential(nn.Flatten(), nn.Linear(192, classes + 1))  # with an output more than there are classes
    even = count // 2 * 2
    order = [*range(0, even, 2), *reversed(range(1, even, 2))]
    inputs, soft = images[order], torch.zeros(0, classes)
    if even:
        np.random.seed(7)
        mix = Mixup(mixup, cutmix, label_smoothing=smoothing, num_classes=classes)
        inputs, soft = mix(images[order].clone(), targets[order])
    if even < count:
        sure = F.one_hot(targets[even:], classes) * (1 - smoothing) + smoothing / classes
        inputs, soft = torch.cat([inputs, images[even:]]), torch.cat([soft, sure])
    expected = -(soft * F.log_softmax(head(inputs), 1)[:, :classes]).sum()
    np.random.seed(7)
    found = Classification(classes, mixup, cutmix, smoothing).loss(head, images.clone(), targets)
    torch.testing.assert_close(found, expected)


def test_unmixed_loss_is_smoothed_cross_entropy() -> None:
    targets = asked((9,), 4)
    logits = torch.randn(9, 4, generator=torch.Generator().manual_seed(5))
    smooth = 0.2 / 4 + 0.8 * F.one_hot(targets, 4)
    expected = -(smooth * F.log_softmax(logits, 1)).sum()
    torch.testing.assert_close(Classification(4, 0, 0, 0.2).loss(Says(logits), torch.zeros(9), targets), expected)


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_token_metrics_match_scikit_learn(name: str) -> None:
    task, targets, right = CASES[name]
    logits = right / 1000 + torch.randn(right.shape, generator=torch.Generator().manual_seed(4))
    found, _ = told(task, logits, targets)
    there = (targets != IGNORED).numpy()
    shares = torch.softmax(logits.double(), -1).numpy()[there]
    nats = sklearn.log_loss(targets.numpy()[there], shares, labels=range(5))
    assert found["loss"] == pytest.approx(nats, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats), rel=1e-5)
    if name == "masked":
        share = sklearn.accuracy_score(targets.numpy()[there], shares.argmax(1))
        assert found["accuracy"] == pytest.approx(100 * share)
        assert 0 < share < 1
    else:
        assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / 4, rel=1e-5)
    assert int(task.count(targets)) == there.sum()


def test_huge_loss_has_finite_perplexity() -> None:
    for loss in (0.5, 699.0, 701.0, 10_000.0):
        tally = {"loss": torch.tensor([loss]), "count": torch.tensor([1]), "right": torch.tensor([0.0])}
        for task in (CausalLm(0.0, None), MaskedLm(0.0)):
            assert task.metrics(tally)["perplexity"] == math.exp(min(loss, 700))


def test_max_targets_cover_all_splits() -> None:
    few, many, unknown = (SimpleNamespace(targets=each) for each in (np.array([1, 3, 2]), np.array([4, 5]), None))
    for train, validation, test, most in ((few, many, None, 5), (many, few, few, 5), (unknown, many, None, None)):
        splits: Any = SimpleNamespace(train=train, validation=validation, test=test)
        assert _max_targets(splits) == most
