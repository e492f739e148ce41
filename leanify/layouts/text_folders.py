"""Texts in folders: a file a text, in a folder for each class (aclImdb, 20 newsgroups) or each split. No torch."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from leanify.core.errors import DataError
from leanify.core.files.reading import not_utf8, open_file, preview, text_encoding
from leanify.layouts.columns import IMAGES
from leanify.layouts.faults import Faults
from leanify.layouts.image_files import class_folders, find_split_folder
from leanify.layouts.split_names import are_parts, are_split_names

SUFFIXES = (".txt", ".text")
NUMBERED = re.compile(r"\d+\.?([0-9a-f]{32})?")  # texts of 20 newsgroups, Enron's mail and SpamAssassin
WITHOUT_LABELS = ("unsup", "unlabeled", "unlabelled")  # folders among the classes that are none
FEW = 2  # texts that make a folder a class
MAX_TEXT = 1 << 24  # bytes of a text, several novels


def list_texts(folder: Path) -> list[Path]:
    """The texts of a folder, .txt or called by a number (and a digest); [] beside pictures, which they describe."""
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.lower()
            if name.endswith(IMAGES):
                return []
            is_text = name.endswith(SUFFIXES) or NUMBERED.fullmatch(name)
            if is_text and not name.startswith(".") and entry.is_file():
                names.append(entry.name)
    return [folder / name for name in sorted(names)]


def class_texts(folder: Path) -> dict[str, list[Path]]:
    """The texts of each class of a folder, by its name; {} unless there are two classes or more."""
    texts = {place.name: list_texts(place) for place in class_folders(folder)}
    classes = {name: files for name, files in texts.items() if len(files) >= FEW and name.lower() not in WITHOUT_LABELS}
    are_classes = len(classes) > 1 and not are_split_names(classes) and not are_parts([*classes])
    return classes if are_classes else {}


def find_class_texts(place: Path, split: str) -> Path | None:
    """The folder with a folder of texts for each class: a split's, or for training the place itself; None without."""
    folder = find_split_folder(place, split) or (place if split == "train" else None)
    return folder if folder is not None and class_texts(folder) else None


def find_texts(place: Path, split: str) -> Path | None:
    """The folder with a split's texts, whether or not they are in folders of classes; None without."""
    folder = find_split_folder(place, split)
    return folder if folder is not None and list_texts(folder) else find_class_texts(place, split)


def describe_unlabelled(folder: Path) -> str:
    """A sentence about the folders whose texts have no label; "" without."""
    names = [place.name for place in class_folders(folder) if place.name.lower() in WITHOUT_LABELS]
    return f"; {preview(names)} has no labels and is left out" if names else ""


def read_class_texts(folder: Path, faults: Faults) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, {text, label}) for every text; the classes take turns, so that the first rows have all of them.

    A text of zero bytes or of an unknown encoding is a fault. Those in a Windows code page are said in one warning.
    """
    columns = [[(name, file) for file in files] for name, files in class_texts(folder).items()]
    others = 0
    for name, file in filter(None, chain.from_iterable(zip_longest(*columns))):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one a file
                encoding = text_encoding(file, DataError)
            with open_file(file, DataError, MAX_TEXT) as content:
                text = content.read().decode(encoding)
        except (DataError, UnicodeDecodeError) as error:
            faults.record(str(error) if isinstance(error, DataError) else f"{file} {not_utf8(file)}")
            continue
        others += encoding.startswith("cp")
        yield str(file.relative_to(folder)), {"text": text, "label": name}
    if others:
        warnings.warn(f"{others:,} texts in {folder} are not UTF-8; they are read as windows-1252", stacklevel=2)
