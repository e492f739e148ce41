"""Run a trained model on new data: class names with probabilities, or numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.data import labelled_text, vocabulary
from leanify.data.columns import TABLES
from leanify.data.common import length_of_text
from leanify.data.faults import Faults
from leanify.data.glue import Sentences, takes_types
from leanify.data.image_folder import decoded, suffixes, transforms
from leanify.data.splits import NAMED
from leanify.data.text import rows_of_table
from leanify.errors import DataError, RecipeError
from leanify.sources import find
from leanify.sources.recipe import DataSection
from leanify.sources.run_directory import RunDirectory
from leanify.tasks.outputs import answer
from leanify.training import with_tokenizer_of

IMAGES, SENTENCES = ("classification",), labelled_text.TASKS
BATCH = 32


@dataclass(frozen=True)
class Prediction:
    """The model's answer for one sample.

    where          the file, and of a table the row
    sample         the text, None of an image
    answer         a class by name, or a number
    probability    of that class, None of a number
    probabilities  of every class, by name
    """

    where: str
    sample: str | None
    answer: str | float
    probability: float | None
    probabilities: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def predict(run: str | Path, inputs: Sequence[str | Path]) -> Iterator[Prediction]:
    """The predictions of a run's best checkpoint, in the order of ``inputs``.

    Images are files or folders of them; texts are tables with the columns that the run was trained on, text files with
    a text a line, or a text itself. Raises DataError, and RecipeError for a run whose task is no prediction.
    """
    begun = RunDirectory.open(run)
    data = with_tokenizer_of(begun).data
    if data is None or data.task not in (*IMAGES, *SENTENCES) or data.name in NAMED:
        what = "nothing" if data is None else f"{data.name} ({data.task})"
        raise RecipeError(
            f"{run} was trained on {what}; leanify predict takes runs on images or labelled texts of your own. In "
            f'Python, leanify.load("{run}") is the model'
        )
    model = find.load(run).eval()
    batches = _images(data, model, inputs) if data.task in IMAGES else _texts(data, model, inputs)
    names = begun.classes if data.task != "text-regression" else []
    with torch.no_grad():
        for places, samples, batch in batches:
            yield from _answers(places, samples, answer(model, batch), names, data.task == "text-regression")


def _answers(
    places: Sequence[str], samples: Sequence[str | None], logits: Tensor, names: Sequence[str], numbers: bool
) -> Iterator[Prediction]:
    """logits B × outputs → a prediction each; outputs without a class, as of a model made for more, do not count."""
    if numbers:
        for where, sample, value in zip(places, samples, logits.flatten().tolist(), strict=True):
            yield Prediction(where, sample, value, None, {})
        return
    known = list(names) or [str(number) for number in range(logits.shape[1])]
    shares = logits[:, : len(known)].softmax(-1)
    for where, sample, row in zip(places, samples, shares.tolist(), strict=True):
        best = max(range(len(row)), key=row.__getitem__)
        yield Prediction(where, sample, known[best], row[best], dict(zip(known, row, strict=True)))


def _images(
    data: DataSection, model: nn.Module, inputs: Sequence[str | Path]
) -> Iterator[tuple[list[str], list[None], Tensor]]:
    _, plain, scale, mode = transforms(data, model)
    files = [file for path in inputs for file in _image_files(Path(path).expanduser())]
    for start in range(0, len(files), BATCH):
        some = files[start : start + BATCH]
        pixels = torch.stack([torch.as_tensor(plain(decoded(file, mode, file))) for file in some])
        yield [str(file) for file in some], [None] * len(some), scale(pixels)


def _image_files(path: Path) -> list[Path]:
    if path.is_dir():
        known = suffixes()
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in known)
        if not found:
            raise DataError(f"{path} has no image ({', '.join(sorted(known)[:5])}, …)")
        return found
    if not path.is_file():
        raise DataError(f"{path} does not exist: this run takes images, or folders of them")
    return [path]


def _texts(
    data: DataSection, model: nn.Module, inputs: Sequence[str | Path]
) -> Iterator[tuple[list[str], list[str], dict[str, Tensor]]]:
    tokenizer, _ = vocabulary.tokenizer_of(data.tokenizer, lambda: [], "")
    length = length_of_text(data, model)
    rows = [row for each in inputs for row in _rows(str(each), data)]
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        sentences = Sentences([(texts, 0) for _, texts in some], tokenizer, length, takes_types(model))
        batch, _ = sentences.batch(torch.arange(len(some)).numpy())
        yield [place for place, _ in some], [" | ".join(texts) for _, texts in some], batch


def _rows(given: str, data: DataSection) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(where, texts) of a table, of the lines of a text file, or of what was given itself."""
    path = Path(given).expanduser()
    if path.suffix in TABLES:
        if not path.is_file():
            raise DataError(f"{path} does not exist")
        faults, columns = Faults(), data.text
        for place, row in rows_of_table(path, faults):
            columns = columns or labelled_text.texts_of(path, list(row))
            cells = [faults.text(row.get(name), f"{path}, {place}: {name}") for name in columns]
            yield f"{path}, {place}", tuple(cell for cell in cells if cell is not None)
    elif _is_file(path):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if line.strip():
                yield f"{path}, line {number}", (line,)
    elif " " in given.strip():
        yield "text", (given,)
    else:
        raise DataError(f"{given} is no file here, and no sentence: name a table, a text file, or quote a text")


def _is_file(path: Path) -> bool:
    """Whether this is a file; a sentence may be too long to be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
