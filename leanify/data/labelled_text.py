"""Your own labelled sentences, or pairs of them: CSV, TSV, JSON lines or Parquet with a column of labels.

``data.path`` is a file, or a folder with train.csv and validation.csv (or .tsv, .jsonl, .parquet; dev, valid, val and
test are looked for too). ``data.text`` names one or two columns, ``data.label`` one; without them they are guessed by
name, and the run says which were taken. Labels that are all numbers with a fraction are a regression, everything else
is classes, in the order of their names (whole numbers in theirs).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from leanify.data import vocabulary
from leanify.data.columns import LABELS, SPLITS, TABLES, texts_in
from leanify.data.common import folder_of, held_out, length_of_text, refuse, subset, vocabulary_of
from leanify.data.faults import Faults
from leanify.data.glue import Sentences, takes_types
from leanify.data.samples import Part, Splits
from leanify.data.text import rows_of_table
from leanify.errors import DataError
from leanify.sources.recipe import DataSection

TASKS = ("text-classification", "text-regression")


@dataclass(frozen=True)
class Labelled:
    """One table: its columns, and a row of (text or texts, label) each, labels as the file has them."""

    file: Path
    texts: tuple[str, ...]
    label: str
    rows: list[tuple[tuple[str, ...], str]]

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers of which one has a fraction."""
        numbers = [_number(label) for _, label in self.rows]
        return None not in numbers and any(number != int(number) for number in numbers if number is not None)

    @property
    def names(self) -> list[str]:
        """The classes, whole numbers in their order and everything else by name."""
        found = {label for _, label in self.rows}
        return sorted(found, key=int) if all(_is_whole(label) for label in found) else sorted(found)


def find_tables(path: Path, split: str) -> Path | None:
    """The table of a split: the file itself for train, else the first of its spellings in the folder."""
    if path.is_file():
        return path if split == "train" and path.suffix in TABLES else None
    stems = SPLITS.get(split, (split,))
    found = (path / f"{stem}{suffix}" for stem in stems for suffix in TABLES)
    return next((file for file in found if file.is_file()), None)


def read_table(file: Path, data: DataSection, faults: Faults) -> Labelled:
    """A table's rows. Raises DataError, with the file and the row, for one without a text or a label."""
    texts: tuple[str, ...] = ()
    label = ""
    found: list[tuple[tuple[str, ...], str]] = []
    for place, row in rows_of_table(file, faults):
        if not isinstance(row, dict):
            faults.found(f"{file}, {place} is not a table of columns")
            continue
        if not texts:
            texts, label = _columns(file, list(row), data)
        cells = [faults.text(row.get(name), f"{file}, {place}: {name}") for name in texts]
        answer = _label(row.get(label))
        if answer is None:
            faults.found(f"{file}, {place}: {label} is {row.get(label)!r:.40}, not a label")
        elif None not in cells:
            found.append((tuple(cell for cell in cells if cell is not None), answer))
    if not found:
        raise DataError(f"{file} has no row with a text and a label")
    return Labelled(file, texts, label, found)


def task_of(path: Path) -> tuple[str, bool] | None:
    """(task, whether there is a validation table) of a labelled file or folder; None where there is none."""
    file = find_tables(path, "train")
    if file is None:
        return None
    try:
        table = read_table(file, DataSection("data", "text-classification", str(path)), Faults(skip=True))
    except DataError:
        return None
    return TASKS[table.is_regression], find_tables(path, "validation") is not None


def classes_of(data: DataSection) -> list[str]:
    """The names of the classes in the training table; none for a regression."""
    if data.task == "text-regression":
        return []
    names = _train(data, Faults(skip=data.on_error == "skip")).names
    if len(names) < 2:
        raise DataError(f"{data.path} has one class, {names[0]}: there is nothing to tell apart")
    return names


def splits(data: DataSection, model: nn.Module) -> Splits:
    """The samples for a text model with a head; validation samples by length, so that little is padded."""
    refuse(data, "img_size", "rand_augment", "image")
    length = length_of_text(data, model)
    words, _ = vocabulary_of(model, data.task)
    faults = Faults(skip=data.on_error == "skip")
    table = _train(data, faults)
    names = classes_of(data)
    tokenizer, by = vocabulary.tokenizer_of(data.tokenizer, lambda: _lines(table), _key(table))
    vocabulary.check_fit(tokenizer, words, by)

    def encoded(labelled: Labelled) -> Sentences:
        rows = [(texts, _target(label, names, labelled)) for texts, label in labelled.rows]
        return Sentences(rows, tokenizer, length, takes_types(model))

    train = subset(encoded(table), data)
    if data.holdout:
        train, validation = held_out(train, data.holdout)
    else:
        validation = encoded(_validation(data, faults))
        validation = Part(validation, validation.lengths.argsort(kind="stable"))
    columns = f"{' and '.join(table.texts)} → {table.label}"
    kinds = f"{len(names)} classes: {', '.join(names[:6])}{', …' * (len(names) > 6)}" if names else "a number"
    words_of = f"{table.file} ({columns}, {kinds}), {len(train):,} samples to train and {len(validation):,} to validate"
    return Splits(
        train,
        validation,
        words_of,
        classes=len(names) or None,
        tokenizer=tokenizer,
        names=tuple(names),
        skipped=tuple(faults.names),
    )


# -- rows -------------------------------------------------------------------------------------------------------------


def _lines(table: Labelled) -> Iterator[str]:
    """All texts, for a tokenizer that is trained on them."""
    return (text for texts, _ in table.rows for text in texts)


def _key(table: Labelled) -> str:
    digest = hashlib.sha256()
    for line in _lines(table):
        digest.update(line.encode() + b"\0")
    return digest.hexdigest()


def _train(data: DataSection, faults: Faults) -> Labelled:
    folder = folder_of(data)
    file = find_tables(folder, data.train)
    if file is None:
        raise DataError(f"{folder} has no {data.train} table ({', '.join(data.train + s for s in TABLES)})")
    return read_table(file, data, faults)


def _validation(data: DataSection, faults: Faults) -> Labelled:
    folder = folder_of(data)
    file = find_tables(folder, data.validation)
    if file is None:
        raise DataError(f"{folder} has no {data.validation} table; --set data.holdout=0.1 holds out a tenth of train")
    return read_table(file, data, faults)


def _columns(file: Path, found: Sequence[str], data: DataSection) -> tuple[tuple[str, ...], str]:
    """The columns of texts and label, as the recipe names them or guessed by name."""
    known = {name.lower(): name for name in found}
    texts = data.text or texts_in(found)
    label = data.label or next((name for name in LABELS if name in known), None)
    missing = [name for name in (*texts, *([label] if label else [])) if name.lower() not in known]
    if not texts or label is None or missing:
        lacking = f"no column {' or '.join(missing)}" if missing else f"no column of {'labels' if texts else 'texts'}"
        raise DataError(
            f"{file} has {lacking}; found {', '.join(found[:8])}: name them, "
            "--set 'data.text=[\"review\"]' --set data.label=stars"
        )
    return tuple(known[name.lower()] for name in texts), known[label.lower()]


def texts_of(file: Path, found: Sequence[str]) -> tuple[str, ...]:
    """The same of a file without labels. Raises DataError."""
    if columns := texts_in(found):
        return columns
    raise DataError(f"{file} has no column of texts; found {', '.join(found[:8])}")


def _label(value: Any) -> str | None:
    """A label as text: a word, a number or a truth; None for anything else."""
    return str(value).strip() or None if isinstance(value, (str, int, float)) else None


def _target(label: str, names: Sequence[str], table: Labelled) -> int | float:
    if not names:
        number = _number(label)
        if number is None:
            raise DataError(f"{table.file}: the label {label[:40]!r} is not a number, and the task is a regression")
        return number
    if label not in names:
        raise DataError(f"{table.file}: the label {label[:40]!r} is none of the training labels, {', '.join(names)}")
    return names.index(label)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
