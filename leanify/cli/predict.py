"""``leanify predict``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.options import Format, Json

if TYPE_CHECKING:
    from leanify.training.predicting import Answer

LONGEST = 60  # characters of a text that are shown
PLACE, WORDS = 24, 20  # columns that a sample's place and its text get at least, in one line
SHOWN = 3  # classes shown in addition to the first
COLUMNS = ("sample", "text", "answer", "probability", "others", "probabilities")


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run of leanify train on your own data")],
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="FILES…", help="images, folders of them, tables, text files, or a quoted text"),
    ],
    format: Format = None,
    json: Json = False,
) -> None:
    """Apply a run's best model to new images or texts; classes keep their names."""
    from shlex import quote

    from leanify.errors import DataError, DirectoryError
    from leanify.terminal import progress

    kind = kind_of(format, json)
    if not Path(run).is_dir():
        for other in inputs:
            if (Path(other) / "recipe.toml").is_file():
                raise DirectoryError(f"the run comes first: leanify predict {quote(other)} {quote(run)}")
        raise DirectoryError(f"{run} is not a run; `leanify runs` lists the runs here")
    with progress("loading PyTorch", None):
        from leanify.training.predicting import predict as predict_all

    with progress("predicting", None) as tick:
        found: list[Answer] = []
        try:
            for prediction in predict_all(run, inputs):
                found.append(prediction)
                tick(len(found))
        except DataError as error:  # without the key of a recipe: none is read here
            raise DataError(error.message) from None
    rows = [prediction.to_json() for prediction in found]
    show(kind, {"run": run, "predictions": rows}, rows, lambda: _print(found))


def _print(found: list[Answer]) -> None:
    """Print one line per sample, without columns that are empty for all samples."""
    from leanify.cli.tables import GAP, shortened, table
    from leanify.terminal import console

    out = console()
    rows = [_row(one) for one in found]
    widths: dict[str, int] = {}
    for name in COLUMNS:
        longest = max((len(row.get(name, "")) for row in rows), default=0)
        if longest or (not rows and name in ("sample", "answer")):
            widths[name] = GAP + max(len(name), longest)
    names = list(widths)
    left = out.width - sum(width for name, width in widths.items() if name not in ("sample", "text"))
    place = min(widths["sample"], max(PLACE, left // 2 if "text" in names else left))
    words = max(WORDS, left - place)
    shown = table(names, [], left=names.index("answer") + 1)
    for column in shown.columns:
        if column.header != "probability":
            column.justify, column.no_wrap, column.overflow = "left", column.header in ("sample", "text"), "fold"
    most = min(words - GAP, LONGEST)
    for row in rows:
        row["sample"] = shortened(row["sample"], place - GAP)
        if len(row["text"]) > most:
            row["text"] = f"{row['text'][: most - 1].rstrip()}…"
        shown.add_row(*(row.get(name, "") for name in names))
    out.print(shown)


def _row(one: Answer) -> dict[str, str]:
    """The cells of a sample by column: the most likely other classes stand behind the first, or alone."""
    likely = sorted(one.probabilities, key=one.probabilities.__getitem__, reverse=True)
    others = [f"{name} {one.probabilities[name]:.1%}" for name in likely if name != one.answer]
    row = {"sample": one.where, "text": one.sample or "", "answer": one.words}
    if one.probability is not None:
        row["probability"] = f"{one.probability:.1%}"
    row["probabilities" if one.probability is None else "others"] = ", ".join(others[:SHOWN])
    return row
