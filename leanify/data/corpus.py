"""Text to learn from: a long run of token ids, cut into samples that have every token as a target once.

A file of stories with ``<|endoftext|>`` between them (TinyStories' layout), of plain text, or a ``.jsonl`` of texts;
without a file, Python's own sources. Token ids are bytes, or those of a Hugging Face tokenizer.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from leanify import upstream
from leanify.data import text
from leanify.data.parts import folder_of, vocabulary_of
from leanify.data.samples import IGNORED, Splits
from leanify.errors import DataError, RecipeError
from leanify.recipe import Data

END = "<|endoftext|>"
PYTHON_BYTES = 4_000_000  # of Python's own sources
Encode = Callable[[str], np.ndarray]


class Corpus:
    """Token ids in memory. Sample i has ``length`` inputs from i · length on, and as targets the ids one further on."""

    workers = 0

    def __init__(self, ids: np.ndarray, length: int, where: str) -> None:
        if len(ids) < 2:
            raise DataError(f"{where} has {len(ids)} tokens; at least two are needed to predict one from another")
        self.ids, self.length = ids, length
        starts = np.arange(math.ceil((len(ids) - 1) / length)) * length
        self.targets: np.ndarray = np.minimum(length, len(ids) - 1 - starts)  # the last sample may have fewer

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """→ input_ids and targets, (B, length) each; what is beyond the end is input 0 and no target"""
        places = indices[:, None] * self.length + np.arange(self.length + 1)
        beyond = places >= len(self.ids)
        ids = self.ids[np.minimum(places, len(self.ids) - 1)].astype(np.int64)
        inputs, targets = np.where(beyond, 0, ids)[:, :-1], np.where(beyond, IGNORED, ids)[:, 1:]
        return {"input_ids": torch.from_numpy(inputs)}, torch.from_numpy(targets)


def splits(data: Data, model: nn.Module) -> Splits:
    """Training and validation samples of a text for a model that goes on with it."""
    for key, value in (("img_size", data.img_size), ("rand_augment", data.rand_augment)):
        if value is not None:
            raise RecipeError(f"data.{key} is for images, and the task is {data.task}")
    vocabulary, positions = vocabulary_of(model, data.task)
    length = data.length or positions
    if length is None:
        raise RecipeError("the model has no longest length: give data.length, the tokens of a sample")
    if positions is not None and length > positions:
        raise DataError(f"data.length is {length} tokens, and the model has {positions} positions")
    train, validation, share, words = corpora(data, length, vocabulary)
    return Splits(train, validation, words, bytes_per_target=share)


def corpora(data: Data, length: int, vocabulary: int) -> tuple[Corpus, Corpus, float, str]:
    """Training and validation samples, the bytes that a token has on average, and what it is in words."""
    train, validation, where = _texts(data)
    encode, by = encoder(data.tokenizer, vocabulary)
    ids, others = encode(train), encode(validation)
    for found in (ids, others):
        if len(found) and int(found.max()) >= vocabulary:
            raise DataError(f"{where} {by} has token {int(found.max())}, and the model's vocabulary has {vocabulary}")
    words = f"{where} {by}, {len(ids):,} tokens to train and {len(others):,} to validate"
    share = len(validation.encode()) / max(len(others), 1)
    return Corpus(ids, length, f"{where} to train"), Corpus(others, length, f"{where} to validate"), share, words


def encoder(tokenizer: str | None, vocabulary: int) -> tuple[Encode, str]:
    """How text becomes token ids: as bytes, or by the tokenizer of a directory or of the hub."""
    if tokenizer is None:
        if vocabulary < 256:
            raise DataError(f"text as bytes needs a vocabulary of 256, and the model has {vocabulary}")
        return (lambda text: np.frombuffer(text.encode(), dtype=np.uint8)), "as bytes"
    library = upstream.transformers()
    try:
        found = library.AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        raise DataError(
            f"the tokenizer {tokenizer!r} is no directory here and the hub did not give it: name a directory, "
            f"--set data.tokenizer=DIR, or train on bytes, --set data.tokenizer= ({str(error).splitlines()[0]})"
        ) from error
    return (
        lambda text: np.array(found(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int32)
    ), f"by the tokenizer {tokenizer}"


def _texts(data: Data) -> tuple[str, str, str]:
    """Training text, validation text, and where they are from."""
    if data.name == "python" and data.path is None:
        return *_cut(_python(), data), "Python's own sources"
    path = folder_of(data)
    if path.is_file():
        return *_cut(_read(path), data), str(path)
    train, validation = (_in_folder(path, split) for split in (data.train, data.validation))
    if data.samples is not None or data.holdout:
        return *_cut(_read(train), data), str(train)
    return _read(train), _read(validation), str(path)


def _in_folder(path: Path, split: str) -> Path:
    names = [f"{split}{suffix}" for suffix in (".txt", ".jsonl")]
    found = next((path / name for name in names if (path / name).is_file()), None)
    if found is None:
        here = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
        raise DataError(f"{path} has no text for {split!r}: looked for {' and '.join(names)}, found {here}")
    return found


def _read(path: Path) -> str:
    if path.suffix == ".jsonl":
        found = END.join(text._rows(path))
    else:
        try:
            found = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is no text in UTF-8: byte {error.start} is {error.object[error.start]:#x}"
            ) from None
    if not found.strip():
        raise DataError(f"{path} holds no text")
    return found


def _cut(whole: str, data: Data) -> tuple[str, str]:
    """The first ``samples`` stories, the last ``holdout`` of them to validate; characters where there is one story."""
    share = data.holdout or 0.1
    stories = whole.split(END)[: data.samples]
    if len(stories) == 1:
        place = len(whole) - math.ceil(share * len(whole))
        return whole[:place], whole[place:]
    place = len(stories) - math.ceil(share * len(stories))
    return tuple(END.join(part) + END for part in (stories[:place], stories[place:]))  # type: ignore[return-value]


def _python() -> str:
    """The standard library's top modules, in order of their names."""
    folder = Path(os.__file__).parent
    files = sorted(folder.glob("*.py"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)[:PYTHON_BYTES]
