"""The list of built-in recipes. Imports neither typer nor torch, so that it appears at once."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any

from leanify.cli.formats import Kind
from leanify.cli.formats import show as show_as
from leanify.cli.next_lines import print_next
from leanify.errors import RecipeError
from leanify.runs.built_in import built_in, home, stems
from leanify.terminal import console
from leanify.units import millions

Row = dict[str, Any]
GAP = "  "
WIDE = 160  # columns at most: longer purposes are cut


def show(kind: Kind = "table", words: Sequence[str] = ()) -> None:
    """Print what recipes are for, with the size of their models and the processor minutes that they take."""
    rows = found(words)
    show_as(kind, {"recipes": rows}, rows, lambda: _print(rows, bool(words)))


def found(words: Sequence[str]) -> list[Row]:
    """The recipes that have all of the words in their name, purpose, source or data; rows of the paper have that word.

    Raises RecipeError where there is none.
    """
    rows = []
    for row in _rows():
        said = [row["recipe"], row["purpose"], row["source"], str(row["data"])]
        if "/" in row["recipe"]:
            said.append("paper")
        if all(word.lower() in " ".join(said).lower() for word in words):
            rows.append(row)
    if rows:
        return rows
    known = sorted({word for name in stems() for word in (name, *name.split("-"))})
    near = ", ".join(get_close_matches(" ".join(words), known)) or ", ".join(list(built_in())[:3])
    raise RecipeError(f"no built-in recipe has {' and '.join(map(repr, words))}; nearest: {near}")


def _rows() -> list[Row]:
    costs = json.loads((home() / "costs.json").read_text(encoding="utf-8"))
    rows = []
    for name, path in built_in().items():
        text = path.read_text(encoding="utf-8")
        each = _model_and_data(text)
        rows.append(
            {
                "recipe": name,
                "purpose": purpose(text),
                **costs.get(name, {"params": None, "minutes": None}),
                "source": each["model"]["source"],
                "data": each.get("data", {}).get("name"),
            }
        )
    return rows


def purpose(text: str) -> str:
    """The first sentence of a recipe's first comment."""
    lines = takewhile(lambda line: line.startswith("# "), text.splitlines())
    first, _, _ = " ".join(line.removeprefix("# ") for line in lines).partition(". ")
    return first.partition(" leanify train ")[0].removesuffix(".")


def _model_and_data(text: str) -> dict[str, Any]:
    """Parse only [model] and [data]; parsing the other tables would take most of the time."""
    tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    return tomllib.loads("".join(table for table in tables if table.startswith(("[model]", "[data]"))))


def _print(rows: list[Row], searched: bool) -> None:
    """One line a recipe, as text: a rich table would take as long as all the rest. What a recipe is for comes last, as
    it is shortened where a line is full. On a terminal the rows of the paper are a line, unless they are asked for.
    """
    from rich.text import Text

    out = console(width=WIDE)
    own = [row for row in rows if "/" not in row["recipe"]]
    shown = own if out.is_terminal and not searched else rows
    cells = [("recipe", "size", "minutes", "purpose"), *map(_cells, shown)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, (name, size, minutes, purpose) in enumerate(cells):
        line = GAP.join((name.ljust(widths[0]), size.rjust(widths[1]), minutes.rjust(widths[2]), purpose))
        line = line if len(line) <= out.width or not out.is_terminal else f"{line[: out.width - 1].rstrip()}…"
        out.print(Text(line, "" if number else "dim"), soft_wrap=True)
    if not out.is_terminal:
        return
    out.print("\nminutes: of one processor; – where data must be fetched, or a GPU is needed", soft_wrap=True)
    if len(shown) < len(rows):
        out.print(f"{len(rows) - len(shown)} more rebuild the rows of the paper: leanify recipes paper", soft_wrap=True)
    print_next(f"leanify recipes {cells[1][0]}")


def _cells(row: Row) -> tuple[str, str, str, str]:
    """A recipe's name without its collection, which does as well to name it."""
    minutes = "–" if row["minutes"] is None else f"{row['minutes']:.1f}"
    size = "–" if row["params"] is None else millions(row["params"])
    return row["recipe"].rpartition("/")[2], size, minutes, row["purpose"]
