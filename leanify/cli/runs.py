"""``leanify runs``: the runs below a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from leanify.cli.options import Format, Json
from leanify.cli.output import GAP, fit, output_kind, print_next, print_table, shorten, show, table
from leanify.comparison.folder import StudyOverview, find_studies
from leanify.core.errors import DirectoryError
from leanify.core.path_kinds import is_study
from leanify.core.terminal import console, progress
from leanify.core.units import format_metric
from leanify.training.overview import RunOverview, find_runs

COLUMNS = ("run", "model", "data", "steps", "best", "state")
MODEL = 16  # minimum columns of a model's name


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="folder to search, including subfolders")] = Path(),
    format: Format = None,
    as_json: Json = False,
) -> None:
    """List runs and studies: model, data, progress, best result, and whether they can be resumed.

    \b
    Example:
      leanify runs
    """
    kind = output_kind(format, as_json)
    if not folder.is_dir():
        raise DirectoryError(f"{folder} is not a directory; name one to list the runs below it")
    with progress("looking for runs and studies", None):
        run_list, studies = list(find_runs(folder, is_study)), list(find_studies(folder))

    # JSON keeps runs and studies apart; CSV and Markdown list both, with their kind
    rows = [run.to_json() for run in run_list]
    study_rows = [study.to_json() for study in studies]
    all_rows = [{"kind": "run", **row} for row in rows] + [{"kind": "study", **row} for row in study_rows]
    show(kind, {"runs": rows, "studies": study_rows}, all_rows, lambda: _print(folder, run_list, studies))


def _print(folder: Path, run_list: list[RunOverview], studies: list[StudyOverview]) -> None:
    from leanify.cli.screen import NARROW

    # the studies, then the runs
    out = console()
    if studies:
        grid = table(("study", "of", "designs", "runs", "failed", "state"), [], left_columns=2)
        for study in studies:
            progress_text = f"{study.ended} of {study.runs}"
            grid.add_row(
                str(study.path), study.title, str(study.designs), progress_text, str(study.failed), study.state
            )
        print_table(out, grid)
    if run_list:
        if studies:
            out.print()

        # a row for each run, with models' names shortened to the width that the other columns leave
        rows = []
        for run in run_list:
            best = "–" if run.best is None else format_metric(run.metric, run.best)
            rows.append((str(run.path), run.source, run.data, run.progress, best, run.state))
        widths = [GAP + max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
        model_width = max(MODEL, out.width - sum(widths) + widths[COLUMNS.index("model")] - GAP)
        cells = [(path, shorten(model, model_width), *others) for path, model, *others in rows]
        grid = table(COLUMNS, cells, left_columns=3)
        if out.width < NARROW:
            grid = fit(grid, out, ("data", "model"))
        print_table(out, grid)
    if problems := [f"broken: {run.problem}" for run in run_list if run.problem]:
        out.print("\n" + "\n".join(problems), soft_wrap=True)
    if not run_list and not studies:
        out.print(f"no runs below {folder.resolve()}")
        return print_next("leanify train")

    # the commands that continue the first interrupted study and run, or show the first finished run
    def first_line(command: str, overviews: Sequence[RunOverview | StudyOverview], state: str) -> list[str]:
        return [f"leanify {command} {quote(str(item.path))}" for item in overviews if item.state == state][:1]

    lines = first_line("compare", studies, "interrupted") + first_line("train --resume", run_list, "interrupted")
    return print_next(*(lines or first_line("show", run_list, "done")))
