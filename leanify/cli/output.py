"""How a command prints its results: as a table, JSON, CSV or Markdown, and what to type next. Imports no torch."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from shlex import join
from typing import Any, Literal, get_args

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from leanify.core.errors import LeanifyError
from leanify.core.terminal import console, visible
from leanify.core.units import format_digits

Kind = Literal["table", "json", "csv", "markdown"]
FORMATS: tuple[Kind, ...] = get_args(Kind)
Row = Mapping[str, Any]

WIDE = 100  # columns that a table with sentences needs
MIN_FOLDED_WIDTH = 12  # minimum width of a folded column of words
GAP = 2  # columns between two of a table
WIDEST = 1000  # columns: the width of a table without limits


def output_kind(format: str | None, as_json: bool) -> Kind:
    """The format requested by --format or --json. Raises LeanifyError."""
    if format is not None and format not in FORMATS:
        raise LeanifyError(f"--format must be one of {', '.join(FORMATS)}, not {format!r}")
    if as_json and format not in (None, "json"):
        raise LeanifyError(f"--json and --format {format} contradict each other; use one of them")
    return "json" if as_json else next((kind for kind in FORMATS if kind == format), "table")


def show(kind: Kind, data: Mapping[str, Any], rows: Sequence[Row], render: Callable[[], None]) -> None:
    """Print ``data`` as JSON, ``rows`` as CSV or Markdown, or call ``render`` for a table."""
    if kind == "table":
        render()
        return
    if kind == "json":
        print_json(data)
        return

    # flat rows, and the names of all their columns in order; a row may lack some
    flat_rows, names = [], dict[str, None]()
    spell = str if kind == "csv" else format_number
    for row in rows:
        flat_rows.append(dict(_flat(row, spell)))
        names |= dict.fromkeys(flat_rows[-1])
    lines = [[visible(name) for name in names]]
    for flat_row in flat_rows:
        lines.append([visible(flat_row.get(name, "")) for name in names])

    if kind == "csv":
        out = csv.writer(sys.stdout, lineterminator="\n")
        for cells in lines:
            out.writerow(map(_no_formula, cells))
        return
    # Markdown is for readers: columns in which no row has a value are left out
    columns = [column for column in zip(*lines, strict=True) if any(column[1:])]
    lines = [list(cells) for cells in zip(*columns, strict=True)]
    lines.insert(1, ["---"] * len(columns))
    for cells in lines:
        print("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")


def print_json(data: Mapping[str, Any]) -> None:
    """Print exactly one JSON object on standard output."""
    try:
        text = json.dumps(data, indent=2, allow_nan=False)
    except ValueError:  # a diverged run has logged NaN or Infinity
        text = json.dumps(_finite(data), indent=2, allow_nan=False)
    print(text)


def _finite(value: Any) -> Any:
    """The value with None for NaN and infinities, which JSON cannot express."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _no_formula(cell: str) -> str:
    """Mark a cell that a spreadsheet would compute (``=cmd|…``) as text, with the apostrophe of spreadsheets."""
    if not cell.startswith(("=", "+", "-", "@", "\t")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _flat(row: Row, number: Callable[[Any], str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten a row to (``outer.inner``, text): "" for None, ``4;4;8`` for a list, ``number(value)`` for others."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, number, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            yield f"{prefix}{name}", ";".join(map(number, value))
        else:
            yield f"{prefix}{name}", ("" if value is None else number(value))


def format_number(value: Any) -> str:
    """A number for readers, with four digits; CSV and JSON have all of them."""
    return format_digits(value) if isinstance(value, float) else str(value)


# -- tables of 100 columns -----------------------------------------------------------------------------------------


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

    def needed_width(columns: list[Any]) -> int:
        """The minimum width of these columns: numbers in full, words folded."""
        total_width = GAP * (len(columns) - 1)
        for column in columns:
            width = Measurement.get(out, out.options.update(width=WIDEST), _copy_columns(grid, [column])).maximum
            total_width += width if column.no_wrap else min(width, MIN_FOLDED_WIDTH)
        return total_width

    # groups of columns that fit the terminal; a group has at least one besides the first
    first, *others = grid.columns
    groups: list[list[Any]] = [[first]]
    for column in others:
        if len(groups[-1]) > 1 and needed_width([*groups[-1], column]) > out.width:
            groups.append([first])
        groups[-1].append(column)
    for number, columns in enumerate(groups):
        if number:
            out.print()
        out.print(_copy_columns(grid, columns))


# -- what to type next ---------------------------------------------------------------------------------------------


def print_next(*commands: str) -> None:
    """Print the commands to type next, below a blank line and without line breaks; nothing with --quiet."""
    if os.environ.get("LEANIFY_QUIET"):
        return
    for place, command in enumerate(commands):
        console().print(f"      {command}" if place else f"\nnext  {command}", soft_wrap=True)


def typed_without(*flags: str) -> str:
    """The typed command without flags such as --dry-run, --quiet and --no-color."""
    return join(["leanify", *(word for word in sys.argv[1:] if word not in (*flags, "--quiet", "--no-color"))])
