"""Print results in the requested format: a table for people, or JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from leanify.errors import LeanifyError
from leanify.terminal import visible
from leanify.units import digits

Kind = Literal["table", "json", "csv", "markdown"]
FORMATS: tuple[Kind, ...] = get_args(Kind)
Row = Mapping[str, Any]


def kind_of(format: str | None, as_json: bool) -> Kind:
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
    flat = [dict(_flat(row, str if kind == "csv" else _for_readers)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))  # a row may lack some
    lines = [[visible(name) for name in names]]
    for row in flat:
        lines.append([visible(row.get(name, "")) for name in names])
    if kind == "csv":
        out = csv.writer(sys.stdout, lineterminator="\n")
        for cells in lines:
            out.writerow(map(_no_formula, cells))
        return
    lines.insert(1, ["---"] * len(names))
    for cells in lines:
        print("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")


def print_json(data: Mapping[str, Any]) -> None:
    """Print exactly one JSON object on standard output."""
    print(json.dumps(data, indent=2, allow_nan=False))


def _no_formula(cell: str) -> str:
    """A cell that a spreadsheet would compute (``=cmd|…``) as text, by the apostrophe that spreadsheets have for it."""
    if not cell.startswith(("=", "+", "-", "@", "\t")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _flat(row: Row, number: Callable[[Any], str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten a row to (``outer.inner``, text): "" for None, ``4;4;8`` for a list, ``number`` of the rest."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, number, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            yield f"{prefix}{name}", ";".join(map(number, value))
        else:
            yield f"{prefix}{name}", "" if value is None else number(value)


def _for_readers(value: Any) -> str:
    """Four digits of what is no integer; CSV and JSON have all of them."""
    return digits(value) if isinstance(value, float) else str(value)
