"""The table of a split: a file, a folder that ``datasets`` saved, or texts in folders of their classes."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path

from leanify.core.errors import DataError
from leanify.layouts import hub
from leanify.layouts.columns import PICTURES, TABLES, find_split_file, is_table, match_column, only_file, split_stem
from leanify.layouts.faults import Faults
from leanify.layouts.image_files import LOOKED_UP, class_folders, find_picture_folder, find_split_folder, has_tables
from leanify.layouts.rows import read_table
from leanify.layouts.split_names import synonyms
from leanify.layouts.text_folders import find_class_texts


def labels_pictures(table: Path, place: Path, split: str) -> bool:
    """Whether a table beside folders of pictures has the labels, and not the folders.

    Either its name is its split's, or its pictures lie in one of the folders, which the others may repeat
    (images_original, images_compressed).
    """
    if split_stem(table).lower() in synonyms(split):
        return True
    rows = []
    with suppress(DataError):  # another table, which is not read
        rows = [row for _, row in islice(read_table(table, Faults(skip=True)), LOOKED_UP)]
    picture = match_column(PICTURES, list(rows[0])) if rows else None
    folder = find_picture_folder(table, [row.get(picture) for row in rows]) if picture is not None else None
    return folder is not None and folder.place in class_folders(place)


def find_table(path: Path, split: str) -> Path | None:
    """The table of a split, or None; a file, or a folder's only table, is the table of train.

    Without a file it is a folder, which `datasets` saved, or which has the split's texts in folders of their classes.
    """
    if path.is_file():
        return path if split == "train" and is_table(path) else None
    if hub.is_saved(path):
        return hub.find_saved(path, split)
    file = find_split_file(path, split, TABLES)
    if file is None and split == "train":
        file = only_file(path, TABLES)
    if file is not None:
        return file
    # the only table in the split's folder (ImageFolder's metadata), or the split's in a folder of tables
    folder = find_split_folder(path, split)
    files = [] if folder is None else [find_split_file(folder, split, TABLES), only_file(folder, TABLES)]
    for inner in class_folders(path) if path.is_dir() else ():
        if has_tables(inner.name):
            files.append(find_split_file(inner, split, TABLES))
    return next(filter(None, files), None) or find_class_texts(path, split)
