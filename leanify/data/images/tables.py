"""Images in tables: CSV, TSV or JSON with paths, Parquet with bytes, tar shards, data sets saved by ``datasets``.

``data.image`` and ``data.label`` name the columns; by default they are guessed by name. Parquet
images are kept in memory, still encoded; images of ``datasets`` are memory-mapped.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from leanify.core.errors import DataError
from leanify.core.files.reading import open_file
from leanify.core.recipe import DataSection
from leanify.data.common import HOLD_OUT
from leanify.layouts import columns, hub, image_files, tar_shards
from leanify.layouts.faults import Faults
from leanify.layouts.rows import find_table, labels_pictures, read_table
from leanify.layouts.split_names import synonyms

SOME = 1000  # rows by which the folder of the pictures is found


class Rows:
    """A table of images with the interface of a timm reader: index → (open file, class)."""

    def __init__(self, place: Path, pictures: Sequence[Any], labels: Sequence[int]) -> None:
        self.place, self.pictures, self.labels = place, pictures, np.array(labels)

    def relabel(self, numbers: Sequence[int]) -> None:
        """Give each class another number: ``numbers`` has the new one of each."""
        self.labels = np.array(numbers)[self.labels]

    def __len__(self) -> int:
        return len(self.labels)

    def filename(self, index: int, absolute: bool = True) -> str:
        picture = self.pictures[index]
        return str(picture) if isinstance(picture, Path | tar_shards.Piece) else f"{self.place}, row {index + 1}"

    def size(self, index: int) -> int:
        """The bytes of an image, as stored; −1 where only reading it tells."""
        if isinstance(self.pictures, Column):
            return int(self.pictures.sizes[index])
        picture = self._stored(index)
        if isinstance(picture, tar_shards.Piece):
            return picture.size
        return len(picture) if isinstance(picture, bytes) else image_files.file_size(picture)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture, label = self._stored(index), int(self.labels[index])
        if isinstance(picture, tar_shards.Piece):
            return picture.open(), label
        return (io.BytesIO(picture) if isinstance(picture, bytes) else open_file(picture, DataError)), label

    def _stored(self, index: int) -> Any:
        """An image's bytes, its path, or its place in a shard."""
        picture = self.pictures[index]
        if not isinstance(picture, dict):
            return picture
        return picture["bytes"] if isinstance(picture.get("bytes"), bytes) else Path(picture["path"])


class Column:
    """A lazily read column of images in a data set on disk, as they are stored."""

    def __init__(self, rows: Any, name: str) -> None:
        self.rows, self.name = rows.cast_column(name, hub.library("it").Image(decode=False)), name

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index][self.name]

    @cached_property
    def sizes(self) -> np.ndarray:
        """The bytes of each image; −1 for those that are paths."""
        import pyarrow.compute

        cells = self.rows.with_format("arrow")[:][self.name]
        lengths = pyarrow.compute.binary_length(pyarrow.compute.struct_field(cells, "bytes"))
        sizes: np.ndarray = pyarrow.compute.fill_null(lengths, -1).to_numpy()
        return sizes


def first_pictures(place: Path, column: str | None, count: int) -> Rows:
    """Pictures of a folder, of tar shards, or of a table by a column or one of a usual name; all are of class 0."""
    pictures: Any = []
    file = find_table(place, "train") if is_image_table(place, "train") else None
    if hub.is_saved(place):
        rows = next(iter(hub.load_saved(place).values()))
        pictures = Column(rows, column or hub.columns_by_type(rows)["Image"])
    elif place.is_dir() and file is None and (files := list(islice(image_files.find_images(place), count))):
        pictures = files
    elif shards := tar_shards.find_shards(place, "train"):
        pictures, _ = tar_shards.read(shards, Faults(skip=True))
    elif file is not None:
        rows = [row for _, row in islice(read_table(file, Faults(skip=True)), count)]
        name: Any = column or (columns.match_column(columns.PICTURES, list(rows[0])) if rows else None)
        cells = [row.get(name) for row in rows]
        folder = image_files.find_picture_folder(file, cells) or image_files.PictureFolder(file.parent)
        pictures = [picture for picture in map(folder.parse, cells) if picture is not None]
    return Rows(place, pictures, [0] * min(count, len(pictures)))


def is_image_table(place: Path, split: str) -> bool:
    """Whether a path has a table of images or a data set on disk, rather than folders of classes."""
    if hub.is_saved(place) or place.is_file():
        return True
    classes = image_files.find_class_folders(place, split)
    if classes is not None and classes != place:
        return False  # folders of classes, even if the folder also has tables
    if tar_shards.find_shards(place, split):
        return True
    table = find_table(place, split)
    return table is not None and (classes is None or labels_pictures(table, place, split))


def readers(data: DataSection, place: Path) -> tuple[list[Rows], list[str], str]:
    """Readers for training, validation and test, the classes, and a description. Raises DataError."""
    splits = data.needed_splits()
    # what `datasets` saved, or tar shards
    if hub.is_saved(place):
        return _read_saved(data, place, splits)
    if tar_shards.find_shards(place, data.train):
        return _read_shards(data, place, splits)
    # a table for each split; one table may serve two
    tables, read, about, order = [], {}, "", tuple[str, ...]()
    for split in splits:
        file = find_table(place, split)
        if file is None:
            raise DataError(f"{place} has no table for {split}; {HOLD_OUT}")
        if file not in read:  # one table may be two splits
            read[file] = _read(file, data)
        pictures, labels, source, names = read[file]
        tables.append((file, pictures, labels))
        about, order = about or source, order or names
    return _number_classes(tables, about, order)


def _read(file: Path, data: DataSection) -> tuple[list[Any], list[str], str, tuple[str, ...]]:
    """Return the images, the labels as text, their columns described, and the order of labels, if known."""
    # columns are chosen by the first row
    faults, cells = Faults(data.on_error == "skip"), list[tuple[str, Any, Any]]()
    image, label, order = "", "", tuple[str, ...]()
    for place, row in read_table(file, faults):
        if not image:
            image, label = _columns(file, list(row), data)
            order = columns.class_names(file, label)
        cells.append((place, row.get(image), columns.name_class(row.get(label), order)))
    # cells are paths relative to the table, or to a folder next to it
    first_cells = [cell for _, cell, _ in cells[:SOME]]
    folder = image_files.find_picture_folder(file, first_cells) or image_files.PictureFolder(file.parent)
    pictures, labels = [], []
    for place, cell, answer in cells:
        picture, kind = folder.parse(cell), columns.parse_label(answer)
        if picture is None:
            faults.record(f"{file}, {place}: {image} is {cell!r:.40}, no image")
        elif kind is None:
            faults.record(f"{file}, {place}: {label} is {answer!r:.40}, no label")
        else:
            pictures.append(picture)
            labels.append(kind)
    # a label that means "no label" is not a class
    missing = columns.missing_labels(labels, order)
    pictures = [picture for picture, kind in zip(pictures, labels, strict=True) if kind not in missing]
    labels = [kind for kind in labels if kind not in missing]
    if not pictures:
        raise DataError(f"{file} has no row with an image and a label")
    count, sentence = image_files.describe_missing(file, pictures)
    if count and not faults.skip:
        raise DataError(f"{file}: {sentence}; correct the table", ", or skip such rows with --set data.on_error=skip")
    return pictures, labels, f"({image} → {label})", order


def _columns(file: Path, candidates: Sequence[str], data: DataSection) -> tuple[str, str]:
    image = data.image or columns.match_column(columns.PICTURES, candidates)
    label = data.label or columns.match_column(columns.LABELS, candidates)
    if image is None and (texts := columns.guess_texts(candidates)):
        raise DataError(
            f"{file} has texts ({' and '.join(texts)}) and no column of images: an image model cannot learn from it; a "
            f"text model can, leanify train bert --set data.path={quote(str(file))}. "
            "--set data.image=COLUMN names images"
        )
    requests = (image,) if image else (), (label,) if label else ()
    names = columns.pick_columns(
        file, candidates, image=(requests[0], columns.PICTURES), label=(requests[1], columns.LABELS)
    )
    return names["image"][0], names["label"][0]


def _number_classes(
    tables: Sequence[tuple[Path, Any, list[str]]], source: str, order: Sequence[str] = ()
) -> tuple[list[Rows], list[str], str]:
    """Readers with labels turned into indices of the first table's classes, in this order or sorted."""
    # classes are numbered in the first table's order; no other table may have more
    first = tables[0][0]
    names = columns.sort_labels(set(tables[0][2]), order)
    if columns.are_scores(names):
        raise DataError(f"{first}: {image_files.NUMBERS}")
    if len(names) < 2:
        raise DataError(f"{first} has only one class, {names[0]}; classification needs two or more")
    number = {name: index for index, name in enumerate(names)}
    numbered_rows = []
    for file, pictures, labels in tables:
        unknown = sorted(set(labels) - set(names))
        if unknown:
            raise DataError(f"{file} has classes that {first} lacks: {', '.join(unknown[:5])}")
        numbered_rows.append(Rows(file, pictures, [number[label] for label in labels]))
    return numbered_rows, names, f"{first} {source}"


def _read_shards(data: DataSection, place: Path, splits: Sequence[str]) -> tuple[list[Rows], list[str], str]:
    tables: dict[str, tuple[Path, Any, list[str]]] = {}
    for split in dict.fromkeys(splits):
        shards = tar_shards.find_shards(place, split)
        if not shards:
            raise DataError(f"{place} has no shards for {split}, {split}-*.tar; {HOLD_OUT}")
        tables[split] = (place, *tar_shards.read(shards, Faults(data.on_error == "skip")))
    count = len(tar_shards.find_shards(place, splits[0]))
    return _number_classes([tables[split] for split in splits], f"({count} shard{'s' * (count != 1)})")


def _read_saved(data: DataSection, place: Path, splits: Sequence[str]) -> tuple[list[Rows], list[str], str]:
    saved_splits = hub.load_saved(place)
    # a column of undecoded pictures and the labels' names, for each split
    tables = []
    for split in splits:
        name = next((name for name in synonyms(split) if name in saved_splits), None)
        if name is None:
            raise DataError(f"{place} has no split {split}; it has {', '.join(saved_splits)}. {HOLD_OUT.capitalize()}")
        rows = saved_splits[name]
        image, label = _columns(place, rows.column_names, data)
        name_of = getattr(rows.features[label], "int2str", str)
        tables.append((place, Column(rows, image), [name_of(value) for value in rows[label]]))
    return _number_classes(tables, f"({image} → {label})")
