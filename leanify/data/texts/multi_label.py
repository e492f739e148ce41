"""The user's own texts with any number of labels each.

A cell of labels is a list (JSON lines, Parquet), or a string with a separator: ``data.separator``, else guessed by
`columns.separator_of`. An empty cell means no label. Or each label is a column of 0 and 1, and ``data.label`` names
them all, ``toxic,insult``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.data.faults import Faults
from leanify.data.tables.columns import SEPARATORS, by_class_name, class_names, in_order, labels_of, separator_of
from leanify.data.texts.encoded import Sentences
from leanify.data.texts.labelled_text import Texts, cells_of, place_of
from leanify.errors import DataError
from leanify.runs.recipe import DataSection

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class MultiLabelled:
    """One table: its text and label columns, and rows of (texts, labels)."""

    file: Path
    texts: tuple[str, ...]
    label: str
    separator: str | None
    rows: list[tuple[Texts, tuple[str, ...]]]
    order: tuple[str, ...] = ()  # the labels' names in the order of the file's numbers, if it has them

    @staticmethod
    def read(file: Path, data: DataSection, faults: Faults) -> MultiLabelled:
        """Read a table. Raises DataError for a row without text or labels, unless ``faults`` are skipped."""
        texts, label, cells = cells_of(file, data, faults)
        separator = data.separator or _separator([cell for _, _, cell in cells])
        order = class_names(file, label)
        rows: list[tuple[Texts, tuple[str, ...]]] = []
        for where, words, cell in cells:
            if (found := labels_of(by_class_name(cell, order), separator)) is None:
                faults.found(f"{where}: {label} is {cell!r:.40}, neither a list of labels nor a string")
            else:
                rows.append((words, found))
        if not any(labels for _, labels in rows):
            raise DataError(f"{file} has no row with a text and a label")
        return MultiLabelled(file, texts, label, separator, rows, order)

    @property
    def names(self) -> list[str]:
        """The labels, sorted numerically if all are integers, else alphabetically."""
        return in_order({label for _, labels in self.rows for label in labels}, self.order)

    @property
    def lines(self) -> Iterator[str]:
        """All texts, to train a tokenizer on."""
        return (text for texts, _ in self.rows for text in texts)

    @property
    def columns(self) -> str:
        between = f" separated by {self.separator!r}" if self.separator else ""
        return f"{' and '.join(self.texts)} → any number of {self.label}{between}"

    def encoded(self, names: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int, types: bool) -> Sentences:
        """Tokenise; targets (B, labels) are 1 for the labels that a text has, else 0."""
        rows = []
        for texts, labels in self.rows:
            places = {place_of(label, names, self.file) for label in labels}
            rows.append((texts, [float(place in places) for place in range(len(names))]))
        return Sentences(rows, tokenizer, length, types)


def _separator(cells: Sequence[Any]) -> str | None:
    """The separator of labels: the guess, else the first known separator that occurs in a cell."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    guess = separator_of(texts)
    if guess is not None:
        return guess
    characters = set("".join(texts))
    return next((mark for mark in SEPARATORS if mark in characters), None)
