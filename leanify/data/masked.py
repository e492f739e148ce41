"""Text to guess masked words of: documents in a row, with the tokenizer's separator between, cut into samples.

Pieces are packed to the full length, so that there is no padding, and a share of every sample's words is masked: of
these 80 % become the mask word, 10 % any word, 10 % stay (Devlin et al. 2019, section 3.1; the packing is Crammed
BERT's, Geiping & Goldstein 2022, section 4.4). How many are masked is the share of the sample's words, rounded: the
same number however it is drawn, so that every sample's number of targets is known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leanify.data import corpus, vocabulary
from leanify.data.order import HOLDOUT, SAMPLE, Key
from leanify.data.parts import vocabulary_of
from leanify.data.samples import IGNORED, Splits
from leanify.errors import DataError, RecipeError
from leanify.recipe import Data

MASKED, ANY = 0.8, 0.1  # what becomes of the chosen words; the rest stays
TOGETHER = 1000  # documents that are tokenised at a time


class Masked:
    """Token ids in memory: sample i has ``length`` of them from i · length on. What is left at the end is dropped.

    The masks of a sample are a function of (seed, epoch, index); where they are ``fixed``, of the index alone.
    """

    workers = 0

    def __init__(self, ids: np.ndarray, length: int, share: float, tokenizer: Any, where: str, fixed: bool) -> None:
        if len(ids) < length:
            raise DataError(f"{where} has {len(ids)} tokens, and a sample has {length}: more text or a smaller length")
        self.rows = ids[: len(ids) // length * length].reshape(-1, length)
        self.mask, self.words, self.fixed = tokenizer.mask_token_id, len(tokenizer), fixed
        marks = (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id)
        self.ordinary = np.ones(self.words, dtype=bool)
        self.ordinary[[mark for mark in marks if mark is not None]] = False
        counts = np.concatenate(
            [self.ordinary[part].sum(1) for part in np.array_split(self.rows, 1 + len(ids) // 2**24)]
        )
        self.targets = np.maximum(1, np.rint(share * counts).astype(np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def draw(self, seed: int, keys: Sequence[Key]) -> tuple[dict[str, Tensor], Tensor]:
        """→ input_ids and targets, (B, length) each; what is not asked for is no target"""
        indices = np.array([index for _, index in keys])
        sources = [(HOLDOUT, 0, 0, index) if self.fixed else (SAMPLE, seed, epoch, index) for epoch, index in keys]
        length = self.rows.shape[1]
        place, fate = np.stack([np.random.default_rng(source).random((2, length)) for source in sources], axis=1)
        rows = self.rows[indices].astype(np.int64)
        rank = np.where(self.ordinary[rows], place, 2.0).argsort(1).argsort(1)
        chosen = rank < self.targets[indices, None]
        any_word = ((fate - MASKED) / ANY * self.words).astype(np.int64)
        changed = np.where(fate < MASKED, self.mask, np.where(fate < MASKED + ANY, any_word, rows))
        return (
            {"input_ids": torch.from_numpy(np.where(chosen, changed, rows))},
            torch.from_numpy(np.where(chosen, rows, IGNORED)),
        )


def splits(data: Data, model: nn.Module) -> Splits:
    """Training and validation samples of a text for a model that fills in what is masked."""
    if not 0 < data.mask < 1:
        raise RecipeError(
            f"data.mask is {data.mask:g}; it is the share of the words to guess: 0.15 in BERT, 0.25 later"
        )
    for key, value in (("img_size", data.img_size), ("rand_augment", data.rand_augment)):
        if value is not None:
            raise RecipeError(f"data.{key} is for images, and the task is {data.task}")
    words, positions = vocabulary_of(model, data.task)
    length = data.length or positions
    if length is None:
        raise RecipeError("the model has no longest length: give data.length, the tokens of a sample")
    if positions is not None and length > positions:
        raise DataError(f"data.length is {length} tokens, and the model has {positions} positions")
    *texts, where = corpus._texts(data)
    train, others = (documents(text) for text in texts)
    tokenizer, by = vocabulary.tokenizer_of(data.tokenizer, [line for document in train for line in lines(document)])
    vocabulary.check_fit(tokenizer, words, by)
    if tokenizer.mask_token_id is None:
        raise DataError(f"{where} {by}: it has no mask word, so it is not one of a masked language model")
    samples = [
        Masked(encoded(part, tokenizer), length, data.mask, tokenizer, f"{where} {by} to {what}", fixed)
        for part, what, fixed in ((train, "train", False), (others, "validate", True))
    ]
    told = f"{where} {by}, {samples[0].rows.size:,} tokens to train and {samples[1].rows.size:,} to validate"
    return Splits(samples[0], samples[1], told, tokenizer=tokenizer)


def documents(text: str) -> list[str]:
    """What lies between the marks of an end; a text without them is one document."""
    return [part for part in text.split(corpus.END) if part.strip()]


def lines(document: str) -> list[str]:
    """A document in parts that are tokenised one by one: long texts would take a hundred times their size."""
    return document.splitlines(keepends=True)


def encoded(parts: Sequence[str], tokenizer: Any) -> np.ndarray:
    """Token ids of documents in a row, the separator behind each; two bytes a token where that is enough."""
    kind = np.uint16 if len(tokenizer) <= 2**16 else np.int32
    end = np.array([] if tokenizer.sep_token_id is None else [tokenizer.sep_token_id], dtype=kind)
    found = [np.zeros(0, kind)]
    for start in range(0, len(parts), TOGETHER):
        some = [lines(document) for document in parts[start : start + TOGETHER]]
        ids = iter(
            tokenizer([line for part in some for line in part], add_special_tokens=False, verbose=False)["input_ids"]
        )
        for part in some:
            found += [np.array(next(ids), dtype=kind) for _ in part] + [end]
    return np.concatenate(found)
