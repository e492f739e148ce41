"""Recognise the user's data at a path: images, labelled texts, plain text. No torch."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from leanify.core.errors import DataError
from leanify.core.files.reading import preview, text_encoding
from leanify.data import hub
from leanify.data.faults import Faults
from leanify.data.images.files import (
    NUMBERS,
    are_split_names,
    count_images,
    describe_missing,
    describe_unread,
    find_images,
    find_split_folder,
    is_tool_folder,
    parse_picture,
)
from leanify.data.tables import columns, guessing
from leanify.data.tables.rows import Row, read_table

Kind = Literal["images", "sentences", "text"]
SOME = 1000  # rows of a table by which it is recognised
MAX_COUNTED = 30_000  # rows of a table that are counted: a longer one is seen a few times, whatever its length
MAX_NAMES = 6  # classes listed by name
MAX_LABEL = 200  # characters of a label
MIN_TEXT = 1024  # bytes of a text of which a model learns anything
MANY_CLASSES, FEW_SAMPLES = 20, 3  # classes, and the samples that each of them needs on average
LISTS = (
    "several labels of a text, or a tag for each token, are learnt by transformers' Trainer, lean models included: "
    "AutoModelForSequenceClassification, AutoModelForTokenClassification"
)


class SeveralLabels(DataError):
    """A table's labels are lists, which no task here learns."""


@dataclass(frozen=True)
class OwnData:
    """The data found at a path."""

    kind: Kind
    description: str  # with counts and names
    is_validated: bool  # whether there is a validation split
    task: str | None = None  # for labelled sentences
    classes: int | None = None  # their number, if known
    samples: int | None = None  # of the training split, if known
    columns: tuple[tuple[str, ...], str] | None = None  # of texts or images, and of labels, if guessed by cells
    words: int | None = None  # of a long text: 95% of those read are shorter; None if not known
    vocabulary: int | None = None  # different words in the texts read
    fault: str | None = None  # what must be mended before it can be trained on

    @property
    def settings(self) -> list[str]:
        """The columns for a recipe, where their names alone do not say them."""
        if self.columns is None:
            return []
        texts, label = self.columns
        samples = f"data.image={json.dumps(texts[0])}" if self.kind == "images" else f"data.text={json.dumps(texts)}"
        return [samples, f"data.label={json.dumps(label)}"]


@dataclass(frozen=True)
class NamedColumns:
    """The user's settings for a table: columns of texts, images and labels, task; the rest is guessed."""

    texts: tuple[str, ...] = ()
    label: str | None = None
    task: str | None = None
    image: str | None = None

    def text_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        return self.texts if self.texts and set(self.texts) <= set(names) else columns.guess_texts(names)

    def label_column(self, names: Sequence[str]) -> str | None:
        if self.label in names:
            return self.label
        return columns.match_column(columns.LABELS, names)

    def picture_column(self, row: Row) -> str | None:
        """The column of images: the one asked for, one of a usual name, the only one with such cells."""
        column = self.image if self.image in row else columns.match_column(columns.PICTURES, list(row))
        if column is not None and (_is_picture(row[column]) or self.image == column):
            return column
        fits = [name for name in row if isinstance(name, str) and _is_picture(row[name])]
        return fits[0] if len(fits) == 1 else None


NO_COLUMNS = NamedColumns()


def recognise(path: str | Path, selection: NamedColumns = NO_COLUMNS) -> OwnData | None:
    """Recognise the data in a file or folder; None if there is none of a known kind.

    Raises SeveralLabels where the labels of a table are lists.
    """
    place = Path(path).expanduser()
    try:
        if place.is_file():
            return _describe_file(place, None, selection)
        return _describe_folder(place, selection) if place.is_dir() else None
    except SeveralLabels:
        raise
    except (OSError, DataError):
        return None


def _describe_folder(place: Path, selection: NamedColumns) -> OwnData | None:
    # data that `datasets` saved
    if hub.is_saved(place):
        return _describe_saved(place)
    # pictures in a folder for each class, unless a table called train names them
    train = find_split_folder(place, "train") or place
    others: Counter[str] = Counter()
    counts = count_images(_folders(train), others)
    with_images = {name: count for name, count in counts.items() if count}
    if len(with_images) > 1 and not are_split_names(list(with_images)):
        table = columns.find_split_file(place, "train", columns.TABLES) if train == place else None
        by_table = None if table is None else _describe_file(table, None, selection)
        if by_table is None or by_table.kind != "images":
            return _describe_classes(place, train, counts, others)
    # pictures in tar shards
    from leanify.data.images import tar_shards  # imports numpy

    if shards := tar_shards.find_shards(place, "train"):
        return _describe_shards(place, shards)
    # a table, or a text file for each split
    file = columns.find_split_file(place, "train", (*columns.TABLES, ".txt")) or columns.only_file(
        place, columns.TABLES
    )
    if file is not None:
        kinds = columns.TABLES if columns.is_table(file) else (".txt", *columns.TABLES)
        return _describe_file(file, columns.find_split_file(place, "validation", kinds), selection)
    # a single text file, or several without a split
    texts = columns.text_files(place)
    if len(texts) == 1:
        return _describe_file(texts[0], None, selection)
    return OwnData("text", f"{len(texts)} text files in {place}", False) if texts else None


def _describe_shards(place: Path, shards: Sequence[Path]) -> OwnData:
    """Describe tar shards; damaged ones have no number of classes."""
    from leanify.data.images import tar_shards  # imports numpy

    text = f"{_count(len(shards), 'tar shard')} of images in {place}"
    samples = classes = fault = None
    try:
        _, labels = tar_shards.read(shards, Faults(skip=True))
        samples, classes = len(labels), len(set(labels))
        text += f", {samples:,} images of {classes:,} classes"
    except (DataError, OSError) as error:
        fault = str(error)
    is_validated = bool(tar_shards.find_shards(place, "validation"))
    return OwnData("images", text, is_validated, classes=classes, samples=samples, fault=fault)


def _describe_saved(place: Path) -> OwnData | None:
    """A data set saved by ``datasets``' save_to_disk, if it has images and their classes."""
    splits = hub.load_saved(place)
    rows = next((splits[name] for name in columns.SPLITS["train"] if name in splits), next(iter(splits.values())))
    by_type = hub.columns_by_type(rows)
    image = by_type.get("Image")
    label = by_type.get("ClassLabel") or columns.match_column(columns.LABELS, rows.column_names)
    if image is None or label is None:
        return None
    names = getattr(rows.features[label], "names", None) or columns.sort_labels(map(str, rows.unique(label)))
    classes = f"{len(names):,} classes: {preview(names, MAX_NAMES)}"
    text = f"{len(rows):,} images ({image}) with labels ({label}, {classes}) in {place}"
    others = [name for name in columns.SPLITS["validation"] if name in splits]
    text += f", {len(splits[others[0]]):,} in {others[0]}" if others else ""
    return OwnData("images", text, bool(others), None, len(names), len(rows), ((image,), label))


def _describe_classes(place: Path, train: Path, counts: Mapping[str, int], others: Counter[str]) -> OwnData:
    """Describe images in a folder for each class; ``others`` are images that are not read, by their endings."""
    # folders that hold pictures are the classes
    empty = [name for name, count in counts.items() if not count]
    names, samples = columns.sort_labels(set(counts) - set(empty)), sum(counts.values())
    description = f"{samples:,} images of {len(names):,} classes ({preview(names, MAX_NAMES)}) in {train}"
    # the validation folder, with its classes; folders that spoil the classes, by name
    other = find_split_folder(place, "validation") if train != place else None
    faults = []
    empty_folders = [str(train / name) for name in empty]
    if other is not None:
        other_counts = count_images(_folders(other), others)
        description += f", {sum(other_counts.values()):,} in {other}"
        empty_folders += [str(other / name) for name, count in other_counts.items() if not count]
        if unknown := sorted(name for name, count in other_counts.items() if count and name not in names):
            faults.append(
                f"{other} has classes that training lacks ({preview(unknown)}): remove them there or add them"
            )
    if empty_folders:
        faults.insert(0, f"there is no image in {preview(empty_folders)}: remove the folder")
    # what may be meant otherwise
    shared_folders = _same_folders([train / name for name in names])
    if shared_folders:
        description += f"; each of these folders has the folders {preview(shared_folders)}: "
        if are_split_names(shared_folders):
            description += "their images are mixed, unless you move them to DIR/train/CLASS and DIR/validation/CLASS"
        else:
            description += "if those are the classes, name one of the outer ones"
    tool_folders = [entry.name for entry in train.iterdir() if entry.is_dir() and is_tool_folder(entry.name)]
    left_out = [name for name in tool_folders if name[0] not in "._@#$" and next(find_images(train / name), None)]
    if left_out:
        description += f"; {preview(left_out)} is left out as a tool's folder: rename it if it is a class"
    if others:
        description += f"; {describe_unread(others)}"
    if single := [name for name in names if counts[name] == 1]:
        description += f"; one image alone in {preview(single)}"
    fault = "; ".join(faults) or None
    return OwnData("images", description, other is not None, classes=len(names), samples=samples, fault=fault)


def _folders(place: Path) -> Iterator[Path]:
    return (Path(entry.path) for entry in os.scandir(place) if entry.is_dir() and not is_tool_folder(entry.name))


def _same_folders(classes: Sequence[Path]) -> list[str]:
    """The folders in every class, if all have the same two or more and no image; otherwise []."""
    shared_names: list[str] | None = None
    for place in classes:
        names = sorted(folder.name for folder in _folders(place))
        if len(names) < 2 or shared_names not in (None, names):
            return []
        if any(path.name.lower().endswith(columns.IMAGES) for path in place.iterdir()):
            return []
        shared_names = names
    return shared_names or []


def _describe_file(file: Path, validation: Path | None, selection: NamedColumns) -> OwnData | None:
    """Describe a file, which may be validated on another one."""
    # plain text has no rows
    is_table = columns.is_table(file)
    if not is_table and columns.lower_suffix(file) in (".txt", ".text", ""):  # enwik8 and text8 have no suffix
        text_encoding(file, DataError)  # a file with zero bytes is not text
        size = file.stat().st_size
        fault = None
        if size < MIN_TEXT:
            fault = f"a model needs a text of thousands of bytes to learn from, {MIN_TEXT:,} at the least"
        return OwnData("text", f"text in {file} ({size:,} bytes)", validation is not None, fault=fault)
    if not is_table:
        return None
    # the first rows, of which the columns are guessed, and the number of all
    faults = Faults(skip=True)
    table = read_table(file, faults)
    rows = [row for _, row in islice(table, SOME)]
    further_rows = [_drop_long_cells(row) for _, row in islice(table, MAX_COUNTED - SOME)]
    data = _describe_rows(file, rows, further_rows, validation, selection)
    if data is None or not faults.names:
        return data
    faults_note = f"; {_count(len(faults.names), 'row')} cannot be read, the first: {faults.names[0]}"
    return replace(data, description=data.description + faults_note)


def _drop_long_cells(row: Row) -> Row:
    """A row with the cells that can be labels; None for the others."""
    short: Row = {}
    for name, cell in row.items():
        is_label = isinstance(cell, (int, float)) or (isinstance(cell, str) and len(cell) <= MAX_LABEL)
        short[name] = cell if is_label else None
    return short


def _describe_rows(
    file: Path, rows: Sequence[Row], further_rows: Sequence[Row], validation: Path | None, selection: NamedColumns
) -> OwnData | None:
    """Return the kind of a table's rows, judged by the first ones: labelled images or texts, or texts alone.

    ``further_rows`` have short cells alone: in a table in the order of its classes, the first rows are of one class.
    """
    if not rows:
        return None
    # columns by their names: texts, label, pictures
    names = list(rows[0])
    texts, label = selection.text_columns(names), selection.label_column(names)
    if label is not None and any(isinstance(row.get(label), (list, tuple)) for row in rows):
        if selection.task not in columns.WITHOUT_LABELS:
            raise SeveralLabels(f"{file} has lists in its column {label}; {LISTS}")
        label = None
    by_name = texts, label
    # a column of pictures, with a label by its name or by its values
    picture = selection.picture_column(rows[0])
    if picture is not None:
        answer = label or guessing.guess_label([*rows, *further_rows], (picture,))
        if answer is not None:
            data = _describe_labels(file, rows, further_rows, "images", (picture,), answer)
            data = _add_validation(data, validation, answer, [*rows, *further_rows])
            named_so = (picture, answer) == (columns.match_column(columns.PICTURES, names), label)
            return data if named_so else replace(data, columns=((picture,), answer))
    # columns of texts and of a label, by their names or by their values
    if selection.task not in columns.WITHOUT_LABELS:
        texts = texts or guessing.guess_text(rows)
        if texts and (label is None or (label in texts and selection.label is None)):
            label = guessing.guess_label([*rows, *further_rows], texts)
    if texts and label is not None:
        data = _describe_labels(file, rows, further_rows, "sentences", texts, label)
        if selection.task is not None:
            data = replace(data, fault=None)
        data = _add_validation(data, validation, label, [*rows, *further_rows])
        return data if by_name == (texts, label) else replace(data, columns=(texts, label))
    # texts without a label train a language model
    if not by_name[0]:
        return None
    rest = "; a label is learnt if its column is named, --set data.label=COLUMN" if len(names) > len(texts) else ""
    return OwnData("text", f"texts in {file} (column {texts[0]}{rest})", validation is not None)


def _add_validation(data: OwnData, validation: Path | None, label: str, training_rows: Sequence[Row]) -> OwnData:
    """The same, validated on a table if that has labels: one to be tested on often has none, or −1 for each."""
    if validation is None:
        return data
    # the rows of the validation table need the label column
    rows = [_drop_long_cells(row) for _, row in islice(read_table(validation, Faults(skip=True)), MAX_COUNTED)]
    if not any(label in row for row in rows[:1]):
        return replace(data, description=f"{data.description}; {validation} has no column {label} and is left out")
    # a table whose labels are kept from us often has one placeholder for all of them
    values = {columns.parse_label(row.get(label)) for row in rows}
    known_values = {columns.parse_label(row.get(label)) for row in training_rows}
    if len(rows) > 1 and len(values) == 1 and not values & known_values:
        hidden = f"all labels of {validation} are {next(iter(values)) or 'empty'}, so it is left out"
        return replace(data, description=f"{data.description}; {hidden}")
    description = f"{data.description}, validated on {validation}"
    if rows and data.classes is not None and not values & known_values:
        other_names = preview(sorted(map(str, values)), MAX_NAMES)
        fault = f"that has none of these classes ({label}: {other_names}): write the labels of both tables alike"
        data = replace(data, fault=fault)
    return replace(data, is_validated=True, description=description)


def _describe_labels(
    file: Path, rows: Sequence[Row], further_rows: Sequence[Row], kind: Kind, of: tuple[str, ...], label: str
) -> OwnData:
    """Images or texts (the columns ``of``) with one label each, or a number."""
    # the labels as classes, or as numbers if they are scores
    order, count = columns.class_names(file, label), len(rows) + len(further_rows)
    cells = [columns.name_class(row.get(label), order) for row in (*rows, *further_rows)]
    labels = [columns.parse_label(cell) for cell in cells]
    names = columns.sort_labels({name for name in labels if name is not None}, order)
    classes: int | None = len(names)
    task: str | None = None if kind == "images" else "text-classification"
    what = f"{len(names):,} class{'es' * (len(names) != 1)}: {preview(names, MAX_NAMES)}"
    if columns.are_scores(names):
        task, classes, what = task and "text-regression", None, "a number"
        labels = [label for label in labels if label is not None and columns.parse_number(label) is not None]
    elif classes == 1 and count >= MAX_COUNTED:
        classes, what = None, f"{names[0]} in the rows that were read"  # others may follow
    # the description for people
    samples = "images" if kind == "images" else "rows of texts"
    count_text = f"{count:,}{' or more' * (count >= MAX_COUNTED)}"
    description = f"{count_text} {samples} ({' and '.join(of)}) with labels ({label}, {what})"
    description += f" in {columns.describe_table(file)}"
    labels = [label for label in labels if label is not None]
    if without := count - len(labels):
        description += f"; {_count(without, 'row')} without a label: skip such rows with --set data.on_error=skip"
    fault = None
    if classes is not None and classes >= MANY_CLASSES and count < FEW_SAMPLES * classes:
        fault = f"a class has {count / classes:.1f} rows on average, too few to learn it: is {label} the right column?"
        if all(columns.parse_number(name) is not None for name in names):
            fault += " Numbers are learnt as such with --set data.task=text-regression"
    if kind == "images":
        pictures = [parse_picture(row.get(of[0]), file.parent) for row in rows]
        missing, sentence = describe_missing(file, pictures)
        if missing:
            description += f"; {sentence}"
        fault = "without images there is nothing to learn" if missing == len(pictures) else fault
        fault = NUMBERS if classes is None and what == "a number" else fault
    limited_count = count if count < MAX_COUNTED else None
    data = OwnData(kind, description, False, task, classes, limited_count, fault=fault)
    if kind == "images":
        return data
    # sizes of the texts, to which a default recipe is fitted: words at the 95th percentile, vocabulary
    vocabulary: set[str] = set()
    lengths = []
    for row in rows:
        words = " ".join(str(row.get(name, "")) for name in of).lower().split()
        vocabulary.update(words)
        lengths.append(len(words))
    long = sorted(lengths)[int(0.95 * (len(lengths) - 1))]
    return replace(data, words=long, vocabulary=len(vocabulary))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _is_picture(cell: Any) -> bool:
    """Whether a cell is the name of an image file, or image bytes as in Parquet files of ``datasets``."""
    if isinstance(cell, str):
        return cell.lower().endswith(columns.IMAGES)
    return isinstance(cell, bytes) or (isinstance(cell, dict) and "bytes" in cell)
