"""The list of built-in recipes. Imports neither typer nor torch, so that it appears at once."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from rich.table import Table

from leanify.cli.formats import Kind
from leanify.cli.formats import show as show_as
from leanify.cli.tables import table
from leanify.sources.built_in import built_in
from leanify.terminal import console


def show(kind: Kind = "table") -> None:
    """Print name, source and data of every recipe."""
    values = {name: _model_and_data(path.read_text(encoding="utf-8")) for name, path in built_in().items()}
    rows = [
        {"recipe": name, "source": each["model"]["source"], "data": each.get("data", {}).get("name")}
        for name, each in values.items()
    ]
    show_as(kind, {"recipes": rows}, rows, lambda: console().print(_table(rows)))


def _model_and_data(text: str) -> dict[str, Any]:
    """Parse only [model] and [data]; parsing the other tables would take most of the time."""
    tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    return tomllib.loads("".join(table for table in tables if table.startswith(("[model]", "[data]"))))


def _table(rows: list[dict[str, Any]]) -> Table:
    shown = table(("recipe", "source", "data"), [], left=3)
    for column in shown.columns[1:]:  # what is typed next stays whole; recipes NAME and --json have the others whole
        column.no_wrap, column.overflow = False, "ellipsis"
    for row in rows:
        shown.add_row(row["recipe"], row["source"], row["data"] or "–")
    return shown
