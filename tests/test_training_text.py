"""Causal language modelling: what the samples are, which tokens count, and what is reported."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from leanify import loop, training
from leanify import recipe as recipes
from leanify.data.corpus import END, Corpus, corpora
from leanify.data.samples import IGNORED
from leanify.errors import DataError, RecipeError
from leanify.recipe import Data
from leanify.run import Run

STORIES = [f"Once there were {n} cats and {n * n} mice. " * (1 + n % 3) for n in range(40)]
TINY = recipes.with_settings(
    recipes.load("chars"),
    ["model.override.n_embd=32", "model.override.n_layer=1", "model.override.n_positions=24", "data.length=16",
     "schedule.steps=8", "schedule.warmup=2", "run.eval_every=4", "data.name=stories", "schedule.batch_size=16"],
)  # fmt: skip


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    file = tmp_path / "stories.txt"
    file.write_text(END.join(STORIES))
    return file


def at(path: Path, *settings: str) -> recipes.Recipe:
    return recipes.with_settings(TINY, [f"data.path={path}", *settings])


@pytest.mark.parametrize("tokens", [2, 16, 17, 18, 100])
def test_every_token_but_the_first_is_a_target_once(tokens: int) -> None:
    corpus = Corpus(np.arange(tokens, dtype=np.int32), 16, "here")
    inputs, targets = corpus.batch(np.arange(len(corpus)))
    kept = targets != IGNORED
    assert targets[kept].tolist() == list(range(1, tokens))
    assert inputs["input_ids"][kept].tolist() == list(range(tokens - 1))
    assert corpus.targets.tolist() == kept.sum(1).tolist()


def test_stories_are_cut_whole_and_the_last_ones_validate(stories: Path) -> None:
    train, validation, share, words = corpora(Data("x", "causal-lm", str(stories), samples=30, holdout=0.1), 16, 256)
    assert bytes(train.ids).decode() == END.join(STORIES[:27]) + END
    assert bytes(validation.ids).decode() == END.join(STORIES[27:30]) + END
    assert share == 1.0
    assert "as bytes" in words


def test_a_folder_in_tinystories_layout_and_a_table_have_their_own_splits(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(END.join(STORIES[:9]))
    (tmp_path / "validation.jsonl").write_text("\n".join(json.dumps({"text": story}) for story in STORIES[9:12]))
    train, validation, _, _ = corpora(Data("x", "causal-lm", str(tmp_path)), 16, 256)
    assert bytes(train.ids).decode() == END.join(STORIES[:9])
    assert bytes(validation.ids).decode() == END.join(STORIES[9:12])


def test_a_tokenizer_beside_a_model_is_used(tmp_path: Path, stories: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"[UNK]": 0, "cats": 1, "mice": 2}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]").save_pretrained(tmp_path / "words")
    data = Data("x", "causal-lm", str(stories), tokenizer=str(tmp_path / "words"))
    train, _, share, _ = corpora(data, 16, 3)
    assert set(np.unique(train.ids)) == {0, 1, 2}
    assert share > 3  # bytes a word
    with pytest.raises(DataError, match=r"token 2, and the model's vocabulary has 2"):
        corpora(data, 16, 2)


def test_a_byte_level_gpt_learns_and_reports_bits_per_byte(stories: Path, tmp_path: Path) -> None:
    run = Run.open(training.train(at(stories), tmp_path / "run"))
    first, last = (row for row in run.rows() if row["split"] == "validation")
    assert last["loss"] < first["loss"] < math.log(256) + 0.2
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]))
    assert last["bits_per_byte"] == pytest.approx(last["loss"] / math.log(2))
    assert run.best().step == 8  # type: ignore[union-attr]


def test_an_evaluation_is_the_mean_over_every_target(stories: Path) -> None:
    trainer = loop.Trainer(at(stories))
    ids = torch.from_numpy(trainer.splits.validation.ids.astype(np.int64))  # type: ignore[attr-defined]
    nats, model = 0.0, trainer.bare.eval()
    with torch.no_grad():
        for start in range(0, len(ids) - 1, 16):
            part = ids[start : start + 17]
            logits = model(input_ids=part[None, :-1]).logits[0]
            nats += torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum").item()
    assert trainer.evaluate()["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-6)


def test_transformers_own_loss_is_ours(stories: Path) -> None:
    trainer = loop.Trainer(at(stories))
    inputs, targets = next(trainer.batches(0))
    ids = torch.cat([inputs["input_ids"], targets[:, -1:]], 1)
    theirs = trainer.bare(input_ids=ids, labels=ids).loss
    ours = trainer.task.loss(trainer.bare, inputs, targets) / (targets >= 0).sum()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)


def test_the_papers_gpt2_recipe_runs_on_stories(stories: Path) -> None:
    small = ["model.override.width=32", "model.depth=2", "model.heads=2", "model.head_dim=8", "data.tokenizer="]
    value = recipes.with_settings(recipes.load("gpt2-tinystories-lean"), [*small, f"data.path={stories}"])
    facts = training.rehearse(value)
    assert facts["steps"] == 2000
    assert facts["memory_predicted_bytes"] > 0


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["data.length=25"], DataError, "25 tokens, and the model has 24 positions"),
        (["model.override.vocab_size=128"], DataError, "needs a vocabulary of 256"),
        (["data.path=/nowhere"], DataError, "does not exist"),
        (["data.path="], DataError, "--set data.path=PATH"),
        (["data.tokenizer=nobody/nothing"], DataError, "is no directory here and the hub did not give it"),
        (["data.mixup=0.8"], RecipeError, "mixes images"),
        (["data.img_size=32"], RecipeError, "is for images"),
        (["model.class=AutoModel"], RecipeError, "AutoModelForCausalLM"),
        (["model.source=vit_tiny_patch16_224", "model.override=", "model.class="], DataError, "takes images"),
    ],
)
def test_bad_input_is_one_message(
    settings: list[str], error: type[Exception], words: str, stories: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words) as found:
        training.train(at(stories, *settings), tmp_path / "run")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("content", "words"), [(b"", "no text"), (b"caf\xe9", "byte 3 is 0xe9"), (b"a", "0 tokens")])
def test_a_file_that_is_no_text_is_said(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(DataError, match=words):
        training.train(at(tmp_path / "text.txt"), tmp_path / "run")
