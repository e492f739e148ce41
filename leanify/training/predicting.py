"""Run a trained model on new data: names of classes, with probabilities; or numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.files.reading import is_file, open_file, read_lines
from leanify.core.recipe import DataSection
from leanify.core.recipe_code import is_code
from leanify.core.task_names import IMAGES, TASKS, can_be_applied
from leanify.data.common import max_text_length
from leanify.data.images.decoding import recorded_decoder
from leanify.data.images.folder import transforms
from leanify.data.splits import BUILT_IN
from leanify.data.texts import tokenizers
from leanify.data.texts.encoded import Sentences, takes_types
from leanify.layouts import columns, hub
from leanify.layouts.faults import Faults
from leanify.layouts.image_files import find_images
from leanify.layouts.rows import read_table
from leanify.layouts.text_folders import class_texts
from leanify.runs.run_directory import RunDirectory
from leanify.sources import find
from leanify.tasks import answer
from leanify.training.start import recorded_recipe
from leanify.upstream.origin import in_mode

BATCH = 32


@dataclass(frozen=True)
class Answer:
    """The model's answer for one sample."""

    where: str  # the file, and of a table the row
    sample: str | None  # the text, None of an image
    answer: str | float  # a class by name, or a number
    probability: float | None = None  # of the class
    probabilities: dict[str, float] = field(default_factory=dict)  # of every class, by name

    @property
    def text(self) -> str:
        """The answer as people read it."""
        return self.answer if isinstance(self.answer, str) else f"{self.answer:.4g}"

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def predict(run: str | Path, inputs: Sequence[str | Path]) -> Iterator[Answer]:
    """The predictions of a run's best checkpoint, in the order of ``inputs``. Raises LeanifyError.

    Images are files or folders of them; texts are tables with the columns that the run was trained on, text
    files with a text a line, or a text itself.
    """
    run_directory = RunDirectory.open(run)
    data = recorded_recipe(run_directory).data
    if data is None or not can_be_applied(data.task) or data.name in BUILT_IN or is_code(data.name):
        name = "nothing" if data is None else f"{data.name} ({data.task})"
        raise RecipeError(
            f"{run} was trained on {name}; leanify predict takes runs on images or labelled texts of your own. In "
            f'Python, leanify.load("{run}") is the model'
        )
    model = in_mode(find.load(run))
    with torch.no_grad():
        batches = _images(data, model, inputs) if TASKS[data.task].data == IMAGES else _texts(data, model, inputs)
        for places, samples, batch in batches:
            for where, sample, logits in zip(places, samples, answer(model, batch), strict=True):
                if data.task == "text-regression":
                    yield Answer(where, sample, logits[0].item())
                    continue
                # probabilities of the known classes alone, so that they add up to 1; there may be more outputs
                classes = list(run_directory.classes) or [str(number) for number in range(len(logits))]
                by_name = dict(zip(classes, logits[: len(classes)].softmax(-1).tolist(), strict=True))
                best = max(classes, key=by_name.__getitem__)
                yield Answer(where, sample, best, by_name[best], by_name)


def _images(
    data: DataSection, model: nn.Module, inputs: Sequence[str | Path]
) -> Iterator[tuple[list[str], list[None], Tensor]]:
    # all files first, so that a wrong name is reported before the first answer
    _, plain, scale, mode = transforms(data, model)
    decoder = recorded_decoder(data)
    files: list[Path] = []
    for name in inputs:
        path = Path(name).expanduser()
        if not path.is_dir() and not path.is_file():
            raise DataError(f"{path} does not exist: this run takes images, or folders of them")
        images = sorted(find_images(path)) if path.is_dir() else [path]
        if not images:
            raise DataError(f"{path} has no image ({', '.join(columns.IMAGES[:5])}, …)")
        files += images

    # transformed as the validation split was: (B, channels, height, width)
    for start in range(0, len(files), BATCH):
        batch, pixels = files[start : start + BATCH], []
        for path in batch:
            with open_file(path, DataError) as file:
                pixels.append(torch.as_tensor(decoder(file, mode, path, plain)))
        yield [str(path) for path in batch], [None] * len(batch), scale(torch.stack(pixels))


def _texts(
    data: DataSection, model: nn.Module, inputs: Sequence[str | Path]
) -> Iterator[tuple[list[str], list[str], dict[str, Tensor]]]:
    rows: list[tuple[str, tuple[str, ...]]] = []
    for name in inputs:
        rows += _rows(str(name), data)
    if not rows:
        raise DataError(f"{', '.join(map(str, inputs))}: there is no text to predict from")
    tokenizer, length = tokenizers.make_tokenizer(data.tokenizer, lambda: [], "")[0], max_text_length(data, model)
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        sentences = Sentences([(texts, 0) for _, texts in part], tokenizer, length, takes_types(model))
        batch, _ = sentences.batch(torch.arange(len(part)).numpy())
        yield [place for place, _ in part], [" | ".join(texts) for _, texts in part], batch


def _rows(text: str, data: DataSection) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (where, texts) for each row of a table or text in folders, each line of a text file, or the text itself."""
    path = Path(text).expanduser()
    is_folder = os.path.isdir(path) and (hub.is_saved(path) or bool(class_texts(path)))  # noqa: PTH112  texts are long
    is_table = path.suffix.lower() in columns.TABLES or (is_file(path) and columns.text_table(path) == "fasttext")
    if is_folder or is_table:
        if not path.exists():
            raise DataError(f"{path} does not exist")
        faults, texts = Faults(), data.text
        for place, row in read_table(path, faults):
            texts = texts or columns.guess_texts(list(row))
            if not texts:
                names = ", ".join(list(row)[:8])
                raise DataError(f"{path} has no text column; found {names}: rename the one with the texts to text")
            cells = [faults.text(row.get(name), f"{path}, {place}: {name}") for name in texts]
            yield f"{path}, {place}", tuple(cell for cell in cells if cell is not None)

    # a file with a text per line
    elif is_file(path):
        for number, line in enumerate(read_lines(path, DataError), 1):
            if line.strip():
                yield f"{path}, line {number}", (line.rstrip("\n"),)

    # the text itself
    elif " " in text.strip():
        yield "text", (text,)
    else:
        raise DataError(f"{text} is no file here, and no sentence: name a table, a text file, or quote a text")
