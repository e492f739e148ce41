"""Trivial references beside a study, and whether its models have learnt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from leanify.comparison import learning
from leanify.core import recipe as recipes
from leanify.tasks.language_modelling import CausalLm, MaskedLm
from leanify.tasks.references import Linear, Mean, trivial
from leanify.tasks.sentence_embedding import SentenceEmbedding
from leanify.training.reference import score_reference

RNG = np.random.default_rng(5)


def test_pixel_reference_matches_scikit_learn() -> None:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    found = load_digits()
    pictures, classes = torch.from_numpy(found.images)[:, None].float(), torch.from_numpy(found.target)
    model = Linear(10)
    model.fit([(pictures[:600], classes[:600]), (pictures[600:1200], classes[600:1200])])
    oracle = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200))
    small = found.images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16).astype(np.float32)
    oracle.fit(small[:1200], found.target[:1200])
    guesses = model(pictures[1200:]).argmax(1).numpy()
    assert (guesses == oracle.predict(small[1200:])).mean() > 0.99
    assert model.name == "logistic regression on 4 × 4 pixels"


def test_word_reference_learns_targets() -> None:
    """Word 7 decides; padding is no word, and unknown words are none either."""
    ids = torch.from_numpy(RNG.integers(1, 20, (200, 12)))
    mask = torch.ones_like(ids)
    mask[:, 10:] = 0
    has = (ids[:, :10] == 7).any(1)
    inputs = {"input_ids": ids, "attention_mask": mask}
    model = Linear(3)
    model.fit([(inputs, has.long())])
    answers = model(**inputs)
    assert answers.shape == (200, 3)
    assert (answers.argmax(1) == has.long()).float().mean() > 0.95
    assert model(input_ids=ids + 1000, attention_mask=mask).shape == (200, 3)
    number = Linear()
    number.fit([(inputs, has.float())])
    assert np.corrcoef(number(**inputs)[:, 0], has.float())[0, 1] > 0.8


@pytest.mark.parametrize("masked", [False, True])
def test_pair_counts_are_probabilities(masked: bool) -> None:
    """In the text every token t is followed by t + 1, modulo 5."""
    text = torch.arange(400).view(20, 20) % 5
    ids, targets = text[:, :-1], text[:, 1:]
    if masked:
        ids, targets = text.clone(), torch.full_like(text, -100)
        ids[:, 4], targets[:, 4] = 5, text[:, 4]
    model = (MaskedLm(0.0) if masked else CausalLm(0.0, None)).reference
    model.fit([({"input_ids": ids}, targets)])
    logits = model(input_ids=ids)
    assert logits.exp().sum(-1) == pytest.approx(torch.ones(ids.shape), abs=1e-5)
    there = targets != -100
    assert (logits.argmax(-1)[there] == targets[there]).all()


def test_frequent_class_is_the_fallback() -> None:
    """GLUE's MNLI numbers the classes of its second set from 3 on."""
    majority = trivial(Linear(3))[1]
    majority.fit([({"input_ids": torch.ones(4, 2)}, torch.tensor([1, 4, 0, 2]))])
    assert majority(input_ids=torch.ones(5, 2)).argmax(1).tolist() == [1] * 5
    assert (majority(torch.zeros(2, 1, 4, 4)).shape, majority.name) == ((2, 3), "the most frequent class")
    assert [type(one) for one in trivial(Linear())] == [Linear]


def test_mean_embedding_is_nearest() -> None:
    """Of other targets the reference is the mean."""
    mean = Mean()
    mean.fit([({"points": torch.zeros(1, 2, 4)}, torch.tensor([[[1.0, 3.0], [3.0, 5.0]]]))])
    assert mean(points=torch.zeros(3, 2, 4)).tolist() == [[[2.0, 4.0]] * 2] * 3
    task = SentenceEmbedding(("mean",))
    assert SentenceEmbedding(()).reference is None  # there is no teacher
    words = {"input_ids": torch.ones(40, 3, dtype=torch.long)}
    targets = torch.nn.functional.normalize(torch.randn(40, 5) + 1, dim=-1)
    task.reference.fit([(words, targets)])

    def cosine(model: Any) -> float:
        return task.metrics(task.tally_batch(model, words, targets))["cosine"]

    best = cosine(task.reference)
    assert 0 < best < 1
    assert all(cosine(lambda v=v, **_: v.expand(40, -1)) <= best for v in torch.randn(20, 5))


def test_digits_reference_uses_study_samples() -> None:
    recipe = recipes.load("digits-study")
    found = score_reference(recipe, 0)
    assert (found.name, len(found.outcomes)) == ("logistic regression on 4 × 4 pixels", 540)
    assert found.value == pytest.approx(np.mean(found.outcomes))
    assert 80 < found.value < 97


# -- has it learnt? ---------------------------------------------------------------------------------------------------


def rows(losses: list[float], split: str = "validation") -> list[dict[str, object]]:
    return [{"step": 10 * (i + 1), "split": split, "loss": loss} for i, loss in enumerate(losses)]


def test_falling_loss_is_noticed() -> None:
    assert learning.still_falls(rows([5, 4, 3, 2, 1]), 50)
    assert not learning.still_falls(rows([5, 2, 1.2, 1.05, 1.0]), 50)
    assert not learning.still_falls(rows([5, 1]), 20)  # too few points to tell
    assert not learning.still_falls(rows([5, 4, 3, 2, 1]), 60)  # it has not ended


@pytest.mark.parametrize(
    ("training", "validation", "steps"),
    [
        ([5, 4, 3, 2], [5, 4, 3, 2], 4000),  # slow
        ([5, 1, 0.1, 0.01], [5, 2, 3, 4], None),  # it learns the training samples by heart
        ([5, 5, 5, 5], [5, 4.9, 5.1, 5], 4000),  # it has not begun
    ],
)
def test_steps_are_suggested_where_they_help(training: list[float], validation: list[float], steps: int | None) -> None:
    run = rows(training, "train") + rows(validation)
    assert learning.suggested_steps(1000, False, [run, run]) == steps
    assert learning.suggested_steps(1000, True, [run]) == (steps and 2000)
    assert learning.suggested_steps(10, False, [run]) == (steps and learning.MIN_STEPS)
