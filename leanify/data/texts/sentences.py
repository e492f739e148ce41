"""Sentences for embedding models: the texts of a table (labels are ignored), or the lines of a text file.

A folder without a file called train is the sentences of all its ``.txt`` files. ``data.text`` names the columns, by
default guessed by name; each column yields separate sentences, truncated to ``data.length`` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from leanify.core.errors import DataError
from leanify.core.files.reading import list_folder, read_lines
from leanify.core.recipe import DataSection
from leanify.data.common import data_path, hold_out, max_text_length, refuse_keys, subset, vocabulary_size
from leanify.data.samples import Selection, Splits
from leanify.data.texts import tokenizers
from leanify.data.texts.encoded import Sentences, takes_types
from leanify.layouts.columns import TABLES, find_split_file, guess_texts, is_table, pick_columns, text_files
from leanify.layouts.faults import Faults
from leanify.layouts.image_files import find_split_folder
from leanify.layouts.rows import find_table, read_table
from leanify.layouts.text_folders import list_texts

HOLDOUT = 0.1  # share held out without a validation file and data.holdout


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training and validation sentences, sorted by length; their targets come from a teacher."""
    refuse_keys(data, "label", "mask")
    # a tokenizer that fits the model
    length = max_text_length(data, model)
    size, _ = vocabulary_size(model, data.task)
    tokenizer, by = tokenizers.make_tokenizer(data.tokenizer, lambda: [], "")
    tokenizers.check_fit(tokenizer, size, by)
    faults = Faults(skip=data.on_error == "skip")

    def encoded(*files: Path) -> Any:
        texts = chain.from_iterable(read_sentences(file, data, faults) for file in files)
        rows = [((text,), 0) for text in texts]
        if not rows:
            raise DataError(f"{_describe_files(files)} has no sentences")
        return Sentences(rows, tokenizer, length, takes_types(model))

    # the files of training, all texts where none has its name, and of validation
    folder = data_path(data)
    files = _find_files(folder, data.train) or text_files(folder)
    if not files:
        names = ", ".join(data.train + suffix for suffix in (*TABLES, ".txt"))
        raise DataError(
            f"{folder} has no file for the split {data.train!r}: looked for {names}, found {list_folder(folder)}"
        )
    others = [] if data.holdout else _find_files(folder, data.validation)
    # the sentences; a share of training validates if no file does
    train = encoded(*[file for file in files if file not in others])
    if others:
        validation = encoded(*others)
    else:
        train, validation = hold_out(train, data.holdout or HOLDOUT)
    train = subset(train, data)
    validation = Selection(validation, validation.lengths.argsort(kind="stable"))
    place = _describe_files(files)
    other = _describe_files(others or files)
    where = f"{len(train):,} sentences of {place} to train on and {len(validation):,} of {other} to validate"
    return Splits(train, validation, where, tokenizer=tokenizer, skipped=tuple(faults.names))


def find_file(path: Path, split: str) -> Path | None:
    """The table or text file of a split: the file itself for train, or the first match in the folder."""
    table = find_table(path, split)
    if table is not None or path.is_file():
        return table or (path if split == "train" else None)
    return find_split_file(path, split, (".txt",))


def _find_files(path: Path, split: str) -> list[Path]:
    file, folder = find_file(path, split), find_split_folder(path, split)
    if file is not None:
        return [file]
    return [] if folder is None else list_texts(folder)


def _describe_files(files: Sequence[Path]) -> str:
    others = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0]}{others}"


def read_sentences(file: Path, data: DataSection, faults: Faults) -> Iterator[str]:
    """Yield the non-blank sentences of a file. Raises DataError for a table without a text column."""
    if file.is_file() and not is_table(file):
        yield from (line.strip() for line in read_lines(file, DataError) if line.strip())
        return
    columns: list[str] = []
    for place, row in read_table(file, faults):
        columns = columns or pick_columns(file, list(row), text=(data.text or guess_texts(list(row)), ()))["text"]
        for name in columns:
            cell = faults.text(row.get(name), f"{file}, {place}: {name}")
            if cell is not None and cell.strip():
                yield cell
