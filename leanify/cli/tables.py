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
FOLDED = 12  # columns that words get at least where they are folded
GAP = 2  # columns between two of a table
WIDEST = 1000  # columns: the width of a table without limits


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """A plain table: the first ``left`` columns are words, folded where they do not fit; the others are numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 1))
    for i, name in enumerate(columns):
        made.add_column(name, header_style="dim", no_wrap=i >= left, justify="left" if i < left else "right")
        made.columns[i].overflow = "fold" if i < left else "ellipsis"
    for row in rows:
        made.add_row(*row)
    return made


def entries(rows: Iterable[tuple[str, str]], width: int) -> str:
    """What a narrow terminal gets in place of a table: each first text in a line, the second one indented below it."""
    lines = []
    for first, second in rows:
        lines.append(first)
        lines += textwrap.wrap(
            second, width, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def shortened(text: str, room: int) -> str:
    """A path or name in ``room`` characters, by leaving out of its middle: its end tells it from others."""
    if len(text) <= room:
        return text
    end = room * 2 // 3
    return f"{text[: room - end - 1]}…{text[-end:]}"


def fit(made: Any, out: Console, last: Sequence[str]) -> Any:
    """Drop the table's ``last`` columns, one by one, until it fits the terminal."""
    for name in last:
        if Measurement.get(out, out.options.update(width=WIDEST), made).maximum <= out.width:
            break
        made = _of(made, [column for column in made.columns if str(column.header) != name])
    return made


def _of(made: Any, columns: Sequence[Any]) -> Any:
    """A table with these columns of another; rich pads a column by its number."""
    part = copy(made)
    part.columns = [replace(column, _index=number) for number, column in enumerate(columns)]
    return part


def print_table(out: Console, made: Any) -> None:
    """Print a table; where its numbers would be cut, in several parts, the first column in each."""
    first, *others = made.columns
    groups: list[list[Any]] = [[first]]
    for column in others:
        if len(groups[-1]) > 1 and _needed(out, made, [*groups[-1], column]) > out.width:
            groups.append([first])
        groups[-1].append(column)
    for number, columns in enumerate(groups):
        if number:
            out.print()
        out.print(_of(made, columns))


def _needed(out: Console, made: Any, columns: list[Any]) -> int:
    """The columns of the terminal that these columns of a table take at least: numbers whole, words folded."""
    needed = GAP * (len(columns) - 1)
    for column in columns:
        width = Measurement.get(out, out.options.update(width=WIDEST), _of(made, [column])).maximum
        needed += width if column.no_wrap else min(width, FOLDED)
    return needed
