"""What several commands share before torch is imported: options, their parsing, and how threads wait."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from leanify.core.errors import ShapeError
from leanify.core.recipe_code import built_in_recipes, stems
from leanify.lens.zoo import load_table
from leanify.sources.names import check_names


def complete_source(incomplete: str) -> list[str]:
    """Shell completion of a SOURCE: the zoo's names, recipes and local paths. Does not import torch."""
    names = [model["name"] for model in load_table()["models"]]
    path = Path(incomplete).expanduser()
    folder = path if incomplete.endswith("/") else path.parent
    paths = [str(entry) + "/" * entry.is_dir() for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in {*names, *built_in_recipes(), *paths} if name.startswith(incomplete))


def complete_recipe(incomplete: str) -> list[str]:
    """Shell completion of a recipe's name."""
    return sorted(name for name in {*built_in_recipes(), *stems()} if name.startswith(incomplete))


sources_argument = partial(typer.Argument, metavar="SOURCE…", autocompletion=complete_source, callback=check_names)
source_option = partial(typer.Option, rich_help_panel="Source")
output_option = partial(typer.Option, rich_help_panel="Output")

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="a timm or transformers name, a hub id, a directory, a config.json or a lean directory",
        autocompletion=complete_source,
        callback=check_names,
    ),
]
Override = Annotated[
    list[str] | None,
    source_option("--override", metavar="KEY=VALUE", help="an argument for upstream's constructor or configuration"),
]
ModelClass = Annotated[
    str | None, source_option("--class", metavar="NAME", help="a transformers class, such as AutoModelForCausalLM")
]
Tokens = Annotated[
    int | None, source_option("--tokens", min=1, metavar="N", help="length of a text (default: 512, or what fits)")
]

Format = Annotated[
    str | None,
    output_option("--format", metavar="table|json|csv|markdown", help="how results are printed (default: table)"),
]
Explain = Annotated[bool, output_option("--explain", help="also say how the numbers were found, and why")]
Json = Annotated[bool, output_option("--json", help="print one JSON object and nothing else: --format json")]


LARGEST = 10**9  # of a depth, of heads, of an MLP


def pin(name: str, text: str | None) -> int | list[int] | dict[str, int] | None:
    """Parse ``7``, ``4,4,8,2`` or ``encoder=6,decoder=4``: one, one per stage, one per tower. Raises ShapeError."""
    if text is None:
        return None
    parts = text.replace(" ", "").split(",")
    towers: dict[str, int] = {}
    if "=" in text:
        for part in parts:
            tower, _, value = part.partition("=")
            if not re.fullmatch("[0-9]{1,18}", value) or int(value) < 1:
                raise ShapeError(f"{name} must be a positive integer per tower (encoder=6,decoder=4), not {value!r}")
            towers[tower] = int(value)
    try:
        values = list(towers.values()) or [int(part) for part in parts]
    except ValueError:
        raise ShapeError(
            f"{name} must be an integer or a list such as 4,4,8,2 or encoder=6,decoder=4, not {text!r}"
        ) from None
    if min(values) < 1:
        raise ShapeError(f"{name} must be at least 1, not {text}")
    if max(values) > LARGEST:
        raise ShapeError(f"{name} {str(max(values))[:30]} is beyond any model's size: at most {LARGEST:,}")
    return towers or (values[0] if len(values) == 1 else values)


def spare_busy_cores() -> None:
    """Make OpenMP's waiting threads sleep instead of spin if other processes keep half of the cores busy.

    The library reads the variable when torch is imported. With two threads on two cores, a forward pass of MiniLM takes
    1.3 times as long on a quiet machine, but with two busy processes 179 instead of 414 ms.
    """
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
