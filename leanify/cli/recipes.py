"""``leanify recipes``: search the built-in recipes, print one, or audit the rows of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    kind = kind_of(format, as_json)
    words = names or []
    if len(words) == 1 and _is_one(words[0]):
        _print_one(words[0], kind == "json")
    elif keys:
        listed = _keys()
        _show(kind, "keys", listed, lambda: _key_table(listed))
    elif audit:
        found = _rebuilt()
        rows = [row.to_json() for row in found]
        _show(kind, "rows", rows, lambda: _audit_table(found))
    else:
        from leanify.cli import recipe_list

        recipe_list.show(kind, words)


def _is_one(word: str) -> bool:
    """Whether a word names a recipe, and is not looked for in all of them."""
    from pathlib import Path

    from leanify.runs import recipe

    return recipe.find(word) is not None or Path(word).exists() or word.endswith(".toml")


def _show(kind: Kind, key: str, rows: list[dict[str, Any]], table: Callable[[], Table | str]) -> None:
    from leanify.terminal import console

    show(kind, {key: rows}, rows, lambda: console().print(table()))


def _print_one(name: str, as_json: bool) -> None:
    """Print a recipe's file, including comments."""
    from pathlib import Path

    from leanify.runs import recipe

    value = recipe.load(name)  # refuses an unknown or malformed recipe
    if as_json:
        print_json(value.to_dict())
    else:
        print(recipe.text_of(recipe.find(name) or Path(name)), end="")


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

    defaults = ["required" if key["required"] else key["default"] or "–" for key in listed]
    if (width := console().width) < WIDE:
        heads = [
            f"{key['key']} · {key['type']}" + ("" if value == "–" else f" · {value}")
            for key, value in zip(listed, defaults, strict=True)
        ]
        return entries(zip(heads, (key["about"] for key in listed), strict=True), width)
    shown = table(("key", "type", "default", "meaning"), [], left=4)
    for column in shown.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for key, default in zip(listed, defaults, strict=True):
        shown.add_row(key["key"], key["type"], default, key["about"])
    return shown


def _rebuilt() -> list[Row]:
    from leanify.paper.audit import rows
    from leanify.runs import recipe
    from leanify.terminal import track

    total = sum(recipe.load(path).paper is not None for path in recipe.built_in().values())
    return list(track(rows(), "rebuilding", total))


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
