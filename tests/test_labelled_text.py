"""One's own labelled texts: columns guessed or named, labels of every kind, dirty rows, from the table to the run."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import refused

import leanify
from leanify.core import recipe as recipes
from leanify.core.recipe import DataSection, ModelSection
from leanify.data.texts import encoded, own_texts, tokenizers
from leanify.data.texts.encoded import Row, Sentences
from leanify.data.texts.own_texts import LabelledTable
from leanify.data.texts.tokenizers import make_tokenizer
from leanify.layouts import columns
from leanify.layouts.faults import Faults
from leanify.layouts.recognition import recognise
from leanify.runs.run_directory import RunDirectory
from leanify.training import preparation
from leanify.training import start as training

GOOD, BAD = "a fine and sunny day", "a dull and rainy night"
TINY = [
    "model.override.hidden_size=32", "model.override.num_hidden_layers=2", "model.override.num_attention_heads=2",
    "model.override.intermediate_size=32", "model.override.vocab_size=300", "data.tokenizer=bytes", "data.length=32",
    "schedule.epochs=12", "optim.lr=5e-3", "schedule.batch_size=16", "schedule.warmup=0",
]  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"review": f"{(GOOD, BAD)[i % 2]} {i}", "stars": ("pos", "neg")[i % 2]} for i in range(64)
]

pytestmark = pytest.mark.filterwarnings("ignore:(hf/)?bert has no weights")


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a table of the file's kind."""
    if file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=1))
    elif file.suffix in columns.JSON:
        file.write_text("\n".join(map(json.dumps, rows)))
    elif file.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        with file.open("w", newline="") as out:
            table = csv.DictWriter(out, list(rows[0]), delimiter="\t" if file.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    return file


def read(file: Path, **settings: Any) -> LabelledTable:
    return LabelledTable.read(file, DataSection("data", "text-classification", str(file), **settings), Faults())


def test_unnamed_column_is_no_answer(tmp_path: Path) -> None:
    """As pandas writes its index."""
    with pytest.raises(leanify.DataError, match="no column of labels; it has , words"):
        columns.pick_columns(tmp_path, ["", "words"], label=((), columns.LABELS))


@pytest.mark.parametrize("suffix", columns.TABLES)
def test_tables_hold_equal_rows(tmp_path: Path, suffix: str) -> None:
    table = read(write(tmp_path / f"train{suffix}", ROWS))
    assert (table.columns, table.names) == ("review → stars", ["neg", "pos"])
    assert table.rows == [((row["review"],), row["stars"]) for row in ROWS]
    here = recognise(tmp_path)
    assert (here.task, here.is_validated) == ("text-classification", False)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["b", "a", "b"], ["a", "b"]),
        (["True", "False", "True"], ["False", "True"]),
    ],
)
def test_classes_sort_numerically_or_alphabetically(tmp_path: Path, labels: list[str], names: list[str]) -> None:
    table = read(write(tmp_path / "train.csv", [{"text": "x", "label": label} for label in labels]))
    assert table.names == names


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (("review", "stars"), {"text": ("revue",)}),
        (("review", "stars"), {"text": ("sentence",)}),
        (("review", "stars"), {"label": "star"}),
        (("review", "verdict"), {"text": ("words",), "label": "class"}),
        (("what they said", "of two"), {}),
        (("text", "Größe"), {"label": "grösse"}),
        (("one", "two"), {"text": ("one",), "label": "three"}),
    ],
)
def test_proposed_columns_exist(tmp_path: Path, names: tuple[str, str], settings: dict[str, Any]) -> None:
    """Only columns of the table, or COLUMN; typed, they are what is read."""
    file = write(tmp_path / "train.csv", [dict(zip(names, row.values(), strict=True)) for row in ROWS])
    with pytest.raises(leanify.DataError) as refusal:
        read(file, **settings)
    message = str(refusal.value)
    assert f"it has {', '.join(names)}" in message
    words = shlex.split(message.partition("that it has: ")[2])
    assert set(words[::2]) == {"--set"}
    asked = dict(word.removeprefix("data.").split("=", 1) for word in words[1::2])
    if "COLUMN" in message:
        assert set(asked.values()) <= {"COLUMN", '["COLUMN"]'}
        return
    data = DataSection("data", "text-classification", str(file), **settings)
    value = recipes.apply_settings(recipes.Recipe(ModelSection("bert"), data), words[1::2])
    assert LabelledTable.read(file, value.data, Faults()).columns == f"{names[0]} → {names[1]}"


def test_columns_can_be_named(tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", [{"text": "no", "A": "one", "B": "two", "label": "no", "kind": "yes"}])
    assert read(file, text=("A", "B"), label="kind").rows == [(("one", "two"), "yes")]
    with pytest.raises(leanify.DataError, match=r"column C.*text, A, B, label, kind.*--set .data\.text="):
        read(file, text=("C",))


def test_table_trains_a_classifier(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ROWS)
    recipe = training.resolve("bert", [f"data.path={tmp_path}", *TINY])
    run = RunDirectory.open(training.train(recipe, tmp_path / "run"))
    assert (run.recipe.data.task, run.recipe.data.holdout) == ("text-classification", 0.1)
    assert run.rows()[-1]["top1"] > 90
    model: Any = leanify.load(run.path)
    assert model.config.id2label == {0: "neg", 1: "pos"}


def test_fractions_make_a_regressor(tmp_path: Path) -> None:
    rows = [{"sentence1": GOOD, "sentence2": (GOOD, BAD)[i % 2], "score": (4.5, 0.5)[i % 2]} for i in range(32)]
    write(tmp_path / "train.tsv", rows)
    write(tmp_path / "dev.tsv", rows[:8])
    recipe = training.resolve("bert", [f"data.path={tmp_path}", *TINY, "optim.lr=1e-2", "schedule.epochs=30"])
    assert (recipe.data.task, recipe.data.holdout) == ("text-regression", 0.0)
    run = RunDirectory.open(training.train(recipe, tmp_path / "run"))
    assert run.rows()[-1]["spearman"] > 90
    assert run.rows()[-1]["loss"] < 1  # of scores whose variance is 4


def test_unknown_labels_can_be_skipped(tmp_path: Path) -> None:
    """Rows of a class that training lacks; "-", as in SNLI, is no class and needs no setting."""
    write(tmp_path / "train.csv", ROWS)
    write(tmp_path / "valid.csv", [*ROWS[:6], {"review": "x", "stars": "meh"}, {"review": "y", "stars": "meh"}])
    settings = [f"data.path={tmp_path}", *TINY]
    recipe = training.resolve("bert", settings)
    with refused(leanify.DataError, r"'meh'.*neg, pos.* 2 of 8 .*data\.on_error=skip", tmp_path / "run"):
        training.train(recipe, tmp_path / "run")
    found = splits([*settings, "data.on_error=skip"])
    assert (len(found.train), len(found.validation), len(found.skipped)) == (len(ROWS), 6, 2)
    write(tmp_path / "valid.csv", [*ROWS[:6], {"review": "x", "stars": "-"}, {"review": "y", "stars": "-"}])
    assert len(splits(settings).validation) == 6
    write(tmp_path / "train.csv", ROWS[::2])
    with refused(leanify.DataError, "only one class, pos", tmp_path / "run"):
        training.train(recipe, tmp_path / "run")


def splits(settings: list[str]) -> Any:
    recipe = training.resolve("bert", settings)
    return own_texts.splits(recipe.data, preparation.build_model(recipe))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pairs", [False, True])
def test_portions_are_encoded_alike(pairs: bool, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer's answer to 600,000 rows at once took five gigabytes, and to one text of 20 MB as much."""
    tokenizer, _ = make_tokenizer("bytes", lambda: [], "")
    tokenizer.truncation_side = side
    rows: list[Row] = [((f"row {i}", "bcd" * i) if pairs else (f"row {i}" * i,), i % 2) for i in range(10)]
    whole, every = Sentences(rows, tokenizer, 8, types=pairs), np.arange(10)
    monkeypatch.setattr(encoded, "ENCODED_AT_ONCE", 3)
    monkeypatch.setattr(tokenizers, "LONGEST", 8)
    (inputs, labels), (pieces, again) = (each.batch(every) for each in (whole, Sentences(rows, tokenizer, 8, pairs)))
    assert inputs.keys() == pieces.keys()
    assert all(torch.equal(inputs[name], pieces[name]) for name in inputs)
    assert torch.equal(labels, again)
