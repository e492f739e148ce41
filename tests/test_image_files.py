"""Folders of images as people have them: what counts as an image, as a class, as a split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leanify.data.found import recognise
from leanify.data.images import files as image_files
from leanify.data.images import folder as image_folder
from leanify.errors import DataError
from leanify.runs.recipe import DataSection


def image(path: Path, colour: tuple[int, int, int] = (200, 0, 0), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), colour).convert(mode).save(path)
    return path


def test_what_is_found_is_what_is_read_whatever_the_format_and_depth(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for suffix in ("png", "JPG", "jpeg", "webp", "gif", "bmp", "tif", "tiff"):
            image(tmp_path / name / f"plain.{suffix}")
        image(tmp_path / name / "deep" / "deeper" / "a.png")
        image(tmp_path / name / "cat" / "b.png")  # below dog/ it is a dog
        (tmp_path / name / "._plain.png").write_bytes(b"resource fork")
    found = recognise(tmp_path)
    assert found is not None
    readers, classes, _ = image_folder.read(DataSection("data", "classification", path=str(tmp_path), holdout=0.1))
    assert (found.samples, len(readers[0]), classes) == (20, 20, ["cat", "dog"])
    for path, label in readers[0].samples:
        assert Path(path).relative_to(tmp_path).parts[0] == classes[label]
    assert {image_folder.opened(readers[0], index, "RGB")[0].getpixel((4, 4))[0] > 190 for index in range(20)} == {True}


def test_samples_stand_in_the_order_of_timm(tmp_path: Path) -> None:
    from timm.data import create_dataset

    for name in ("b", "a10", "a2"):
        for i in (10, 9, 1):
            image(tmp_path / name / f"{i}.png")
    ours = image_files.ImageFiles(tmp_path, {"a2": 0, "a10": 1, "b": 2})
    theirs = create_dataset("", root=str(tmp_path), search_split=False, class_map={"a2": 0, "a10": 1, "b": 2}).reader
    assert ours.samples == theirs.samples
    assert [ours.filename(i, absolute=False) for i in range(9)] == [theirs.filename(i) for i in range(9)]


@pytest.mark.parametrize(
    ("train", "validation"), [("Training", "Validation"), ("train", "dev"), ("TRAIN", "VAL"), ("train", "eval")]
)
def test_splits_by_their_usual_names(tmp_path: Path, train: str, validation: str) -> None:
    for name in ("cat", "dog"):
        image(tmp_path / train / name / "a.png")
        image(tmp_path / validation / name / "b.png")
    found = recognise(tmp_path)
    assert found is not None
    assert (found.validated, found.samples, found.classes) == (True, 2, 2)
    readers, classes, _ = image_folder.read(DataSection("data", "classification", path=str(tmp_path)))
    assert ([len(reader) for reader in readers], classes) == ([2, 2], ["cat", "dog"])


def test_folders_named_as_splits_are_not_classes(tmp_path: Path) -> None:
    image(tmp_path / "val" / "cat" / "a.png")
    image(tmp_path / "Test" / "cat" / "a.png")
    assert recognise(tmp_path) is None


def test_the_same_folders_in_every_class_are_mentioned(tmp_path: Path) -> None:
    for outer in ("group0", "group1"):
        for inner in ("cat", "dog"):
            image(tmp_path / outer / inner / "a.png")
    found = recognise(tmp_path)
    assert found is not None
    assert "2 classes (group0, group1)" in found.description
    assert "each of these folders has the folders cat, dog" in found.description


def test_sixteen_bits_keep_their_grey(tmp_path: Path) -> None:
    grey = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    for suffix, values in (("png", grey), ("tiff", grey), ("tiff", grey.astype(np.int32))):
        path = tmp_path / f"a.{suffix}"
        Image.fromarray(values).save(path)
        seen = np.asarray(image_folder.decoded(path, "RGB", path))
        assert (seen == (grey >> 8)[..., None]).all()


def test_pixels_of_an_unknown_range_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tiff"
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(path)
    with pytest.raises(DataError, match=r"0\.5 to 0\.5"):
        image_folder.decoded(path, "RGB", path)
