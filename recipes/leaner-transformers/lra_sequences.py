"""Labelled sequences of token ids in memory: the common form of the Long-Range Arena's data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.files.reading import list_folder
from leanify.core.recipe import DataSection
from leanify.data.common import hold_out, max_length, refuse_keys, subset, vocabulary_size
from leanify.data.samples import Selection, Splits

PADDING = 0
Options = TypeVar("Options", bound=Any)


def label_of(text: str, classes: int, where: str) -> int:
    """Parse a class index (``1`` or ``1.0``); ``where`` names file and line. Raises DataError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value not in range(classes):
        raise DataError(f"{where}: the label is {text[:40]!r}; expected one of {', '.join(map(str, range(classes)))}")
    return int(value)


def parse_options(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """[data.options] as a dataclass whose fields are integers. Raises RecipeError that lists what is allowed."""
    known = [field.name for field in fields(kind)]
    for key, value in values.items():
        if key not in known:
            raise RecipeError(f"data.options has no key {key!r}; it has {', '.join(known)}")
        if type(value) is not int:
            raise RecipeError(f"data.options.{key} is {value!r}; it must be an integer")
    options: Options = kind(**values)
    return options


def split_file(folder: Path, names: tuple[str, ...], kind: str = "") -> Path:
    """The first of these files, or "folder "s, that exists. Raises DataError that lists what is there."""
    if not folder.is_dir():
        has = "has one subfolder per split" if kind else f"contains {' or '.join(names)}"
        raise DataError(f"{folder} is a file; name the folder that {has}")
    for name in names:
        if (folder / name).is_dir() if kind else (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder} has no {kind}{' or '.join(names)}; found {list_folder(folder)}")


@dataclass(frozen=True)
class Sequences:
    """Sequence i is ``symbols[ends[i − 1]:ends[i]]`` with class ``labels[i]``; two per sample with ``pair``.

    ``width`` is the length to which every sequence is padded; None pads each batch to its longest.
    """

    symbols: np.ndarray  # ids as uint8 or uint16; 0 is padding
    ends: np.ndarray
    labels: np.ndarray
    width: int | None = None
    pair: bool = False

    targets = None
    workers = 0

    @staticmethod
    def of(parts: Sequence[np.ndarray], labels: Sequence[int], where: str, pair: bool = False) -> Sequences:
        """Build from individual sequences. Raises DataError if there are none."""
        if not len(labels):
            raise DataError(f"{where} has no samples")
        ends = np.cumsum([len(part) for part in parts])
        return Sequences(np.concatenate(parts), ends, np.array(labels, dtype=np.int64), pair=pair)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> np.ndarray:
        """The length of every sequence; two per sample for pairs."""
        return np.diff(self.ends, prepend=0)

    @property
    def lengths(self) -> np.ndarray | None:
        """The length of every sample, to batch similar ones; None if all are padded to ``width``."""
        if self.width is not None:
            return None
        return self.sizes.reshape(-1, 2).max(1) if self.pair else self.sizes

    def parts(self, *sizes: int) -> list[Sequences]:
        """Consecutive slices of the given lengths."""
        found, start, begin = [], 0, 0
        for size in sizes:
            ends = self.ends[start : start + size]
            found.append(Sequences(self.symbols[begin : ends[-1]], ends - begin, self.labels[start : start + size]))
            start, begin = start + size, ends[-1]
        return found

    def batch(self, indices: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """→ input_ids (B, N), or (B, 2, N) for pairs, attention_mask if a sequence is padded; classes (B,)"""
        rows = indices if not self.pair else np.stack((2 * indices, 2 * indices + 1), 1).ravel()
        ends = self.ends[rows]
        sizes = ends - np.where(rows > 0, self.ends[rows - 1], 0)
        width = self.width or int(sizes.max())
        places = np.arange(width)
        mask = places < sizes[:, None]
        found = self.symbols[np.minimum((ends - sizes)[:, None] + places, len(self.symbols) - 1)]
        shape = (len(indices), 2, width) if self.pair else (len(indices), width)
        inputs = {"input_ids": torch.from_numpy(np.where(mask, found, PADDING).astype(np.int64).reshape(shape))}
        if not mask.all():
            inputs["attention_mask"] = torch.from_numpy(mask.astype(np.int64).reshape(shape))
        return inputs, torch.from_numpy(self.labels[indices])


def only_sequences(data: DataSection, model: nn.Module, *tokenizers: str, vocabulary: int, pair: bool = False) -> None:
    """Raise an error unless recipe and model suit sequences (or pairs) with this many token ids."""
    task = "pair-classification" if pair else "classification"
    if data.task != task:
        raise RecipeError(f"{data.name} is for {task}, not for {data.task}")
    refuse_keys(data, "img_size", "rand_augment", "mask", "on_error")
    if data.tokenizer not in (None, *tokenizers):
        raise RecipeError(f"data.tokenizer is {data.tokenizer}; {data.name} needs {' or '.join(tokenizers)}")
    if getattr(model, "pair", False) != pair:
        takes = "pairs of sequences" if pair else "single sequences"
        raise DataError(f"{data.name} has {takes}; match the model: --set model.override.pair={str(pair).lower()}")
    found, _ = vocabulary_size(model, data.task)
    if found < vocabulary:
        raise DataError(f"{data.name} has {vocabulary} token ids, but the model's vocabulary has only {found}")


def sequence_splits(
    data: DataSection,
    model: nn.Module,
    train: Sequences,
    validation: Sequences | None,
    test: Sequences | None,
    *,
    description: str,
    classes: int,
    cut: bool,
) -> Splits:
    """Build the splits, padded as the model needs; a share of train validates if there is no such split.

    ``cut`` notes that sequences were truncated to data.length. Raises DataError for longer ones.
    """
    length = max_length(data, model)
    parts = [part for part in (train, validation, test) if part is not None]
    longest = max(int(part.sizes.max()) for part in parts)
    if length is not None and longest > length:
        raise DataError(
            f"{description} has sequences of {longest:,} tokens, but {'data.length' if data.length else 'the model'} "
            f"allows only {length:,}"
        )
    width = (length or longest) if has_landmarks(model) else None
    train, *others = (Sequences(p.symbols, p.ends, p.labels, width, p.pair) for p in parts)
    tests = others[-1] if test is not None and data.test is not None else None
    learnt: Sequences | Selection
    checked: Sequences | Selection
    if validation is None:
        learnt, checked = hold_out(train, data.holdout or 0.1)
    else:
        learnt, checked = train, others[0]
    learnt = subset(learnt, data)
    sizes = f"{len(learnt):,} sequences to train and {len(checked):,} to validate"
    cuts = f", the first {length:,} tokens of each" if cut and length is not None else ""
    return Splits(
        learnt,
        checked,
        f"{description}, {sizes}{cuts}",
        classes=classes,
        test=tests,
        constant=int(np.bincount(np.asarray(learnt.labels)).argmax()),
    )


def has_landmarks(model: nn.Module) -> bool:
    """Whether the model's attention uses landmarks (means of segments, as in Nyströmformer).

    Segments depend on the padded length. So all samples are padded to one width; otherwise a prediction would
    depend on the other samples in its batch.
    """
    config = getattr(model, "config", None)
    return hasattr(config, "num_landmarks") or any(hasattr(module, "landmarks") for module in model.modules())
