"""Run a trained model on new data: names of classes, labels and tags, with probabilities; or numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.data.common import length_of_text
from leanify.data.faults import Faults
from leanify.data.images.files import images_below
from leanify.data.images.folder import decoded, transforms
from leanify.data.splits import NAMED
from leanify.data.tables import columns
from leanify.data.tables.columns import parts_of
from leanify.data.tables.rows import rows_of_table
from leanify.data.texts import labelled_text, own_texts, tagged_text, vocabulary
from leanify.data.texts.encoded import Sentences, takes_types
from leanify.errors import DataError, RecipeError
from leanify.runs.files import opened, opened_text
from leanify.runs.recipe import DataSection
from leanify.runs.run_directory import RunDirectory
from leanify.runs.task_names import IMAGES, TASKS, can_be_applied
from leanify.sources import find
from leanify.tasks import multi_label
from leanify.tasks.outputs import answer
from leanify.tasks.token_classification import entities, have_entities
from leanify.training.start import with_tokenizer_of

WORDS = re.compile(r"\w+|[^\w\s]")  # tokens of a text that comes without any
BATCH = 32
Rows = Iterator[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Answer:
    """The model's answer for one sample."""

    where: str  # the file, and of a table the row
    sample: str | None  # the text, None of an image
    answer: str | float | list[str]  # a class by name, a number, the labels that it has, or a tag for each token
    probability: float | None = None  # of the class
    probabilities: dict[str, float] = field(default_factory=dict)  # of every class or label, by name
    tokens: tuple[str, ...] = ()  # what the tags are of

    @property
    def words(self) -> str:
        """The answer as people read it: of tags the entities, where they tell any."""
        if not isinstance(self.answer, list):
            return self.answer if isinstance(self.answer, str) else f"{self.answer:.4g}"
        if not self.tokens:
            return ", ".join(self.answer) or "–"
        if have_entities(self.answer):
            found = (f"{' '.join(self.tokens[first:end])} {kind}" for kind, first, end in entities(self.answer))
            return ", ".join(found)
        if set(self.answer) <= {tagged_text.OUTSIDE}:
            return "–"
        return " ".join(f"{token}/{tag}" for token, tag in zip(self.tokens, self.answer, strict=True))

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "tokens": list(self.tokens)}


def predict(run: str | Path, inputs: Sequence[str | Path]) -> Iterator[Answer]:
    """The predictions of a run's best checkpoint, in the order of ``inputs``. Raises LeanifyError.

    Images are files or folders of them; texts are tables with the columns that the run was trained on, text
    files with a text a line, or a text itself.
    """
    begun = RunDirectory.open(run)
    data = with_tokenizer_of(begun).data
    if data is None or not can_be_applied(data.task) or data.name in NAMED:
        what = "nothing" if data is None else f"{data.name} ({data.task})"
        raise RecipeError(
            f"{run} was trained on {what}; leanify predict takes runs on images or labelled texts of your own. In "
            f'Python, leanify.load("{run}") is the model'
        )
    model = find.load(run).eval()
    with torch.no_grad():
        if data.task == "token-classification":
            yield from _tagged(data, model, inputs, begun.classes)
            return
        batches = _images(data, model, inputs) if TASKS[data.task].data == IMAGES else _texts(data, model, inputs)
        for places, samples, batch in batches:
            for where, sample, row in zip(places, samples, answer(model, batch), strict=True):
                yield _answered(where, sample, row, begun.classes, data.task)


def _answered(where: str, sample: str | None, logits: Tensor, names: Sequence[str], task: str) -> Answer:
    """One sample's logits (outputs,) → what they say; outputs beyond the known classes say nothing."""
    if task == "text-regression":
        return Answer(where, sample, logits[0].item())
    known = list(names) or [str(number) for number in range(len(logits))]
    logits = logits[: len(known)]
    shares = (logits.sigmoid() if task == "multi-label-classification" else logits.softmax(-1)).tolist()
    by_name = dict(zip(known, shares, strict=True))
    if task == "multi-label-classification":
        return Answer(where, sample, [name for name in known if by_name[name] >= multi_label.THRESHOLD], None, by_name)
    best = max(known, key=by_name.__getitem__)
    return Answer(where, sample, best, by_name[best], by_name)


def _images(
    data: DataSection, model: nn.Module, inputs: Sequence[str | Path]
) -> Iterator[tuple[list[str], list[None], Tensor]]:
    _, plain, scale, mode = transforms(data, model)
    files: list[Path] = []
    for given in inputs:
        path = Path(given).expanduser()
        if not path.is_dir() and not path.is_file():
            raise DataError(f"{path} does not exist: this run takes images, or folders of them")
        found = sorted(images_below(path)) if path.is_dir() else [path]
        if not found:
            raise DataError(f"{path} has no image ({', '.join(columns.IMAGES[:5])}, …)")
        files += found
    for start in range(0, len(files), BATCH):
        some, pixels = files[start : start + BATCH], []
        for path in some:
            with opened(path, DataError) as file:
                pixels.append(torch.as_tensor(plain(decoded(file, mode, path))))
        yield [str(path) for path in some], [None] * len(some), scale(torch.stack(pixels))


def _texts(
    data: DataSection, model: nn.Module, inputs: Sequence[str | Path]
) -> Iterator[tuple[list[str], list[str], dict[str, Tensor]]]:
    tokenizer, length, rows = _read(data, model, inputs, _rows)
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        sentences = Sentences([(texts, 0) for _, texts in some], tokenizer, length, takes_types(model))
        batch, _ = sentences.batch(torch.arange(len(some)).numpy())
        yield [place for place, _ in some], [" | ".join(texts) for _, texts in some], batch


def _read(
    data: DataSection, model: nn.Module, inputs: Sequence[str | Path], rows_of: Callable[[str, DataSection], Rows]
) -> tuple[Any, int, list[tuple[str, tuple[str, ...]]]]:
    """The run's tokenizer, how many tokens it makes of a sample at most, and the samples."""
    rows = [row for given in inputs for row in rows_of(str(given), data)]
    if not rows:
        raise DataError(f"{', '.join(map(str, inputs))}: there is no text to predict from")
    return vocabulary.tokenizer_of(data.tokenizer, lambda: [], "")[0], length_of_text(data, model), rows


def _tagged(
    data: DataSection, model: nn.Module, inputs: Sequence[str | Path], names: Sequence[str]
) -> Iterator[Answer]:
    """A tag for every token; O for one beyond the length that the model reads."""
    tokenizer, length, rows = _read(data, model, inputs, _tokens)
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        untold = [(tokens, [0] * len(tokens)) for _, tokens in some]
        sentences = tagged_text.TaggedSentences(untold, tokenizer, length, takes_types(model))
        batch, _ = sentences.batch(torch.arange(len(some)).numpy())
        best = answer(model, batch)[..., : len(names)].argmax(-1).tolist()
        for (where, tokens), row, token_starts in zip(some, best, sentences.token_starts, strict=True):
            tags = [tagged_text.OUTSIDE if place is None else names[row[place]] for place in token_starts]
            yield Answer(where, " ".join(tokens), tags, tokens=tokens)


def _tokens(given: str, data: DataSection) -> Rows:
    """(where, tokens) of a table's sentences; texts are cut into words and marks."""
    path = Path(given).expanduser()
    if path.suffix not in own_texts.SUFFIXES or not path.is_file():
        yield from ((where, tuple(WORDS.findall(text))) for where, (text, *_) in _rows(given, data))
        return
    for place, row in rows_of_table(path, Faults()):
        name = tagged_text.column_of_tokens(path, list(row), data)
        if not (tokens := parts_of(row.get(name))):
            raise DataError(f"{path}, {place}: {name} is no list of tokens")
        yield f"{path}, {place}", tokens


def _rows(given: str, data: DataSection) -> Rows:
    """(where, texts) of a table, of the lines of a text file, or of what was given itself."""
    path = Path(given).expanduser()
    if path.suffix in own_texts.SUFFIXES:
        if not path.is_file():
            raise DataError(f"{path} does not exist")
        faults, columns = Faults(), data.text
        for place, row in rows_of_table(path, faults):
            columns = columns or labelled_text.texts_of(path, list(row))
            cells = [faults.text(row.get(name), f"{path}, {place}: {name}") for name in columns]
            yield f"{path}, {place}", tuple(cell for cell in cells if cell is not None)
    elif _is_file(path):
        try:
            with opened_text(path, DataError, "utf-8-sig") as file:
                lines = file.read().splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
        for number, line in enumerate(lines, 1):
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
