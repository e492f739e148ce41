"""The user's own texts, or text pairs, with a label each: a class or a number.

``data.text`` names one or two columns and ``data.label`` one; by default they are guessed by name. Whether labels are
numbers is said by the task (text-regression), which `layouts.recognition` proposes where one has a fraction.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from leanify.core.errors import DataError
from leanify.core.files.reading import preview
from leanify.core.recipe import DataSection
from leanify.data.common import HOLD_OUT, data_path, hold_out, max_text_length, refuse_keys, subset, vocabulary_size
from leanify.data.labels import match_labels, output_names
from leanify.data.samples import Selection, Splits
from leanify.data.texts import tokenizers
from leanify.data.texts.encoded import Sentences, takes_types
from leanify.layouts import columns
from leanify.layouts.faults import Faults
from leanify.layouts.rows import find_table, read_table
from leanify.upstream.origin import is_hf, text_config

TASKS = ("text-classification", "text-regression")
Texts = tuple[str, ...]


@dataclass(frozen=True)
class LabelledTable:
    """One table: a description of its columns, and rows of (texts, label), with the label as text."""

    file: Path
    columns: str
    rows: list[tuple[Texts, str]]
    order: tuple[str, ...] = ()  # the labels' names in the order of the file's numbers, if it has them

    @staticmethod
    def read(file: Path, data: DataSection, faults: Faults) -> LabelledTable:
        """Read a table. Raises DataError for a row without text or label, unless ``faults`` are skipped."""
        texts: list[str] = []
        label, order, rows = "", tuple[str, ...](), []
        for place, row in read_table(file, faults):
            if not texts:
                texts, label = _columns(file, list(row), data)
                order = columns.class_names(file, label)
            # texts that are strings, and a label; anything else is a fault
            cells = [faults.text(row.get(name), f"{file}, {place}: {name}") for name in texts]
            if None in cells:
                continue
            answer = columns.parse_label(columns.name_class(row.get(label), order))
            if answer is None or (data.task == "text-regression" and columns.parse_number(answer) is None):
                what = "a number" if data.task == "text-regression" else "a label"
                faults.record(f"{file}, {place}: {label} is {row.get(label)!r:.40}, not {what}")
            else:
                rows.append((tuple(cell for cell in cells if cell is not None), answer))
        # a label that means "no label" is not a class
        missing = columns.missing_labels((answer for _, answer in rows), order)
        labelled_rows = [row for row in rows if row[1] not in missing]
        if not labelled_rows:
            raise DataError(f"{file} has no row with a text and a label")
        left_out = f", {len(rows) - len(labelled_rows):,} rows of label {preview(missing)} left out" if missing else ""
        return LabelledTable(file, f"{' and '.join(texts)} → {label}{left_out}", labelled_rows, order)

    @property
    def names(self) -> list[str]:
        """The classes in their order."""
        return columns.sort_labels({label for _, label in self.rows}, self.order)

    @property
    def lines(self) -> Iterator[str]:
        """All texts, to train a tokenizer on."""
        for texts, _ in self.rows:
            yield from texts

    def encode(self, names: Sequence[str], tokenizer: Any, length: int, types: bool) -> Sentences:
        """Tokenise; targets are indices into ``names``, which has all labels, or numbers without names."""
        rows = []
        for texts, label in self.rows:
            target = names.index(label) if names else columns.parse_number(label)
            assert target is not None, "a row without a number is a fault"
            rows.append((texts, target))
        return Sentences(rows, tokenizer, length, types)


def _columns(file: Path, candidates: Sequence[str], data: DataSection) -> tuple[list[str], str]:
    """The text columns and the label column, as the recipe names them or guessed by name."""
    guess = columns.guess_texts(candidates)
    label = (data.label,) if data.label else ()
    names = columns.pick_columns(file, candidates, text=(data.text or guess, guess), label=(label, columns.LABELS))
    return names["text"], names["label"][0]


def find_classes(data: DataSection) -> list[str]:
    """The classes in the training table; [] for a regression. Raises DataError."""
    return _names(read_split_table(data, data.train, Faults(skip=data.on_error == "skip")), data)


def splits(data: DataSection, model: nn.Module) -> Splits:
    """The samples, for a text model with a head; validation is sorted by length, to minimise padding."""
    # the training table, whose labels are the classes and whose words train the tokenizer
    refuse_keys(data, "image")
    length = max_text_length(data, model)
    size, _ = vocabulary_size(model, data.task)
    faults = Faults(skip=data.on_error == "skip")
    table = read_split_table(data, data.train, faults)
    labels = match_labels(_names(table, data), output_names(model))
    names = labels.names
    digest = hashlib.sha256()
    for line in table.lines:
        digest.update(line.encode() + b"\0")
    tokenizer, by = tokenizers.make_tokenizer(data.tokenizer, lambda: table.lines, digest.hexdigest())
    tokenizers.check_fit(tokenizer, size, by)
    _check_padding(model, tokenizer)
    types = takes_types(model)
    # training and validation, of which one may be a share of the other
    train: Any = subset(table.encode(names, tokenizer, length, types), data)
    validation: Any
    if data.holdout:
        (train, validation), validation_note = hold_out(train, data.holdout), " held out"
    else:
        other = read_split_table(data, data.validation, faults)
        is_test = columns.split_stem(other.file).lower() == "test"  # otherwise its name marks its split
        validation_note = f" of {other.file.name}" * is_test
        validation = _drop_unknown_labels(other, names, faults).encode(names, tokenizer, length, types)
        validation = Selection(validation, validation.lengths.argsort(kind="stable"))
    kinds = f"{len(names)} classes: {preview(names, 6)}" if names else "a number"
    counts = f"{len(train):,} samples to train and {len(validation):,}{validation_note} to validate"
    return Splits(
        train,
        validation,
        f"{columns.describe_table(table.file)} ({table.columns}, {kinds}), {counts}",
        classes=len(names) or None,
        tokenizer=tokenizer,
        names=names,
        labels=labels,
        skipped=tuple(faults.names),
    )


def _check_padding(model: Any, tokenizer: Any) -> None:
    """Raise DataError for a decoder that classifies by the last token before the padding, and knows no padding."""
    if not is_hf(model) or text_config(model.config).pad_token_id is not None:
        return
    if "pad_token_id" in inspect.getsource(type(model).forward):
        number = next(one for one in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if one is not None)
        raise DataError(
            f"{type(model).__name__} reads one text at a time, as its configuration names no padding token; add --set "
            f"model.override.pad_token_id={number}"
        )


def _drop_unknown_labels(table: LabelledTable, names: Sequence[str], faults: Faults) -> LabelledTable:
    """The table without rows of labels which training lacks, such as SNLI's "-"; these are a fault."""
    # rows by whether training knows their label
    rows, strange = [], {}
    for place, (texts, label) in enumerate(table.rows, 1):
        if names and label not in names:
            strange[place] = label
        else:
            rows.append((texts, label))
    if not strange:
        return table
    if not faults.skip:
        label_names = preview([repr(label[:40]) for label in sorted(set(strange.values()))])
        faults.record(
            f"{table.file}: the training data has no label {label_names}, only {', '.join(names)}; {len(strange):,} of "
            f"{len(table.rows):,} rows have such a label"
        )
    for place, label in strange.items():
        faults.record(f"{table.file}, labelled row {place}: the training data has no label {label!r:.40}")
    if not rows:
        raise DataError(f"{table.file} has no row with a label that the training data has")
    return replace(table, rows=rows)


def _names(table: LabelledTable, data: DataSection) -> list[str]:
    names = [] if data.task == "text-regression" else table.names
    if len(names) == 1:
        raise DataError(f"{data.path} has only one class, {names[0]}; at least two are needed")
    return names


def read_split_table(data: DataSection, split: str, faults: Faults) -> LabelledTable:
    """The table of the training or the validation split. Raises DataError."""
    folder = data_path(data)
    file = find_table(folder, split)
    if file is None:
        remedy = f"looked for {', '.join(split + suffix for suffix in columns.TABLES)}"
        raise DataError(f"{folder} has no {split} table; {remedy if split == data.train else HOLD_OUT}")
    return LabelledTable.read(file, data, faults)
