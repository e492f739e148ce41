"""`train SOURCE --teacher`: the task that a model's head decides, a teacher's embeddings, and what is refused."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
import torch.nn.functional as F
from runs import Warnings, add_pooling, final_state, launched
from test_shrink_heads import drawn

import leanify
from leanify.core.errors import DataError, LeanifyError, RecipeError, SourceError
from leanify.core.files import cache
from leanify.core.recipe import DataSection
from leanify.data.texts import tokenizers
from leanify.data.texts.sentences import splits
from leanify.runs.run_directory import RunDirectory
from leanify.sources import heads
from leanify.tasks import usual_settings
from leanify.tasks.sentence_embedding import embed, pool
from leanify.training import default_recipe, rates
from leanify.training import start as training
from leanify.training.loop import Trainer
from leanify.training.teachers import check_alike
from leanify.upstream.libraries import import_transformers

WORDS = ["a", "the", "good", "bad", "film", "was", "is", "great", "poor", "very", "story", "end", "long", "short"]
SHAPE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
QUICK = ["schedule.batch_size=16", "schedule.epochs=2", "run.log_every=1"]


def sentences(count: int, seed: int) -> list[str]:
    drawn = np.random.default_rng(seed)
    return [" ".join(drawn.choice(WORDS, drawn.integers(3, 12))) for _ in range(count)]


def encoder(folder: Path, seed: int = 0, words: int = 0, **shape: Any) -> Path:
    """A small BERT without a head, in sentence-transformers' layout; ``words`` more in its vocabulary."""
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"new{i}" for i in range(words))]
    sizes = {**SHAPE, "vocab_size": len(known), "max_position_embeddings": 32, **shape}
    drawn("BertModel", seed, **sizes).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(known))
    import_transformers().BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    return add_pooling(folder, pooling_mode_mean_tokens=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("teach")
    encoder(folder / "teacher")
    encoder(folder / "student", seed=1, num_hidden_layers=1)
    (folder / "data").mkdir()
    for name, count in (("train", 64), ("validation", 16)):
        rows = "".join(f"{text},{i % 2}\n" for i, text in enumerate(sentences(count, count)))
        (folder / "data" / f"{name}.csv").write_text("text,label\n" + rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


def train(
    home: Path, out: Path, *settings: str, source: str = "student", teacher: str = "teacher", **options: Any
) -> RunDirectory:
    words = [f"data.path={home / 'data'}", *QUICK, *settings]
    run = training.train(home / source, out, settings=words, teacher=str(home / teacher), **options)
    return RunDirectory.open(run)


# -- tokens ------------------------------------------------------------------------------------------------------------


def first_loss(home: Path, out: Path, weight: float, layers: str, **names: str) -> float:
    words = [f"distill.hidden_weight={weight}", f"distill.layers={layers}", "schedule.epochs=1"]
    rows = train(home, out, *words, **names).rows()
    return next(float(row["loss"]) for row in rows if row["split"] == "train")


@pytest.mark.parametrize("layers", ["output", "even"])
def test_hidden_states_add_their_weight(layers: str, home: Path, tmp_path: Path) -> None:
    """The teacher itself has nothing to learn; a student's loss grows evenly with the weight."""
    assert first_loss(home, tmp_path / "own", 3.0, layers, source="teacher") == pytest.approx(0, abs=1e-5)
    none, one, three = (first_loss(home, tmp_path / f"run{weight}", weight, layers) for weight in (0.0, 1.0, 3.0))
    assert one > none
    assert three - none == pytest.approx(3 * (one - none), rel=1e-3)


def test_states_need_one_width_and_no_head(home: Path, tmp_path: Path) -> None:
    settings = ["distill.layers=output", "distill.hidden_weight=1"]
    wide = encoder(tmp_path / "wide", hidden_size=48)
    with pytest.raises(RecipeError, match=r"\d+ × 24 and \d+ × 48"):
        train(home, tmp_path / "run", *settings, teacher=str(wide))
    language = str(headed(tmp_path / "model", "GPT2LMHeadModel"))
    with pytest.raises(RecipeError, match="bare encoder"):
        train(home, tmp_path / "run2", *settings, "data.length=16", source=language, teacher=language)


# -- embeddings -------------------------------------------------------------------------------------------------------


@pytest.mark.long  # importing sentence-transformers takes seconds
@pytest.mark.parametrize("mode", heads.MODES.values())
def test_pooling_matches_sentence_transformers(mode: str) -> None:
    import_transformers()
    modules = pytest.importorskip("sentence_transformers.models")
    hidden, mask = torch.randn(3, 5, 8), torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1] + [0] * 4])
    layer = modules.Pooling(8, pooling_mode=mode)
    wanted = layer({"token_embeddings": hidden.clone(), "attention_mask": mask})["sentence_embedding"]
    torch.testing.assert_close(pool(hidden, mask, mode), wanted)


def test_headless_encoder_learns_embeddings(home: Path, tmp_path: Path) -> None:
    """It learns them by the files beside it."""
    run = train(home, tmp_path / "run")
    assert (run.recipe.data.task, run.recipe.data.length) == ("sentence-embedding", 16)
    assert run.recipe.model.override == {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    cosines = [row["cosine"] for row in run.rows() if row["split"] == "validation"]
    assert cosines[-1] > cosines[0]
    teacher, student = (leanify.load(place) for place in (home / "teacher", run.path))
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(run.path)
    texts = [line.split(",")[0] for line in (home / "data" / "validation.csv").read_text().splitlines()[1:]]
    inputs = dict(tokenizer(texts, truncation=True, max_length=16, padding=True, return_tensors="pt"))
    with torch.no_grad():
        mine, theirs = (embed(model, inputs, ("mean",)) for model in (student, teacher))
    assert torch.cosine_similarity(mine, theirs).mean().item() == pytest.approx(max(cosines), abs=2e-3)


def test_text_files_become_sentences(home: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, count in (("letters", 12), ("notes", 8)):
        (texts / f"{name}.txt").write_text("\n".join(sentences(count, count)) + "\n")
    data = DataSection("data", "sentence-embedding", path=str(texts), tokenizer=str(home / "teacher"), length=16)
    found = splits(data, leanify.load(home / "teacher"))
    assert (len(found.train), len(found.validation)) == (18, 2)


def test_teacher_runs_once_and_resumes(home: Path, tmp_path: Path) -> None:
    """The resumed run ends with the same bits."""
    run = train(home, tmp_path / "run", "run.keep=0")
    kept = {file: file.stat().st_mtime_ns for file in (cache.home() / "teachers").iterdir()}
    whole = final_state(run.path)
    for found in run.checkpoints()[1:]:
        shutil.rmtree(found.path)
    training.train(resume=run.path)
    assert final_state(run.path) == whole
    assert {file: file.stat().st_mtime_ns for file in (cache.home() / "teachers").iterdir()} == kept
    assert len(train(home, tmp_path / "other", "optim.lr=1e-3").rows()) == len(run.rows())
    assert {file: file.stat().st_mtime_ns for file in (cache.home() / "teachers").iterdir()} == kept
    other = encoder(tmp_path / "weights", seed=2)  # of the same shape: other files
    train(home, tmp_path / "taught", teacher=str(other))
    assert len(list((cache.home() / "teachers").iterdir())) > len(kept)


@pytest.mark.slow
def test_unused_pooler_blocks_no_process(home: Path, tmp_path: Path) -> None:
    one = train(home, tmp_path / "one")
    (tmp_path / "two.toml").write_text(one.recipe.to_toml())
    done = launched("train", str(tmp_path / "two.toml"), "-o", str(tmp_path / "two"))
    _, said = done.communicate()
    assert done.returncode == 0, said
    assert "find_unused_parameters" not in said
    rows = list(zip(one.rows(), RunDirectory.open(tmp_path / "two").rows(), strict=True))
    assert [mine["loss"] for mine, _ in rows] == pytest.approx([theirs["loss"] for _, theirs in rows], abs=1e-4)


def test_sentences_come_from_lines_or_pairs(home: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n\n".join(sentences(20, 1)) + "\n")
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2\n" + "".join(f"{t},{t}\n" for t in sentences(10, 2)))
    for name in ("lines.txt", "pairs.csv"):
        run = train(home, tmp_path / name[:5], f"data.path={tmp_path / name}")
        assert run.data()["samples"] == {"train": 18, "validation": 2}


# -- which task -------------------------------------------------------------------------------------------------------


def headed(folder: Path, cls: str) -> Path:
    gpt2 = {"n_embd": 24, "n_layer": 2, "n_head": 3, "bos_token_id": 0, "eos_token_id": 0}
    gpt2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    drawn(cls, vocab_size=256, **(SHAPE if cls.startswith("Bert") else gpt2)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("cls", "task"),
    [
        ("BertModel", "sentence-embedding"),
        ("BertForMaskedLM", "masked-lm"),
        ("BertForSequenceClassification", "text-classification"),
        ("GPT2LMHeadModel", "causal-lm"),
    ],
)
def test_head_decides_the_task(home: Path, tmp_path: Path, cls: str, task: str) -> None:
    source = headed(tmp_path / "model", cls)
    value = training.resolve(source, [f"data.path={home / 'data'}"], "teacher")
    assert (value.data.task, value.distill.teacher) == (task, "teacher")
    assert (value.distill.weight, value.distill.temperature) == usual_settings(task).distill


def test_next_word_learns_from_table(home: Path, tmp_path: Path) -> None:
    source = str(headed(tmp_path / "model", "GPT2LMHeadModel"))
    run = train(home, tmp_path / "run", "data.length=16", source=source, teacher=source)
    first = next(row for row in run.rows() if row["split"] == "train")
    assert first["loss"] == pytest.approx(0, abs=1e-4)


def test_recipe_keeps_own_distillation() -> None:
    value = training.resolve("digits", ["distill.teacher=a", "distill.weight=0.25"])
    assert default_recipe.add_teacher(value, None) == value
    told = default_recipe.add_teacher(value, "b").distill
    assert (told.teacher, told.weight) == ("b", 0.25)


# -- what is refused --------------------------------------------------------------------------------------------------


def refused(home: Path, tmp_path: Path, error: type[LeanifyError], words: str, *settings: str, **names: str) -> None:
    before = cached_results()
    with runs.refused(error, words, tmp_path / "run"):
        train(home, tmp_path / "run", *settings, **names)
    assert cached_results() == before


def cached_results() -> list[Path]:
    """The files of the cache but for notes on tokenizers that were tried."""
    return sorted(path for path in cache.home().rglob("*") if "tokenizers" not in path.parts)


def test_teacher_vocabulary_must_match(home: Path, tmp_path: Path) -> None:
    encoder(tmp_path / "more", words=3)
    refused(home, tmp_path, RecipeError, "vocabulary of 19 and the teacher .* of 22", teacher=str(tmp_path / "more"))
    other = encoder(tmp_path / "other")
    for file in ("tokenizer.json", "vocab.txt"):
        text = (other / file).read_text()
        (other / file).write_text(text.replace("good", "swap").replace("bad", "good").replace("swap", "bad"))
    refused(home, tmp_path, RecipeError, "number 2 words differently, '(good|bad)'", teacher=str(other))


def test_teacher_kind_must_match(home: Path, tmp_path: Path) -> None:
    """So must its size."""
    for size in (32, 48):
        drawn("ViTModel", **SHAPE, patch_size=8, image_size=size).save_pretrained(tmp_path / f"vit{size}")
    refused(home, tmp_path, RecipeError, "takes input_ids and the teacher", teacher=str(tmp_path / "vit32"))
    small, large = (leanify.load(tmp_path / f"vit{size}") for size in (32, 48))
    with pytest.raises(RecipeError, match="3 × 32 × 32 and the teacher large of 3 × 48 × 48"):
        check_alike(small, large, "large", None)


def test_oversized_embeddings_are_refused(home: Path, tmp_path: Path) -> None:
    """The file may have 256 bytes, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, limits[1]))
    try:
        refused(home, tmp_path, DataError, "embeddings could not be kept .* name another folder", "data.samples=33")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_teacher_needs_weights_and_pooling(home: Path, tmp_path: Path) -> None:
    refused(home, tmp_path, RecipeError, "a model without weights", teacher="teacher/config.json")
    odd = encoder(tmp_path / "odd")
    (odd / "1_Pooling" / "config.json").write_text('{"pooling_mode": "median"}')
    refused(home, tmp_path, SourceError, "has the pooling mode .'median'.; supported: cls", teacher=str(odd))
    (odd / "modules.json").write_text('[{"type": "x.Pooling", "path": "../teacher"}]')
    refused(home, tmp_path, SourceError, "is outside its folder", teacher=str(odd))


@pytest.mark.parametrize("kinds", [("Dense", "Normalize"), ("Normalize", "Dense"), ("Dense", "Dense", "Normalize")])
def test_layers_behind_the_pooling(kinds: tuple[str, ...], home: Path, tmp_path: Path) -> None:
    """Embeddings are those of sentence-transformers, as of LaBSE and EmbeddingGemma."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    width = SHAPE["hidden_size"]
    modules = [Transformer(str(encoder(tmp_path / "plain"))), Pooling(width)]
    torch.manual_seed(0)
    for kind in kinds:
        modules.append(Normalize() if kind == "Normalize" else Dense(width, width := width + 5))
    built = SentenceTransformer(modules=modules, device="cpu")
    built.save(str(tmp_path / "deep"))
    texts = sentences(8, 3)
    model, tokenizer = leanify.load(tmp_path / "deep"), tokenizers.load(tmp_path / "deep")
    with torch.no_grad():
        found = embed(
            model, dict(tokenizer(texts, padding=True, return_tensors="pt")), heads.read_pooling(tmp_path / "deep")
        )
    expected = torch.from_numpy(built.encode(texts))
    assert F.cosine_similarity(found, expected).min() > 1 - 1e-6
    assert found.shape[1] == width


@pytest.mark.parametrize(
    ("module", "config", "words"),
    [
        ("CNN", {}, "has a module 'CNN'"),
        ("Dense", {"activation_function": "os.system"}, "has the activation 'system'"),
        ("Dense", {"module_input_name": "token_embeddings"}, "is a layer of single tokens"),
        ("Dense", {}, "has no weights of a dense layer"),
    ],
)
def test_modules_that_are_not_known_are_refused(
    module: str, config: dict[str, str], words: str, tmp_path: Path
) -> None:
    folder = encoder(tmp_path / "odd")
    entries = json.loads((folder / "modules.json").read_text())
    entries.append({"idx": 2, "name": "2", "path": f"2_{module}", "type": f"sentence_transformers.models.{module}"})
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / f"2_{module}").mkdir()
    (folder / f"2_{module}" / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match=words):
        heads.read_pooling(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [("number,label\n1,2\n", "no column of texts; it has number, label"), ("text\n", "has no sentences")],
)
def test_table_needs_sentences(home: Path, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "table.csv").write_text(text)
    refused(home, tmp_path, DataError, words, f"data.path={tmp_path / 'table.csv'}")


@pytest.mark.parametrize("size", [100, 200])
def test_truncated_cache_is_rebuilt(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Within the header of 128 bytes, and within the rows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what other tests kept is not made again here
    train(home, tmp_path / "first")
    kept = {file: file.read_bytes() for file in (cache.home() / "teachers").iterdir()}
    for file in kept:
        os.truncate(file, size)
    train(home, tmp_path / "second")
    assert {file: file.read_bytes() for file in kept} == kept
    assert final_state(tmp_path / "first") == final_state(tmp_path / "second")


def test_trained_weights_compete_with_originals(home: Path, tmp_path: Path) -> None:
    """The teacher itself as student, at a rate that undoes it: step 0 is validated, kept as the best, and named."""
    heard = Warnings()
    run = train(home, tmp_path / "run", "optim.lr=0.5", "optim.clip=1e9", source="teacher", callback=heard)
    first = next(row for row in run.rows() if row["split"] == "validation")
    assert first["step"] == run.best().step == 0
    assert any("better than the weights" in words and "optim.lr" in words for words in heard.warnings)
    again, before = leanify.load(run.path).state_dict(), leanify.load(home / "teacher").state_dict()
    assert all(torch.equal(again[name], before[name]) for name in again)


def test_rate_minimises_later_loss(home: Path) -> None:
    """A range test from the same weights at every rate; a run without weights has none."""
    value = training.resolve(home / "student", [f"data.path={home / 'data'}", *QUICK], str(home / "teacher"))
    found = rates.range_test(replace(value, schedule=replace(value.schedule, epochs=20)))
    assert found.steps == rates.MIN_STEPS
    assert found.best in found.after
    assert found.after[found.best] == min(found.after.values())
    assert [round(rate / value.optim.lr, 3) for rate in found.after] == list(rates.FACTORS)
    assert rates.range_test(replace(value, distill=None)) is None


def test_longer_run_tests_longer(home: Path) -> None:
    """Each rate is a run in small: what a run of so many steps at that rate makes of the same weights."""
    value = training.resolve(home / "student", [f"data.path={home / 'data'}", *QUICK], str(home / "teacher"))
    longer = replace(value.schedule, epochs=None, steps=300, warmup=0.0)
    found = rates.range_test(replace(value, schedule=longer), (1e-3,))
    assert found.steps == 12
    small = replace(value.schedule, epochs=None, steps=12, warmup=1.2, warmup_lr=0.0, kind="cosine")
    run = replace(value.run, eval_every=None, eval_batches=rates.BATCHES)
    recipe = replace(value, schedule=small, run=run, optim=replace(value.optim, lr=1e-3, ema=None))
    trainer = Trainer(recipe)
    batches = trainer.batches(0)
    for step in range(12):
        trainer.step(step, batches)
    assert found.after == {1e-3: trainer.evaluate()["loss"]}
