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
    found = tuple(name for name in _columns(rows) if _is_text([row.get(name) for row in rows]))
    return found if len(found) == 1 else ()


def label_in(rows: Sequence[Row], texts: Sequence[str]) -> str | None:
    """The column beside the texts, if it is the only one and has few values, lists of them, or fractions.

    Else columns of 0 and 1, joined by commas. None where nothing fits.
    """
    cells = {name: [row.get(name) for row in rows] for name in _columns(rows) if name not in texts}
    if len(cells) == 1:
        fits = (_is_label, _are_fractions, _are_several)
        return next((name for name, column in cells.items() if any(fit(column) for fit in fits)), None)
    flags = bool(cells) and all("," not in name and _are_flags(column) for name, column in cells.items())
    return ",".join(cells) if flags else None


def flags_of(label: str, names: Sequence[str]) -> list[str]:
    """The columns of 0 and 1 that a label names: ``toxic,insult``; [] if it names one column."""
    parts = [part.strip() for part in label.split(",")]
    return parts if label not in names and len(parts) > 1 and set(parts) <= set(names) else []


def flags_set(row: Row, flags: Sequence[str]) -> list[str] | None:
    """The flags that are 1 in a row; None if a cell is neither 0 nor 1."""
    cells = [_flag(row.get(name)) for name in flags]
    return None if None in cells else [name for name, cell in zip(flags, cells, strict=True) if cell]


def is_headless(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first line of a table is a sample, not names: it has one of a column's labels, or a fraction.

    Names that say what a column holds, and 0, 1, …, as pandas writes for columns without a name, are a header.
    """
    if any(name.strip().lower() in KNOWN for name in names) or [*names] == [str(i) for i in range(len(names))]:
        return False
    columns = [[row[place] for row in rows if len(row) > place] for place in range(len(names))]
    return any(
        (name in column and _is_label(column)) or (_are_fractions([name]) and _are_fractions(column))
        for name, column in zip(names, columns, strict=True)
    )


def _columns(rows: Sequence[Row]) -> list[str]:
    names = [name for name in rows[0] if isinstance(name, str) and name.strip().lower() not in INDICES]
    return [name for name in names if not _counts([row.get(name) for row in rows])]


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
    if not all(isinstance(cell, list) and all(isinstance(each, (str, int)) for each in cell) for cell in cells):
        return False
    return 2 <= len({each for cell in cells for each in cell}) <= len(cells) / EACH


def _are_fractions(cells: Sequence[Any]) -> bool:
    try:
        return any(float(cell) % 1 for cell in cells)
    except (TypeError, ValueError):
        return False


def _are_flags(cells: Sequence[Any]) -> bool:
    return all(_flag(cell) is not None for cell in cells)


def _flag(cell: Any) -> bool | None:
    """0 and 1, false and true, as a bool; None for anything else."""
    text = str(cell).strip().lower()
    return FLAGS.index(text) % 2 == 1 if text in FLAGS else None
