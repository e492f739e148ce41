"""The user's own labelled texts, for four tasks.

``data.path`` is a file, or a folder with train.csv and validation.csv (or .tsv, .jsonl, .parquet, .conll;
dev, valid, val and test also count as validation). ``data.text`` names one or two columns and ``data.label``
one; by default they are guessed by name, and the run prints the guess.

    labelled_text   one class or number per text, or any number of labels
    tagged_text     one tag per token
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from leanify.data.common import HOLD_OUT, folder_of, held_out, length_of_text, refuse, subset, vocabulary_of
from leanify.data.faults import Faults
from leanify.data.samples import Selection, Splits
from leanify.data.tables.columns import CONLL, TABLES, described, file_of, only_file, stem_of
from leanify.data.texts import vocabulary
from leanify.data.texts.encoded import takes_types
from leanify.data.texts.labelled_text import Labelled, MultiLabelled
from leanify.data.texts.tagged_text import Tagged
from leanify.errors import DataError
from leanify.runs.files import few
from leanify.runs.recipe import DataSection

SUFFIXES = (*TABLES, *CONLL)


KINDS: Mapping[str, tuple[type[Labelled], str]] = {  # task → kind of table, and what its ``names`` are called
    "text-classification": (Labelled, "classes"),
    "text-regression": (Labelled, ""),
    "multi-label-classification": (MultiLabelled, "labels"),
    "token-classification": (Tagged, "tags"),
}
TASKS = tuple(KINDS)


def find_table(path: Path, split: str) -> Path | None:
    """The table of a split; a file is that of train, and so is a folder's only table. None if none is."""
    if path.is_file():
        return path if split == "train" and path.suffix in SUFFIXES else None
    file = file_of(path, split, SUFFIXES)
    return only_file(path, SUFFIXES) if file is None and split == "train" else file


def classes_of(data: DataSection) -> list[str]:
    """The classes, labels or tags in the training table; [] for a regression. Raises DataError."""
    return _names(table_of(data, data.train, Faults(skip=data.on_error == "skip")), data)


def splits(data: DataSection, model: nn.Module) -> Splits:
    """The samples, for a text model with a head; validation is sorted by length, to minimise padding."""
    refuse(data, "img_size", "rand_augment", "image")
    if data.task != "multi-label-classification":
        refuse(data, "separator")
    length = length_of_text(data, model)
    size, _ = vocabulary_of(model, data.task)
    faults = Faults(skip=data.on_error == "skip")
    table = table_of(data, data.train, faults)
    names = _names(table, data)
    tokenizer, by = vocabulary.tokenizer_of(data.tokenizer, lambda: table.lines, _key(table))
    vocabulary.check_fit(tokenizer, size, by)
    types = takes_types(model)
    train: Any = subset(table.encoded(names, tokenizer, length, types), data)
    validation: Any
    if data.holdout:
        (train, validation), held = held_out(train, data.holdout), " held out"
    else:
        other = table_of(data, data.validation, faults)
        held = f" of {other.file.name}" * (stem_of(other.file) == "test")  # else its name says what it is for
        validation = _with_known(other, names, faults).encoded(names, tokenizer, length, types)
        validation = Selection(validation, validation.lengths.argsort(kind="stable"))
    kinds = f"{len(names)} {KINDS[data.task][1]}: {few(names, 6)}" if names else "a number"
    counts = f"{len(train):,} samples to train and {len(validation):,}{held} to validate"
    return Splits(
        train,
        validation,
        f"{described(table.file)} ({table.columns}, {kinds}), {counts}",
        classes=len(names) or None,
        tokenizer=tokenizer,
        names=tuple(names),
        skipped=tuple(faults.names),
    )


def _with_known(table: Labelled, names: Sequence[str], faults: Faults) -> Labelled:
    """The table without rows of labels which training lacks, such as SNLI's "-"; these are a fault."""
    rows, strange = [], {}
    for place, (texts, label) in enumerate(table.rows, 1):
        extra = {label} if isinstance(label, str) else {*label}
        extra -= set(names)
        if extra and names:
            strange[place] = extra
        else:
            rows.append((texts, label))
    if not strange:
        return table
    if not faults.skip:
        shown = few([repr(label[:40]) for label in sorted(set.union(*strange.values()))])
        faults.found(
            f"{table.file}: the training data has no label {shown}, only {', '.join(names)}; {len(strange):,} of "
            f"{len(table.rows):,} rows have such a label"
        )
    for place, extra in strange.items():
        faults.found(f"{table.file}, labelled row {place}: the training data has no label {min(extra)!r:.40}")
    if not rows:
        raise DataError(f"{table.file} has no row with a label that the training data has")
    return replace(table, rows=rows)


def _key(table: Labelled) -> str:
    """A digest of a table's texts, as a cache key."""
    digest = hashlib.sha256()
    for line in table.lines:
        digest.update(line.encode() + b"\0")
    return digest.hexdigest()


def _names(table: Labelled, data: DataSection) -> list[str]:
    names = [] if data.task == "text-regression" else table.names
    if len(names) == 1 and data.task != "multi-label-classification":
        one = KINDS[data.task][1].removesuffix("es" if data.task == "text-classification" else "s")
        raise DataError(f"{data.path} has only one {one}, {names[0]}; at least two are needed")
    return names


def table_of(data: DataSection, split: str, faults: Faults) -> Labelled:
    """The table of the training or the validation split. Raises DataError."""
    folder = folder_of(data)
    file = find_table(folder, split)
    if file is None and split == data.train:
        raise DataError(f"{folder} has no {split} table ({', '.join(split + suffix for suffix in SUFFIXES[:5])})")
    if file is None:
        raise DataError(f"{folder} has no {split} table; {HOLD_OUT}")
    return KINDS[data.task][0].read(file, data, faults)
