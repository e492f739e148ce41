"""Recognise the user's data at a path: images, labelled or tagged texts, plain text. No torch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from leanify.data.faults import Faults
from leanify.data.images.files import folder_of_split, images_below, splits_among
from leanify.data.tables import columns, guessing
from leanify.data.tables.rows import Row, rows_of_table
from leanify.errors import DataError
from leanify.runs.files import few, read_json
from leanify.upstream.wall import wall

Kind = Literal["images", "sentences", "text"]
SOME = 1000  # rows of a table that are read
SHOWN = 6  # classes listed by name


@dataclass(frozen=True)
class Found:
    """The data found at a path."""

    kind: Kind
    description: str  # with counts and names
    validated: bool  # whether there is a validation split
    task: str | None = None  # for labelled sentences
    classes: int | None = None  # their number, if known
    samples: int | None = None  # of the training split, if known
    columns: tuple[tuple[str, ...], str] | None = None  # of texts or images, and of labels, if guessed by cells
    words: int | None = None  # of a long text: 95% of those read are shorter; None if not known
    vocabulary: int | None = None  # different words in the texts read

    @property
    def settings(self) -> list[str]:
        """The columns for a recipe, where their names alone do not say them."""
        if self.columns is None:
            return []
        texts, label = self.columns
        samples = f"data.image={json.dumps(texts[0])}" if self.kind == "images" else f"data.text={json.dumps(texts)}"
        return [samples, f"data.label={json.dumps(label)}"]

    @property
    def recipe(self) -> str:
        """The built-in recipe for this kind of data, small enough for a laptop."""
        return f"own-{self.kind}"


@dataclass(frozen=True)
class Named:
    """What the user said of a table: columns of texts, images and labels, task; the rest is guessed."""

    texts: tuple[str, ...] = ()
    label: str | None = None
    task: str | None = None
    image: str | None = None

    def texts_in(self, names: Sequence[str]) -> tuple[str, ...]:
        return self.texts if self.texts and set(self.texts) <= set(names) else columns.texts_in(names)

    def label_in(self, names: Sequence[str]) -> str | None:
        if self.label is not None and (self.label in names or guessing.flags_of(self.label, names)):
            return self.label
        return columns.one_of(columns.LABELS, names)

    def picture_in(self, row: Row) -> str | None:
        """The column of images: the one asked for, one of a usual name, the only one with such cells."""
        asked = self.image if self.image in row else columns.one_of(columns.PICTURES, list(row))
        if asked is not None and (_is_picture(row[asked]) or self.image == asked):
            return asked
        fits = [name for name in row if isinstance(name, str) and _is_picture(row[name])]
        return fits[0] if len(fits) == 1 else None

    def tagged_in(self, row: Mapping[str, Any]) -> tuple[str, str] | None:
        tokens = self.texts[:1] or columns.TOKENS
        return columns.tagged_in(row, tokens, (self.label,) if self.label else columns.TAGS)


GUESSED = Named()


def recognise(path: str | Path, named: Named = GUESSED) -> Found | None:
    """Recognise the data in a file or folder; None if there is none of a known kind."""
    place = Path(path).expanduser()
    try:
        if place.is_file():
            return _file(place, None, named)
        return _folder(place, named) if place.is_dir() else None
    except (OSError, DataError):
        return None


def _folder(place: Path, named: Named) -> Found | None:
    if any((place / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return _on_disk(place)
    train = folder_of_split(place, "train") or place
    counts = _images_by_folder(train)
    if len(counts) > 1 and not splits_among(list(counts)):
        return _of_classes(place, train, counts)
    from leanify.data.images import tar_shards  # imports numpy

    if shards := tar_shards.of(place, "train"):
        return _of_shards(place, shards)
    tables = (*columns.TABLES, *columns.CONLL)
    file = columns.file_of(place, "train", (*tables, ".txt")) or columns.only_file(place, tables)
    if file is not None:
        kinds = tables if file.suffix in tables else (".txt", *columns.TABLES)
        return _file(file, columns.file_of(place, "validation", kinds), named)
    texts = sorted(place.glob("*.txt"))
    if len(texts) == 1:
        return _file(texts[0], None, named)
    return Found("text", f"{len(texts)} text files in {place}", False) if texts else None


def _of_shards(place: Path, shards: Sequence[Path]) -> Found:
    """Tar shards; without a number of classes where they are damaged, which their reader reports."""
    from leanify.data.images import tar_shards  # imports numpy

    text = f"{_times(len(shards), 'tar shard')} of images in {place}"
    samples = classes = None
    with contextlib.suppress(DataError, OSError):
        _, labels = tar_shards.read(shards, Faults(skip=True))
        samples, classes = len(labels), len(set(labels))
        text += f", {samples:,} images of {classes:,} classes"
    return Found("images", text, bool(tar_shards.of(place, "validation")), classes=classes, samples=samples)


def _on_disk(place: Path) -> Found | None:
    """A data set saved by ``datasets``' save_to_disk, if its features include an image and a class label."""
    with wall(f"{place} is no data set", DataError):
        splits, part = [], place
        if not (place / "state.json").is_file():  # a data set of several splits
            splits = read_json(place / "dataset_dict.json", DataError)["splits"]
            part = place / ("train" if "train" in splits else splits[0])
        features = read_json(part / "dataset_info.json", DataError)["features"]
        first: dict[str, str] = {}  # the first column of each type
        for name, feature in features.items():
            if isinstance(feature, dict):
                first.setdefault(str(feature.get("_type")), name)
        if "Image" not in first or "ClassLabel" not in first:
            return None
        label = first["ClassLabel"]
        names = features[label]["names"]
        classes = f"{len(names):,} classes ({label}: {few(names, SHOWN)})"
        text = f"a data set of images ({first['Image']}) of {classes} in {place}"
        validated = any(name in splits for name in columns.SPLITS["validation"])
        return Found("images", text, validated, classes=len(names))


def _of_classes(place: Path, train: Path, counts: Mapping[str, int]) -> Found:
    names, samples = sorted(counts), sum(counts.values())
    description = f"{samples:,} images of {len(names):,} classes ({few(names, SHOWN)}) in {train}"
    inside = _same_folders([train / name for name in names])
    if inside:
        description += f"; each of these folders has the folders {few(inside)}: if those are the classes, name one of "
        description += "the outer ones"
    other = folder_of_split(place, "validation") if train != place else None
    if other is not None:
        description += f", {sum(_images_by_folder(other).values()):,} in {other}"
    return Found("images", description, other is not None, classes=len(names), samples=samples)


def _folders(place: Path) -> Iterator[Path]:
    return (Path(entry.path) for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))


def _images_by_folder(place: Path) -> dict[str, int]:
    """The number of images in each folder of a folder, where it has any."""
    counts = {folder.name: sum(1 for _ in images_below(folder)) for folder in _folders(place)}
    return {name: count for name, count in counts.items() if count}


def _same_folders(classes: Sequence[Path]) -> list[str]:
    """The folders in every class, where all have the same two or more and no image beside them; else []."""
    shared: list[str] | None = None
    for place in classes:
        inside = sorted(folder.name for folder in _folders(place))
        if len(inside) < 2 or shared not in (None, inside):
            return []
        if any(path.name.lower().endswith(columns.IMAGES) for path in place.iterdir()):
            return []
        shared = inside
    return shared or []


def _file(file: Path, validation: Path | None, named: Named) -> Found | None:
    """What a file has, which may be validated on another one."""
    if file.suffix in (".txt", ".text"):
        return Found("text", f"text in {file} ({file.stat().st_size:,} bytes)", validation is not None)
    if file.suffix not in (*columns.TABLES, *columns.CONLL):
        return None
    faults = Faults(skip=True)
    rows = [row for _, row in islice(rows_of_table(file, faults), SOME)]
    found = _of_rows(file, rows, validation, named)
    if found is None or not faults.names:
        return found
    more = f"; {_times(len(faults.names), 'row')} cannot be read, the first: {faults.names[0]}"
    return replace(found, description=found.description + more)


def _of_rows(file: Path, rows: Sequence[Row], validation: Path | None, named: Named) -> Found | None:
    """What the rows of a table are: tagged sentences, labelled images, labelled texts, or texts alone."""
    if not rows:
        return None
    tagged = named.tagged_in(rows[0])
    if tagged is not None:
        return _validated(_tagged(file, rows, *tagged), validation, tagged[1])
    names = list(rows[0])
    by_name = texts, label = named.texts_in(names), named.label_in(names)
    picture = named.picture_in(rows[0])
    if picture is not None:
        answer = label or guessing.label_in(rows, (picture,))
        if answer is not None:
            found = _validated(_labelled(file, rows, "images", (picture,), answer), validation, answer)
            named_so = (picture, answer) == (columns.one_of(columns.PICTURES, names), label)
            return found if named_so else replace(found, columns=((picture,), answer))
    if named.task not in columns.WITHOUT_LABELS:
        texts = texts or guessing.text_in(rows)
        if texts and (label is None or (label in texts and named.label is None)):
            label = guessing.label_in(rows, texts)
    if texts and label is not None:
        found = _validated(_labelled(file, rows, "sentences", texts, label), validation, label)
        return found if by_name == (texts, label) else replace(found, columns=(texts, label))
    if not by_name[0]:
        return None
    rest = "; a label is learnt if its column is named, --set data.label=COLUMN" if len(names) > len(texts) else ""
    return Found("text", f"texts in {file} (column {texts[0]}{rest})", validation is not None)


def _validated(found: Found, validation: Path | None, label: str) -> Found:
    """The same, validated on a table if that has the labels: one to be tested on often has none."""
    if validation is None:
        return found
    first = next((row for _, row in rows_of_table(validation, Faults(skip=True))), {})
    has = label in first or bool(guessing.flags_of(label, list(first)))
    end = f", validated on {validation}" if has else f"; {validation} has no column {label} and is left out"
    return replace(found, validated=has, description=found.description + end)


def _labelled(file: Path, rows: Sequence[Row], kind: Kind, of: tuple[str, ...], label: str) -> Found:
    """Images or texts (the columns ``of``) with one label each, several, or a number."""
    flags = guessing.flags_of(label, list(rows[0]))
    order = columns.class_names(file, label)
    cells: list[Any] = []
    for row in rows:
        cells.append(guessing.flags_set(row, flags) if flags else columns.by_class_name(row.get(label), order))
    task: str | None = None if kind == "images" else "text-classification"
    without = 0
    if task and columns.have_several(cells):
        task, separator = "multi-label-classification", columns.separator_of(cells)
        names = flags or _distinct(columns.labels_of(cell, separator) for cell in cells)
        what = f"any number of {len(names)} labels: {few(names, SHOWN)}"
    else:
        labels = [columns.label_of(cell) for cell in cells]
        without = labels.count(None)
        names = columns.in_order({name for name in labels if name is not None}, order)
        what = f"{len(names)} classes: {few(names, SHOWN)}"
    classes: int | None = len(names)
    if task != "multi-label-classification" and _are_scores(names):
        task, classes, what = task and "text-regression", None, "a number"
    samples = "images" if kind == "images" else "rows of texts"
    name = "columns of 0 and 1" if flags else label
    description = f"{_many(rows)} {samples} ({' and '.join(of)}) with labels ({name}, {what})"
    description += f" in {columns.described(file)}"
    if without:
        description += f"; {_times(without, 'row')} without a label: skip such rows with --set data.on_error=skip"
    found = Found(kind, description, False, task, classes, _count(rows))
    if kind == "images":
        return found
    vocabulary: set[str] = set()
    lengths = []
    for row in rows:
        words = " ".join(str(row.get(name, "")) for name in of).lower().split()
        vocabulary.update(words)
        lengths.append(len(words))
    long = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    return replace(found, words=long, vocabulary=len(vocabulary))


def _tagged(file: Path, rows: Sequence[Row], tokens: str, tags: str) -> Found:
    order = columns.class_names(file, tags)
    names = _distinct(columns.parts_of(columns.by_class_name(row.get(tags), order)) for row in rows)
    tagged = f"sentences ({tokens}) with a tag for each token ({tags}, {len(names)} tags: {few(names, SHOWN)})"
    description = f"{_many(rows)} {tagged} in {columns.described(file)}"
    return Found("sentences", description, False, "token-classification", len(names), _count(rows))


def _distinct(cells: Iterable[Sequence[str] | None]) -> list[str]:
    """All names in some cells, sorted."""
    names: set[str] = set()
    for cell in cells:
        names.update(cell or ())
    return sorted(names)


def _count(rows: Sequence[Any]) -> int | None:
    """The number of rows; None where there may be more than were read."""
    return len(rows) if len(rows) < SOME else None


def _many(rows: Sequence[Any]) -> str:
    return f"{len(rows):,}" if len(rows) < SOME else f"{SOME:,} or more"


def _times(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _is_picture(cell: Any) -> bool:
    """Whether a cell is the name of an image file, or image bytes as in Parquet files of ``datasets``."""
    if isinstance(cell, str):
        return cell.lower().endswith(columns.IMAGES)
    return isinstance(cell, bytes) or (isinstance(cell, dict) and "bytes" in cell)


def _are_scores(labels: Sequence[str]) -> bool:
    """Whether all labels are numbers, and one has a fraction."""
    numbers = [columns.number_in(label) for label in labels]
    return None not in numbers and any(number is not None and number % 1 for number in numbers)
