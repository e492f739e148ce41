"""Retrieval of the Long-Range Arena (Tay et al. 2020): does one of two papers cite the other?

Pairs from the ACL Anthology (AAN corpus, Radev et al. 2013) in that benchmark's layout: tab-separated files
without a header, with label, two ids and two texts per row. Texts are read as bytes, as in `imdb`.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from leanify.core.errors import DataError
from leanify.core.files.reading import read_lines
from leanify.core.recipe import DataSection
from leanify.data.common import data_path, max_length, refuse_keys
from leanify.data.samples import Splits
from lra_sequences import Sequences, label_of, only_sequences, sequence_splits, split_file
from lra_text import VOCABULARY, byte_ids

CLASSES = 2
CELLS = 5  # label, id, id, text, text
FILES = {"train": "new_aan_pairs.train.tsv", "validation": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
NEEDED = (
    f"Retrieval needs {', '.join(FILES.values())} from the Long-Range Arena's release (lra_release.gz), tab-separated "
    "rows of label, id, id, text, text; name their folder with --set data.path=FOLDER"
)


def pairs(path: Path, length: int | None) -> Sequences:
    """Read a file: both texts of every row as bytes, and the class. Raises DataError for a malformed line."""
    parts, labels = [], []
    for line, row in enumerate(read_lines(path, DataError, "\n"), 1):
        cells = row.rstrip("\r\n").split("\t")
        where = f"{path}, line {line}"
        if len(cells) != CELLS:
            raise DataError(f"{where}: found {len(cells)} tab-separated cells, expected {CELLS}")
        if not (cells[3] and cells[4]):
            raise DataError(f"{where}: a text is empty")
        labels.append(label_of(cells[0], CLASSES, where))
        parts += [byte_ids(text, length) for text in cells[3:]]
    return Sequences.of(parts, labels, str(path), pair=True)


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training, validation and test pairs. Raises DataError and RecipeError."""
    if data.path is None:
        raise DataError(NEEDED)
    only_sequences(data, model, "bytes", vocabulary=VOCABULARY, pair=True)
    refuse_keys(data, "options")
    folder, length = data_path(data), max_length(data, model)
    if not (folder / FILES["train"]).is_file():
        raise DataError(f"{folder} has no {FILES['train']}. {NEEDED}")
    train = pairs(folder / FILES["train"], length)
    validation = None if data.holdout else pairs(split_file(folder, (FILES["validation"],)), length)
    test = None if data.test is None else pairs(split_file(folder, (FILES["test"],)), length)
    description = f"pairs of papers in {folder} as bytes"
    return sequence_splits(data, model, train, validation, test, description=description, classes=CLASSES, cut=True)
