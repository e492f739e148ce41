"""The table of a split: a file, a folder that ``datasets`` saved, or texts in folders of their classes."""

from __future__ import annotations

from pathlib import Path

from leanify.layouts import hub
from leanify.layouts.columns import TABLES, find_split_file, is_table, only_file
from leanify.layouts.image_files import class_folders, find_split_folder, has_tables
from leanify.layouts.text_folders import find_class_texts


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
