"""The user's own labelled texts, for four tasks.

``data.path`` is a file, or a folder with train.csv and validation.csv (or .tsv, .jsonl, .parquet, .conll; dev, valid,
val and test also count as validation). ``data.text`` names one or two columns and ``data.label`` one; by default they
are guessed by name, and the run prints the guess.

    labelled_text   one class or number per text
    multi_label     any number of labels per text
    tagged_text     one tag per token
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from leanify.data.common import folder_of, held_out, length_of_text, refuse, subset, vocabulary_of
from leanify.data.faults import Faults
from leanify.data.samples import Selection, Splits
from leanify.data.tables.columns import CONLL, TABLES, described, file_of, only_file, stem_of
from leanify.data.texts import vocabulary
from leanify.data.texts.encoded import Sentences, takes_types
from leanify.data.texts.labelled_text import Labelled
from leanify.data.texts.multi_label import MultiLabelled
from leanify.data.texts.tagged_text import Tagged
from leanify.errors import DataError
from leanify.runs.files import few
from leanify.runs.recipe import DataSection

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SUFFIXES = (*TABLES, *CONLL)


class LabelledTable(Protocol):
    """A table of labelled texts. ``columns`` describes them, ``names`` are the classes, ``lines`` all texts."""

    @property
    def file(self) -> Path: ...

    @property
    def columns(self) -> str: ...

    @property
    def names(self) -> list[str]: ...

    @property
    def lines(self) -> Iterator[str]: ...

    def encoded(
        self, names: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int, types: bool
    ) -> Sentences: ...


Read = Callable[[Path, DataSection, Faults], LabelledTable]
KINDS: Mapping[str, tuple[Read, str]] = {  # task → reader of a table, and what its ``names`` are called
    "text-classification": (Labelled.read, "classes"),
    "text-regression": (Labelled.read, ""),
    "multi-label-classification": (MultiLabelled.read, "labels"),
    "token-classification": (Tagged.read, "tags"),
}
TASKS = tuple(KINDS)


def find_table(path: Path, split: str) -> Path | None:
    """The table of a split: the file itself for train, or the first match in the folder; None if there is none.

    The only table of a folder is the one to train on, if no split has its name.
    """
    if path.is_file():
        return path if split == "train" and path.suffix in SUFFIXES else None
    file = file_of(path, split, SUFFIXES)
    return only_file(path, SUFFIXES) if file is None and split == "train" else file


def classes_of(data: DataSection) -> list[str]:
    """The classes, labels or tags in the training table; [] for a regression. Raises DataError."""
    return _names(_train(data, Faults(skip=data.on_error == "skip")), data)


def splits(data: DataSection, model: nn.Module) -> Splits:
    """The samples, for a text model with a head. Validation is sorted by length, to minimise padding.

    Raises DataError and RecipeError.
    """
    refuse(data, "img_size", "rand_augment", "image")
    if data.task != "multi-label-classification":
        refuse(data, "separator")
    length = length_of_text(data, model)
    size, _ = vocabulary_of(model, data.task)
    faults = Faults(skip=data.on_error == "skip")
    table = _train(data, faults)
    names = _names(table, data)
    tokenizer, by = vocabulary.tokenizer_of(data.tokenizer, lambda: table.lines, _key(table))
    vocabulary.check_fit(tokenizer, size, by)

    def encoded(table: LabelledTable) -> Sentences:
        return table.encoded(names, tokenizer, length, takes_types(model))

    train = subset(encoded(table), data)
    if data.holdout:
        (train, validation), held = held_out(train, data.holdout), " held out"
    else:
        other = _validation(data, faults)
        held = f" of {other.file.name}" * (stem_of(other.file) == "test")  # else its name says what it is for
        validation = encoded(_with_known(other, names, faults))
        validation = Selection(validation, validation.lengths.argsort(kind="stable"))
    kinds = f"{len(names)} {KINDS[data.task][1]}: {', '.join(names[:6])}{', …' * (len(names) > 6)}"
    about = f"{table.columns}, {kinds if names else 'a number'}"
    return Splits(
        train,
        validation,
        f"{described(table.file)} ({about}), {len(train):,} samples to train and {len(validation):,}{held} to validate",
        classes=len(names) or None,
        tokenizer=tokenizer,
        names=tuple(names),
        skipped=tuple(faults.names),
    )


def _with_known(table: Any, names: Sequence[str], faults: Faults) -> Any:
    """The table without rows that have a label which training lacks, such as SNLI's "-"; these are a fault."""
    known = set(names)
    strange = [{label} - known if isinstance(label, str) else {*label} - known for _, label in table.rows]
    if not names or not any(strange):
        return table
    unknown, many = sorted(set.union(*strange)), sum(map(bool, strange))
    shown = few([repr(label[:40]) for label in unknown])
    if not faults.skip:
        faults.found(
            f"{table.file}: the training data has no label {shown}, only {', '.join(names)}; {many:,} of "
            f"{len(table.rows):,} rows have such a label"
        )
    for place in (place for place, extra in enumerate(strange, 1) if extra):
        faults.found(
            f"{table.file}, labelled row {place}: the training data has no label {min(strange[place - 1])!r:.40}"
        )
    if many == len(table.rows):
        raise DataError(f"{table.file} has no row with a label that the training data has")
    return replace(table, rows=[row for row, extra in zip(table.rows, strange, strict=True) if not extra])


def _key(table: LabelledTable) -> str:
    """A digest of a table's texts, as a cache key."""
    digest = hashlib.sha256()
    for line in table.lines:
        digest.update(line.encode() + b"\0")
    return digest.hexdigest()


def _names(table: LabelledTable, data: DataSection) -> list[str]:
    names = [] if data.task == "text-regression" else table.names
    if len(names) == 1 and data.task != "multi-label-classification":
        one = KINDS[data.task][1].removesuffix("es" if data.task == "text-classification" else "s")
        raise DataError(f"{data.path} has only one {one}, {names[0]}; at least two are needed")
    return names


def _train(data: DataSection, faults: Faults) -> LabelledTable:
    folder = folder_of(data)
    file = find_table(folder, data.train)
    if file is None:
        raise DataError(f"{folder} has no {data.train} table ({', '.join(data.train + s for s in SUFFIXES[:5])})")
    return KINDS[data.task][0](file, data, faults)


def _validation(data: DataSection, faults: Faults) -> LabelledTable:
    folder = folder_of(data)
    file = find_table(folder, data.validation)
    if file is None:
        raise DataError(
            f"{folder} has no {data.validation} table; to hold out a tenth of train instead: --set data.holdout=0.1"
        )
    return KINDS[data.task][0](file, data, faults)
