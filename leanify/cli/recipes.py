"""``leanify recipes``: list or search the built-in recipes, print one, list its keys, or audit the paper's rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import chain, takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from leanify.cli.options import Format, Json, complete_recipe
from leanify.cli.output import WIDE, Kind, entries, output_kind, print_json, print_next, show, table
from leanify.core import recipe
from leanify.core.errors import RecipeError
from leanify.core.recipe_code import built_in_recipes, home, stems
from leanify.core.terminal import console, track, visible
from leanify.core.units import format_count

Row = dict[str, Any]
LIST_WIDTH = 160  # columns at most: longer purposes are cut
TOLERANCE = 1e-3  # of the rebuilt count
ROLES = ("baseline", "lean", "control")


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
    """Search the built-in recipes, print one, or rebuild every row of the paper and compare with its printed count.

    \b
    Examples:
      leanify recipes images
      leanify recipes digits > mine.toml
    """
    # one recipe by its name or file; any other arguments are words to search
    kind = output_kind(format, as_json)
    words = names or []
    if len(words) == 1 and (recipe.find(words[0]) or Path(words[0]).exists() or words[0].endswith(".toml")):
        value = recipe.load(words[0])  # refuses an unknown or malformed recipe
        if kind == "json":
            return print_json(value.to_dict())
        return print(visible(recipe.read_recipe_text(recipe.find(words[0]) or Path(words[0]))), end="")
    if keys:
        from leanify.core.strict_toml import describe_keys

        rows = []
        for section, values in recipe.SECTIONS.items():
            for key in describe_keys(values):
                facts = key._asdict()
                rows.append({"key": f"{section}.{facts.pop('name')}", **facts})
        return show(kind, {"keys": rows}, rows, lambda: _print_keys(rows))
    if audit:
        rows = list(track(audit_rows(), "rebuilding", len(_paper_sections())))
        return show(kind, {"rows": rows}, rows, lambda: _print_audit(rows))
    return list_recipes(kind, words)


def list_recipes(kind: Kind = "table", words: Sequence[str] = ()) -> None:
    """Print the recipes with the size of their models, their processor minutes and their purposes."""
    rows = search(words)
    show(kind, {"recipes": rows}, rows, lambda: _print_list(rows, bool(words)))


def search(words: Sequence[str]) -> list[Row]:
    """The recipes with all words in their name, purpose, source or data ("paper": its rows). Raises RecipeError."""
    # costs of a run, measured when the package was released
    costs = json.loads((home() / "costs.json").read_text(encoding="utf-8"))
    rows = []
    for name, path in built_in_recipes().items():
        value = recipe.load(path)
        # the purpose is the first sentence of the first comment
        comment = takewhile(lambda line: line.startswith("# "), path.read_text(encoding="utf-8").splitlines())
        sentence, _, _ = " ".join(line.removeprefix("# ") for line in comment).partition(". ")
        purpose = sentence.partition(" leanify train ")[0].removesuffix(".")
        data = None if value.data is None else value.data.name
        text = f"{name} {purpose} {value.model.source} {data} {'paper' if '/' in name else ''}".lower()
        if all(word.lower() in text for word in words):
            cost = costs.get(name, {"params": None, "minutes": None})
            rows.append({"recipe": name, "purpose": purpose, **cost, "source": value.model.source, "data": data})
    if rows:
        return rows

    # similar names
    known_words = sorted({*stems(), *chain(*(name.split("-") for name in stems()))})
    suggestions = ", ".join(get_close_matches(" ".join(words), known_words)) or ", ".join(list(built_in_recipes())[:3])
    raise RecipeError(f"no built-in recipe has {' and '.join(map(repr, words))}; nearest: {suggestions}")


def _print_list(rows: list[Row], is_search: bool) -> None:
    """One line a recipe. On a terminal the rows of the paper are counted only, unless words are searched."""
    out = console(width=LIST_WIDTH)
    general = [row for row in rows if "/" not in row["recipe"]]
    visible_rows = general if out.is_terminal and not is_search else rows

    # aligned lines, cut at the terminal's width
    cells = [("recipe", "size", "minutes", "purpose")]
    for row in visible_rows:
        minutes = "–" if row["minutes"] is None else f"{row['minutes']:.1f}"
        size = "–" if row["params"] is None else format_count(row["params"])
        cells.append((_stem(row), size, minutes, row["purpose"]))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, size, minutes, purpose in cells:
        line = f"{name:{widths[0]}}  {size:>{widths[1]}}  {minutes:>{widths[2]}}  {purpose}"
        is_cut = out.is_terminal and len(line) > out.width
        out.print(f"{line[: out.width - 1].rstrip()}…" if is_cut else line, soft_wrap=True)
    if not out.is_terminal:
        return
    out.print("\nminutes: of one processor; – where data must be fetched, or a GPU is needed", soft_wrap=True)
    if len(visible_rows) < len(rows):
        rest = len(rows) - len(visible_rows)
        out.print(f"{rest} more rebuild the rows of the paper: leanify recipes paper", soft_wrap=True)
    print_next(f"leanify recipes {_stem(visible_rows[0])}")


def _stem(row: Row) -> str:
    """A recipe's name without its collection, by which it is found as well."""
    return str(row["recipe"].rpartition("/")[2])


def _print_keys(rows: list[Row]) -> None:
    """A table; on a narrow terminal each key on a line, with its meaning below."""
    out = console()
    keys = table(("key", "type", "default", "meaning"), [], left_columns=4)
    for column in keys.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    narrow = []
    for row in rows:
        default = "required" if row["required"] else row["default"] or "–"
        keys.add_row(row["key"], row["type"], default, row["about"])
        head = f"{row['key']} · {row['type']} · {default}".removesuffix(" · –")
        narrow.append((head, row["about"]))
    out.print(entries(narrow, out.width) if out.width < WIDE else keys)


def audit_rows() -> Iterator[Row]:
    """Every recipe that is a row of a publication, with its printed count and the count of its model on meta."""
    from leanify.profiling.counting import parameters
    from leanify.sources import find

    for name, paper in _paper_sections():
        model = find.load(name, device="meta")
        params = parameters(model)
        printed_params, rebuilt, verdict = paper.printed_params, paper.rebuilt_params, paper.verdict
        if rebuilt is not None and abs(params / rebuilt - 1) > TOLERANCE:
            verdict = f"not rebuilt: the model has {params:,} parameters, its recipe says {rebuilt:,}"
        error = None if printed_params is None else printed_params / params - 1  # a control is printed nowhere
        row = {"recipe": name, "printed": printed_params, "rebuilt": rebuilt, "params": params, "error": error}
        yield {**row, "verdict": verdict, "place": paper.place, "role": paper.role}


def _paper_sections() -> list[tuple[str, recipe.PaperSection]]:
    """The recipes that rebuild a publication, in the order of its figures and tables: by system, then by role."""
    sections = [(name, recipe.load(path).paper) for name, path in built_in_recipes().items()]
    paper_rows = [(name, paper) for name, paper in sections if paper is not None]
    return sorted(
        paper_rows, key=lambda row: (row[1].place, row[0].removesuffix(f"-{row[1].role}"), ROLES.index(row[1].role))
    )


def _print_audit(rows: list[Row]) -> None:
    lines = table(("recipe", "printed", "ours", "error", "verdict"), [])
    lines.columns[-1].justify, lines.columns[-1].no_wrap = "left", False
    for row in rows:
        error = "–" if row["error"] is None else f"{round(row['error'], 4) + 0.0:+.2%}"
        lines.add_row(_stem(row), _count(row["printed"]), _count(row["params"]), error, row["verdict"])
    console().print(lines)


def _count(params: int | None) -> str:
    """Parameters in millions; below one million in thousands."""
    if params is None:
        return "–"
    return f"{params / 1e6:.3f} M" if params >= 1e6 else f"{params / 1e3:.3f} k"
