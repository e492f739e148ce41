"""``leanify recipes``: the built-in recipes, and the audit of the paper's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from leanify.design.audit import Row
    from leanify.sources.recipe import Recipe


def recipes(
    audit: Annotated[bool, typer.Option("--audit", help="Rebuild every row of the paper and count it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List the built-in recipes, or rebuild every row of the paper beside its printed count."""
    import json

    from rich.console import Console
    from rich.progress import track

    from leanify.sources import recipe

    known = {name: recipe.load(path) for name, path in recipe.built_in().items()}
    if audit:
        from leanify.design.audit import rows

        console = Console(stderr=True)
        total = sum(entry.paper is not None for entry in known.values())
        found = list(track(rows(), "rebuilding", total, console=console, disable=not console.is_terminal))
        table, data = _audited(found), {"rows": [row.to_json() for row in found]}
    else:
        table, data = _listing(known), {"recipes": [{"recipe": name, **_facts(known[name])} for name in known]}
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        _print(table)


def _print(table: Table) -> None:
    """A table to stdout, no wider than 100 columns."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = min(console.width, 100) if console.is_terminal else 100
    console.print(table)


def _facts(entry: Recipe) -> dict[str, str | None]:
    return {"source": entry.model.source, "data": entry.data.name if entry.data else None}


def _listing(known: dict[str, Recipe]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("recipe", no_wrap=True)
    for name in ("source", "data"):
        table.add_column(name, overflow="fold")
    for name, entry in known.items():
        facts = _facts(entry)
        table.add_row(name, facts["source"], facts["data"] or "–")
    return table


def _audited(found: list[Row]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("recipe", no_wrap=True)
    for name in ("printed", "ours", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in found:
        error = "–" if row.error is None else f"{round(row.error, 4) + 0.0:+.2%}"
        table.add_row(row.recipe.rpartition("/")[2], _count(row.printed), _count(row.params), error, row.verdict)
    return table


def _count(params: int | None) -> str:
    """Parameters in millions, below one million in thousands."""
    if params is None:
        return "–"
    return f"{params / 1e6:.3f} M" if params >= 1e6 else f"{params / 1e3:.3f} k"
