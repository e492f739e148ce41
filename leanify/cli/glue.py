"""``leanify glue``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.options import Format, Json

if TYPE_CHECKING:
    from leanify.paper.glue_table import Report


def glue(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="the encoder: a run, a directory, a checkpoint, a hub id, a model type"),
    ],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="sst2/train.tsv, rte/train.tsv, … (default: the hub)")
    ] = None,
    tasks: Annotated[str | None, typer.Option(metavar="NAMES", help="sst2,cola (default: all that DIR has)")] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="runs per task; the table shows their median")] = 5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="folder of the runs (default: runs/glue-NAME)")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe: schedule.epochs=3")
    ] = None,
    format: Format = None,
    json: Json = False,
) -> None:
    """Fine-tune an encoder on the GLUE tasks, with several seeds each, and print the table.

    Each fine-tuning is a run of the recipe glue. Finished runs are kept and unfinished ones resumed, so the command can
    be interrupted and called again.
    """
    kind = kind_of(format, json)
    from leanify.cli.screen import Screen

    named = [name.strip() for name in tasks.split(",") if name.strip()] if tasks is not None else None
    with Screen() as screen:
        from leanify.paper import glue_table as table

        def watch(name: str) -> Screen:
            screen.prepares(name)
            return screen

        found = table.glue(source, data, tasks=named, seeds=seeds, output=output, settings=settings or [], watch=watch)
    facts = found.to_json()
    show(kind, facts, facts["tasks"], lambda: _render(found))


def _render(found: Report) -> None:
    """Print one line per task: the main metric's median over seeds, its range, and the other metrics' medians."""
    from rich.text import Text

    from leanify.cli.tables import print_table, table
    from leanify.terminal import console

    out = console()
    shown = table(("task", "metric", "median", "lowest–highest", "seeds", "other medians"), [], left=2)
    shown.columns[-1].justify = "left"
    for score in found.scores:
        values = score.values[score.metric]
        span = f"{min(values):.2f}–{max(values):.2f}" if len(values) > 1 else ""
        medians = {name: facts["median"] for name, facts in score.to_json()["metrics"].items()}
        del medians[score.metric]
        others = ", ".join(f"{name} {median:.2f}" for name, median in medians.items())
        shown.add_row(score.title, score.metric, f"{score.median:.2f}", span, str(len(values)), others)
    out.print(Text.assemble((found.source, "bold"), f" · runs in {found.directory}"))
    out.print()
    print_table(out, shown)
    out.print()
    missing = f"; without {', '.join(found.missing)}" if found.missing else ""
    out.print(f"average of {len(found.scores)} task{'s' * (len(found.scores) != 1)}: {found.average:.2f}{missing}")
