"""``leanify runs``: the runs below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.options import Format, Json

if TYPE_CHECKING:
    from leanify.training.overview import RunOverview


def runs(
    folder: Annotated[Path, typer.Argument(help="where to look, folders inside included")] = Path(),
    format: Format = None,
    as_json: Json = False,
) -> None:
    """List the runs here: model, data, how far each came, its best result, and whether it can go on."""
    from leanify.errors import DirectoryError
    from leanify.terminal import progress

    kind = kind_of(format, as_json)
    if not folder.is_dir():
        raise DirectoryError(f"{folder} is not a directory: leanify runs lists the runs below one")
    with progress("looking for runs and studies", None):
        from leanify.training.overview import runs_below

        found = list(runs_below(folder))
    rows = [run.to_json() for run in found]
    show(kind, {"runs": rows}, rows, lambda: _print(folder, found))


def _print(folder: Path, found: list[RunOverview]) -> None:
    from leanify.cli.tables import table
    from leanify.terminal import console

    if not found:
        console().print(f"no runs below {folder.resolve()}; `leanify train` makes one")
    else:
        shown = table(("run", "model", "data", "steps", "best", "state"), map(_row, found), left=3)
        for column in shown.columns[:2]:
            column.no_wrap, column.overflow = False, "fold"
        console().print(shown)
        _say_how_to_go_on(found)


def _row(run: RunOverview) -> tuple[str, ...]:
    steps = "–" if run.step is None else f"{run.step:,}" + (f" of {run.steps:,}" if run.steps else "")
    best = "–" if run.best is None else f"{run.metric} {run.best:.4g}"
    return str(run.path), run.source, run.data, steps, best, run.state


def _say_how_to_go_on(found: list[RunOverview]) -> None:
    stopped = next((run for run in found if run.state == "interrupted"), None)
    if stopped is not None:
        print(f"\ngo on with an interrupted one: leanify train --resume {stopped.path}")
