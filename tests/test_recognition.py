"""What lies at a path: images by class, labelled texts, text; what trains on it, and why nothing can."""

from __future__ import annotations

import cProfile
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import leanify
from leanify.cli import app
from leanify.cli.train import train
from leanify.core import recipe as recipes
from leanify.core.errors import RecipeError
from leanify.core.recipe import DataSection
from leanify.data.images import folder as image_folder
from leanify.data.texts import own_texts
from leanify.data.texts.own_texts import LabelledTable
from leanify.layouts.faults import Faults
from leanify.layouts.recognition import recognise
from leanify.training import default_recipe, preparation
from leanify.training import start as training


def images(folder: Path, *classes: str, number: int = 3) -> Path:
    """Files with the names of images; what looks for data does not open them."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(number):
            (folder / name / f"{i}.png").touch()
    return folder


@pytest.mark.parametrize(
    ("name", "text", "kind", "classes", "words"),
    [
        ("train.tsv", "review\tstars\na\t1.5\nb\t2\n", "sentences", None, "(review) with labels (stars, a number)"),
        (
            "train.jsonl", '{"Premise": "a", "hypothesis": "b", "label": "x"}\n', "sentences", 1,
            "Premise and hypothesis",
        ),
        ("train.txt", "all of it", "text", None, "9 bytes"),
    ],
)  # fmt: skip
def test_tables_and_texts_are_recognised(
    tmp_path: Path, name: str, text: str, kind: str, classes: int | None, words: str
) -> None:
    (tmp_path / name).write_text(text)
    for place in (tmp_path, tmp_path / name):
        found = recognise(place)
        assert (found.kind, found.classes) == (kind, classes)
        assert words in found.description


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "", "\0\n"])
def test_unknown_folders_are_nothing(tmp_path: Path, text: str) -> None:
    assert recognise(tmp_path / "train.csv").kind is None
    (tmp_path / "train.csv").write_text(text)
    assert recognise(tmp_path).kind is None


def test_show_names_the_next_command(tmp_path: Path, monkeypatch: Any) -> None:
    """`show` with data says what to type."""
    images(tmp_path / "pics", "cat", "dog")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(leanify.SourceError, match=r"leanify train pics\n") as raised:
        app("show")(args=["pics"], prog_name="leanify", standalone_mode=False)
    assert "6 images of 2 classes (cat, dog)" in str(raised.value)
    assert "leanify compare pics" in str(raised.value)


def test_data_has_its_own_recipe(tmp_path: Path) -> None:
    value = training.resolve(images(tmp_path / "pics", "cat", "dog", number=500))
    assert value.model.override["num_classes"] == 2
    assert (value.data.path, value.data.holdout, value.schedule.epochs) == (str(tmp_path / "pics"), 0.2, 30)
    usual = training.resolve("vit_tiny", [f"data.path={tmp_path / 'pics'}"])
    assert (usual.model.override, usual.data.holdout) == ({"num_classes": 2}, 0.1)
    (tmp_path / "train.csv").write_text("text,score\na,1.5\nb,2\n")
    value = training.resolve(tmp_path / "train.csv")
    assert value.data.task == "text-regression"
    assert json.dumps(recipes.from_dict(value.to_dict()).to_dict()) == json.dumps(value.to_dict())


def test_recipe_refuses_other_kinds(tmp_path: Path) -> None:
    """A recipe of own data does not become another one in silence; labelled texts are texts, too."""
    (tmp_path / "texts.csv").write_text("text\n" + "a sentence without a label\n" * 60)
    (tmp_path / "labelled.csv").write_text("text,label\n" + "a good film,pos\na bad film,neg\n" * 30)
    for name, file, right in (
        ("own-sentences", "texts.csv", "own-text"),
        ("own-images", "texts.csv", "own-text"),
        ("own-images", "labelled.csv", "own-sentences"),
    ):
        with pytest.raises(
            RecipeError, match=rf"{name} does not take .*{file}.*: leanify train {right} --set data.path="
        ):
            training.resolve(name, [f"data.path={tmp_path / file}"])
    recipe = training.resolve("own-text", [f"data.path={tmp_path / 'labelled.csv'}"])
    assert recipe.data.task == "causal-lm"


def test_work_grows_with_depth_alone(tmp_path: Path) -> None:
    """A folder without data is explained by what lies a few folders below, not by all ways through its folders."""
    counts = []
    for below in (10, 40):
        place = tmp_path / str(below)
        for _ in range(below):
            place = place / "more"
            place.mkdir(parents=True)
            (place / "notes.bin").touch()
        profile = cProfile.Profile()
        assert profile.runcall(recognise, tmp_path / str(below)).kind is None
        counts.append(sum(entry.callcount for entry in profile.getstats()))
    assert counts[1] < 8 * counts[0]


# -- what nobody can train on, and tables under the names that people give them ----------------------------------------

TEXTS = [f"{('a fine and sunny day', 'a dull and rainy night')[i % 2]} {i}" for i in range(40)]


def csv(path: Path, header: str, row: Any, number: int = 40, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(row(i) for i in range(number))]) + "\n", encoding=encoding)
    return path


def labelled(path: Path, number: int = 40) -> Path:
    return csv(path, "text,label", lambda i: f"{TEXTS[i]},{'xy'[i % 2]}", number)


def pictures(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / name)


CASES: dict[str, tuple[Any, str]] = {
    "empty": (lambda place: None, "it is empty. It looks for images or texts in DIR/CLASS/"),
    "archive": (lambda place: (place / "a.tar.gz").touch(), "a.tar.gz is packed: unpack it"),
    "json": (lambda place: (place / "train.json").write_text("[]"), "train.json has no rows"),
    "workbook": (lambda place: (place / "train.xlsx").touch(), "save it as .csv"),
    "no rows": (lambda place: csv(place / "train.csv", "text,label", str, 0), "train.csv has no rows"),
    "columns": (
        lambda place: csv(place / "train.csv", "head,stars,story,end", lambda i: f"no {i},{i % 2},{TEXTS[i]},so {i}"),
        """--set 'data.text=["story"]' --set data.label=stars""",
    ),
    "numbers": (lambda place: csv(place / "a.csv", "a,b", lambda i: f"{i / 3},{i % 2}"), "has texts of several words"),
    "one folder": (
        lambda place: pictures(place, "a/0.png", "a/1.png"),
        "has one folder of images, a; with one folder",
    ),
    "splits": (lambda place: pictures(place, "val/a/0.png", "test/a/1.png"), "val, are named as splits"),
    "texts by year": (
        lambda place: [labelled(place / year / month / "a.txt") for year in ("2023", "2024") for month in ("a", "b")],
        "found 2023, 2024. It looks for images or texts in DIR/CLASS/ or DIR/train/CLASS/",
    ),
    "one class": (lambda place: csv(place / "train.csv", "text,label", lambda i: "a b,x"), "of one class: two or more"),
}


@pytest.mark.parametrize("case", CASES)
def test_unrecognised_data_gives_reason(tmp_path: Path, case: str) -> None:
    make, words = CASES[case]
    make(tmp_path)
    with pytest.raises(leanify.SourceError) as caught:
        train(str(tmp_path))
    assert words in str(caught.value)
    assert "leanify train" not in str(caught.value), "it is what was typed"


def test_text_needs_no_suffix(tmp_path: Path) -> None:
    """enwik8 and text8 have none; other bytes under such a name are no text."""
    (tmp_path / "text8").write_text(" ".join(TEXTS * 2))
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 20)
    assert recognise(tmp_path / "text8").kind == "text"
    with pytest.raises(leanify.LeanifyError, match=r"noise has nothing that leanify can train on: it is not text\."):
        train(str(tmp_path / "noise"))


def test_device_file_is_named() -> None:
    with pytest.raises(leanify.SourceError, match="/dev/null"):
        train("/dev/null")


def test_proposed_columns_work(tmp_path: Path) -> None:
    CASES["columns"][0](tmp_path)
    named = default_recipe.parse_columns(['data.text=["story"]', "data.label=stars"])
    found = recognise(tmp_path, named)
    assert (found.task, found.classes) == ("text-classification", 2)


def test_unlabelled_test_table_does_not_validate(tmp_path: Path) -> None:
    labelled(tmp_path / "train.csv")
    csv(tmp_path / "test.csv", "id,text", lambda i: f"{i},{TEXTS[i]}")
    found = recognise(tmp_path)
    assert not found.is_validated
    assert f"{tmp_path / 'test.csv'} has no column label and is left out" in found.description
    data = default_recipe.data_recipe(found, str(tmp_path)).data
    assert data.holdout == 0.2
    labelled(tmp_path / "test.csv")
    found = recognise(tmp_path)
    assert found.is_validated
    assert f"validated on {tmp_path / 'test.csv'}" in found.description


def test_other_format_split_validates(tmp_path: Path) -> None:
    labelled(tmp_path / "train.csv")
    (tmp_path / "dev.jsonl").write_text(json.dumps({"text": "a b", "label": "x"}) + "\n")
    assert recognise(tmp_path).is_validated


def test_unlabelled_rows_are_counted(tmp_path: Path) -> None:
    """They are no class of their own."""
    csv(tmp_path / "train.csv", "text,label", lambda i: f"{TEXTS[i]},{['x', 'y', ''][i % 3]}", 39)
    found = recognise(tmp_path)
    assert found.classes == 2
    assert "2 classes: x, y" in found.description
    assert "13 rows without a label" in found.description
    data = DataSection("data", "text-classification", path=str(tmp_path), on_error="skip")
    assert len(LabelledTable.read(tmp_path / "train.csv", data, Faults(skip=True)).rows) == 26


def test_damaged_rows_are_counted(tmp_path: Path) -> None:
    csv(tmp_path / "train.csv", "text,label", lambda i: f"{TEXTS[i]},x{',more' * (i == 3)}")
    found = recognise(tmp_path)
    assert "39 rows of texts" in found.description
    assert "1 row cannot be read, the first: " in found.description


def test_parquet_shards_are_one_table(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    names = [f"train-{i:05}-of-00003" for i in range(3)] + ["validation-00000-of-00001"]
    for start, name in enumerate(names):
        rows = [{"text": TEXTS[i], "label": i % 2} for i in range(10 * start, 10 * start + 10)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    found = recognise(tmp_path)
    assert (found.kind, found.is_validated, found.samples, found.classes) == ("sentences", True, 30, 2)
    assert "(of 3 shards)" in found.description
    data = DataSection("data", "text-classification", path=str(tmp_path))
    tables = [own_texts.read_split_table(data, split, Faults()) for split in ("train", "validation")]
    assert [list(table.lines) for table in tables] == [TEXTS[:30], TEXTS[30:]]


def test_image_column_takes_any_name(tmp_path: Path) -> None:
    pictures(tmp_path, *(f"images/{i}.png" for i in range(12)))
    csv(tmp_path / "list.csv", "shot,kind", lambda i: f"images/{i}.png,{'xy'[i % 2]}", 12)
    found = recognise(tmp_path)
    assert (found.kind, found.classes, found.samples) == ("images", 2, 12)
    assert found.settings == ["data.image=shot", "data.label=kind"]
    for recipe in (training.resolve(str(tmp_path)), training.resolve("vit_tiny", [f"data.path={tmp_path}"])):
        assert recipe.data is not None
        data = recipes.apply_settings(recipe, [f"data.path={json.dumps(str(tmp_path))}"]).data
        assert data is not None
        readers, classes, _ = image_folder.read(data)
        assert ([len(reader) for reader in readers], classes) == ([12, 12], ["x", "y"])


@pytest.mark.filterwarnings("ignore:.*has no weights")
def test_validation_source_is_shown(tmp_path: Path) -> None:
    """What is held out of training, and a table whose name says that it is for something else."""
    small = [f"model.override.{key}" for key in ("num_hidden_layers=1", "hidden_size=32", "num_attention_heads=2")]
    labelled(tmp_path / "train.csv")

    def said() -> str:
        recipe = training.resolve("bert", [f"data.path={tmp_path}", *small])
        assert recipe.data is not None
        return own_texts.splits(recipe.data, preparation.build_model(recipe)).description

    assert said().endswith("36 samples to train and 4 held out to validate")
    labelled(tmp_path / "test.csv", 10)
    assert said().endswith("40 samples to train and 10 of test.csv to validate")
    labelled(tmp_path / "dev.csv", 8)
    assert said().endswith("40 samples to train and 8 to validate")


def test_texts_are_not_images(tmp_path: Path) -> None:
    labelled(tmp_path / "train.csv")
    data = DataSection("data", "classification", path=str(tmp_path), holdout=0.1)
    with pytest.raises(leanify.DataError, match=r"has texts \(text\) .* leanify train bert --set data\.path="):
        image_folder.read(data)


def test_lists_of_labels_are_no_texts(tmp_path: Path) -> None:
    """A model that takes labels is not trained on the texts alone, unless that is the task."""
    (tmp_path / "train.jsonl").write_text('{"text": "a red ball", "label": ["red", "round"]}\n')
    with pytest.raises(leanify.DataError, match="lists in its column label"):
        training.resolve("bert", [f"data.path={tmp_path}"])
    recipe = training.resolve("bert", [f"data.path={tmp_path}", "data.task=masked-lm"])
    assert recipe.data.task == "masked-lm"
