"""The user's own texts, or text pairs, with one label each: a class or a number.

Classes are sorted numerically if all are integers, else alphabetically. Whether labels are numbers is said by the task
(text-regression), which `found` proposes where all are numbers and one has a fraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.data.faults import Faults
from leanify.data.tables.columns import (
    LABELS,
    by_class_name,
    class_names,
    in_order,
    label_of,
    missing_columns,
    texts_in,
)
from leanify.data.tables.guessing import flags_of, flags_set
from leanify.data.tables.rows import rows_of_table
from leanify.data.texts.encoded import Sentences
from leanify.errors import DataError
from leanify.runs.recipe import DataSection

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Texts = tuple[str, ...]


@dataclass(frozen=True)
class Labelled:
    """One table: its text and label columns, and rows of (texts, label), labels as text."""

    file: Path
    texts: tuple[str, ...]
    label: str
    rows: list[tuple[Texts, str]]
    order: tuple[str, ...] = ()  # the classes' names in the order of the file's numbers, if it has them

    @staticmethod
    def read(file: Path, data: DataSection, faults: Faults) -> Labelled:
        """Read a table. Raises DataError for a row without text or label, unless ``faults`` are skipped."""
        texts, label, cells = cells_of(file, data, faults)
        order = class_names(file, label)
        rows: list[tuple[Texts, str]] = []
        for where, words, cell in cells:
            if (answer := label_of(by_class_name(cell, order))) is None:
                faults.found(f"{where}: {label} is {cell!r:.40}, not a label")
            else:
                rows.append((words, answer))
        if not rows:
            raise DataError(f"{file} has no row with a text and a label")
        return Labelled(file, texts, label, rows, order)

    @property
    def names(self) -> list[str]:
        """The classes, sorted numerically if all are integers, else alphabetically; or in the file's own order."""
        return in_order({label for _, label in self.rows}, self.order)

    @property
    def lines(self) -> Iterator[str]:
        """All texts, to train a tokenizer on."""
        return (text for texts, _ in self.rows for text in texts)

    @property
    def columns(self) -> str:
        return f"{' and '.join(self.texts)} → {self.label}"

    def encoded(self, names: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int, types: bool) -> Sentences:
        """Tokenise; targets are indices into ``names``, or numbers if there are no names. Raises DataError."""
        rows = [(texts, self._target(label, names)) for texts, label in self.rows]
        return Sentences(rows, tokenizer, length, types)

    def _target(self, label: str, names: Sequence[str]) -> int | float:
        if not names:
            number = _number(label)
            if number is None:
                raise DataError(f"{self.file}: the label {label[:40]!r} is not a number, but the task is regression")
            return number
        return place_of(label, names, self.file)


def cells_of(
    file: Path, data: DataSection, faults: Faults
) -> tuple[tuple[str, ...], str, list[tuple[str, Texts, Any]]]:
    """Return the text columns, the label column, and (where, texts, label cell) of every row that has its texts."""
    texts: tuple[str, ...] = ()
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
    return texts, ", ".join(flags) or label, found


def _columns(file: Path, found: Sequence[str], data: DataSection) -> tuple[tuple[str, ...], str]:
    """The text columns and the label column, as the recipe names them or guessed by name. Raises DataError."""
    known = {name.lower(): name for name in found}
    texts = data.text or texts_in(found)
    label = data.label or next((name for name in LABELS if name in known), None)
    if not texts or label is None or any(name.lower() not in known for name in (*texts, label)):
        asked = (data.label,) if data.label else ()
        raise missing_columns(file, found, text=(data.text, texts_in(found)), label=(asked, LABELS))
    return tuple(known[name.lower()] for name in texts), known[label.lower()]


def texts_of(file: Path, found: Sequence[str]) -> tuple[str, ...]:
    """The text columns of a file without labels, guessed by name. Raises DataError."""
    if columns := texts_in(found):
        return columns
    raise DataError(f"{file} has no text column; found {', '.join(found[:8])}: rename the one with the texts to text")


def place_of(label: str, names: Sequence[str], file: Path) -> int:
    """The index of a label among the training labels. Raises DataError if it is not one of them."""
    if label not in names:
        raise DataError(f"{file}: the training data has no label {label[:40]!r}, only {', '.join(names)}")
    return names.index(label)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
