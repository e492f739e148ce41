"""``leanify predict``"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from leanify.cli.options import Format, Json
from leanify.cli.output import GAP, output_kind, shorten, show, table
from leanify.core.errors import DataError, DirectoryError
from leanify.core.terminal import console, progress

if TYPE_CHECKING:
    from leanify.training.predicting import Answer

LONGEST = 60  # characters of a text that are shown
PLACE, WORDS = 24, 20  # minimum columns of a sample's place and its text, in one line
OTHER_CLASSES = 3  # classes shown in addition to the first
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
    """Apply a run's best model to new images or texts; classes keep their names.

    \b
    Example:
      leanify predict RUN picture.png
    """
    # the run and a file may have changed places
    kind = output_kind(format, json)
    if not Path(run).is_dir():
        for other in inputs:
            if (Path(other) / "recipe.toml").is_file():
                raise DirectoryError(f"the run comes first: leanify predict {quote(other)} {quote(run)}")
        raise DirectoryError(f"{run} is not a run; `leanify runs` lists the runs here")
    is_run = (Path(run) / "recipe.toml").is_file()
    if not is_run and any((Path(run) / name).is_file() for name in ("leanify.json", "config.json", "modules.json")):
        raise DirectoryError(
            f"{run} is a model, not a run: it records neither how its inputs are prepared nor the names of classes. "
            f"leanify.load({run!r}) in Python loads it; leanify train {quote(run)} --set data.path=DATA makes a run"
        )
    with progress("loading PyTorch", None):
        from leanify.training.predicting import predict as predict_all

    # the answers
    with progress("predicting", None) as tick:
        answers: list[Answer] = []
        try:
            for prediction in predict_all(run, inputs):
                answers.append(prediction)
                tick(len(answers))
        except DataError as error:  # the key of a recipe in the message would mislead: no recipe is read here
            raise DataError(error.message) from None
    rows = [prediction.to_json() for prediction in answers]
    show(kind, {"run": run, "predictions": rows}, rows, lambda: _print(answers))


def _print(answers: list[Answer]) -> None:
    """Print one line per sample, without columns that are empty for all samples."""
    # the columns that some sample fills, with their widths
    out = console()
    rows = []
    for prediction in answers:
        # the most likely other classes
        likely = sorted(prediction.probabilities, key=prediction.probabilities.__getitem__, reverse=True)
        others = [f"{name} {prediction.probabilities[name]:.1%}" for name in likely if name != prediction.answer]
        row = {"sample": prediction.where, "text": prediction.sample or "", "answer": prediction.text}
        if prediction.probability is not None:
            row["probability"] = f"{prediction.probability:.1%}"
        row["probabilities" if prediction.probability is None else "others"] = ", ".join(others[:OTHER_CLASSES])
        rows.append(row)
    widths: dict[str, int] = {}
    for name in COLUMNS:
        longest = max((len(row.get(name, "")) for row in rows), default=0)
        if longest or (not rows and name in ("sample", "answer")):
            widths[name] = GAP + max(len(name), longest)

    # divide the rest of the terminal between a sample's place and its text
    names = list(widths)
    text_width = out.width - sum(width for name, width in widths.items() if name not in ("sample", "text"))
    place_share = text_width // 2 if "text" in names else text_width
    place_width = min(widths["sample"], max(PLACE, place_share))
    words_width = max(WORDS, text_width - place_width)
    grid = table(names, [], left_columns=names.index("answer") + 1)
    for column in grid.columns:
        if column.header != "probability":
            column.justify, column.no_wrap, column.overflow = "left", column.header in ("sample", "text"), "fold"
    max_width = min(words_width - GAP, LONGEST)
    for row in rows:
        row["sample"] = shorten(row["sample"], place_width - GAP)
        if len(row["text"]) > max_width:
            row["text"] = f"{row['text'][: max_width - 1].rstrip()}…"
        grid.add_row(*(row.get(name, "") for name in names))
    out.print(grid)
