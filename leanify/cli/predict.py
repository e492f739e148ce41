"""``leanify predict``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.options import Format, Json

if TYPE_CHECKING:
    from leanify.training.predicting import Prediction

LONGEST = 60  # characters of a text
SHOWN = 3  # classes beside the first


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run of leanify train on data of your own")],
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="FILES…", help="images, folders of them, tables, text files, or a quoted text"),
    ],
    format: Format = None,
    json: Json = False,
) -> None:
    """Apply a run's best model to new images or texts; classes keep their names."""
    from leanify.errors import DirectoryError
    from leanify.terminal import progress

    kind = kind_of(format, json)
    if not Path(run).is_dir():
        raise DirectoryError(f"{run} is not a run; `leanify runs` lists the runs here")
    with progress("loading PyTorch", None):
        from leanify.training.predicting import predict as predict_all

    with progress("predicting", None) as tick:
        found: list[Prediction] = []
        for prediction in predict_all(run, inputs):
            found.append(prediction)
            tick(len(found))
    rows = [prediction.to_json() for prediction in found]
    show(kind, {"run": run, "predictions": rows}, rows, lambda: _print(found))


def _print(found: list[Prediction]) -> None:
    from leanify.cli.tables import table
    from leanify.terminal import console

    texts = any(prediction.sample is not None for prediction in found)
    shown = table(("sample", *(["text"] if texts else []), "answer", "probability", "others"), [], left=2 + texts)
    shown.columns[-1].justify = "left"
    for column in shown.columns[: 1 + texts]:
        column.no_wrap, column.overflow = False, "fold"
    for one in found:
        others = sorted(((p, name) for name, p in one.probabilities.items() if name != one.answer), reverse=True)
        shown.add_row(
            one.where,
            *([_short(one.sample or "")] if texts else []),
            one.answer if isinstance(one.answer, str) else f"{one.answer:.4g}",
            "–" if one.probability is None else f"{one.probability:.1%}",
            ", ".join(f"{name} {p:.1%}" for p, name in others[:SHOWN]),
        )
    console().print(shown)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
