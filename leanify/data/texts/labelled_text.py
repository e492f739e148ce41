"""The user's own texts, or text pairs, with labels: one class, one number, or any number of labels.

Classes are sorted numerically if all are integers, else alphabetically. Whether labels are numbers is said by
the task (text-regression), which `found` proposes where all are numbers and one has a fraction.

A cell of several labels is a list (JSON lines, Parquet), or a string with a separator: ``data.separator``,
else guessed by `columns.separator_of`. An empty cell means no label. Or each label is a column of 0 and 1,
and ``data.label`` names them all, ``toxic,insult``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leanify.data.faults import Faults
from leanify.data.tables import columns
from leanify.data.tables.columns import by_class_name, class_names, in_order
from leanify.data.tables.guessing import flags_of, flags_set
from leanify.data.tables.rows import rows_of_table
from leanify.data.texts.encoded import Sentences
from leanify.errors import DataError
from leanify.runs.recipe import DataSection

Texts = tuple[str, ...]


@dataclass(frozen=True)
class Labelled:
    """One table: its columns in words, and rows of (texts, label), a label as text."""

    file: Path
    columns: str
    rows: list[tuple[Texts, Any]]
    order: tuple[str, ...] = ()  # the labels' names in the order of the file's numbers, if it has them

    @staticmethod
    def read(file: Path, data: DataSection, faults: Faults) -> Labelled:
        """Read a table. Raises DataError for a row without text or label, unless ``faults`` are skipped."""
        texts, label, cells = cells_of(file, data, faults)
        order = class_names(file, label)
        rows = []
        for where, words, cell in cells:
            answer = columns.label_of(by_class_name(cell, order))
            if answer is None:
                faults.found(f"{where}: {label} is {cell!r:.40}, not a label")
            else:
                rows.append((words, answer))
        if not rows:
            raise DataError(f"{file} has no row with a text and a label")
        return Labelled(file, f"{' and '.join(texts)} → {label}", rows, order)

    @property
    def names(self) -> list[str]:
        """The classes in their order."""
        return in_order({label for _, label in self.rows}, self.order)

    @property
    def lines(self) -> Iterator[str]:
        """All texts, to train a tokenizer on."""
        for texts, _ in self.rows:
            yield from texts

    def encoded(self, names: Sequence[str], tokenizer: Any, length: int, types: bool) -> Sentences:
        """Tokenise; targets are indices into ``names``, or numbers without names. Raises DataError."""
        rows = []
        for texts, label in self.rows:
            rows.append((texts, place_of(label, names, self.file) if names else _number(label, self.file)))
        return Sentences(rows, tokenizer, length, types)


@dataclass(frozen=True)
class MultiLabelled(Labelled):
    """One table of rows (texts, labels)."""

    separator: str | None = None

    @staticmethod
    def read(file: Path, data: DataSection, faults: Faults) -> MultiLabelled:
        """Read a table. Raises DataError for a row without text or labels, unless ``faults`` are skipped."""
        texts, label, cells = cells_of(file, data, faults)
        strings = [cell for _, _, cell in cells if isinstance(cell, str)]
        usual = next((mark for mark in columns.SEPARATORS if any(mark in cell for cell in strings)), None)
        separator = data.separator or columns.separator_of(strings) or usual
        order = class_names(file, label)
        rows = []
        for where, words, cell in cells:
            found = columns.labels_of(by_class_name(cell, order), separator)
            if found is None:
                faults.found(f"{where}: {label} is {cell!r:.40}, neither a list of labels nor a string")
            else:
                rows.append((words, found))
        if not any(labels for _, labels in rows):
            raise DataError(f"{file} has no row with a text and a label")
        between = f" separated by {separator!r}" if separator else ""
        about = f"{' and '.join(texts)} → any number of {label}{between}"
        return MultiLabelled(file, about, rows, order, separator)

    @property
    def names(self) -> list[str]:
        """The labels in their order."""
        return in_order({label for _, labels in self.rows for label in labels}, self.order)

    def encoded(self, names: Sequence[str], tokenizer: Any, length: int, types: bool) -> Sentences:
        """Tokenise; targets (B, labels) are 1 for the labels that a text has, else 0."""
        rows = []
        for texts, labels in self.rows:
            target = [0.0] * len(names)
            for label in labels:
                target[place_of(label, names, self.file)] = 1.0
            rows.append((texts, target))
        return Sentences(rows, tokenizer, length, types)


def cells_of(file: Path, data: DataSection, faults: Faults) -> tuple[Texts, str, list[tuple[str, Texts, Any]]]:
    """The text columns, the label column, and (where, texts, label cell) of every row that has its texts."""
    texts: list[str] = []
    label, flags = "", list[str]()
    found = []
    for place, row in rows_of_table(file, faults):
        if not texts:
            flags = flags_of(data.label or "", list(row))
            texts, label = _columns(file, list(row), replace(data, label=flags[0]) if flags else data)
        cells = [faults.text(row.get(name), f"{file}, {place}: {name}") for name in texts]
        answer = flags_set(row, flags) if flags else row.get(label)
        if flags and answer is None:
            faults.found(f"{file}, {place}: a cell of {', '.join(flags)} is neither 0 nor 1")
        elif None not in cells:
            found.append((f"{file}, {place}", tuple(cell for cell in cells if cell is not None), answer))
    return tuple(texts), ", ".join(flags) or label, found


def _columns(file: Path, found: Sequence[str], data: DataSection) -> tuple[list[str], str]:
    """The text columns and the label column, as the recipe names them or guessed by name."""
    guess = columns.texts_in(found)
    label = (data.label,) if data.label else ()
    picked = columns.pick(file, found, text=(data.text or guess, guess), label=(label, columns.LABELS))
    return picked["text"], picked["label"][0]


def texts_of(file: Path, found: Sequence[str]) -> Texts:
    """The text columns of a file without labels, guessed by name. Raises DataError."""
    texts = columns.texts_in(found)
    if not texts:
        here = ", ".join(found[:8])
        raise DataError(f"{file} has no text column; found {here}: rename the one with the texts to text")
    return texts


def place_of(label: str, names: Sequence[str], file: Path) -> int:
    """The index of a label among the training labels. Raises DataError if it is not one of them."""
    if label not in names:
        raise DataError(f"{file}: the training data has no label {label[:40]!r}, only {', '.join(names)}")
    return names.index(label)


def _number(label: str, file: Path) -> float:
    value = columns.number_in(label)
    if value is None:
        raise DataError(f"{file}: the label {label[:40]!r} is not a number, but the task is regression")
    return value
