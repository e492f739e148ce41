"""The user's own data at a path, as a value: their kind, or why they cannot be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leanify.layouts import columns
from leanify.layouts.image_files import find_picture_folder
from leanify.layouts.rows import Row

Kind = Literal["images", "sentences", "text"]
LAYOUTS = (
    "images or texts in DIR/CLASS/ or DIR/train/CLASS/; train.csv (or .tsv, .jsonl, .parquet) with a column of texts "
    "or of images and one of labels; text in .txt files, which other texts may be called, too"
)
CUT = "cut the boxes out into a folder for each class, DIR/train/CLASS and DIR/validation/CLASS"
LISTS = (
    "several labels of a text, or a tag for each token, are learnt by transformers' Trainer, lean models included: "
    "AutoModelForSequenceClassification, AutoModelForTokenClassification"
)


@dataclass(frozen=True)
class OwnData:
    """The data found at a path; without a ``kind`` there are none, and ``fault`` names the reason."""

    kind: Kind | None
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
        key = "image" if self.kind == "images" else "text"
        return [
            f"data.{key}={columns.format_setting(key, texts)}",
            f"data.label={columns.format_setting('label', [label])}",
        ]

    def problem(self, path: str | Path) -> str | None:
        """One sentence for data that cannot be trained on, None for good ones."""
        if self.kind is None:
            return f"{path} has nothing that leanify can train on: {self.fault}"
        if self.fault is None:
            return None
        return f"{path} is data that cannot be trained on: {self.description}; {self.fault}"


def nothing(fault: str, place: str | Path = "") -> OwnData:
    """No data, for this reason; ``place`` has samples and perhaps labels, but none that a task here learns."""
    return OwnData(None, str(place), False, fault=fault)


@dataclass(frozen=True)
class NamedColumns:
    """The user's settings for a table: columns of texts, images and labels, task; the rest is guessed."""

    texts: tuple[str, ...] = ()
    label: str | None = None
    task: str | None = None
    image: str | None = None

    def text_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        return self.texts if self.texts and set(self.texts) <= set(names) else columns.guess_texts(names)

    def picture_column(self, file: Path, rows: Sequence[Row]) -> str | None:
        """The column of images: the one asked for, one of a usual name, the only one with such cells."""
        row = rows[0]
        column = self.image if self.image in row else columns.match_column(columns.PICTURES, list(row))
        if column is not None and (_is_picture(row[column]) or self.image == column):
            return column
        fits = [name for name in row if isinstance(name, str) and _is_picture(row[name])]
        if fits:
            return fits[0] if len(fits) == 1 else None
        # cells that name pictures next to the table, without their suffix
        if not columns.guess_texts(list(row)):
            for name in ([column] if column else []) + list(row)[:MAX_IDS]:
                folder = find_picture_folder(file, [one.get(name) for one in rows])
                if folder is not None and folder.ending:
                    return name
        return None


NO_COLUMNS = NamedColumns()
MAX_IDS = 3  # first columns that may be names of pictures


def _is_picture(cell: Any) -> bool:
    """Whether a cell is the name of an image file, or image bytes as in Parquet files of ``datasets``."""
    if isinstance(cell, str):
        return cell.lower().endswith(columns.IMAGES)
    return isinstance(cell, bytes) or (isinstance(cell, dict) and "bytes" in cell)
