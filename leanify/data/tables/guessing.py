"""Guess a table's columns by their cells, where names say nothing. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from leanify.data.tables.columns import LABELS, PICTURES, TAGS, TEXTS, TOKENS

KNOWN = {*LABELS, *PICTURES, *TAGS, *TOKENS, *(name for names in TEXTS for name in names)}
INDICES = ("", "id", "idx", "index", "unnamed: 0")  # columns that number the rows, as any that counts up by one
FLAGS = ("0", "1", "false", "true", "0.0", "1.0")
EACH = 5  # rows per value of a label, at least

Row = Mapping[str, Any]


def text_in(rows: Sequence[Row]) -> tuple[str, ...]:
    """The column with strings of several words, if there is exactly one; else ()."""
    found = tuple(name for name, cells in _columns(rows).items() if _is_text(cells))
    return found if len(found) == 1 else ()


def label_in(rows: Sequence[Row], texts: Sequence[str]) -> str | None:
    """The only column beside the texts, if it can be a label; else columns of 0 and 1, by commas; or None."""
    left = {name: cells for name, cells in _columns(rows).items() if name not in texts}
    if len(left) == 1:
        ((name, cells),) = left.items()
        return name if _is_label(cells) or _are_fractions(cells) or _are_several(cells) else None
    flags = bool(left) and all("," not in name and None not in map(_flag, cells) for name, cells in left.items())
    return ",".join(left) if flags else None


def flags_of(label: str, names: Sequence[str]) -> list[str]:
    """The columns of 0 and 1 that a label names: ``toxic,insult``; [] if it names one column."""
    parts = [part.strip() for part in label.split(",")]
    return parts if label not in names and len(parts) > 1 and set(parts) <= set(names) else []


def flags_set(row: Row, flags: Sequence[str]) -> list[str] | None:
    """The flags that are 1 in a row; None if a cell is neither 0 nor 1."""
    cells = [_flag(row.get(name)) for name in flags]
    return None if None in cells else [name for name, cell in zip(flags, cells, strict=True) if cell]


def is_headless(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table's first line is a sample, not names: it has one of a column's labels, or a fraction.

    Names that say what a column holds, and 0, 1, …, as pandas writes for columns without a name, are a
    header.
    """
    if any(name.strip().lower() in KNOWN for name in names) or [*names] == [str(i) for i in range(len(names))]:
        return False
    for place, name in enumerate(names):
        cells = [row[place] for row in rows if len(row) > place]
        if name in cells and _is_label(cells):
            return True
        if _are_fractions([name]) and _are_fractions(cells):
            return True
    return False


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The cells of every column but those that number the rows."""
    found = {}
    for name in rows[0]:
        cells = [row.get(name) for row in rows]
        if isinstance(name, str) and name.strip().lower() not in INDICES and not _counts(cells):
            found[name] = cells
    return found


def _counts(cells: Sequence[Any]) -> bool:
    """Whether each cell is one more than the cell before it."""
    try:
        return len(cells) > 2 and all(int(after) == int(before) + 1 for before, after in pairwise(cells))
    except (TypeError, ValueError):
        return False


def _is_text(cells: Sequence[Any]) -> bool:
    several = sum(isinstance(cell, str) and " " in cell.strip() for cell in cells)
    return 2 * several > len(cells) and not _is_label(cells)


def _is_label(cells: Sequence[Any]) -> bool:
    if not all(isinstance(cell, (str, int)) and str(cell).strip() for cell in cells):
        return False
    return 2 <= len(set(cells)) <= len(cells) / EACH


def _are_several(cells: Sequence[Any]) -> bool:
    """Whether cells are lists of labels: a few strings or whole numbers, again and again."""
    labels: list[Any] = []
    for cell in cells:
        if not isinstance(cell, list):
            return False
        labels += cell
    return all(isinstance(label, (str, int)) for label in labels) and 2 <= len(set(labels)) <= len(cells) / EACH


def _are_fractions(cells: Sequence[Any]) -> bool:
    try:
        return any(float(cell) % 1 for cell in cells)
    except (TypeError, ValueError):
        return False


def _flag(cell: Any) -> bool | None:
    """0 and 1, false and true, as a bool; None for anything else."""
    text = str(cell).strip().lower()
    return FLAGS.index(text) % 2 == 1 if text in FLAGS else None
