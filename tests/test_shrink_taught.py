"""A language model with fewer tokens learns from the original where a text is split as before, elsewhere from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vocabularies
from runs import DIGITS
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

from leanify.core import recipe as recipes
from leanify.core.recipe import DistillSection
from leanify.data.samples import IGNORED, Selection
from leanify.data.texts.corpus import Corpus
from leanify.shrinking.taught import TaughtSamples, taught_tokens
from leanify.tasks.language_modelling import CausalLm
from leanify.training.distillation import TAUGHT, Distilled, Learner
from leanify.training.engine import build_accelerator
from leanify.vocabulary.closure import RankedTokens
from leanify.vocabulary.kinds import read_vocabulary
from leanify.vocabulary.ranking import rank_tokens
from recipes.research.vocabulary_law import save_cut


@pytest.mark.parametrize("kind", vocabularies.KINDS)
def test_taught_are_tokens_split_as_before(kind: str, tmp_path: Path) -> None:
    """The oracle are the characters of the text that the tokenizers library names for each token."""
    words, text = vocabularies.tokenizer(kind), " ".join(vocabularies.texts(80, seed=3))
    model = vocabularies.checkpoint(tmp_path / "old", "llama", "LlamaForCausalLM", words)
    vocabulary = read_vocabulary(tmp_path / "old")
    counts = Counter(words(text)["input_ids"])
    ranking = RankedTokens.of(vocabulary, rank_tokens(vocabulary, counts))
    kept = ranking.keep(len(ranking.required_ids) + len(ranking.others) // 4)
    save_cut(model, vocabulary, kept, tmp_path / "new")
    old, new = (
        Tokenizer.from_file(str(tmp_path / name / "tokenizer.json")).encode(text, add_special_tokens=False)
        for name in ("old", "new")
    )
    spans = set(zip(old.offsets, old.tokens, strict=True))
    same = np.array([pair in spans for pair in zip(new.offsets, new.tokens, strict=True)])
    wanted = same & np.concatenate([[True], same[:-1]])
    found = taught_tokens(np.array(old.ids), np.array(new.ids), vocabulary, kept)
    assert 0.1 < found.mean() < 0.99
    assert found.tolist() == wanted.tolist()


def test_masks_follow_their_samples() -> None:
    """Of a selection, too, and behind the end of the text, where targets are ignored."""
    corpus = Corpus(np.arange(11), 4, "text")
    some = Selection(corpus, np.array([2, 0]))
    taught = TaughtSamples(some, corpus, some.indices, np.arange(11) % 3 == 0)
    inputs, targets = taught.batch(np.array([0, 1]))
    is_target = targets != IGNORED
    assert torch.equal(inputs[TAUGHT][is_target], targets[is_target] % 3 == 0)


def test_texts_teach_where_the_teacher_does_not(tmp_path: Path) -> None:
    """The loss is cross-entropy where targets are not taught, and the divergence of the logits where they are."""
    words = vocabularies.tokenizer("byte-level BPE")
    student, teacher = (
        vocabularies.checkpoint(tmp_path / name, "llama", "LlamaForCausalLM", words) for name in ("student", "teacher")
    )
    with torch.no_grad():
        student.lm_head.weight.add_(0.3 * torch.randn_like(student.lm_head.weight))
    place = build_accelerator(recipes.parse(DIGITS))
    ids = torch.randint(5, 200, (2, 9))
    inputs, targets = {"input_ids": ids[:, :-1]}, ids[:, 1:]
    taught = torch.rand(targets.shape) < 0.5
    for weight in (1.0, 0.6):
        section, learner = DistillSection("x", weight=weight), Learner(student, [], [])
        task = Distilled(CausalLm(0.0, None), section, learner, teacher, [], place)
        loss = task.loss(learner, {**inputs, TAUGHT: taught}, targets)
        mine, theirs = student(**inputs).logits, teacher(**inputs).logits
        nats = cross_entropy(mine.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
        distributions = [torch.distributions.Categorical(logits=logits) for logits in (theirs, mine)]
        distance: Any = torch.distributions.kl_divergence(*distributions)
        torch.testing.assert_close(
            loss, torch.where(taught, weight * distance + (1 - weight) * nats, nats).sum(), rtol=1e-4, atol=1e-4
        )
