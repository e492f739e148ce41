"""Tokenised texts in memory, with a target each: what every task on labelled texts learns from."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanify.data.texts import vocabulary
from leanify.upstream.origin import is_hf

Row = tuple[tuple[str, ...], float | int]  # texts and label


class Sentences:
    """Tokenised samples in memory; a batch is padded to its longest sample."""

    workers = 0
    targets: np.ndarray | None = None

    def __init__(self, rows: Sequence[Row], tokenizer: Any, length: int, types: bool) -> None:
        # token ids of all texts behind one another: a padded table would be as wide as the longest
        texts = [list(column) for column in zip(*(texts for texts, _ in rows), strict=True)]
        options = {"truncation": True, "max_length": length, "return_token_type_ids": types, "verbose": False}
        encodings = vocabulary.encode(tokenizer, *texts, **options)
        self.lengths: np.ndarray = np.array([len(ids) for ids in encodings["input_ids"]])
        self.starts = np.concatenate([[0], self.lengths.cumsum()[:-1]])
        padding = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}
        self.flat = {}
        for name, pad in padding.items():
            if name in encodings:
                self.flat[name] = np.concatenate([np.array(ids, dtype=np.int32) for ids in encodings[name]]), pad
        self.labels = np.array([label for _, label in rows])
        if self.labels.dtype == np.float64:
            self.labels = self.labels.astype(np.float32)

    def __len__(self) -> int:
        return len(self.labels)

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


def takes_types(model: Any) -> bool:
    """Whether a model distinguishes sentence pairs by token types: BERT does, RoBERTa has only one type."""
    takes = "token_type_ids" in inspect.signature(model.forward).parameters
    return takes and is_hf(model) and (getattr(model.config, "type_vocab_size", None) or 1) > 1
