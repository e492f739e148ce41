"""Causal language modelling: what the samples are, which tokens count, and what is reported."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import final_state, refused

from leanify.core import recipe as recipes
from leanify.core.errors import DataError, RecipeError
from leanify.core.recipe import DataSection
from leanify.data.samples import IGNORED
from leanify.data.texts import tokens
from leanify.data.texts.corpus import END, Corpus, corpora
from leanify.layouts.recognition import recognise
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop
from leanify.training import start as training
from leanify.training.state import load_tensors

STORIES = [f"Once there were {n} cats and {n * n} mice. " * (1 + n % 3) for n in range(40)]
TINY = recipes.apply_settings(
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
    return recipes.apply_settings(TINY, [f"data.path={path}", *settings])


@pytest.mark.parametrize("tokens", [2, 16, 17, 18, 100])
def test_tokens_are_targets_once(tokens: int) -> None:
    """Except for the first."""
    corpus = Corpus(np.arange(tokens, dtype=np.int32), 16, "here")
    inputs, targets = corpus.batch(np.arange(len(corpus)))
    kept = targets != IGNORED
    assert targets[kept].tolist() == list(range(1, tokens))
    assert inputs["input_ids"][kept].tolist() == list(range(tokens - 1))
    assert corpus.targets.tolist() == kept.sum(1).tolist()


def test_last_stories_validate(stories: Path) -> None:
    """Stories are not cut between the splits."""
    data = DataSection("x", "causal-lm", str(stories), samples=30, holdout=0.1, subset="first")
    train, validation, share, words, _ = corpora(data, 16, 256)
    assert bytes(train.ids).decode() == END.join(STORIES[:27]) + END
    assert bytes(validation.ids).decode() == END.join(STORIES[27:30]) + END
    train, validation, *_ = corpora(replace(data, subset="random"), 16, 256)
    some = (bytes(train.ids) + bytes(validation.ids)).decode().split(END)[:-1]
    assert len(some) == 30
    assert some == [story for story in STORIES if story in some] != STORIES[:30]
    assert share == 1.0
    assert "as bytes" in words


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("column", "named"), [("text", ()), ("Tweet", ()), ("body", ()), ("headline", ()), ("lines", ("lines",))]
)
def test_proposed_column_is_read(tmp_path: Path, kind: str, column: str, named: tuple[str, ...]) -> None:
    """The line that names the column, and the recipe's data.text, read it."""
    import pyarrow
    import pyarrow.parquet

    rows = [{"id": number, column: story} for number, story in enumerate(STORIES)]
    file = tmp_path / f"stories.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        file.write_text("\n".join(map(json.dumps, rows)))
    found = recognise(file)
    assert named or (found is not None and f"(column {column}" in found.description)
    train, validation, *_ = corpora(DataSection("x", "causal-lm", str(file), text=named), 16, 256)
    assert (bytes(train.ids) + bytes(validation.ids)).decode() == END.join(STORIES) + END


def test_named_dataset_has_own_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the hub's layout goes by a name with a slash, as one on the hub does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for split, part in (("train", STORIES[:30]), ("validation", STORIES[30:])):
        (tmp_path / "sets" / "stories").mkdir(parents=True, exist_ok=True)
        rows = "\n".join(json.dumps({"text": story}) for story in part)
        (tmp_path / "sets" / "stories" / f"{split}.jsonl").write_text(rows)
    train, validation, share, words, _ = corpora(DataSection("sets/stories", "causal-lm"), 16, 256)
    assert bytes(train.ids).decode() == END.join(STORIES[:30])
    assert bytes(validation.ids).decode() == END.join(STORIES[30:])
    assert (share, "sets/stories of the hub" in words) == (1.0, True)
    with pytest.raises(DataError, match=r"'tset'.*train, validation"):
        corpora(DataSection("sets/stories", "causal-lm", validation="tset"), 16, 256)
    with pytest.raises(DataError, match="hub"):
        corpora(DataSection("nobody/nothing", "causal-lm"), 16, 256)


def test_large_text_is_memory_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds the same ids."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokens, "BLOCK", 100)
    for split, part in (("train", STORIES[:30]), ("validation", STORIES[30:])):
        (tmp_path / f"{split}.txt").write_text("é\n".join(part))
    data = DataSection("x", "causal-lm", str(tmp_path))
    small = corpora(data, 16, 256)
    monkeypatch.setattr(tokens, "LARGE", 50)
    large, again = corpora(data, 16, 256), corpora(data, 16, 256)
    assert isinstance(large[0].ids, np.memmap)
    for other in (large, again):
        assert [bytes(part.ids) for part in other[:2]] == [bytes(part.ids) for part in small[:2]]
        assert other[2:4] == small[2:4]
    kept = sorted((tmp_path / "cache" / "leanify" / "tokens").iterdir())
    assert len(kept) == 2
    assert all(sorted(file.name for file in folder.iterdir()) == ["card.json", "ids.bin"] for folder in kept)
    (tmp_path / "train.txt").write_text("another text")
    assert bytes(corpora(data, 16, 256)[0].ids) == b"another text"


@pytest.mark.parametrize("end", [0, 3, 99, 100, 101, 250])
def test_blocks_hold_equal_text(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "BLOCK", 100)
    whole = "".join(STORIES).replace(". ", ".\n")[:end] + END + "x" * end
    parts = list(tokens.blocks(whole[i : i + 7] for i in range(0, len(whole), 7)))
    assert "".join(parts) == whole
    assert all(part.endswith((END, "\n")) for part in parts[:-1] if "x" not in part)


def test_test_split_uses_best_weights(tmp_path: Path) -> None:
    """It is evaluated once."""
    for split, part in (("train", STORIES[:30]), ("validation", STORIES[30:35]), ("test", STORIES[35:])):
        (tmp_path / f"{split}.txt").write_text(END.join(part))
    run = RunDirectory.open(training.train(at(tmp_path, "data.test=test"), tmp_path / "run"))
    best = run.best()
    [row] = [row for row in run.rows() if row["split"] == "test"]
    assert row["step"] == best.step
    trainer = loop.Trainer(at(tmp_path, "data.test=test"))
    load_tensors(trainer.unwrapped_model, best.weights())
    assert trainer.splits.test is not None
    assert trainer.evaluate(trainer.splits.test)["loss"] == row["loss"] != trainer.evaluate()["loss"]
    before = final_state(run.path)
    training.train(resume=run.path)
    assert final_state(run.path) == before
    assert run.summary()["test_loss"] == row["loss"]


def test_model_tokenizer_is_used(tmp_path: Path, stories: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"[UNK]": 0, "cats": 1, "mice": 2}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]").save_pretrained(tmp_path / "words")
    data = DataSection("x", "causal-lm", str(stories), tokenizer=str(tmp_path / "words"))
    train, _, share, *_ = corpora(data, 16, 3)
    assert set(np.unique(train.ids)) == {0, 1, 2}
    assert share > 3  # bytes a word
    with pytest.raises(DataError, match=r"token id 2,.* 2"):
        corpora(data, 16, 2)


def test_byte_gpt_reports_bits_per_byte(stories: Path, tmp_path: Path) -> None:
    run = RunDirectory.open(training.train(at(stories), tmp_path / "run"))
    first, last = (row for row in run.rows() if row["split"] == "validation")
    assert last["loss"] < first["loss"] < math.log(256) + 0.2
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]))
    assert last["bits_per_byte"] == pytest.approx(last["loss"] / math.log(2))
    assert run.best().step == 8  # type: ignore[union-attr]


def test_evaluation_averages_over_targets(stories: Path) -> None:
    trainer = loop.Trainer(at(stories))
    ids = torch.from_numpy(trainer.splits.validation.ids.astype(np.int64))  # type: ignore[attr-defined]
    nats, model = 0.0, trainer.unwrapped_model.eval()
    with torch.no_grad():
        for start in range(0, len(ids) - 1, 16):
            part = ids[start : start + 17]
            logits = model(input_ids=part[None, :-1]).logits[0]
            nats += torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum").item()
    assert trainer.evaluate()["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-6)


def test_loss_matches_transformers(stories: Path) -> None:
    trainer = loop.Trainer(at(stories))
    inputs, targets = next(trainer.batches(0))
    ids = torch.cat([inputs["input_ids"], targets[:, -1:]], 1)
    theirs = trainer.unwrapped_model(input_ids=ids, labels=ids).loss
    ours = trainer.task.loss(trainer.unwrapped_model, inputs, targets) / (targets >= 0).sum()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)


@pytest.mark.slow
def test_paper_gpt2_recipe_runs(stories: Path) -> None:
    small = ["model.override.width=32", "model.depth=2", "model.heads=2", "model.head_dim=8", "data.tokenizer="]
    value = recipes.apply_settings(recipes.load("gpt2-tinystories-lean"), [*small, f"data.path={stories}"])
    facts = training.rehearse(value)
    assert facts["steps"] == 2000
    assert facts["memory_predicted_bytes"] > 0


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["data.length=25"], DataError, "25 tokens, but the model has only 24 positions"),
        (["model.override.vocab_size=128"], DataError, "needs a vocabulary of at least 256"),
        (["data.path=/nowhere"], DataError, "does not exist"),
        (["data.path="], DataError, "--set data.path=PATH"),
        (["data.tokenizer=nobody/nothing"], DataError, "is not a directory here, and the hub did not provide it"),
        (["data.mixup=0.8"], RecipeError, "mixes images"),
        (["data.img_size=32"], RecipeError, "does not apply to .* for causal-lm"),
        (["model.class=AutoModel"], RecipeError, "AutoModelForCausalLM"),
        (["model.source=vit_tiny_patch16_224", "model.override=", "model.class="], DataError, "takes images"),
    ],
)
def test_bad_input_is_one_message(
    settings: list[str], error: type[Exception], words: str, stories: Path, tmp_path: Path
) -> None:
    with refused(error, words, tmp_path / "run"):
        training.train(at(stories, *settings), tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("text.txt", b"", "no text"),
        ("text.txt", b"caf\xe9", "byte 3 is 0xe9"),
        ("text.txt", b"a", "0 tokens"),
        ("stories.parquet", b"PAR1 and no more", "Parquet"),
    ],
)
def test_non_text_file_is_named(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        training.train(at(tmp_path / name), tmp_path / "run")
