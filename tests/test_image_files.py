"""Folders of images as people have them: what counts as an image, as a class, as a split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from timm.data import create_dataset

from leanify.core.errors import DataError, SourceError
from leanify.core.recipe import DataSection
from leanify.data.images import folder as image_folder
from leanify.data.images.decoding import Decoder
from leanify.layouts import image_files
from leanify.layouts.recognition import check_is_no_data, recognise


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (200, 0, 0)).save(path)


def test_recognised_images_are_read(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for suffix in ("png", "JPG", "jpeg", "webp", "gif", "bmp", "tif", "tiff"):
            image(tmp_path / name / f"plain.{suffix}")
        image(tmp_path / name / "deep" / "deeper" / "a.png")
        image(tmp_path / name / "cat" / "b.png")  # below dog/ it is a dog
        (tmp_path / name / "._plain.png").write_bytes(b"resource fork")
    found = recognise(tmp_path)
    readers, classes, _ = image_folder.read(DataSection("data", "classification", path=str(tmp_path), holdout=0.1))
    assert (found.samples, len(readers[0]), classes) == (20, 20, ["cat", "dog"])
    for path, label in readers[0].samples:
        assert Path(path).relative_to(tmp_path).parts[0] == classes[label]
    pictures = [image_folder.read_picture(readers[0], index, "RGB")[0] for index in range(20)]
    assert all(picture.getpixel((4, 4))[0] > 190 for picture in pictures)


def test_samples_follow_timms_order(tmp_path: Path) -> None:
    for name in ("b", "a10", "a2"):
        for i in (10, 9, 1):
            image(tmp_path / name / f"{i}.png")
    ours = image_files.ImageFiles(tmp_path, {"a2": 0, "a10": 1, "b": 2})
    theirs = create_dataset("", root=str(tmp_path), search_split=False, class_map={"a2": 0, "a10": 1, "b": 2}).reader
    assert ours.samples == theirs.samples
    assert [ours.filename(i, absolute=False) for i in range(9)] == [theirs.filename(i) for i in range(9)]


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        ("cat dog", "each of these folders has the folders cat, dog"),
        ("train val", "folders train, val: their images are mixed, unless you move them"),
    ],
)
def test_shared_subfolders_are_mentioned(tmp_path: Path, folders: str, words: str) -> None:
    for outer in ("group0", "group1"):
        for inner in folders.split():
            image(tmp_path / outer / inner / "a.png")
    found = recognise(tmp_path)
    assert "2 classes (group0, group1)" in found.description
    assert words in found.description


def test_sixteen_bits_keep_grey(tmp_path: Path) -> None:
    grey = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    for suffix, values in (("png", grey), ("tiff", grey), ("tiff", grey.astype(np.int32))):
        path = tmp_path / f"a.{suffix}"
        Image.fromarray(values).save(path)
        seen = np.asarray(Decoder()(path, "RGB", path))
        assert (seen == np.round(grey / 257)[..., None]).all()


def test_unknown_pixel_range_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tiff"
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(path)
    with pytest.raises(DataError, match=r"0\.5 to 0\.5"):
        Decoder()(path, "RGB", path)


@pytest.mark.parametrize(
    "name", [".ipynb_checkpoints", ".thumbnails", "__MACOSX", "@eaDir", "#recycle", "@Recycle", "thumbnails", "_cache"]
)
def test_tool_folders_are_no_classes(tmp_path: Path, name: str) -> None:
    """What is proposed and what is read are the same."""
    for folder in ("cat", "dog", name, f"cat/{name}"):
        image(tmp_path / "train" / folder / "a.png")
        image(tmp_path / "val" / folder / "a.png")
    image(tmp_path / name / "a.png")
    found = recognise(tmp_path)
    assert (found.classes, found.samples, found.is_validated) == (2, 2, True)
    readers, classes, _ = image_folder.read(DataSection("data", "classification", path=str(tmp_path)))
    assert ([len(reader) for reader in readers], classes) == ([2, 2], ["cat", "dog"])


def test_poor_classes_are_mentioned(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        image(tmp_path / "train" / name / "a.png")
        image(tmp_path / "val" / name / "a.png")
    image(tmp_path / "train" / "dog" / "b.png")
    image(tmp_path / "val" / "fish" / "a.png")
    (tmp_path / "train" / "bird").mkdir()
    found = recognise(tmp_path)
    assert "one image alone in cat" in found.description
    assert "val has classes that training lacks (fish)" in found.fault
    assert f"there is no image in {tmp_path / 'train' / 'bird'}: remove the folder" in found.fault


@pytest.mark.parametrize("split", ["train", "val"])
def test_empty_class_is_refused_at_once(tmp_path: Path, split: str) -> None:
    """The line that would be proposed ends with the same words."""
    for name in ("train/cat", "train/dog", "val/cat", "val/dog"):
        image(tmp_path / name / "a.png")
    (tmp_path / split / "owl" / ".ipynb_checkpoints").mkdir(parents=True)
    with pytest.raises(SourceError, match=rf"no image in \S+/{split}/owl: remove the folder$"):
        check_is_no_data(str(tmp_path))
    with pytest.raises(DataError, match=r"the class owl in .* has no images .*: remove the folder"):
        image_folder.read(DataSection("data", "classification", path=str(tmp_path)))


def test_unread_kinds_are_counted(tmp_path: Path) -> None:
    """Photos of a telephone beside others; and a class whose name is a tool's."""
    for name in ("cats", "dogs", "cache"):
        for number in range(2):
            image(tmp_path / name / f"{number}.png")
    for number in range(3):
        (tmp_path / "cats" / f"{number}.HEIC").touch()
    found = recognise(tmp_path)
    assert found.samples == 4
    assert "files that are not read: 3 .heic" in found.description
    assert "cache is left out as a tool's folder" in found.description
    for path in tmp_path.rglob("*.png"):
        path.unlink()
    assert recognise(tmp_path).kind is None
    assert "it has files that are not read: 3 .heic" in recognise(tmp_path).fault
