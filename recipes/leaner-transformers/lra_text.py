"""Text of the Long-Range Arena (Tay et al. 2020): IMDb reviews (Maas et al. 2011) as bytes; 0 negative, 1 positive.

The folder has train.csv and test.csv with the columns ``text`` and ``label``. A byte's id is byte + 1; 0 is
padding. The published set-up validates on the test split; here ``data.holdout`` (0.1) of train is used,
unless there is a validation.csv.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from leanify.core.errors import DataError
from leanify.core.recipe import DataSection
from leanify.data.common import data_path, max_length, refuse_keys
from leanify.data.samples import Splits
from leanify.layouts.faults import Faults
from leanify.layouts.rows import read_table
from lra_sequences import Sequences, label_of, only_sequences, sequence_splits, split_file

CLASSES = 2
VOCABULARY = 257  # bytes and padding


def byte_ids(text: str, length: int | None) -> np.ndarray:
    """The first ``length`` bytes of a text in UTF-8 as ids 1 … 256."""
    return np.frombuffer(text.encode()[:length], dtype=np.uint8).astype(np.uint16) + 1


def reviews(path: Path, length: int | None) -> Sequences:
    """Read a file: every row's bytes and class. Raises DataError that names a malformed line."""
    parts, labels = [], []
    for place, row in read_table(path, Faults()):
        if "text" not in row or "label" not in row:
            raise DataError(f"{path} needs the columns text and label; found {', '.join(row)}")
        if not row["text"]:
            raise DataError(f"{path}, {place}: the text is empty")
        parts.append(byte_ids(row["text"], length))
        labels.append(label_of(str(row["label"]), CLASSES, f"{path}, {place}"))
    return Sequences.of(parts, labels, str(path))


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training, validation and test reviews of a folder. Raises DataError and RecipeError."""
    only_sequences(data, model, "bytes", vocabulary=VOCABULARY)
    refuse_keys(data, "options")
    folder, length = data_path(data), max_length(data, model)
    train = reviews(split_file(folder, (f"{data.train}.csv",)), length)
    name = (f"{data.validation}.csv",)
    own = not data.holdout and (folder / name[0]).is_file()
    validation = reviews(folder / name[0], length) if own else None
    test = None if data.test is None else reviews(split_file(folder, (f"{data.test}.csv",)), length)
    description = f"reviews in {folder} as bytes"
    return sequence_splits(data, model, train, validation, test, description=description, classes=CLASSES, cut=True)
