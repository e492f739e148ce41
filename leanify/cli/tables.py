"""Tables that fit 100 columns. Does not import torch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

WIDE = 100  # columns that a table with sentences needs
MIN_FOLDED_WIDTH = 12  # minimum width of a folded column of words
GAP = 2  # columns between two of a table
WIDEST = 1000  # columns: the width of a table without limits


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left_columns: int = 1) -> Table:
    """A plain table: the first ``left_columns`` are words, folded if they do not fit; the others are numbers."""
    grid = Table(box=None, pad_edge=False, padding=(0, 1))
    for i, name in enumerate(columns):
        if i < left_columns:
            grid.add_column(name, header_style="dim", overflow="fold")
        else:
            grid.add_column(name, header_style="dim", no_wrap=True, justify="right")
    for row in rows:
        grid.add_row(*row)
    return grid


def entries(rows: Iterable[tuple[str, str]], width: int) -> str:
    """A list for terminals too narrow for a table: each first text on a line, the second one indented below it."""
    lines = []
    for first, second in rows:
        lines.append(first)
        lines += textwrap.wrap(
            second, width, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def shorten(text: str, width: int) -> str:
    """Shorten a path or name to ``width`` characters in its middle: its end distinguishes it from others."""
    if len(text) <= width:
        return text
    end = width * 2 // 3
    return f"{text[: width - end - 1]}…{text[-end:]}"


def fit(grid: Any, out: Console, last: Sequence[str]) -> Any:
    """Drop the table's ``last`` columns, one by one, until it fits the terminal."""
    for name in last:
        if Measurement.get(out, out.options.update(width=WIDEST), grid).maximum <= out.width:
            break
        grid = _copy_columns(grid, [column for column in grid.columns if str(column.header) != name])
    return grid


def _copy_columns(grid: Any, columns: Sequence[Any]) -> Any:
    """A table with some columns of another, renumbered because rich pads a column by its number."""
    part = copy(grid)
    part.columns = [replace(column, _index=number) for number, column in enumerate(columns)]
    return part


def print_table(out: Console, grid: Any) -> None:
    """Print a table, in several parts with the first column in each if its numbers would be cut."""
    # groups of columns that fit the terminal; a group has at least one besides the first
    first, *others = grid.columns
    groups: list[list[Any]] = [[first]]
    for column in others:
        if len(groups[-1]) > 1 and _needed_width(out, grid, [*groups[-1], column]) > out.width:
            groups.append([first])
        groups[-1].append(column)
    for number, columns in enumerate(groups):
        if number:
            out.print()
        out.print(_copy_columns(grid, columns))


def _needed_width(out: Console, grid: Any, columns: list[Any]) -> int:
    """The minimum width of these columns of a table: numbers in full, words folded."""
    total_width = GAP * (len(columns) - 1)
    for column in columns:
        width = Measurement.get(out, out.options.update(width=WIDEST), _copy_columns(grid, [column])).maximum
        total_width += width if column.no_wrap else min(width, MIN_FOLDED_WIDTH)
    return total_width
