"""``leanify recipes``: search the built-in recipes, print one, or audit the rows of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli import recipe_list
from leanify.cli.formats import Kind, kind_of, print_json, show
from leanify.cli.options import Format, Json, complete_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from leanify.paper.audit import Row


def recipes(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME | WORD…",
            help="print one recipe, or list those with these words",
            autocompletion=complete_recipe,
        ),
    ] = None,
    audit: Annotated[bool, typer.Option("--audit", help="rebuild every row of the paper and count it")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="list every key of a recipe: type, default, meaning")] = False,
    format: Format = None,
    as_json: Json = False,
) -> None:
    """Search the built-in recipes, print one, or rebuild every row of the paper and compare with its printed count."""
    from leanify.runs import recipe

    kind = kind_of(format, as_json)
    words = names or []
    if len(words) == 1 and (recipe.find(words[0]) or Path(words[0]).exists() or words[0].endswith(".toml")):
        value = recipe.load(words[0])  # refuses an unknown or malformed recipe
        if kind == "json":
            return print_json(value.to_dict())
        return print(recipe.text_of(recipe.find(words[0]) or Path(words[0])), end="")
    if keys:
        listed = _keys()
        return _show(kind, "keys", listed, lambda: _key_table(listed))
    if audit:
        from leanify.paper.audit import rows
        from leanify.terminal import track

        total = sum(recipe.load(path).paper is not None for path in recipe.built_in().values())
        found = list(track(rows(), "rebuilding", total))
        return _show(kind, "rows", [row.to_json() for row in found], lambda: _audit_table(found))
    return recipe_list.show(kind, words)


def _show(kind: Kind, key: str, rows: list[dict[str, Any]], table: Callable[[], Table | str]) -> None:
    from leanify.terminal import console

    show(kind, {key: rows}, rows, lambda: console().print(table()))


def _keys() -> list[dict[str, Any]]:
    from leanify.runs.recipe import SECTIONS
    from leanify.runs.strict_toml import keys_of

    found = []
    for section, kind in SECTIONS.items():
        for key in keys_of(kind):
            facts = key._asdict()
            found.append({"key": f"{section}.{facts.pop('name')}", **facts})
    return found


def _key_table(listed: list[dict[str, Any]]) -> Table | str:
    from leanify.cli.tables import WIDE, entries, table
    from leanify.terminal import console

    width = console().width
    shown = table(("key", "type", "default", "meaning"), [], left=4)
    for column in shown.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    narrow = []
    for key in listed:
        default = "required" if key["required"] else key["default"] or "–"
        shown.add_row(key["key"], key["type"], default, key["about"])
        head = f"{key['key']} · {key['type']}" + ("" if default == "–" else f" · {default}")
        narrow.append((head, key["about"]))
    return entries(narrow, width) if width < WIDE else shown


def _audit_table(found: list[Row]) -> Table:
    from leanify.cli.tables import table

    shown = table(("recipe", "printed", "ours", "error", "verdict"), [])
    shown.columns[-1].justify, shown.columns[-1].no_wrap = "left", False
    for row in found:
        error = "–" if row.error is None else f"{round(row.error, 4) + 0.0:+.2%}"
        shown.add_row(row.recipe.rpartition("/")[2], _count(row.printed), _count(row.params), error, row.verdict)
    return shown


def _count(params: int | None) -> str:
    """Parameters in millions; below one million in thousands."""
    if params is None:
        return "–"
    return f"{params / 1e6:.3f} M" if params >= 1e6 else f"{params / 1e3:.3f} k"
