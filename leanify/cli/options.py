"""Options that several commands share, and their parsing."""

from __future__ import annotations

from typing import Annotated

import typer

from leanify.errors import ShapeError


def complete_source(typed: str) -> list[str]:
    """Shell completion of a SOURCE: the zoo's names, recipes and local paths. Does not import torch."""
    import json
    from importlib import resources
    from pathlib import Path

    from leanify.runs.built_in import built_in

    table = json.loads(resources.files("leanify.zoo").joinpath("table.json").read_text("utf-8"))
    names = [model["name"] for model in table["models"]]
    folder = Path(typed).expanduser() if typed.endswith("/") else Path(typed).expanduser().parent
    paths = [str(path) + "/" * path.is_dir() for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in {*names, *built_in(), *paths} if name.startswith(typed))


def complete_recipe(typed: str) -> list[str]:
    """Shell completion of a recipe's name."""
    from leanify.runs.built_in import built_in, stems

    return sorted(name for name in {*built_in(), *stems()} if name.startswith(typed))


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="a timm or transformers name, a hub id, a directory, a config.json or a lean directory",
        autocompletion=complete_source,
    ),
]
Override = Annotated[
    list[str] | None,
    typer.Option("--override", metavar="KEY=VALUE", help="an argument for upstream's constructor or configuration"),
]
ModelClass = Annotated[
    str | None, typer.Option("--class", metavar="NAME", help="a transformers class, such as AutoModelForCausalLM")
]
Tokens = Annotated[
    int | None, typer.Option("--tokens", min=1, metavar="N", help="length of a text input (default: 512, or what fits)")
]

Push = Annotated[
    str | None, typer.Option(metavar="USER/NAME", help="push what is written to the hub, as a private model")
]

Format = Annotated[
    str | None,
    typer.Option("--format", metavar="table|json|csv|markdown", help="how results are printed (default: table)"),
]
Explain = Annotated[bool, typer.Option("--explain", help="say also how the numbers were found, and why")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else: --format json")]


def pushed(directory: str, repo: str) -> None:
    """Push a lean directory, and say where it is."""
    from leanify.exporting.hub import push_to_hub
    from leanify.terminal import progress, say

    with progress(f"pushing {repo}", None):
        address = push_to_hub(directory, repo)
    say(f"pushed to {address}")


LARGEST = 10**9  # of a depth, of heads, of an MLP


def pin(name: str, text: str | None) -> int | list[int] | dict[str, int] | None:
    """Parse ``7``, ``4,4,8,2`` or ``encoder=6,decoder=4``: one number, one per stage, or one per tower.

    Raises ShapeError.
    """
    if text is None:
        return None
    parts = text.replace(" ", "").split(",")
    if "=" in text:
        towers: dict[str, int] = {}
        for part in parts:
            tower, _, value = part.partition("=")
            if not value.isdigit() or int(value) < 1:
                raise ShapeError(f"{name} must be a positive integer per tower (encoder=6,decoder=4), not {value!r}")
            towers[tower] = _possible(name, int(value))
        return towers
    try:
        values = [int(part) for part in parts]
    except ValueError:
        raise ShapeError(
            f"{name} must be an integer or a list such as 4,4,8,2 or encoder=6,decoder=4, not {text!r}"
        ) from None
    if min(values) < 1:
        raise ShapeError(f"{name} must be at least 1, not {text}")
    values = [_possible(name, value) for value in values]
    return values[0] if len(values) == 1 else values


def _possible(name: str, value: int) -> int:
    if value > LARGEST:
        raise ShapeError(f"{name} {str(value)[:30]} is beyond any model's size: at most {LARGEST:,}")
    return value
