"""Layouts whose labels are elsewhere, or are no classes: masks, boxes, choices, several labels, files of their own."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from leanify.data.texts import own_texts
from leanify.layouts.faults import Faults
from leanify.layouts.own_data import NamedColumns
from leanify.layouts.recognition import recognise
from leanify.training import start
from leanify.training.default_recipe import parse_columns
from tests.test_layouts_of_data import ROWS, pictures, put, read


@pytest.mark.parametrize("names", [("with_mask", "without_mask"), ("mask", "no_mask"), ("label", "barcode")])
def test_masks_may_be_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    pictures(tmp_path, *names)
    assert recognise(tmp_path).classes == 2


@pytest.mark.parametrize("sides", ["xmin,ymin,xmax,ymax", "x1,y1,x2,y2", "left,top,width,height"])
@pytest.mark.parametrize("is_single", [True, False])
def test_rows_of_boxes_are_no_classes(tmp_path: Path, sides: str, is_single: bool) -> None:
    """Several rows of a picture are boxes; one row each is a class, as of Stanford's cars."""
    pictures(tmp_path, "images", number=ROWS)
    name = "{i:03}.png" if is_single else "{label}.png"
    line = f"{name},1,2,3,4,class{{label}}"
    put(tmp_path, "train.csv", line, f"filename,{sides},class", values="000 001 002 003 004 005")
    found = recognise(tmp_path)
    assert (found.kind == "images") == is_single
    assert is_single or "boxes in pictures" in str(found.fault)


SEVERAL = {
    "bars": "drama drama|war war crime|drama|war",
    "commas": "earn earn,acq acq earn,acq,ship",
    "words": "clear clear_road haze_road clear_road_water haze road haze_water".replace("_", "~"),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_labels_of_a_row_are_said(tmp_path: Path, name: str) -> None:
    """Each combination would be a class of its own: it is one where the line is typed."""
    rows = SEVERAL[name].split(" ")
    put(tmp_path, "train.csv", '"{a}","{label}"', "text,genres", values=SEVERAL[name], number=50)
    file = tmp_path / "train.csv"
    file.write_text(file.read_text().replace("~", " "))
    fault = str(recognise(tmp_path).fault)
    assert "several labels" in fault
    assert "data.label=" in fault
    data = start.resolve("own-sentences", [f"data.path={tmp_path}", "data.label=genres"]).data
    assert len(own_texts.read_split_table(data, "train", Faults()).names) == len(rows)


@pytest.mark.parametrize(
    "labels",
    ["disagree~agree~strongly agree~strongly disagree", "pug~golden retriever~labrador retriever", "1,5~2~2,5~3"],
)
def test_labels_of_several_words_are_classes(tmp_path: Path, labels: str) -> None:
    rows = [{"text": "a fine day", "label": value} for value in labels.split("~")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(rows[i % len(rows)]) + "\n" for i in range(ROWS)))
    assert recognise(tmp_path).fault is None


@pytest.mark.parametrize("files", [("train_text.txt", "train_labels.txt"), ("X_train.csv", "y_train.csv")])
def test_labels_in_a_file_of_their_own_are_joined(tmp_path: Path, files: tuple[str, str]) -> None:
    """Texts without their labels are no language model's: the line that is proposed makes a table that is read."""
    for name, line in zip(files, ("{a} and {b}", "{label}"), strict=True):
        header = name[0] if name.endswith(".csv") else ""
        put(tmp_path, name, line, header, number=50, values="up down")
    found = recognise(tmp_path)
    assert found.kind is None
    line = str(found.fault).partition("join them to a table, for each split, ")[2]
    subprocess.run(["bash", "-c", line], check=True)
    assert (recognise(tmp_path / "train.tsv").classes, recognise(tmp_path / "train.tsv").kind) == (2, "sentences")


@pytest.mark.parametrize("names", [("cardstrain", "cardstest"), ("TrainDogs", "ValidDogs"), ("mytrain", "mydev")])
def test_words_joined_to_others_are_splits(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        pictures(tmp_path, f"pictures/{name}/cat", f"pictures/{name}/dog")
        put(tmp_path, f"tables/{name}.csv", '"{a}",{label}', "text,label")
    for folder in ("pictures", "tables"):
        found = recognise(tmp_path / folder)
        assert (found.fault, found.classes, found.is_validated) == (None, 2, True)
        assert len(read(tmp_path / folder, found)[0]) == 2


@pytest.mark.parametrize("split", ["val/images", "valid", "test/imgs"])
def test_split_without_classes_is_left_out(tmp_path: Path, split: str) -> None:
    pictures(tmp_path, "train/n01/images", "train/n02/images", split)
    found = recognise(tmp_path)
    assert (found.fault, found.classes, found.is_validated) == (None, 2, False)
    assert "is left out" in found.description
    assert read(tmp_path, found)[0] == ["n01", "n02"]


@pytest.mark.parametrize("indent", [None, 2])
def test_class_by_picture_in_an_object(tmp_path: Path, indent: int | None) -> None:
    pictures(tmp_path, "images", number=ROWS)
    labels = {f"{i:03}.png": ("rose", "tulip")[i % 2] for i in range(ROWS)}
    (tmp_path / "train.json").write_text(json.dumps(labels, indent=indent))
    found = recognise(tmp_path)
    assert (found.kind, found.samples, found.fault) == ("images", ROWS, None)
    assert read(tmp_path, found)[0] == ["rose", "tulip"]


def test_text_files_may_be_of_a_class_each(tmp_path: Path) -> None:
    """A text in each line is of its file's class, or without labels what a language model learns."""
    for name in ("ham", "not ham"):
        put(tmp_path, f"{name}.txt", "{a} & {b}")
    assert "If each file is a class, write train.tsv" in str(recognise(tmp_path).fault)
    assert recognise(tmp_path, NamedColumns(task="causal-lm")).kind == "text"


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ("PassengerId,Survived,Pclass,Name,Age,Fare", '9{i},{label},3,"Heikkinen, Miss. Laina {i}",2{i},7.{i}'),
        ("address,rooms,area,price,class", '"{i} Main Street",{label},8{i},9{i}.5,{label}'),
        ("mpg,horsepower,weight,car name,origin", "1{label}.5,9{i},350{i},chevrolet malibu {i},{label}"),
    ],
)
def test_tables_of_numbers_are_no_texts(tmp_path: Path, header: str, line: str) -> None:
    put(tmp_path, "train.csv", line, header)
    found = recognise(tmp_path)
    assert found.kind is None
    assert "is a table of numbers" in str(found.fault)
    command = str(found.fault).partition("learnt with leanify compare ")[2]
    settings = [word for word in shlex.split(command) if word.startswith("data.")]
    assert recognise(tmp_path, parse_columns(settings)).kind == "sentences"


def test_texts_beside_numbers_stay_texts(tmp_path: Path) -> None:
    put(tmp_path, "train.csv", '{i},1{label}.5,9{i},350{i},"{a}",{label}', "id,price,votes,helpful,review,label")
    assert recognise(tmp_path).classes == 2


@pytest.mark.parametrize(
    ("values", "classes"),
    [("0,2 0,3 1,2", 3), ("3 0,2 2 1,2 0,3", 5), ("1,2 2,4 1,4", 3), ("0,5 1,5 2,5", None), ("3,2 4,25 0,8", None),
     ("0,25 1,5 0,75", None)],
)  # fmt: skip
def test_commas_are_lists_or_decimals(tmp_path: Path, values: str, classes: int | None) -> None:
    """Two labels of a text are several, a decimal comma is a number."""
    put(tmp_path, "train.tsv", "{a}\t{label}", "text\tlabel", values=values)
    found = recognise(tmp_path)
    assert found.classes == classes
    assert (found.fault is None) == (classes is None)
