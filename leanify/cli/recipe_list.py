"""The list of built-in recipes. Imports neither typer nor torch, so that it appears at once."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from leanify.cli.formats import Kind
from leanify.cli.formats import show as show_as
from leanify.runs.built_in import built_in
from leanify.terminal import console

HEADS = ("recipe", "source", "data")


def show(kind: Kind = "table") -> None:
    """Print name, source and data of every recipe."""
    values = {name: _model_and_data(path.read_text(encoding="utf-8")) for name, path in built_in().items()}
    rows = [
        {"recipe": name, "source": each["model"]["source"], "data": each.get("data", {}).get("name")}
        for name, each in values.items()
    ]
    show_as(kind, {"recipes": rows}, rows, lambda: _print(rows))


def _model_and_data(text: str) -> dict[str, Any]:
    """Parse only [model] and [data]; parsing the other tables would take most of the time."""
    tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    return tomllib.loads("".join(table for table in tables if table.startswith(("[model]", "[data]"))))


def _print(rows: list[dict[str, Any]]) -> None:
    """Columns of text, as a rich table would take as long as all the rest; a narrow terminal gets fewer of them, so
    that names stay whole and can be typed.
    """
    from rich.text import Text

    out = console()
    columns = [[head, *(row[head] or "–" for row in rows)] for head in HEADS]
    widths = [max(map(len, column)) for column in columns]
    while len(widths) > 1 and sum(widths) + 2 * len(widths) - 2 > out.width:
        widths.pop()
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    out.print(Text(lines[0], "dim"))
    out.print("\n".join(lines[1:]), soft_wrap=True)
    if missing := " and ".join(HEADS[len(widths) :]):
        out.print(f"\nthe {missing} of one: leanify recipes NAME", soft_wrap=True)
