"""Print results in the requested format: a table for people, or JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from leanify.core.errors import LeanifyError
from leanify.core.terminal import visible
from leanify.core.units import format_digits

Kind = Literal["table", "json", "csv", "markdown"]
FORMATS: tuple[Kind, ...] = get_args(Kind)
Row = Mapping[str, Any]


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
    spell = str if kind == "csv" else _for_readers
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


def _for_readers(value: Any) -> str:
    """Format a number with four digits; CSV and JSON have all of them."""
    return format_digits(value) if isinstance(value, float) else str(value)
