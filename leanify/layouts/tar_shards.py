"""Images in tar shards, as WebDataset writes them: KEY.jpg and KEY.cls in train-000000.tar, ….

The shards' headers are read once and kept as an index in the cache; an image is then read from its place in a
shard. Order, resuming and the division over processes are therefore the same as for any other data set. KEY.cls or
KEY.txt holds a class as text, KEY.json as ``label`` or another usual name. Does not import torch.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leanify.core.errors import DataError
from leanify.core.files.cache import Arrays, load_or_make
from leanify.core.files.reading import open_file
from leanify.layouts import columns
from leanify.layouts.faults import Faults
from leanify.layouts.split_names import parse_split, synonyms

LABEL_ENDINGS = ("cls", "txt", "json")
LONGEST = 1 << 16  # bytes of a label's file that are read
NAME = 1000  # characters of a class; a caption is none
NUMBERED = re.compile(r".*\d{3}")  # names of shards without their endings
FORMAT = 2  # of the index in the cache


@dataclass(frozen=True)
class Piece:
    """An image's place in a shard."""

    shard: Path
    key: str
    start: int
    size: int

    def open(self) -> io.BytesIO:
        with open_file(self.shard, DataError) as file:
            file.seek(self.start)
            return io.BytesIO(file.read(self.size))

    def __str__(self) -> str:
        return f"{self.key} in {self.shard}"


class Pieces(Sequence[Piece]):
    """The images of shards by index; holds numbers alone, some 48 bytes an image and its key."""

    def __init__(self, shards: Sequence[Path], index: Arrays) -> None:
        self.shards, self.rows, self.keys = shards, index["rows"], index["keys"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Piece:  # type: ignore[override]
        shard, start, size, first, last, _ = self.rows[place].tolist()
        return Piece(self.shards[shard], self.keys[first:last].tobytes().decode("utf-8", "replace"), start, size)


def find_shards(place: Path, split: str) -> list[Path]:
    """The shards of a split: SPLIT*.tar in a folder, *.tar in its folder SPLIT, numbered ones, or the file named."""
    if place.is_file():
        return [place] if place.suffix == ".tar" else []
    for name in synonyms(split):
        if shards := sorted(place.glob(f"{name}*.tar")) or sorted((place / name).glob("*.tar")):
            return shards
    # the split's word among others, imagenet-train-000000.tar; numbered ones without a split's are to train on
    splits: dict[str | None, list[Path]] = {}
    for shard in sorted(place.glob("*.tar")):
        if NUMBERED.fullmatch(shard.stem):
            parse = parse_split(shard.stem)
            splits.setdefault(None if parse is None else parse[0], []).append(shard)
    names = [name for name in synonyms(split) if name in splits]
    return splits[names[0]] if names else splits.get(None, []) if split == "train" else []


def read(shards: Sequence[Path], faults: Faults) -> tuple[Pieces, list[str]]:
    """The images of shards and their labels as text. Raises DataError."""
    # the index of the shards is kept in the cache
    facts: list[Any] = []
    for shard in shards:
        stat = shard.stat()  # before the links are followed: of a link to itself an OSError
        facts.append([str(shard.resolve()), stat.st_size, stat.st_mtime_ns])
    index, _ = load_or_make("shards", {"shards": facts, "format": FORMAT}, lambda: _build_index(shards))
    names, labels = json.loads(index["names"].tobytes()), index["rows"][:, LABEL]
    # pictures without a label are reported, and left out
    for place in np.flatnonzero(labels < 0).tolist():
        faults.record(
            f"{Pieces(shards, index)[place]} has no label: expected {' or '.join(LABEL_ENDINGS)} beside it, with "
            f"a class of at most {NAME:,} characters"
        )
    places = np.flatnonzero(labels >= 0)
    if not len(places):
        raise DataError(
            f"{shards[0]} and the like have no image with a label (.{', .'.join(LABEL_ENDINGS)}) beside it; folders of "
            "classes must be unpacked"
        )
    return Pieces(shards, {**index, "rows": index["rows"][places]}), [names[label] for label in labels[places].tolist()]


LABEL = 5  # the column of a row that numbers the label; −1 without a label


def _build_index(shards: Sequence[Path]) -> Arrays:
    """Rows of numbers, and texts as bytes behind one another: an array of texts pads each to the longest."""
    # numbers of each picture: shard, start, size, place of its key, label
    rows: list[tuple[int, ...]] = []
    numbers: dict[str, int] = {"": -1}
    keys = io.BytesIO()
    for number, shard in enumerate(shards):
        for key, start, size, label in _members(shard):
            first = keys.tell()
            keys.write(key.encode("utf-8", "replace"))
            label_number = numbers.setdefault(label if len(label) <= NAME else "", len(numbers) - 1)
            rows.append((number, start, size, first, keys.tell(), label_number))
    names = json.dumps(list(numbers)[1:]).encode()
    return {
        "rows": np.array(rows, np.int64).reshape(-1, LABEL + 1),
        "keys": np.frombuffer(keys.getvalue(), np.uint8),
        "names": np.frombuffer(names, np.uint8),
    }


class _Member(tarfile.TarInfo):
    """A member without a negative size, which would lead back to where its reader came from, for ever."""

    def _block(self, count: int) -> int:
        if count < 0:
            raise ValueError("a member has a negative size")
        return super()._block(count)  # type: ignore[misc,no-any-return]


def _members(shard: Path) -> Iterator[tuple[str, int, int, str]]:
    """Key, start, size and label ("" if there is none) of a shard's images. Raises DataError."""
    # places of pictures and labels, by the key that they share
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, str] = {}
    try:
        with open_file(shard, DataError) as raw, tarfile.open(fileobj=raw, mode="r:", tarinfo=_Member) as file:
            for member in file:
                if not member.isreg():
                    continue
                folder, _, name = member.name.rpartition("/")
                stem, _, kind = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                kind = kind.lower()
                if f".{kind}" in columns.IMAGES:
                    images[key] = member.offset_data, member.size
                elif kind in LABEL_ENDINGS and (key not in labels or kind == LABEL_ENDINGS[0]):
                    labels[key] = _label(file, member, kind)
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{shard} is no tar archive that can be read ({error}); compressed ones must be unpacked"
        ) from error
    # a picture that goes beyond the end of its shard was cut off
    shard_size = shard.stat().st_size
    for key, (start, size) in images.items():
        if start + size > shard_size:
            raise DataError(f"{key} in {shard} goes beyond the end of the file: the shard is cut off")
        yield key, start, size, labels.get(key, "")


def _label(file: tarfile.TarFile, member: tarfile.TarInfo, kind: str) -> str:
    content = file.extractfile(member)
    text = content.read(LONGEST).decode("utf-8", "replace").strip() if content is not None else ""
    if kind != "json":
        return text
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    name = columns.match_column((*columns.LABELS, "cls"), list(row)) if isinstance(row, dict) else None
    return "" if name is None else columns.parse_label(row[name]) or ""
