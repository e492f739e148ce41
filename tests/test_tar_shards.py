"""Images in tar shards: the same images, each read once by any number of processes; damage is one message."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from runs import refused

import leanify
from leanify.core.errors import DataError, SourceError
from leanify.core.recipe import DataSection
from leanify.data.images.folder import read, read_picture
from leanify.layouts.recognition import check_is_no_data, recognise

NAMES = ("blue", "green", "red")
SIZE = 8


def picture(number: int) -> bytes:
    """A picture that its first pixel tells from all others."""
    from PIL import Image

    held = io.BytesIO()
    Image.new("RGB", (SIZE, SIZE), (number, 40 * (number % 3), 7)).save(held, "png")
    return held.getvalue()


def add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))


def write(path: Path, numbers: range, label: Any = lambda number: ("cls", str(number % 3).encode())) -> None:
    with tarfile.open(path, "w") as shard:
        for number in numbers:
            add(shard, f"./{number:06d}.png", picture(number))
            kind, content = label(number)
            add(shard, f"./{number:06d}.{kind}", content)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three shards of 20 to train, one of 9 to validate."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        write(folder / f"train-{number:06d}.tar", range(20 * number, 20 * number + 20))
    write(folder / "val-000000.tar", range(60, 69))
    return folder


def section(place: Path, **more: Any) -> DataSection:
    return DataSection("data", "classification", str(place), **more)


def first_pixels(files: Any) -> list[int]:
    return [read_picture(files, index, "RGB")[0].getpixel((0, 0))[0] for index in range(len(files))]


def test_shards_round_trip_images(place: Path) -> None:
    for _ in range(2):  # by headers, then by the index that is kept
        (train, validation), names, where = read(section(place))
        assert names == ["0", "1", "2"]
        assert "3 shards" in where
        assert first_pixels(train) == list(range(60))
        assert first_pixels(validation) == list(range(60, 69))
        assert [read_picture(train, index, "RGB")[1] for index in range(60)] == [index % 3 for index in range(60)]
    write(place / "train-000001.tar", range(100, 110))
    assert first_pixels(read(section(place))[0][0]) == [*range(20), *range(100, 110), *range(40, 60)]


@pytest.mark.parametrize("kind", ["txt", "json"])
def test_class_is_number_name_or_field(tmp_path: Path, kind: str) -> None:
    def label(number: int) -> tuple[str, bytes]:
        name = NAMES[number % 3]
        return kind, json.dumps({"width": 8, "label": name}).encode() if kind == "json" else f"{name}\n".encode()

    write(tmp_path / "train.tar", range(12), label)
    (train, _), names, _ = read(section(tmp_path, holdout=0.25))
    assert tuple(names) == NAMES
    assert [read_picture(train, index, "RGB")[1] for index in range(12)] == [index % 3 for index in range(12)]


def test_archive_beside_folders_is_ignored(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "0.png").write_bytes(picture(1))
    write(tmp_path / "train.tar", range(12))
    found = recognise(tmp_path)
    assert (found.classes, found.samples) == (3, 3)
    assert read(section(tmp_path, holdout=0.3))[1] == [*NAMES]


def cut_off(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[: 39 * 512 + 60])


def unlabelled(shard: Path) -> None:
    write(shard, range(3), lambda number: ("seg", b"0"))


def linked(shard: Path) -> None:
    """Links, pipes and names that lead out are no images."""
    with tarfile.open(shard, "w") as file:
        for name, kind in (("../../out.png", tarfile.SYMTYPE), ("pipe.png", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            file.addfile(member)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_off, "is no tar archive that can be read|goes beyond the end of the file"),
        (lambda shard: shard.write_bytes(gzip.compress(shard.read_bytes())), "compressed ones must be unpacked"),
        (lambda shard: shard.write_bytes(b"\x93" * 4096), "is no tar archive that can be read"),
        (unlabelled, "has no label: expected cls or txt or json beside it"),
        (linked, "have no image with a label"),
    ],
)
def test_damaged_shards_are_one_message(tmp_path: Path, damage: Any, words: str) -> None:
    write(tmp_path / "train.tar", range(12))
    damage(tmp_path / "train.tar")
    with refused(DataError, words):
        read(section(tmp_path, holdout=0.25))


def test_shard_that_links_to_itself_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar").symlink_to("train-000000.tar")
    assert "Too many levels of symbolic links" in str(recognise(tmp_path).fault)
    with pytest.raises(DataError, match="Too many levels of symbolic links"):
        leanify.train("vit_tiny", settings=[f"data.path={tmp_path}"], output=tmp_path / "run")


def test_missing_split_is_named(place: Path) -> None:
    """What has no label can be skipped."""
    (place / "val-000000.tar").unlink()
    with pytest.raises(DataError, match=r"validation.*data\.holdout=0\.1"):
        read(section(place))
    with tarfile.open(place / "train-000002.tar", "a") as shard:
        add(shard, "999.png", picture(99))
    with pytest.raises(DataError, match=r"999 .*train-000002\.tar .*label"):
        read(section(place, holdout=0.1))
    (train, _), _, _ = read(section(place, holdout=0.1, on_error="skip"))
    assert first_pixels(train) == list(range(60))


def test_archives_of_folders_are_refused_at_once(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w") as shard:
        for number in range(4):
            add(shard, f"pets/{NAMES[number % 2]}/{number}.png", picture(number))
    with pytest.raises(SourceError, match=r"no image with a label .* beside it; folders of classes must be unpacked"):
        check_is_no_data(str(tmp_path))
