"""Masked language modelling: how many words are asked for, what becomes of them, and what a run of it keeps."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import final_state, refused

import leanify
from crammed_bert import CrammedBert
from leanify.core import recipe as recipes
from leanify.core.errors import DataError, RecipeError
from leanify.core.files import cache
from leanify.data.samples import IGNORED
from leanify.data.texts import tokenizers
from leanify.data.texts.corpus import END
from leanify.data.texts.masked import Masked, encode_text
from leanify.runs.run_directory import RunDirectory
from leanify.tasks import language_modelling as masked_lm
from leanify.training import loop
from leanify.training import start as training

WORDS = ["the", "old", "cat", "saw", "a", "small", "dog", "near", "our", "red", "house", "and", "ran", "away", "it"]
STORIES = [
    " ".join(np.random.default_rng(n).choice(WORDS, 12 + n % 9)) + ("\nIt was late." if n % 3 else ".")
    for n in range(90)
]
SMALL = ["model.override.width=32", "model.override.vocab=300", "data.tokenizer=wordpiece-300"]
TINY = recipes.apply_settings(
    recipes.load("masked-small"),
    [*SMALL, "model.override.depth=2", "model.override.head_dim=16", "model.override.mlp=32", "data.length=16",
     "data.name=stories", "schedule.tokens=8000", "schedule.warmup=2000", "schedule.cooldown=2000",
     "schedule.batch_size=16", "run.eval_every=20"],
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    file = tmp_path / "stories.txt"
    file.write_text(END.join(STORIES))
    return file


def at(path: Path, *settings: str) -> recipes.Recipe:
    return recipes.apply_settings(TINY, [f"data.path={path}", *settings])


def samples(share: float = 0.25, fixed: bool = False, length: int = 32) -> Masked:
    tokenizer, _ = tokenizers.make_tokenizer("bytes", list, "")
    return Masked(encode_text(END.join(STORIES), tokenizer), length, share, tokenizer, "stories", fixed)


# -- masks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.15, 0.25, 0.9])
def test_samples_have_exact_mask_share(share: float) -> None:
    """Every sample has exactly its share of targets, and no special token is one."""
    found = samples(share)
    inputs, targets = found.draw(3, [(1, index) for index in range(len(found))])
    ordinary = found.rows > 4  # the five special words come first
    assert found.targets.tolist() == [max(1, round(share * int(row.sum()))) for row in ordinary]
    assert (targets != IGNORED).sum(1).tolist() == found.targets.tolist()
    assert (found.rows == 3).any()  # separators, none of which is asked for
    chosen = (targets != IGNORED).numpy()
    assert (targets.numpy()[chosen] == found.rows[chosen]).all()
    assert ordinary[chosen].all()
    assert (inputs["input_ids"].numpy()[~chosen] == found.rows[~chosen]).all()


def test_masks_depend_on_seed_and_index() -> None:
    """They are a function of seed, epoch and index."""
    found = samples()
    keys = [(0, 5), (0, 6), (1, 5)]
    ids, targets = found.draw(7, keys)
    for place, key in enumerate(keys):
        alone, asked = found.draw(7, [key])
        assert torch.equal(alone["input_ids"][0], ids["input_ids"][place])
        assert torch.equal(asked[0], targets[place])
    assert not torch.equal(targets[0], targets[2])  # another epoch
    assert not torch.equal(targets, found.draw(8, keys)[1])  # another seed
    held = samples(fixed=True)
    assert torch.equal(held.draw(7, [(0, 5)])[1], held.draw(8, [(3, 5)])[1])


def test_masking_follows_80_10_10() -> None:
    """Of the chosen, 80 percent are masked, 10 are any token, 10 stay themselves."""
    found = samples()
    keys = [(epoch, index) for epoch in range(40) for index in range(len(found))]
    ids, targets = found.draw(0, keys)
    chosen = targets != IGNORED
    given, wanted = ids["input_ids"][chosen], targets[chosen]
    number = len(wanted)
    masked, same = (given == found.mask).double().mean(), (given == wanted).double().mean()
    other = given[(given != found.mask) & (given != wanted)]
    words = 1 / found.vocabulary  # any word may be the mask or the word itself
    for share, expected in ((masked, 0.8 + 0.1 * words), (same, 0.1 + 0.1 * words), (len(other) / number, 0.1)):
        assert float(share) == pytest.approx(expected, abs=4 * (0.25 / number) ** 0.5)
    assert set(range(found.vocabulary)) - set(other.tolist()) <= {found.mask}  # every word comes up
    places = chosen.double().mean(0)  # no place of a sample is favoured
    assert places.std() < 0.03


# -- tokenizers ---------------------------------------------------------------------------------------------------


def test_bytes_round_trip() -> None:
    tokenizer, _ = tokenizers.make_tokenizer(None, list, "")
    text = "Größe\tπ ≈ 3.14\r\n 猫 [MAS K] \U0001f408"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert len(tokenizer) == 256 + len(tokenizers.SPECIAL)


def test_wordpiece_training_is_deterministic() -> None:
    """It is trained to the same words, kept and loaded again."""
    first, _ = tokenizers.make_tokenizer("wordpiece-120", lambda: STORIES, "stories")
    [home] = (cache.home() / "tokenizers").glob("wordpiece-120-*")
    kept = (home / "tokenizer.json").read_text()
    stamp = (home / "tokenizer.json").stat().st_mtime_ns
    second, _ = tokenizers.make_tokenizer("wordpiece-120", lambda: STORIES, "stories")
    assert (home / "tokenizer.json").stat().st_mtime_ns == stamp
    shutil.rmtree(home)
    tokenizers.make_tokenizer("wordpiece-120", lambda: STORIES, "stories")
    assert (home / "tokenizer.json").read_text() == kept
    assert first.get_vocab() == second.get_vocab()
    assert len(first) <= 120
    pair = first("The CAT", "a dog", return_token_type_ids=True)
    assert first.decode(pair["input_ids"]) == "[CLS] the cat [SEP] a dog [SEP]"
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_packed_documents_have_separators(stories: Path) -> None:
    tokenizer, _ = tokenizers.make_tokenizer("wordpiece-300", lambda: STORIES, "stories")
    ids = encode_text(stories.read_text() + END + " " + END, tokenizer)
    assert ids.dtype == np.uint16
    assert (ids == tokenizer.sep_token_id).sum() == len(STORIES)
    whole = [tokenizer(story, add_special_tokens=False)["input_ids"] for story in STORIES]
    assert ids.tolist() == [i for story in whole for i in [*story, tokenizer.sep_token_id]]


# -- the loss -----------------------------------------------------------------------------------------------------


def test_partial_logits_equal_full() -> None:
    """A crammed BERT asked for some words gives what it gives for all."""
    model = CrammedBert(vocab=50, length=8, width=16, depth=2, heads=2, head_dim=8, mlp=16).eval()
    ids, chosen = torch.randint(50, (3, 8)), torch.rand(3, 8) < 0.3
    places = chosen.flatten().nonzero()[:, 0]
    assert torch.allclose(model(ids, chosen=places), model(ids)[chosen], atol=1e-6)


@pytest.mark.parametrize("most", [7, 9, None])
def test_padded_positions_keep_the_loss(most: int | None) -> None:
    """Positions that an accelerator takes have the same loss."""
    targets = torch.full((5, 16), IGNORED)
    for row, count in enumerate((7, 1, 3, 7, 0)):
        targets[row, torch.randperm(16)[:count]] = torch.randint(50, (count,))
    logits, smoothing = torch.randn(5, 16, 50).flatten(0, 1), 0.1
    one, other = (
        torch.nn.functional.cross_entropy(
            logits[at], targets.flatten()[at], ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
        )
        for at in (masked_lm.is_target(targets), masked_lm.target_positions(targets, most))
    )
    torch.testing.assert_close(one, other)
    assert set(masked_lm.is_target(targets).tolist()) <= set(masked_lm.target_positions(targets, most).tolist())


def test_loss_matches_transformers(stories: Path) -> None:
    settings = [
        "model.source=bert", "model.class=AutoModelForMaskedLM", "model.override=", "model.override.vocab_size=300",
        "model.override.hidden_size=32", "model.override.num_hidden_layers=1", "model.override.num_attention_heads=2",
        "model.override.intermediate_size=32", "model.override.max_position_embeddings=16",
    ]  # fmt: skip
    trainer = loop.Trainer(at(stories, *settings))
    trainer.unwrapped_model.eval()
    inputs, targets = next(trainer.batches(0))
    theirs = trainer.unwrapped_model(**inputs, labels=targets).loss
    ours = trainer.task.loss(trainer.unwrapped_model, inputs, targets) / trainer.task.count(targets)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert trainer.splits.train.targets[trainer.order.batch(0)].sum() == trainer.task.count(targets)  # type: ignore[index]


# -- runs ---------------------------------------------------------------------------------------------------------


def test_run_learns_and_resumes_identically(stories: Path, tmp_path: Path) -> None:
    """Its tokenizer is in Hugging Face's layout, and the run's own."""
    from transformers import AutoTokenizer

    run = RunDirectory.open(training.train(at(stories), tmp_path / "run"))
    expected = final_state(run.path)
    tokenizer, model = AutoTokenizer.from_pretrained(run.path), leanify.load(run.path)
    assert tokenizer.tokenize("the old cat") == ["the", "old", "cat"]
    inputs = tokenizer("the old [MASK] saw", return_tensors="pt", return_token_type_ids=False)
    assert model(**inputs).shape[-1] == 300
    evaluated = [row for row in expected["rows"] if row["split"] == "validation"]
    assert evaluated[-1]["loss"] < evaluated[0]["loss"] < np.log(300)
    assert 0 < evaluated[-1]["accuracy"] < 100
    trainer = loop.Trainer(run.recipe)
    seen = sum(len(trainer.order.batch(step)) for step in range(trainer.steps)) * 16
    short = 16 * 16 * (expected["rows"][-1]["epoch"] + 1)  # an epoch's last step has what is left, and counts as one
    assert 8000 - short <= seen <= 8000 + 16 * 16  # tokens, however the batch grew
    shutil.rmtree(cache.home())  # the run has a tokenizer of its own
    shutil.rmtree(run.checkpoints()[-1].path)
    stories.write_text(END.join(STORIES))
    training.train(resume=run.path)
    assert final_state(run.path) == expected
    assert not list(cache.home().glob("tokenizers/wordpiece-*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crammed-bert", "crammed-bert-lean", "crammed-bert-control"])
def test_paper_recipes_run(name: str, stories: Path) -> None:
    """Wordpiece, batch ramp, token budget and all; the model is narrow and the arithmetic fp32, for the CPU's sake."""
    narrow = [
        "model.override.width=24", "model.override.mlp=16", "model.override.vocab=400", "run.precision=fp32",
        "data.length=32",
    ]  # fmt: skip
    value = recipes.apply_settings(recipes.load(name), [f"data.path={stories}", *narrow])
    facts = training.rehearse(value)
    assert facts["steps"] > 5_000_000_000 / 32 / 8192
    trainer = loop.Trainer(value)
    assert len(leanify.read(trainer.unwrapped_model).stages[0].blocks) == (16 if name == "crammed-bert" else 10)
    assert trainer.schedule.lr(trainer.steps - 1) < 1e-4 < trainer.schedule.lr(trainer.steps // 2) == 1e-3


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["data.length=65"], DataError, "65 tokens, but the model has only 64 positions: --set data.length=64"),
        (["model.override.vocab=40"], DataError, "the model's vocabulary only 40"),
        (["data.tokenizer=bytes", "model.override.vocab=260"], DataError, "has 261 tokens, but the model's vocabulary"),
        (["data.tokenizer=wordpiece-9"], DataError, "too small to spell"),
        (["data.mask=0.0"], RecipeError, "data.mask is 0; it must be a share"),
        (["data.mask=1.5"], RecipeError, "data.mask is 1.5"),
        (["data.holdout=0.001", "data.length=64"], DataError, "tokens, less than one sample of 64"),
        (["model.override.classes=2"], RecipeError, "no masked-language-modelling head"),
        (["model.source=bert", "model.override=", "model.class=AutoModelForSequenceClassification"], RecipeError,
         'class = "AutoModelForMaskedLM"'),
    ],
)  # fmt: skip
def test_bad_input_is_one_message(
    settings: list[str], error: type[Exception], words: str, stories: Path, tmp_path: Path
) -> None:
    with refused(error, words, tmp_path / "run"):
        training.train(at(stories, *settings), tmp_path / "run")


def test_step_lowers_mean_target_loss(stories: Path) -> None:
    """Of two passes with unlike numbers of targets: the gradient is that of all losses by all targets, by hand."""
    trainer = loop.Trainer(at(stories, "run.accumulate=2", "optim.clip=1e9"))
    model = copy.deepcopy(trainer.unwrapped_model).train()
    last = next(step for step in range(trainer.steps) if len(trainer.order.passes(step)) == 2)
    parts = trainer.order.passes(last)
    passes = [trainer.splits.train.draw(trainer.seed, keys) for keys in parts]
    counts = [int((targets != IGNORED).sum()) for _, targets in passes]
    assert len(counts) == 2
    assert sum(counts) > len(parts[0]) + len(parts[1]), "more targets than samples"
    sum(trainer.task.loss(model, inputs, targets) for inputs, targets in passes).backward()
    wanted = {name: weight.grad / sum(counts) for name, weight in model.named_parameters()}
    found: dict[str, torch.Tensor] = {}
    trainer.optimizer.optimizer.register_step_pre_hook(
        lambda *_: found.update(
            {name: weight.grad.clone() for name, weight in trainer.unwrapped_model.named_parameters()}
        )
    )
    trainer.step(last, trainer.batches(last))
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-7)
