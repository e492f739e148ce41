"""The script of Table 1 in small: its numbers, its runs, and what it says of folders that do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn
from transformers import BertConfig, BertModel

import glue
import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import DataError, RecipeError
from leanify.data.texts import tokenizers
from leanify.training import start as training

pytestmark = pytest.mark.filterwarnings("ignore:.*(carried over|no weights):UserWarning")
QUICK = ["data.length=24", "schedule.epochs=1", "schedule.warmup=0", "schedule.batch_size=8"]
REST = ["the", "film", "was", "a", "story", "of", "its", "people", "and", "more"]


def write_table(file: Path, columns: list[str], labels: list[Any], rng: np.random.Generator) -> None:
    """A table of random sentences, in which a word tells the label."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join([*columns, "label"])]
    for label in labels:
        lines.append("\t".join([*(" ".join([*rng.choice(REST, 5), f"w{label}"]) for _ in columns), str(label)]))
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks as the hub has them: single sentences, numbers, and MNLI's two validation sets."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split, number in (("train", 32), ("validation", 20)):
        write_table(root / f"cola/{split}.tsv", ["sentence"], [n % 2 for n in range(number)], rng)
        write_table(root / f"stsb/{split}.tsv", ["sentence1", "sentence2"], [n % 5 + 0.5 for n in range(number)], rng)
    names = ["entailment", "neutral", "contradiction"]
    for split, number in (("train", 30), ("validation_matched", 9), ("validation_mismatched", 6)):
        write_table(root / f"mnli/{split}.tsv", ["premise", "hypothesis"], names * (number // 3), rng)
    return root


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = tokenizers._wrap(tokenizers._train(200, (data / "cola/train.tsv").read_text().splitlines))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=24, **sizes)).save_pretrained(folder)
    return folder


def test_scores_match_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels, answers = rng.integers(0, 2, (2, 50))
    names, said = np.array(["equivalent", "not_equivalent"])[1 - labels], np.array(["0", "1"])[answers]
    assert glue.score("matthews", labels, answers, "") == pytest.approx(np.corrcoef(labels, answers)[0, 1])
    digits = labels.astype(str)
    assert glue.score("f1", digits, said, "1") == sklearn.f1_score(labels, answers)
    assert glue.score("f1", names, names, "equivalent") == 1
    assert glue.score("spearman", labels + 0.5, answers, "") == stats.spearmanr(labels, answers).statistic
    assert glue.score("pearson", labels, np.ones(50), "") == 0


@pytest.mark.slow
def test_finished_runs_are_kept(bert: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    scores = glue.table1(str(bert), data, ["cola", "mnli", "stsb"], 2, out, QUICK)
    assert {name: list(values) for name, values in scores.items()} == {
        "cola": ["matthews"], "mnli": ["accuracy"], "stsb": ["spearman", "pearson"]
    }  # fmt: skip

    # MNLI's number is the mean of its two sets, whose sizes differ; STS-B's is that of the run's own evaluation
    tables = glue.validation_tables(glue.run_recipe(str(bert), data / "mnli", 0, QUICK).to_train().data)
    assert [len(table.rows) for table in tables] == [9, 6]
    each = [glue.evaluate(out / "mnli-0", glue.TASKS["mnli"], [table])["accuracy"] for table in tables]
    assert scores["mnli"]["accuracy"][0] == pytest.approx(sum(each) / 2)
    last = json.loads((out / "stsb-1/metrics.jsonl").read_text().splitlines()[-1])
    assert scores["stsb"]["spearman"][1] == pytest.approx(last["spearman"], abs=1e-3)

    # a second call trains what is missing alone, and refuses another recipe
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl") if path.parent.name != "cola-1"}
    kept = json.loads((out / "results.json").read_text())
    (out / "results.json").write_text(json.dumps({name: kept[name] for name in kept if name != "cola-1"}))
    assert glue.table1(str(bert), data, ["cola", "mnli", "stsb"], 2, out, QUICK) == scores
    assert {path: path.stat().st_mtime_ns for path in before} == before
    with pytest.raises(RecipeError, match="another recipe: optim"):
        glue.table1(str(bert), data, ["cola"], 1, out, [*QUICK, "optim.lr=1"])


@pytest.mark.slow
def test_pretrained_runs_become_rows(data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """A lean Crammed BERT learns masked words, then CoLA: with the run's tokenizer, weights and shape."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text((data / "cola/train.tsv").read_text().replace("\t", " "))
    small = ["vocab=200", "length=40", "width=32", "depth=3", "heads=2", "head_dim=16", "mlp=32"]
    settings = [f"data.path={tmp_path / 'text.txt'}", "data.tokenizer=wordpiece-200", "data.length=16", "model.depth=2",
                "model.heads=4", "model.heads_mode=split", "schedule.tokens=1000", "schedule.warmup=0",
                "schedule.cooldown=0", "schedule.batch_size=8",
                *(f"model.override.{item}" for item in small)]  # fmt: skip
    run = training.train(recipes.apply_settings(recipes.load("masked-small"), settings), tmp_path / "masked")
    command = [sys.executable, glue.__file__, str(run), "--data", str(data), "--tasks", "cola", "--seeds", "1"]
    options = [f"--set={setting}" for setting in QUICK]
    done = subprocess.run([*command, "-o", str(tmp_path / "out"), *options], capture_output=True, text=True, check=True)
    assert "CoLA    matthews" in done.stdout
    assert "average of 1 task:" in done.stdout
    tuned = leanify.load(tmp_path / "out/cola-0")
    shape = leanify.read(tuned).stages[0].primary
    assert (leanify.read(tuned).depth, shape.heads, shape.head_dim) == (2, 4, 8)


def test_missing_tables_are_one_message(bert: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="rte has no train table; GLUE has a folder for each task: cola"):
        glue.table1(str(bert), data, ["cola", "rte"], 1, tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()
