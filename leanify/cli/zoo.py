"""``leanify zoo``: what can be redesigned in timm and transformers, and how that was checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

_HOW = (
    "supported: every law held on a small version of the model, in float64 on random weights. Heads doubled with zero "
    "output columns gave the same outputs to 1e-10, the new heads mattered, no attention was missed, one block fewer "
    "ran, the halves of split heads ran or were refused, what was saved loaded the same, and a design cost what "
    "redesign had said. refused: leanify says why not. failing: neither."
)


def zoo(
    library: Annotated[str | None, typer.Option(help="timm or hf alone")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List the models of timm and transformers that can be redesigned, and why the others cannot."""
    import json
    from collections import Counter

    from rich.console import Console

    from leanify.errors import SourceError

    if library not in (None, "timm", "hf"):
        raise SourceError(f"--library was given {library!r}; there are timm and hf")
    table = _table()
    models = [model for model in table["models"] if library in (None, model["library"])]
    if as_json:
        print(json.dumps({"models": models, "checked_with": table["checked_with"]}, indent=2))
        return
    console = Console(highlight=False)
    console.width = min(console.width, 100) if console.is_terminal else 100
    console.print(_rendered(models))
    for name in sorted({model["library"] for model in models}):
        counts = Counter(model["status"] for model in models if model["library"] == name)
        console.print(f"{name}: " + ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    versions = ", ".join(f"{name} {version}" for name, version in table["checked_with"].items())
    console.print(f"checked with {versions}\n{_HOW}")


def _table() -> dict[str, Any]:
    """What ``tests/zoo.py`` measured last."""
    import json
    from importlib import resources

    table: dict[str, Any] = json.loads(resources.files("leanify.lens.families").joinpath("zoo.json").read_text("utf-8"))
    return table


def _rendered(models: list[dict[str, str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("model", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for model in models:
        table.add_row(f"{model['library']}/{model['name']}", model["status"], model["reason"])
    return table
