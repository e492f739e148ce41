"""Guess a table's columns by their cells, where names say nothing. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from leanify.data.tables.columns import LABELS, PICTURES, TEXTS, are_scores

USUAL_NAMES = {*LABELS, *PICTURES, *chain(*TEXTS)}
INDICES = ("", "id", "idx", "index", "unnamed: 0")  # columns that number the rows, as any that counts up by one
MIN_ROWS_A_LABEL = 5  # rows per value of a label, at least

Row = Mapping[str, Any]


def guess_text(rows: Sequence[Row]) -> tuple[str, ...]:
    """The column with strings of several words, if there is exactly one; else ()."""
    text_columns = tuple(name for name, cells in _columns(rows).items() if _is_text(cells))
    return text_columns if len(text_columns) == 1 else ()


def guess_label(rows: Sequence[Row], texts: Sequence[str]) -> str | None:
    """The only column besides the texts if it can be a label, or None."""
    other_columns = {name: cells for name, cells in _columns(rows).items() if name not in texts}
    if len(other_columns) != 1:
        return None
    ((name, cells),) = other_columns.items()
    return name if _is_label(cells) or are_scores(map(str, cells)) else None


def is_headless(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table's first line is a sample, not names: it has one of a column's labels, or a fraction.

    Names that describe a column, and 0, 1, …, as pandas writes for columns without a name, are a
    header.
    """
    if any(name.strip().lower() in USUAL_NAMES for name in names) or [*names] == [str(i) for i in range(len(names))]:
        return False
    # a header's word does not occur again as one of few values below it
    for place, name in enumerate(names):
        cells = [row[place] for row in rows if len(row) > place]
        if name in cells and _is_label(cells):
            return True
        if are_scores([name]) and are_scores(cells):
            return True
    return False


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The cells of every column but those that number the rows."""
    cells_by_column = {}
    for name in rows[0]:
        cells = [row.get(name) for row in rows]
        if isinstance(name, str) and name.strip().lower() not in INDICES and not _counts(cells):
            cells_by_column[name] = cells
    return cells_by_column


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
    return 2 <= len(set(cells)) <= len(cells) / MIN_ROWS_A_LABEL
