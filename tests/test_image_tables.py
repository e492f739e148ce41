"""Images that a table names or holds, and data sets on disk: the same pixels and classes as the folder's."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from runs import change_json, write_shard

import leanify
from leanify.core.errors import LeanifyError
from leanify.core.recipe import DataSection
from leanify.data.images import tables as image_tables
from leanify.data.images.folder import read, read_picture
from leanify.layouts import hub
from leanify.layouts.recognition import recognise
from leanify.runs.run_directory import RunDirectory
from leanify.training import start as training

CLASSES = {"blue": (0, 0, 200), "red": (200, 0, 0)}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str]]:
    """Eight files, each of another shade, with their classes."""
    folder = tmp_path_factory.mktemp("pixels")
    found = []
    for i in range(8):
        name, (r, g, b) = list(CLASSES.items())[i % 2]
        Image.new("RGB", (16, 16), (r, g + 20 * i, b)).save(folder / f"{i}.png")
        found.append((folder / f"{i}.png", name))
    return found


def as_csv(rows: list[tuple[Path, str]], folder: Path) -> Path:
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "class"), *rows])
    return folder


def as_parquet(rows: list[tuple[Path, str]], folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    cells = [{"image": {"bytes": path.read_bytes(), "path": None}, "label": name} for path, name in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(cells), folder / "train.parquet")
    return folder


def as_named_parquet(rows: list[tuple[Path, str]], folder: Path) -> Path:
    """As `datasets` writes it: the classes are numbers, and their names are in the file's metadata."""
    import datasets

    place = as_data_set(rows, folder)
    datasets.load_from_disk(str(place)).to_parquet(folder / "train.parquet")
    shutil.rmtree(place)
    return folder


def as_data_set(rows: list[tuple[Path, str]], folder: Path) -> Path:
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    cells = {"img": [str(path) for path, _ in rows], "label": [list(CLASSES).index(name) for _, name in rows]}
    datasets.Dataset.from_dict(cells, features=features).save_to_disk(folder / "kept")
    return folder / "kept"


def as_shards(rows: list[tuple[Path, str]], folder: Path) -> Path:
    write_shard(folder / "train-000000.tar", ((path.read_bytes(), name.encode()) for path, name in rows))
    return folder


@pytest.mark.parametrize("write", [as_csv, as_parquet, as_named_parquet, as_data_set])
def test_forms_hold_equal_images(write: Any, rows: list[tuple[Path, str]], tmp_path: Path) -> None:
    place = write(rows, tmp_path)
    (train, validation), names, where = read(DataSection("data", "classification", str(place), holdout=0.25))
    assert names == (list(CLASSES) if write is as_named_parquet else ["blue", "red"])
    assert "→" in where
    assert len(train) == len(validation) == 8
    for index, (path, name) in enumerate(rows):
        pixels, label = read_picture(train, index, "RGB")
        with Image.open(path) as image:
            assert pixels.tobytes() == image.convert("RGB").tobytes()
        assert names[label] == name
    found = recognise(place)
    assert (found.kind, found.classes, found.is_validated) == ("images", 2, False)


def test_table_trains_and_keeps_classes(rows: list[tuple[Path, str]], tmp_path: Path) -> None:
    value = training.resolve(as_csv(rows, tmp_path))
    assert value.model.override["num_classes"] == 2
    small = ["model.override.img_size=16", "model.override.embed_dim=12", "model.override.depth=1", "data.workers=0"]
    run = training.train(value, tmp_path / "run", settings=[*small, "schedule.epochs=1", "data.holdout=0.25"])
    assert RunDirectory.open(run).classes == ["blue", "red"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,kind\na.png,x\n", r"no column of labels; it has path, kind.*--set data\.label=kind"),
        ("name,label\na.png,x\n", "no column of images.*--set data.image=name"),
        ("path,label\na.png,x\n", "one class, x"),
        ("path,label\na.png,\n", "line 2: label is '', no label"),
    ],
)
def test_missing_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "train.csv").write_text(text)
    (tmp_path / "a.png").touch()
    with pytest.raises(leanify.DataError, match=words):
        read(DataSection("data", "classification", str(tmp_path / "train.csv"), holdout=0.5))


def copied(rows: list[tuple[Path, str]], folder: Path) -> list[tuple[Path, str]]:
    folder.mkdir(parents=True)
    return [(Path(shutil.copy(path, folder)), name) for path, name in rows]


def test_every_form_is_fitted_alike(rows: list[tuple[Path, str]], tmp_path: Path) -> None:
    """Size of the pictures, classes and length of the run."""
    fitted = []
    for write in (as_csv, as_parquet, as_data_set, as_shards):
        (tmp_path / write.__name__).mkdir()
        recipe = training.resolve(write(rows, tmp_path / write.__name__))
        fitted.append((recipe.model, recipe.schedule, recipe.data and recipe.data.holdout))
    assert all(one == fitted[0] for one in fitted)
    assert fitted[0][0].override["img_size"] == 16


@pytest.mark.parametrize("missing", [1, 3, 8])
def test_missing_images_are_counted(rows: list[tuple[Path, str]], tmp_path: Path, missing: int) -> None:
    """Before training, with the place of a file of that name."""
    rows = copied(rows, tmp_path / "images")
    place = as_csv(rows, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    for path, _ in rows[:missing]:
        path.rename(tmp_path / "elsewhere" / path.name)
    are = "is" if missing == 1 else "are"
    words = rf"{missing} of 8 images that it names {are} missing, the first: .*{rows[0][0].name}, while elsewhere/"
    with pytest.raises(leanify.DataError, match=words):
        read(DataSection("data", "classification", str(place), holdout=0.25))
    found = recognise(place)
    assert re.search(words, found.description)
    assert (found.fault is not None) is (missing == len(rows))


def test_windows_paths_are_read(rows: list[tuple[Path, str]], tmp_path: Path) -> None:
    lines = [f"new\\inner\\{path.name},{name}" for path, name in copied(rows, tmp_path / "new" / "inner")]
    (tmp_path / "train.csv").write_text("\n".join(["path,label", *lines]))
    (train, _), _, _ = read(DataSection("data", "classification", str(tmp_path), holdout=0.25))
    assert read_picture(train, 3, "RGB")[0].size


def test_numbers_are_no_classes(rows: list[tuple[Path, str]], tmp_path: Path) -> None:
    """An age for each picture was learnt as a class for each age."""
    lines = [f"{path},{number / 4}" for number, (path, _) in enumerate(rows)]
    (tmp_path / "train.csv").write_text("\n".join(["path,age", *lines]))
    with pytest.raises(leanify.DataError, match="labels are numbers, and images are learnt by class"):
        read(DataSection("data", "classification", str(tmp_path), label="age", holdout=0.25))
    found = recognise(tmp_path)
    assert found.fault is not None


def test_columns_can_be_named(rows: list[tuple[Path, str]], tmp_path: Path) -> None:
    """The classes of a table must be known."""
    for split, kinds in (("train", ("a", "b")), ("val", ("a", "c"))):
        lines = [f"{path},{kinds[i % 2]}" for i, (path, _) in enumerate(rows)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["where,what", *lines]))
    data = DataSection("data", "classification", str(tmp_path), image="where", label="what")
    with pytest.raises(leanify.DataError, match=r"has classes that .* lacks: c"):
        read(data)


def test_class_folders_precede_tables(tmp_path: Path) -> None:
    for name in ("images", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").touch()
        (tmp_path / "labels.csv").write_text("image,label\nimages/a.png,cat\n")
        found = recognise(tmp_path)
        by_table = name == "images"
        assert found.description.startswith("1 images (image)") == by_table
        assert image_tables.is_image_table(tmp_path, "train") == by_table
    (tmp_path / "labels.csv").rename(tmp_path / "train.csv")  # beside folders of images to train and to test on
    found = recognise(tmp_path)
    assert found.description.startswith("1 images (image)")
    assert image_tables.is_image_table(tmp_path, "train")


@pytest.mark.parametrize("outside", ["splits", "files", "none"])
def test_saved_sets_name_own_files_only(outside: str, rows: list[tuple[Path, str]], tmp_path: Path) -> None:
    """`datasets` opens whatever the JSON files of a folder name."""
    (tmp_path / "other").mkdir()
    other = as_data_set(rows, tmp_path / "other")
    (tmp_path / "mine").mkdir()
    place = as_data_set(rows, tmp_path / "mine")
    if outside == "files":
        file = f"../../other/kept/{next(other.glob('*.arrow')).name}"
        change_json(place / "state.json", _data_files=[{"filename": file}])
    else:
        splits = ["../../other/kept"] if outside == "splits" else []
        (place / "state.json").unlink()
        (place / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    with pytest.raises(LeanifyError, match="no splits or no rows" if outside == "none" else "leads out of it"):
        hub.load_saved(place)
