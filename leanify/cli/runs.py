"""``leanify runs``: the runs below a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.options import Format, Json

if TYPE_CHECKING:
    from leanify.study.overview import StudyOverview
    from leanify.training.overview import RunOverview

COLUMNS = ("run", "model", "data", "steps", "best", "state")
MODEL = 16  # columns that a model's name gets at least


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="folder to search, including subfolders")] = Path(),
    format: Format = None,
    as_json: Json = False,
) -> None:
    """List runs and studies: model, data, progress, best result, and whether they can be resumed."""
    from leanify.errors import DirectoryError
    from leanify.terminal import progress

    kind = kind_of(format, as_json)
    if not folder.is_dir():
        raise DirectoryError(f"{folder} is not a directory; name one to list the runs below it")
    with progress("looking for runs and studies", None):
        from leanify.runs.places import is_study
        from leanify.study.overview import studies_below
        from leanify.training.overview import runs_below

        found, studies = list(runs_below(folder, is_study)), list(studies_below(folder))
    rows = [run.to_json() for run in found]
    more = [study.to_json() for study in studies]
    listed = [{"kind": "run", **row} for row in rows] + [{"kind": "study", **row} for row in more]
    show(kind, {"runs": rows, "studies": more}, listed, lambda: _print(folder, found, studies))


def _print(folder: Path, found: list[RunOverview], studies: list[StudyOverview]) -> None:
    from leanify.cli.next_lines import print_next
    from leanify.cli.screen import NARROW
    from leanify.cli.tables import fit, print_table, table
    from leanify.terminal import console, wrap

    out = console()
    if studies:
        shown = table(("study", "of", "designs", "runs", "failed", "state"), [], left=2)
        for study in studies:
            done = f"{study.ended} of {study.runs}"
            shown.add_row(str(study.path), study.title, str(study.designs), done, str(study.failed), study.state)
        print_table(out, shown)
    if found:
        if studies:
            out.print()
        shown = table(COLUMNS, _rows(found, out.width), left=3)
        print_table(out, fit(shown, out, ("data", "model")) if out.width < NARROW else shown)
    width = out.width if out.is_terminal else None
    if problems := [wrap(f"broken: {run.problem}", width) for run in found if run.problem]:
        out.print("\n" + "\n".join(problems), soft_wrap=True)
    if not found and not studies:
        out.print(f"no runs below {folder.resolve()}")
        return print_next("leanify train")

    def first(command: str, some: Sequence[RunOverview | StudyOverview], state: str) -> list[str]:
        return [f"leanify {command} {quote(str(one.path))}" for one in some if one.state == state][:1]

    go_on = first("compare", studies, "interrupted") + first("train --resume", found, "interrupted")
    return print_next(*(go_on or first("show", found, "done")))


def _rows(found: list[RunOverview], width: int) -> list[tuple[str, ...]]:
    """A row for each run; long names of models are shortened to what the other columns leave."""
    from leanify.cli.tables import GAP, shortened
    from leanify.units import metric

    rows = []
    for run in found:
        best = "–" if run.best is None else metric(run.metric, run.best)
        rows.append((str(run.path), run.source, run.data, run.done, best, run.state))
    widths = [GAP + max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    room = max(MODEL, width - sum(widths) + widths[COLUMNS.index("model")] - GAP)
    return [(path, shortened(model, room), *others) for path, model, *others in rows]
