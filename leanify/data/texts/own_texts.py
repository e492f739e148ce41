"""The user's own labelled texts: a class or a number each (`labelled_text`).

``data.path`` is a file, or a folder with train.csv and validation.csv (or .tsv, .jsonl, .parquet; dev, valid,
val and test also count as validation). ``data.text`` names one or two columns and ``data.label``
one; by default they are guessed by name, and the run prints the guess.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from leanify.core.errors import DataError
from leanify.core.files.reading import preview
from leanify.core.recipe import DataSection
from leanify.data.common import HOLD_OUT, data_path, hold_out, max_text_length, refuse_keys, subset, vocabulary_size
from leanify.data.labels import match_labels, output_names
from leanify.data.samples import Selection, Splits
from leanify.data.texts import tokenizers
from leanify.data.texts.encoded import takes_types
from leanify.data.texts.labelled_text import LabelledTable
from leanify.layouts.columns import TABLES, describe_table, split_stem
from leanify.layouts.faults import Faults
from leanify.layouts.split_tables import find_table
from leanify.upstream.origin import is_hf, text_config

TASKS = ("text-classification", "text-regression")


def find_classes(data: DataSection) -> list[str]:
    """The classes in the training table; [] for a regression. Raises DataError."""
    return _names(read_split_table(data, data.train, Faults(skip=data.on_error == "skip")), data)


def splits(data: DataSection, model: nn.Module) -> Splits:
    """The samples, for a text model with a head; validation is sorted by length, to minimise padding."""
    # the training table, whose labels are the classes and whose words train the tokenizer
    refuse_keys(data, "img_size", "rand_augment", "image")
    length = max_text_length(data, model)
    size, _ = vocabulary_size(model, data.task)
    faults = Faults(skip=data.on_error == "skip")
    table = read_split_table(data, data.train, faults)
    labels = match_labels(_names(table, data), output_names(model))
    names = labels.names
    tokenizer, by = tokenizers.make_tokenizer(data.tokenizer, lambda: table.lines, _key(table))
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
        validation_note = f" of {other.file.name}" * (
            split_stem(other.file).lower() == "test"
        )  # otherwise its name marks its split
        validation = _drop_unknown_labels(other, names, faults).encode(names, tokenizer, length, types)
        validation = Selection(validation, validation.lengths.argsort(kind="stable"))
    kinds = f"{len(names)} classes: {preview(names, 6)}" if names else "a number"
    counts = f"{len(train):,} samples to train and {len(validation):,}{validation_note} to validate"
    return Splits(
        train,
        validation,
        f"{describe_table(table.file)} ({table.columns}, {kinds}), {counts}",
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


def _key(table: LabelledTable) -> str:
    """A digest of a table's texts, as a cache key."""
    digest = hashlib.sha256()
    for line in table.lines:
        digest.update(line.encode() + b"\0")
    return digest.hexdigest()


def _names(table: LabelledTable, data: DataSection) -> list[str]:
    names = [] if data.task == "text-regression" else table.names
    if len(names) == 1:
        raise DataError(f"{data.path} has only one class, {names[0]}; at least two are needed")
    return names


def read_split_table(data: DataSection, split: str, faults: Faults) -> LabelledTable:
    """The table of the training or the validation split. Raises DataError."""
    folder = data_path(data)
    file = find_table(folder, split)
    if file is None and split == data.train:
        raise DataError(f"{folder} has no {split} table ({', '.join(split + suffix for suffix in TABLES)})")
    if file is None:
        raise DataError(f"{folder} has no {split} table; {HOLD_OUT}")
    return LabelledTable.read(file, data, faults)
