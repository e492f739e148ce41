"""Text for causal language models: one sequence of token ids, cut so that every token is a target once.

Sources: a file of plain text, or of stories separated by ``<|endoftext|>`` (TinyStories' layout); a table of
texts (``.jsonl``, ``.parquet``); a hub data set, named with a slash; Python's own standard library
(``data.name=python``). Token ids are bytes, or the ids of a Hugging Face tokenizer.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from leanify.core.errors import DataError
from leanify.core.files.reading import list_folder
from leanify.core.recipe import DataSection
from leanify.data.common import choose_indices, data_path, max_text_length, vocabulary_size
from leanify.data.samples import IGNORED, Splits
from leanify.data.texts import tokenizers, tokens
from leanify.data.texts.tokens import END as END
from leanify.data.texts.tokens import Encode, Text
from leanify.layouts import columns, hub, text_folders
from leanify.layouts.faults import Faults
from leanify.layouts.split_names import parse_split

PYTHON_BYTES = 4_000_000  # of the standard library's sources, so that every Python version gives the same amount


class Corpus:
    """Token ids: sample i has the inputs ids[i · length : (i + 1) · length], and targets shifted by one."""

    workers = 0

    def __init__(self, ids: np.ndarray, length: int, where: str) -> None:
        if len(ids) < 2:
            raise DataError(f"{where} has {len(ids)} tokens; next-token prediction needs at least two")
        self.ids, self.length = ids, length
        starts = np.arange(math.ceil((len(ids) - 1) / length)) * length
        self.targets: np.ndarray = np.minimum(length, len(ids) - 1 - starts)  # the last sample may be shorter

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """→ input_ids and targets, (B, length) each; beyond the end inputs are 0 and targets are ignored"""
        places = indices[:, None] * self.length + np.arange(self.length + 1)
        beyond = places >= len(self.ids)
        ids = self.ids[np.minimum(places, len(self.ids) - 1)].astype(np.int64)
        inputs, targets = np.where(beyond, 0, ids)[:, :-1], np.where(beyond, IGNORED, ids)[:, 1:]
        return {"input_ids": torch.from_numpy(inputs)}, torch.from_numpy(targets)


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training and validation samples for a causal language model. Raises DataError and RecipeError."""
    length = max_text_length(data, model)
    vocabulary, _ = vocabulary_size(model, data.task)
    faults = Faults(data.on_error == "skip")
    train, validation, share, description, test = corpora(data, length, vocabulary, faults)
    return Splits(train, validation, description, bytes_per_target=share, test=test, skipped=tuple(faults.names))


def corpora(
    data: DataSection, length: int, vocabulary: int, faults: Faults | None = None
) -> tuple[Corpus, Corpus, float, str, Corpus | None]:
    """Training and validation samples, mean bytes per token, a description, and test samples or None."""
    # the texts of each split, and how they are encoded
    encode, by = encoder(data.tokenizer, vocabulary)
    sources, where = find_texts(data, faults or Faults())
    # token ids and samples of each split
    encodings, samples = [], []
    for source, what in zip(sources, ("train", "validate", "test"), strict=False):
        part = tokens.encode_cached(source, encode, by)
        encodings.append(part)
        if part.top >= vocabulary:
            raise DataError(
                f"{where} {by} has token id {part.top}, but the model's vocabulary has only {vocabulary} ids"
            )
        samples.append(Corpus(part.ids, length, f"{where} to {what}"))
    train, validation, *test = samples
    description = f"{where} {by}, {len(encodings[0].ids):,} tokens to train and {len(encodings[1].ids):,} to validate"
    share = encodings[1].bytes / len(encodings[1].ids)
    return train, validation, share, description, next(iter(test), None)


def encoder(tokenizer: str | None, size: int) -> tuple[Encode, str]:
    """A function from text to token ids, and its description: bytes, or a tokenizer. Raises DataError."""
    if tokenizer is None:
        if size < 256:
            raise DataError(f"text as bytes needs a vocabulary of at least 256 ids, but the model has {size}")
        return (lambda text: np.frombuffer(text.encode(), dtype=np.uint8)), "as bytes"
    tokenizer_model = tokenizers.load(
        tokenizer, "name another directory with --set data.tokenizer=DIR, or train on bytes, --set data.tokenizer="
    )

    def encode(text: str) -> np.ndarray:
        return tokenizers.encode(tokenizer_model, [text], add_special_tokens=False)["input_ids"][0]

    return encode, f"by the tokenizer {tokenizer}"


def find_texts(data: DataSection, faults: Faults) -> tuple[list[str | Text], str]:
    """The texts for training, validation and (if named) test, with their source."""
    if data.name == "python" and data.path is None:
        files = sorted(Path(os.__file__).parent.glob("*.py"))  # of the standard library
        sources = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
        return [*_cut(sources[:PYTHON_BYTES], data)], "Python's own sources"
    # the splits of a hub data set, a file or a folder
    splits, held_out = data.needed_splits(), ""
    if hub.names_hub_data(data):
        texts = [Text((data.name, split), faults, data.text) for split in splits]
        where = f"{data.name} of the hub"
    else:
        path = data_path(data)
        if path.is_file():
            return [*_cut(Text(path, faults, data.text).read(), data)], str(path)
        if not data.holdout and data.validation == "validation" and _find_text(path, data.validation) is None:
            splits[1], held_out = data.train, " (a tenth of it held out)"
        texts, where = [], str(path)
        for split in splits:
            place = _find_text(path, split)
            if place is None:
                names = " and ".join(f"{split}{suffix}" for suffix in (".txt", *columns.TABLES))
                raise DataError(
                    f"{path} has no text for the split {split!r}: looked for {names}, found {list_folder(path)}"
                )
            texts.append(Text(place, faults, data.text))
    if data.samples is not None or data.holdout or held_out:
        return [*_cut(texts[0].read(), data), *texts[2:]], f"{texts[0]}{held_out}"
    return [*texts], where


def _find_text(path: Path, split: str) -> Path | None:
    """A split's file under one of its usual names, or None.

    A folder's only text is the one to train on; several are one text, unless a name marks a split. Texts may also be in
    a folder of the split.
    """
    if hub.is_saved(path):
        return hub.find_saved(path, split)
    suffixes = (*columns.TEXT_FILES, *columns.TABLES)
    file = columns.find_split_file(path, split, suffixes)
    if file is not None or split != "train":
        return file or text_folders.find_texts(path, split)
    texts = {file.stem.lower() for file in columns.text_files(path)}
    several = len(texts) > 1 and all(parse_split(name) is None for name in texts)
    return columns.only_file(path, suffixes) or (path if several else text_folders.find_texts(path, split))


def _cut(text: str, data: DataSection) -> tuple[str, str]:
    """Choose ``data.samples`` stories and hold out the last share; a single story is cut by characters."""
    share = data.holdout or 0.1
    stories = text.split(END)
    if data.samples is not None:
        stories = [stories[place] for place in choose_indices(stories, data.samples, data.subset)]
    # the last characters or stories validate
    if len(stories) == 1:
        place = len(text) - math.ceil(share * len(text))
        return text[:place], text[place:]
    place = len(stories) - math.ceil(share * len(stories))
    return END.join(stories[:place]) + END, END.join(stories[place:]) + END
