"""The user's own texts, or text pairs, with a label each: a class or a number.

Classes are sorted numerically if all are integers, otherwise alphabetically. Whether labels are numbers is said by
the task (text-regression), which `found` proposes where all are numbers and one has a fraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanify.core.errors import DataError
from leanify.core.files.reading import preview
from leanify.core.recipe import DataSection
from leanify.data.texts.encoded import Sentences
from leanify.layouts import columns
from leanify.layouts.columns import class_names, name_class, sort_labels
from leanify.layouts.faults import Faults
from leanify.layouts.rows import read_table

Texts = tuple[str, ...]


@dataclass(frozen=True)
class LabelledTable:
    """One table: a description of its columns, and rows of (texts, label), with the label as text."""

    file: Path
    columns: str
    rows: list[tuple[Texts, str]]
    order: tuple[str, ...] = ()  # the labels' names in the order of the file's numbers, if it has them

    @staticmethod
    def read(file: Path, data: DataSection, faults: Faults) -> LabelledTable:
        """Read a table. Raises DataError for a row without text or label, unless ``faults`` are skipped."""
        texts: list[str] = []
        label, order, rows = "", tuple[str, ...](), []
        for place, row in read_table(file, faults):
            if not texts:
                texts, label = _columns(file, list(row), data)
                order = class_names(file, label)
            # texts that are strings, and a label; anything else is a fault
            cells = [faults.text(row.get(name), f"{file}, {place}: {name}") for name in texts]
            if None in cells:
                continue
            answer = columns.parse_label(name_class(row.get(label), order))
            if answer is None or (data.task == "text-regression" and columns.parse_number(answer) is None):
                what = "a number" if data.task == "text-regression" else "a label"
                faults.record(f"{file}, {place}: {label} is {row.get(label)!r:.40}, not {what}")
            else:
                rows.append((tuple(cell for cell in cells if cell is not None), answer))
        # a label that means "no label" is not a class
        missing = columns.missing_labels((answer for _, answer in rows), order)
        labelled_rows = [row for row in rows if row[1] not in missing]
        if not labelled_rows:
            raise DataError(f"{file} has no row with a text and a label")
        left_out = f", {len(rows) - len(labelled_rows):,} rows of label {preview(missing)} left out" if missing else ""
        return LabelledTable(file, f"{' and '.join(texts)} → {label}{left_out}", labelled_rows, order)

    @property
    def names(self) -> list[str]:
        """The classes in their order."""
        return sort_labels({label for _, label in self.rows}, self.order)

    @property
    def lines(self) -> Iterator[str]:
        """All texts, to train a tokenizer on."""
        for texts, _ in self.rows:
            yield from texts

    def encode(self, names: Sequence[str], tokenizer: Any, length: int, types: bool) -> Sentences:
        """Tokenise; targets are indices into ``names``, or numbers without names. Raises DataError."""
        rows = []
        for texts, label in self.rows:
            target = label_index(label, names, self.file) if names else columns.parse_number(label)
            assert target is not None, "a row without a number is a fault"
            rows.append((texts, target))
        return Sentences(rows, tokenizer, length, types)


def _columns(file: Path, candidates: Sequence[str], data: DataSection) -> tuple[list[str], str]:
    """The text columns and the label column, as the recipe names them or guessed by name."""
    guess = columns.guess_texts(candidates)
    label = (data.label,) if data.label else ()
    names = columns.pick_columns(file, candidates, text=(data.text or guess, guess), label=(label, columns.LABELS))
    return names["text"], names["label"][0]


def guess_text_columns(file: Path, candidates: Sequence[str]) -> Texts:
    """The text columns of a file without labels, guessed by name. Raises DataError."""
    texts = columns.guess_texts(candidates)
    if not texts:
        column_names = ", ".join(candidates[:8])
        raise DataError(f"{file} has no text column; found {column_names}: rename the one with the texts to text")
    return texts


def label_index(label: str, names: Sequence[str], file: Path) -> int:
    """The index of a label among the training labels. Raises DataError if it is not one of them."""
    if label not in names:
        raise DataError(f"{file}: the training data has no label {label[:40]!r}, only {', '.join(names)}")
    return names.index(label)
