"""Tokenised texts in memory, with a target each: what every task on labelled texts learns from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanify.core import bounds
from leanify.data.texts import tokenizers
from leanify.upstream.origin import is_hf

ENCODED_AT_ONCE = 8192  # texts: a tokenizer's own answer takes some hundred times the memory of their ids
CHARACTERS_AT_ONCE = 1 << 22
Row = tuple[tuple[str, ...], float | int]  # texts and label


class Sentences:
    """Tokenised samples in memory; a batch is padded to its longest sample."""

    workers = 0
    targets: np.ndarray | None = None

    def __init__(self, rows: Sequence[Row], tokenizer: Any, length: int, types: bool) -> None:
        self.rows, self.length, self.types = rows, length, types
        # token ids of all texts behind one another: a padded table would be as wide as the longest
        options = {"truncation": True, "max_length": length, "return_token_type_ids": types}
        padding = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}
        pieces: dict[str, list[np.ndarray]] = {name: [] for name in padding}
        lengths: list[int] = []
        for texts in _portions(rows, tokenizer.truncation_side):
            columns = [list(column) for column in zip(*texts, strict=True)]
            encodings = tokenizers.encode(tokenizer, *columns, **options)
            lengths += map(len, encodings["input_ids"])
            for name, ids in encodings.items():
                pieces[name] += ids
            bounds.check(4 * len(encodings) * sum(lengths), "the token ids of these texts")
        self.lengths: np.ndarray = np.array(lengths)
        self.starts = np.concatenate([[0], self.lengths.cumsum()[:-1]])
        self.flat = {name: (np.concatenate(ids), padding[name]) for name, ids in pieces.items() if ids}
        self.labels = np.array([label for _, label in rows])
        if self.labels.dtype == np.float64:
            self.labels = self.labels.astype(np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def retokenise(self, tokenizer: Any, indices: Sequence[int] | None = None) -> Sentences:
        """Return the same samples, or some of them, split by another tokenizer."""
        rows = self.rows if indices is None else [self.rows[index] for index in indices]
        return Sentences(rows, tokenizer, self.length, self.types)

    def batch(self, indices: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """→ input_ids (and token_type_ids) (B, N), attention_mask if padded; labels (B,)"""
        # (B, N): where the samples have tokens, and where these lie among all tokens
        lengths = self.lengths[indices, None]
        places = np.arange(lengths.max())
        is_token = places < lengths
        spots = np.where(is_token, self.starts[indices, None] + places, 0)
        inputs = {}
        for name, (flat, pad) in self.flat.items():
            inputs[name] = torch.from_numpy(np.where(is_token, flat[spots], pad).astype(np.int64))
        if not is_token.all():
            inputs["attention_mask"] = torch.from_numpy(is_token.astype(np.int64))
        return inputs, torch.from_numpy(self.labels[indices])


def _portions(rows: Sequence[Row], truncation_side: str) -> Iterator[list[list[str]]]:
    """Yield the texts of rows in portions for the tokenizer; what no truncated text would keep is cut off."""
    window = slice(-tokenizers.LONGEST, None) if truncation_side == "left" else slice(tokenizers.LONGEST)
    portion: list[list[str]] = []
    size = 0
    for texts, _ in rows:
        portion.append([text[window] for text in texts])
        size += sum(map(len, portion[-1]))
        if len(portion) == ENCODED_AT_ONCE or size >= CHARACTERS_AT_ONCE:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def takes_types(model: Any) -> bool:
    """Whether a model distinguishes sentence pairs by token types: BERT does, RoBERTa has only one type."""
    takes = "token_type_ids" in inspect.signature(model.forward).parameters
    return takes and is_hf(model) and (getattr(model.config, "type_vocab_size", None) or 1) > 1
