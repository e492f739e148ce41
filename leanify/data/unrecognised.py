"""Say why nothing at a path was recognised as data, and what would be. Does not import torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

from leanify.core import path_kinds as places
from leanify.core.errors import DataError, SourceError
from leanify.core.files.reading import preview, text_encoding
from leanify.data import hub, recognition
from leanify.data.faults import Faults
from leanify.data.images.files import (
    are_split_names,
    class_folders,
    count_images,
    describe_unread,
    find_images,
    find_split_folder,
    is_tool_folder,
)
from leanify.data.tables import columns
from leanify.data.tables.rows import read_table

LAYOUTS = (
    "images in DIR/CLASS/ or DIR/train/CLASS/; train.csv (or .tsv, .jsonl, .parquet) with a column of texts or of "
    "images and one of labels; text in .txt files, which other texts may be called, too"
)
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
OTHERWISE = {  # suffix → how to make a file that is read
    ".xlsx": "save it as .csv",
    ".xls": "save it as .csv",
    ".ods": "save it as .csv",
    ".arrow": "write it as .parquet, with to_parquet of the library datasets",
    ".feather": "write it as .parquet, with to_parquet of pandas",
    ".md": "call it .txt to train on it as plain text",
    **dict.fromkeys((".conll", ".iob", ".iob2", ".bio"), recognition.LISTS),
}


def check_is_no_data(path: str, say_why: bool = False) -> None:
    """Raise SourceError, with commands to type, for data where a model or a recipe is asked for.

    With ``say_why``, also for anything else, with the reason why it cannot be used for training.
    """
    if places.path_kind(path) is not None:
        return
    data = recognition.recognise(path)
    if data is None:
        if say_why and not places.models_inside(Path(path)):  # what loads models names those inside
            raise SourceError(why(path))
        return
    if data.classes == 1:
        raise SourceError(f"{path} is data, but of one class: {data.description}. Two or more are needed to tell apart")
    if data.fault is not None:
        raise SourceError(f"{path} is data that cannot be trained on: {data.description}; {data.fault}")
    if say_why:
        return
    place = quote(path)
    rest = "" if data.is_validated or data.kind == "text" else " (no validation split: a share will be held out)"
    raise SourceError(
        f"{path} is data, not a model: {data.description}{rest}. Train a model on it:\n"
        f"  leanify train {place}\n"
        f"or compare baseline, lean and control on it, small enough for a laptop:\n  leanify compare {place}"
    )


def why(path: str | Path) -> str:
    """Describe a path without data of a known kind, and suggest a remedy."""
    place = Path(path).expanduser()
    try:
        reason = _describe_file(place) if place.is_file() else _describe_folder(place)
    except OSError as error:
        reason = f"it cannot be read: {error.strerror or error}"
    except DataError as error:
        reason = str(error)
    return f"{path} has nothing that leanify can train on: {reason}"


def _describe_file(file: Path) -> str:
    suffix = file.suffix.lower()
    if suffix in ARCHIVES:
        return f"{file} is packed: unpack it, and name what was in it"
    if suffix in OTHERWISE:
        return f"{suffix} files are not read: {OTHERWISE[suffix]}"
    if columns.is_table(file):
        return _describe_table(file, file)
    if columns.lower_suffix(file) in columns.IMAGES:
        return f"{file} is one picture; it takes two or more classes of them. It looks for {LAYOUTS}"
    if suffix == ".txt":
        text_encoding(file, DataError)
    reason = f"{file.suffix} files are not read" if file.suffix else "it is not text"
    return f"{reason}. It looks for {LAYOUTS}"


def _describe_table(file: Path, place: Path) -> str:
    """Return why a table cannot be read; ``place`` is the path that the user passed."""
    faults = Faults(skip=True)
    try:
        rows = [row for _, row in islice(read_table(file, faults), recognition.SOME)]
    except DataError as error:
        return str(error)
    if not rows and faults.names:
        return f"no row of {file} can be read, the first: {faults.names[0]}"
    if not rows:
        return f"{file} has no rows"
    for name, cell in rows[0].items():
        if isinstance(cell, (list, tuple)):
            return f"{file} has lists in its column {name}; {recognition.LISTS}"
    text, label, names = _texts_like(rows), _label_like(rows), preview(list(map(str, rows[0])), 8)
    line = f"leanify compare {quote(str(place))}"
    label_setting = f"--set data.label={quote(label or 'COLUMN')}"
    picture = recognition.NO_COLUMNS.picture_column(rows[0])
    if picture is not None:
        return (
            f"which column has the labels of the images ({picture}) is not clear in {file}, which has {names}. Name "
            f"it: {line} --set data.image={quote(picture)} {label_setting}; a column for each class is not read"
        )
    if text is not None:
        what = "which columns are texts and labels" if label else "which column has the labels"
        cells = quote(f"data.text={json.dumps([text], ensure_ascii=False)}")
        return f"{what} is not clear in {file}, which has {names}. Name them: {line} --set {cells} {label_setting}"
    if place.is_dir() and next(find_images(place), None) is not None:
        return (
            f"no column of {file}, which has {names}, names images: a cell is a path from the table on, with its "
            f"suffix, as a/b.jpg; a column of any name then does: {line} --set data.image=COLUMN {label_setting}"
        )
    return f"no column of {file} has texts of several words or names images; it has {names}"


def _texts_like(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The column with the longest strings of several words."""
    lengths = dict.fromkeys(rows[0], 0)
    for row in rows:
        for name in lengths:
            cell = row.get(name)
            if isinstance(cell, str) and " " in cell.strip():
                lengths[name] += len(cell)
    best = max(lengths, key=lambda name: lengths[name])
    return best if lengths[best] else None


def _label_like(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The column with a usual name for labels, or the column with the fewest values, at least two."""
    if (column := columns.match_column(columns.LABELS, list(rows[0]))) is not None:
        return column
    few_values = {}
    for name in rows[0]:
        count = len({str(row.get(name)) for row in rows})
        if 2 <= count <= len(rows) / 5:
            few_values[name] = count
    return min(few_values, key=lambda name: few_values[name]) if few_values else None


def _describe_folder(place: Path) -> str:
    entries = sorted(entry for entry in place.iterdir() if not is_tool_folder(entry.name))
    files = [entry for entry in entries if entry.is_file()]
    folders = [entry for entry in entries if entry.is_dir()]
    if not entries:
        return f"it is empty. It looks for {LAYOUTS}"
    if hub.is_saved(place):
        return (
            "of what datasets saves to disk only images with classes are read: write texts as train.parquet, with its "
            "to_parquet"
        )
    # tables
    tables = [file for file in files if columns.is_table(file)]
    table = columns.find_split_file(place, "train", columns.TABLES) or next(iter(tables), None)
    if table is not None and (len(tables) == 1 or columns.split_stem(table) in columns.SPLITS["train"]):
        return _describe_table(table, place)
    if tables:
        names = preview([file.name for file in tables])
        rename = "Name one of them, or call them train.csv and validation.csv"
        return f"it has {len(tables):,} tables, of which none is called train: {names}. {rename}"
    # texts in folders of their classes, then data in a folder below
    texts: set[str] = set()
    for folder in folders:
        inner = [folder, *(subfolder for subfolder in folder.iterdir() if subfolder.is_dir())]
        texts.update(place.name for place in inner if columns.text_files(place))
    if len(texts) > 1 and are_split_names(sorted(texts)):
        line = "cat train/*.txt > train.txt"
        return f"texts in folders of splits ({preview(sorted(texts))}) are not read: write a file for each, {line}"
    if len(texts) > 1:
        return (
            f"texts in folders of their classes ({preview(sorted(texts))}) are not read: write a table, train.csv, "
            "with the columns text and label"
        )
    readable = [folder for folder in folders if recognition.recognise(folder) is not None]
    if len(readable) == 1:
        return f"but {readable[0]} is data: name it"
    if readable:
        folder_names = [folder.name for folder in readable]
        beside = " or put their files here as train.csv and validation.csv" * are_split_names(folder_names)
        return f"its folders {preview(folder_names)} are data, each for itself. Name one of them{beside}"
    with_tables = [folder for folder in folders if any(map(columns.is_table, folder.iterdir()))]
    if len(with_tables) == 1:
        return _describe_folder(with_tables[0])
    # images, texts in another encoding, archives and other kinds of files
    pictures = _describe_images(place, folders)
    if pictures is not None:
        return pictures
    for text in columns.text_files(place):
        text_encoding(text, DataError)
    for kind in (ARCHIVES, OTHERWISE):
        for file in files:
            if file.suffix.lower() in kind:
                return _describe_file(file)
    return f"found {preview([entry.name for entry in (*files, *folders)], 5)}. It looks for {LAYOUTS}"


def _describe_images(place: Path, folders: Sequence[Path]) -> str | None:
    others: Counter[str] = Counter()
    image_counts = count_images(folders, others)
    if others:
        return f"it has {describe_unread(others)}"
    pictures = [name for name in image_counts if image_counts[name]]
    image_count = sum(1 for _ in find_images(place))
    images = "only image is" if image_count == 1 else f"{image_count:,} images are"
    train = find_split_folder(place, "train")
    if train is not None and image_counts[train.name]:
        classes = [folder.name for folder in class_folders(train) if next(find_images(folder), None) is not None]
        what = f"has one class, {classes[0]}" if classes else "has no folder of a class"
        return f"{train} {what}; with one folder per class it takes two or more"
    if len(pictures) > 1 and are_split_names(pictures):
        return f"its folders of images, {', '.join(pictures)}, are named as splits, and none of them is train"
    if image_count and len(pictures) == 1 and image_count == image_counts[pictures[0]]:
        where = f"its {images} {'all ' * (image_count > 1)}in one folder, {pictures[0]}"
        return f"{where}; with one folder per class it takes two or more"
    return f"its {images} not in folders of their classes. It looks for {LAYOUTS}" if image_count else None
