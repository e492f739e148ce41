"""``leanify runs``: the runs below a folder."""

from __future__ import annotations

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
    rows, more = ([one.to_json() for one in some] for some in (found, studies))
    listed = [{"kind": "run", **row} for row in rows] + [{"kind": "study", **row} for row in more]
    show(kind, {"runs": rows, "studies": more}, listed, lambda: _print(folder, found, studies))


def _print(folder: Path, found: list[RunOverview], studies: list[StudyOverview]) -> None:
    from leanify.cli.screen import NARROW
    from leanify.cli.tables import fit, print_table, table
    from leanify.terminal import console

    out = console()
    if studies:
        _print_studies(studies)
    if not found and not studies:
        out.print(f"no runs below {folder.resolve()}; `leanify train` makes one")
    elif found:
        shown = table(COLUMNS, _rows(found, out.width), left=3)
        print_table(out, fit(shown, out, ("data", "model")) if out.width < NARROW else shown)
        _say_problems(found)
        _say_how_to_go_on(found)


def _print_studies(studies: list[StudyOverview]) -> None:
    from leanify.cli.tables import print_table, table
    from leanify.terminal import console

    shown = table(("study", "of", "designs", "runs", "failed", "state"), [], left=2)
    for study in studies:
        done = f"{study.ended} of {study.runs}"
        shown.add_row(str(study.path), study.title, str(study.designs), done, str(study.failed), study.state)
    print_table(console(), shown)
    stopped = next((study for study in studies if study.state == "interrupted"), None)
    hint = f"go on with an interrupted one: leanify compare {quote(str(stopped.path))}\n" if stopped is not None else ""
    console().print(f"\n{hint}" if hint else "", soft_wrap=True)


def _rows(found: list[RunOverview], width: int) -> list[tuple[str, ...]]:
    """A row for each run; long names of models are shortened to what the other columns leave."""
    from leanify.cli.tables import GAP, shortened

    rows = [_row(run) for run in found]
    widths = [GAP + max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    room = max(MODEL, width - sum(widths) + widths[COLUMNS.index("model")] - GAP)
    return [(path, shortened(model, room), *others) for path, model, *others in rows]


def _row(run: RunOverview) -> tuple[str, ...]:
    from leanify.units import metric

    steps = "–" if run.step is None else f"{run.step:,}"
    if run.step is not None and run.steps:
        steps += f" of {run.steps:,}"
    best = "–" if run.best is None else metric(run.metric, run.best)
    return str(run.path), run.source, run.data, steps, best, run.state


def _say_problems(found: list[RunOverview]) -> None:
    from leanify.terminal import console, wrap

    out = console()
    width = out.width if out.is_terminal else None
    problems = [wrap(f"broken: {run.problem}", width) for run in found if run.problem]
    if problems:
        out.print("\n" + "\n".join(problems), soft_wrap=True)


def _say_how_to_go_on(found: list[RunOverview]) -> None:
    from leanify.terminal import console

    stopped = next((run for run in found if run.state == "interrupted"), None)
    if stopped is not None:
        console().print(
            f"\ngo on with an interrupted one: leanify train --resume {quote(str(stopped.path))}", soft_wrap=True
        )
