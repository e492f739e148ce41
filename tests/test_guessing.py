"""Columns that no name gives away: guessed by their cells, said, and trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studies import RECIPE

import leanify
from leanify.comparison import comparing as studies
from leanify.comparison import planning
from leanify.comparison.folder import Outcome, StudyFolder
from leanify.comparison.plan import Key
from leanify.core import recipe as recipes
from leanify.core.recipe import DataSection
from leanify.data.texts import corpus
from leanify.data.texts.own_texts import LabelledTable
from leanify.layouts.faults import Faults
from leanify.layouts.recognition import recognise
from leanify.layouts.rows import find_table
from leanify.training import default_recipe

TEXTS = [f"{('a fine and sunny day', 'a dull and rainy night')[i % 2]} {i}" for i in range(40)]


def table(folder: Path, **columns: Any) -> Path:
    """A folder with train.jsonl of these columns, each a function of the row's number."""
    folder.mkdir(exist_ok=True)
    rows = [{name: cell(i) for name, cell in columns.items()} for i in range(len(TEXTS))]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def text(i: int) -> str:
    return TEXTS[i]


@pytest.mark.parametrize(
    ("columns", "task", "names"),
    [
        ({"sentence": text, "mood": lambda i: "xy"[i % 2]}, "text-classification", ["x", "y"]),
        ({"id": int, "blurb": text, "mood": lambda i: i % 3}, "text-classification", ["0", "1", "2"]),
        ({"blurb": text, "label": lambda i: "xy"[i % 2], "n": int}, "text-classification", ["x", "y"]),
        ({"text": text, "price": lambda i: i / 3}, "text-regression", None),
    ],
    ids=["label", "neither", "text", "number"],
)
def test_columns_follow_their_cells(tmp_path: Path, columns: Any, task: str, names: list[str] | None) -> None:
    found = recognise(table(tmp_path, **columns))
    assert found.task == task
    data = default_recipe.data_recipe(found, str(tmp_path)).data
    assert data.task == task
    read = LabelledTable.read(tmp_path / "train.jsonl", data, Faults())
    assert len(read.rows) == len(TEXTS)
    assert names is None or read.names == names


@pytest.mark.parametrize(
    "columns",
    [
        {"text": text, "id": int},
        {"text": text, "url": lambda i: f"u{i}"},
        {"text": text, "site": lambda i: f"s{i // 2}", "url": lambda i: f"u{i}"},
    ],
    ids=["index", "unlike", "several"],
)
def test_text_columns_stay_texts(tmp_path: Path, columns: Any) -> None:
    found = recognise(table(tmp_path, **columns))
    assert (found.kind, found.task, found.columns) == ("text", None, None)
    assert ("--set data.label=COLUMN" in found.description) == (len(columns) > 1)


def test_validation_text_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("abcdefghij" * 30)
    texts, where = corpus.find_texts(DataSection("data", "causal-lm", str(tmp_path)), Faults())
    assert [len(part) for part in texts if isinstance(part, str)] == [270, 30]
    assert where == f"{tmp_path / 'train.txt'} (a tenth of it held out)"
    (tmp_path / "val.txt").write_text("xyz")
    texts, where = corpus.find_texts(DataSection("data", "causal-lm", str(tmp_path)), Faults())
    assert [part.read() for part in texts if not isinstance(part, str)] == ["abcdefghij" * 30, "xyz"]
    (tmp_path / "val.txt").unlink()
    with pytest.raises(leanify.DataError, match="'mine'"):
        corpus.find_texts(DataSection("data", "causal-lm", str(tmp_path), validation="mine"), Faults())


def test_identical_failures_stop_the_study(tmp_path: Path) -> None:
    request = planning.Request(recipes.parse(RECIPE), designs=("baseline", "narrow=depth:2,heads:3,mlp:16"), seeds=2)
    folder = StudyFolder.create(tmp_path / "s", planning.make_plan(request))
    keys = list(folder.plan.runs())

    def failed(key: Key, reason: str) -> None:
        folder.record(Outcome(key.design, key.seed, folder.plan.fingerprint(key), "failed", reason))

    failed(keys[0], "no data")
    studies.abort_if_all_failed(folder)
    failed(keys[1], "no memory")
    studies.abort_if_all_failed(folder)
    failed(keys[1], "no data")
    with pytest.raises(leanify.TrainingError, match=r"all 2 runs.*no data\..*--retry"):
        studies.abort_if_all_failed(folder)


def plain(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


MOODS = [f"{line}{mark}{('glad', 'sad')[i % 2]}\n" for mark in "\t;," for i, line in enumerate(TEXTS)]
TABS, SEMICOLONS, COMMAS = ("".join(MOODS[i : i + len(TEXTS)]) for i in range(0, len(MOODS), len(TEXTS)))
NUMBERED = "".join(f"{number},{line}" for number, line in enumerate(COMMAS.splitlines(True), 7))


@pytest.mark.parametrize(
    ("name", "text", "texts", "label"),
    [
        ("all.tsv", TABS, "column 1", "column 2"),
        ("all.csv", COMMAS, "column 1", "column 2"),
        ("all.csv", f"remark,mood\n{COMMAS}", "remark", "mood"),
        ("all.csv", f"remark;mood\n{SEMICOLONS}", "remark", "mood"),
        ("all.csv", f"remark\tmood\n{TABS}", "remark", "mood"),
        ("all.tsv", f"remark,mood\n{COMMAS}", "remark", "mood"),
        ("all.csv", f"0,1\n{COMMAS}", "0", "1"),  # as pandas writes what has no names
        ("all.csv", f"opinion,mood\n{COMMAS}", "opinion", "mood"),  # elsewhere an opinion is a label
        ("all.csv", NUMBERED, "column 2", "column 3"),
        ("all.tsv", "".join(f"{line}\t{i / 3:.2f}\n" for i, line in enumerate(TEXTS, 1)), "column 1", "column 2"),
    ],
    ids=[
        "tabs", "commas", "header", "semicolons", "tabs-in-csv", "commas-in-tsv", "pandas", "opinion", "numbered",
        "fractions",
    ],
)  # fmt: skip
def test_any_table_name_works(tmp_path: Path, name: str, text: str, texts: str, label: str) -> None:
    """The only table of a folder, with every row, whatever stands between its cells."""
    found = recognise(plain(tmp_path, name, text))
    assert found.columns == ((texts,), label)
    data = default_recipe.data_recipe(found, str(tmp_path)).data
    assert data is not None
    file = find_table(tmp_path, "train")
    assert file == tmp_path / name
    read = LabelledTable.read(file, data, Faults())
    assert [row[0] for row in read.rows] == [(line,) for line in TEXTS]  # type: ignore[attr-defined]


def test_ambiguous_table_is_not_guessed(tmp_path: Path) -> None:
    plain(tmp_path, "one.csv", COMMAS)
    plain(tmp_path, "two.csv", COMMAS)
    assert recognise(tmp_path).kind is None
    assert find_table(tmp_path, "train") is None
    alone = plain(tmp_path / "alone", "test.csv", COMMAS)
    assert find_table(alone, "train") is None


def test_text_files_are_joined(tmp_path: Path) -> None:
    data = DataSection("data", "causal-lm", str(tmp_path))
    plain(tmp_path, "b.txt", "xyz" * 10)
    assert recognise(tmp_path) is not None
    (train, held), where = corpus.find_texts(data, Faults())
    assert (train, held) == ("xyz" * 9, "xyz")
    assert where == f"{tmp_path / 'b.txt'} (a tenth of it held out)"
    plain(tmp_path, "a.txt", "abc" * 10)
    (train, held), where = corpus.find_texts(data, Faults())
    assert (train, held) == (f"{'abc' * 10}<|endoftext|>", f"{'xyz' * 10}<|endoftext|>")
    assert where == f"{tmp_path} (a tenth of it held out)"
    plain(tmp_path, "test.txt", "x")
    assert [str(part) for part in corpus.find_texts(replace(data, train="a"), Faults())[0]][1] == str(
        tmp_path / "test.txt"
    )
    with pytest.raises(leanify.DataError, match="'train'"):
        corpus.find_texts(data, Faults())
