"""Data as other people lay it out: `recipes/research/tables/layouts.toml` has some two hundred with the right answers.

What is recognised is read alike. Below are the edges of these rules.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import leanify
from leanify.data.images import folder as image_folder
from leanify.data.texts import corpus, own_texts
from leanify.layouts.faults import Faults
from leanify.layouts.own_data import OwnData
from leanify.layouts.recognition import recognise
from leanify.layouts.rows import read_table
from leanify.layouts.split_names import parse_split
from leanify.training import start
from recipes.research import layouts

TEXTS = ("a fine and sunny day in may", "a dull, wet and rainy night", "the train to town was late")
ROWS = 30


def put(folder: Path, name: str, line: str, header: str = "", number: int = ROWS, values: str = "0 1") -> None:
    """A text file of lines with {i}, texts {a} and {b}, and {label}, one of the values in turn."""
    labels = values.split(" ")
    lines = [header] if header else []
    for i in range(number):
        lines.append(line.format(i=i, a=f"{TEXTS[i % 3]} {i}", b=f"{i} {TEXTS[i % 2]}", label=labels[i % len(labels)]))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")


def pictures(folder: Path, *places: str, number: int = 4, suffix: str = ".png") -> None:
    for place in places:
        (folder / place).mkdir(parents=True, exist_ok=True)
        for i in range(number):
            Image.new("RGB", (4, 4), (i, 0, 0)).save(folder / place / f"{i:03}{suffix}")


def read(folder: Path, found: OwnData) -> tuple[list[str], str]:
    """The classes and the description of what training reads."""
    data = start.resolve(str(folder)).data
    if found.kind == "images":
        readers, classes, where = image_folder.read(data)
        assert len(readers[0]) == found.samples
        for reader in readers:
            for index in range(len(reader)):
                reader[index][0].close()
        return classes, where
    table = own_texts.read_split_table(data, "train", Faults())
    assert len(table.rows) == found.samples
    if found.is_validated:
        assert own_texts.read_split_table(data, "validation", Faults()).rows
    return table.names, table.columns


@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_public_layouts_are_answered_as_meant(tmp_path: Path, name: str) -> None:
    layouts.make(tmp_path, layouts.LAYOUTS[name])
    found = recognise(tmp_path)
    assert layouts.is_right(layouts.LAYOUTS[name], found), found
    if found.kind != "text" and found.fault is None and "missing" not in found.description:
        classes, _ = read(tmp_path, found)
        assert found.classes in (None, len(classes))


Table = tuple[str, str, str, str]  # name, line, header and labels of `put`
LABELLED_TEXTS: dict[str, tuple[Table, str, list[str]]] = {
    "stance": (
        ("stances.tsv", "{i}\t{a}\t{label}\tx{i}", "ID\tTweet\tStance\tuser", "FAVOR AGAINST NONE"),
        "Tweet → Stance", ["AGAINST", "FAVOR", "NONE"],
    ),
    "TREC-like": (
        ("train.txt", "{label}\t{a}", "", "DESC ENTY HUM"), "column 2 → column 1", ["DESC", "ENTY", "HUM"],
    ),
    "bars": (("train.txt", "{a}|{label}", "", "up down"), "column 1 → column 2", ["down", "up"]),
    "BoolQ": (
        ("train.jsonl", '{{"question": "{a}", "passage": "{b}", "answer": {label}}}', "", "true false"),
        "question and passage → answer", ["False", "True"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELLED_TEXTS)
def test_labels_come_before_a_language_model(tmp_path: Path, name: str) -> None:
    """Labels beside texts, by name or by few values; with a header or without; under the set's own file name."""
    (file, line, header, values), columns, names = LABELLED_TEXTS[name]
    put(tmp_path, file, line, header, values=values)
    found = recognise(tmp_path)
    assert (found.kind, found.fault) == ("sentences", None)
    classes, said = read(tmp_path, found)
    assert (said, classes) == (columns, names)


@pytest.mark.parametrize("mark", [",", "\t"])
def test_lists_have_paths_and_classes(tmp_path: Path, mark: str) -> None:
    pictures(tmp_path, "jpg", number=ROWS, suffix=".jpg")
    put(tmp_path, "meta/train.txt", f"jpg/{{i:03}}.jpg{mark}{{label}}", values="rose tulip")
    found = recognise(tmp_path)
    assert (found.kind, found.fault) == ("images", None)
    assert read(tmp_path, found)[0] == ["rose", "tulip"]


@pytest.mark.parametrize(
    "splits", ["Train_Set Val_Set", "train_data valid_data", "1-train 2-val", "data/train data/dev"]
)
def test_split_folders_are_no_classes(tmp_path: Path, splits: str) -> None:
    for split in splits.split():
        pictures(tmp_path, f"{split}/cat", f"{split}/dog")
    (tmp_path / "notes").mkdir()  # beside the folder of the splits, which is not the only one
    found = recognise(tmp_path)
    assert (found.kind, found.classes, found.is_validated, found.samples) == ("images", 2, True, 8)
    assert read(tmp_path, found)[0] == ["cat", "dog"]


@pytest.mark.parametrize(
    "names", [("constrained", "straining"), ("bus", "car"), ("valley", "dawn"), ("device", "tester")]
)
def test_words_around_splits_are_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    pictures(tmp_path, *names)
    found = recognise(tmp_path)
    assert (found.classes, found.is_validated) == (2, False)
    assert [parse_split(name) for name in names] == [None, None]


UNLABELLED: dict[str, Any] = {
    "conversations": lambda i: {
        "conversations": [{"from": "human", "value": f"{TEXTS[i % 3]} {i}"}, {"from": "gpt", "value": TEXTS[i % 2]}]
    },
    "completions": lambda i: {"prompt": f"{TEXTS[i % 3]} {i}", "completion": TEXTS[i % 2]},
    "retrieval": lambda i: {"query": f"{TEXTS[i % 3]} {i}", "pos": [TEXTS[0]], "neg": [TEXTS[1]]},
}


@pytest.mark.parametrize("name", UNLABELLED)
def test_texts_without_labels_name_what_learns(tmp_path: Path, name: str) -> None:
    """Chats, completions, triplets: the proposed line is one that trains."""
    rows = [UNLABELLED[name](i) for i in range(ROWS)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fault = str(recognise(tmp_path).fault)
    line = fault.partition("leanify train own-text ")[2].partition(",")[0].split()
    assert line[::2] == ["--set", "--set"]
    data = start.resolve("own-text", line[1::2]).data
    texts, _ = corpus.find_texts(data, Faults())
    assert TEXTS[0] in str(texts[0])
    assert "leanify shrink CHECKPOINT" in fault


@pytest.mark.parametrize("flags", ["toxic,obscene,threat", "joy,anger,fear,trust", "is_spam,is_ad,is_rude"])
def test_flags_are_learnt_one_by_one(tmp_path: Path, flags: str) -> None:
    """Several columns of 0 and 1: the line for one of them works, and the trainer of all is named."""
    names = flags.split(",")
    values = " ".join(",".join(str((row >> place) & 1) for place in range(len(names))) for row in range(1, 8))
    put(tmp_path, "train.csv", '"{a}",{label}', f"comment_text,{flags}", values=values)
    fault = str(recognise(tmp_path).fault)
    assert f"--set data.label={names[0]}" in fault
    assert "AutoModelForSequenceClassification" in fault
    data = start.resolve("own-sentences", [f"data.path={tmp_path}", f"data.label={names[0]}"]).data
    assert own_texts.read_split_table(data, "train", Faults()).names == ["0", "1"]


def test_text_may_have_a_picture_beside(tmp_path: Path) -> None:
    put(tmp_path, "train.txt", "{a} and {b}", number=100)
    pictures(tmp_path, "cover", number=1)
    assert recognise(tmp_path).kind == "text"


@pytest.mark.parametrize("line", ["He came; it was {i}.", "{a}; {b}; {i}", "{a} | {b}"])
def test_prose_with_marks_is_text(tmp_path: Path, line: str) -> None:
    put(tmp_path, "train.txt", line, number=100)
    assert recognise(tmp_path).kind == "text"


def test_train_may_be_a_vehicle(tmp_path: Path) -> None:
    pictures(tmp_path, "bus", "car", "train")
    found = recognise(tmp_path)
    assert (found.classes, found.samples, found.fault) == (3, 12, None)
    assert read(tmp_path, found)[0] == ["bus", "car", "train"]


@pytest.mark.parametrize("marks", ["1 0", "1.0 0.0", "True False"])
def test_columns_of_classes_are_labels(tmp_path: Path, marks: str) -> None:
    """A single 1 a row, in the last of the columns; a later row of two is a fault, and several labels are none."""
    one, zero = marks.split()
    rows = [",".join(one if place == i % 3 else zero for place in range(3)) for i in range(300)]
    pictures(tmp_path, "images", number=300)
    lines = [f"{i:03},{row}" for i, row in enumerate(rows)]
    table = tmp_path / "train.csv"

    def write() -> None:
        table.write_text("\n".join(["image_id,healthy,rust,scab", *lines]) + "\n")

    write()
    found = recognise(tmp_path)
    classes, where = read(tmp_path, found)
    assert (classes, found.samples) == (["healthy", "rust", "scab"], 300)
    assert "→ label" in where
    assert dict(read_table(table, Faults()))["line 2"]["label"] == "healthy"
    # rows of two labels, after those by which the table is known, and among them
    lines[250] = f"250,{one},{one},{zero}"
    write()
    with pytest.raises(leanify.DataError, match="line 252 has 2 of the classes healthy, rust, scab, not one"):
        list(read_table(table, Faults()))
    lines[5] = lines[250]
    write()
    assert "is not clear" in str(recognise(tmp_path).fault)


def test_columns_of_splits_are_no_labels(tmp_path: Path) -> None:
    pictures(tmp_path, "images", number=30)
    put(tmp_path, "train.csv", "{i:03},{label}", "image_id,is_train,is_test", values="1,0 0,1")
    assert "is_train" not in str(recognise(tmp_path).columns)
    assert recognise(tmp_path).kind is None


def test_labels_may_be_called_id(tmp_path: Path) -> None:
    pictures(tmp_path, "train", number=ROWS)
    put(tmp_path, "train.csv", "{i:03}.png,w_{label}", "Image,Id", values="a1 b2")
    found = recognise(tmp_path)
    assert (found.kind, found.columns) == ("images", (("Image",), "Id"))
    assert read(tmp_path, found)[0] == ["w_a1", "w_b2"]


def test_pixels_and_dates_are_no_texts(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "{label},{i} 2 30 4", "emotion,pixels")
    assert recognise(tmp_path / "a.csv").kind is None
    put(tmp_path, "b.csv", "{label},2{i},Mon Apr 06 22:19:45 PDT 2009,{a}")
    assert recognise(tmp_path / "b.csv").columns == (("column 4",), "column 1")


def test_labels_for_none_are_left_out_of_pictures_too(tmp_path: Path) -> None:
    pictures(tmp_path, "images", number=ROWS)
    put(tmp_path, "train.csv", "images/{i:03}.png,{label}", "image,label", values="cat dog nan n/a")
    found = recognise(tmp_path)
    assert "n/a, nan are none" in found.description
    assert (found.classes, read(tmp_path, found)[0]) == (2, ["cat", "dog"])
