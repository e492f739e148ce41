"""What lies at a path: images by class, labelled texts, text; and what trains on it."""

from __future__ import annotations

import cProfile
import json
from pathlib import Path
from typing import Any

import pytest

import leanify
from leanify.cli import app
from leanify.core import recipe as recipes
from leanify.core.errors import RecipeError
from leanify.layouts.recognition import recognise
from leanify.training import start as training


def images(folder: Path, *classes: str, number: int = 3) -> Path:
    """Files with the names of images; what looks for data does not open them."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(number):
            (folder / name / f"{i}.png").touch()
    return folder


def test_images_are_recognised_by_class(tmp_path: Path) -> None:
    images(tmp_path / "flat", "cat", "dog")
    found = recognise(tmp_path / "flat")
    assert (found.kind, found.is_validated, found.classes, found.samples) == ("images", False, 2, 6)
    images(tmp_path / "split" / "train", "cat", "dog", "fox")
    images(tmp_path / "split" / "val", "cat", "dog", "fox", number=1)
    found = recognise(tmp_path / "split")
    assert (found.kind, found.is_validated, found.classes, found.samples) == ("images", True, 3, 9)
    assert "(cat, dog, fox)" in found.description
    assert recognise(images(tmp_path / "one", "cat")).kind is None
    assert recognise(tmp_path / "nowhere").kind is None


@pytest.mark.parametrize(
    ("name", "text", "kind", "classes", "words"),
    [
        ("train.csv", "text,label\na b,1\nc d,0\n", "sentences", 2, "(text) with labels (label, 2 classes: 0, 1)"),
        ("train.tsv", "review\tstars\na\t1.5\nb\t2\n", "sentences", None, "(review) with labels (stars, a number)"),
        (
            "train.jsonl", '{"Premise": "a", "hypothesis": "b", "label": "x"}\n', "sentences", 1,
            "Premise and hypothesis",
        ),
        ("train.csv", "text,id\na b,1\n", "text", None, "column text"),
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
