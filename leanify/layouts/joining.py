"""Labels that are not beside their samples: in a file of their own, in the name of a file, in the names of pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from shlex import quote

from leanify.core.errors import DataError
from leanify.core.files.reading import preview, read_lines, text_encoding
from leanify.layouts.image_files import class_folders, find_images, find_split_folder, has_tables

TEXT_WORDS = {"x", "text", "texts", "sentence", "sentences", "sents", "data", "features", "input", "inputs"}
TEXT_WORDS |= {"seq", "in", "reviews", "tweets", "comments", "messages", "documents", "docs", "corpus"}
LABEL_WORDS = {"y", "label", "labels", "target", "targets", "gold", "sentiment", "sentiments", "topic", "topics"}
NUMBERED = re.compile(r"[\W_]*\d+([\W_]+\d+)*$")  # the end of a picture's name behind its class
LISTING = (".txt", ".mat", ".json", ".csv", ".lst", ".npy")  # files that may name the classes of pictures
FEW_PARTS = 9  # files of one set, which are looked at together
MAX_LINES = 1000  # lines of two files by which one has the labels of the other
MIN_LINES, MAX_LINE = 20, 2000  # lines of a file with a text in each, and their characters


def find_class_files(files: Sequence[Path], place: Path) -> str | None:
    """The fault of a few files with a text in each line, which may be of a class each; None for other texts."""
    if not 1 < len(files) < FEW_PARTS or len({re.sub(r"\d+", "", file.stem) for file in files}) == 1:
        return None
    for file in files:
        lines = list(islice(read_lines(file, DataError), MAX_LINES)) if decodes(file) else []
        if len(lines) < MIN_LINES or not all(line.strip() and len(line) < MAX_LINE for line in lines):
            return None
    return (
        f"{preview([file.name for file in files])} have a text in each line. If each file is a class, write train.tsv, "
        "a table with the columns text and label. Without labels, a language model learns them: leanify train own-text "
        f"--set data.path={quote(str(place))}"
    )


def find_label_file(files: Sequence[Path], place: Path) -> str | None:
    """The fault of a file of texts whose labels are in another file, and the line that joins both; None without."""
    for file in files if len(files) < FEW_PARTS else ():
        pair = texts_and_labels(file)
        if pair is not None:
            texts, labels = pair
            table = place / "train.tsv"
            return (
                f"{texts} has texts alone, and {labels} their labels: join them to a table, for each split, "
                f"paste -d '\\t' {quote(str(texts))} {quote(str(labels))} > {quote(str(table))}"
            )
    return None


def texts_and_labels(file: Path) -> tuple[Path, Path] | None:
    """Two files of as many lines, of texts alone and of their labels: X_train.csv and y_train.csv; None without."""
    for other in sorted(file.parent.iterdir()):
        texts, labels = (other, file) if _words(file) & LABEL_WORDS else (file, other)
        label_words = _words(labels)
        if other == file or not label_words & LABEL_WORDS or label_words - LABEL_WORDS != _words(texts) - TEXT_WORDS:
            continue
        lines = [list(islice(read_lines(one, DataError), MAX_LINES)) for one in (texts, labels) if decodes(one)]
        values = [{*map(str.strip, one)} for one in lines]
        if len(lines) == 2 and len(lines[0]) == len(lines[1]) > len(values[1]) * 3 and len(values[1]) < len(values[0]):
            return texts, labels
    return None


def _words(file: Path) -> set[str]:
    return set(re.findall("[a-z]+", file.name.lower())) - {"txt", "csv", "tsv"}


def hint_labels(place: Path) -> str:
    """Where the labels of pictures may be: in their names, or in a file next to them; "" without either."""
    images = list(islice(find_images(find_split_folder(place, "train") or place), MAX_LINES))
    kinds = {NUMBERED.sub("", image.stem) for image in images}
    if len(kinds) > 1 and "" not in kinds and 3 * len(kinds) <= len(images):
        has = f"their names begin with a class ({preview(sorted(kinds))})"
    else:
        places = [place, *(folder for folder in class_folders(place) if has_tables(folder.name))]
        lists = [file for folder in places for file in sorted(folder.iterdir()) if file.suffix.lower() in LISTING]
        if not lists:
            return ""
        has = f"{preview([str(file.relative_to(place)) for file in lists])} may have their classes"
    return f"; {has}: write train.csv with the columns image and label"


def decodes(file: Path) -> bool:
    """Whether a file is text."""
    try:
        return file.is_file() and bool(text_encoding(file, DataError))
    except DataError:
        return False
