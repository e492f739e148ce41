"""Text for masked language models: documents, joined by the tokenizer's separator and cut into samples.

Samples are packed to the full length, without padding (Crammed BERT's packing, Geiping &
Goldstein 2022, section 4.4). A share of each sample's tokens is masked: 80% of these become the mask token,
10% a random token, and 10% stay (Devlin et al. 2019, section 3.1). The number of masked tokens is that share,
rounded, rather than random, so that each sample's number of targets is known in advance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.recipe import DataSection
from leanify.data.common import max_text_length, vocabulary_size
from leanify.data.samples import IGNORED, Splits
from leanify.data.sampling import HOLDOUT, SAMPLE, Key
from leanify.data.texts import corpus, tokenizers, tokens
from leanify.data.texts.tokens import Encode, Text
from leanify.layouts.faults import Faults

MASKED, ANY = 0.8, 0.1  # shares of the chosen tokens that become the mask token, and a random one; the rest stays


class Masked:
    """Token ids: sample i is ids[i · length : (i + 1) · length]. A ``fixed`` mask depends on i alone."""

    workers = 0

    def __init__(self, ids: np.ndarray, length: int, share: float, tokenizer: Any, where: str, fixed: bool) -> None:
        if len(ids) < length:
            raise DataError(f"{where} has {len(ids)} tokens, less than one sample of {length}; reduce data.length")
        self.rows = ids[: len(ids) // length * length].reshape(-1, length)
        self.mask, self.vocabulary, self.fixed = tokenizer.mask_token_id, len(tokenizer), fixed
        # special tokens are never masked
        self.ordinary = np.ones(self.vocabulary, dtype=bool)
        for role in ("pad", "cls", "sep", "mask"):
            mark = getattr(tokenizer, f"{role}_token_id")
            if mark is not None:
                self.ordinary[mark] = False
        # masked tokens of each sample, one at least
        parts = np.array_split(self.rows, 1 + len(ids) // 2**24)  # a large text would need much memory at once
        counts = np.concatenate([self.ordinary[part].sum(1) for part in parts])
        self.targets = np.maximum(1, np.rint(share * counts).astype(np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def draw(self, seed: int, keys: Sequence[Key]) -> tuple[dict[str, Tensor], Tensor]:
        """→ input_ids and targets, (B, length) each; targets are IGNORED except at masked positions"""
        # two random numbers for each token: its place in the order of masking, and what replaces it
        indices = np.array([index for _, index in keys])
        sources = [(HOLDOUT, 0, 0, index) if self.fixed else (SAMPLE, seed, epoch, index) for epoch, index in keys]
        length = self.rows.shape[1]
        place, fate = np.stack([np.random.default_rng(source).random((2, length)) for source in sources], axis=1)
        rows = self.rows[indices].astype(np.int64)
        # (B, length): the chosen tokens, and their replacements
        rank = np.where(self.ordinary[rows], place, 2.0).argsort(1).argsort(1)
        chosen = rank < self.targets[indices, None]
        any_word = ((fate - MASKED) / ANY * self.vocabulary).astype(np.int64)
        masked_rows = np.where(fate < MASKED, self.mask, np.where(fate < MASKED + ANY, any_word, rows))
        inputs = {"input_ids": torch.from_numpy(np.where(chosen, masked_rows, rows))}
        return inputs, torch.from_numpy(np.where(chosen, rows, IGNORED))


def token_stream(samples: Any) -> np.ndarray | None:
    """The ids of all tokens of a text's windows; None for other samples."""
    if isinstance(samples, corpus.Corpus):
        return samples.ids
    return samples.rows.reshape(-1) if isinstance(samples, Masked) else None


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training, validation and test samples for a masked language model. Raises DataError and RecipeError."""
    if not 0 < data.mask < 1:
        raise RecipeError(
            f"data.mask is {data.mask:g}; it must be a share between 0 and 1: BERT masks 0.15, Crammed BERT 0.25"
        )
    # the texts, and a tokenizer that has a mask
    length = max_text_length(data, model)
    size, _ = vocabulary_size(model, data.task)
    faults = Faults(data.on_error == "skip")
    texts, where = corpus.find_texts(data, faults)
    tokenizer, by = tokenizers.make_tokenizer(data.tokenizer, lambda: text_lines(texts[0]), cache_key(texts[0]))
    tokenizers.check_fit(tokenizer, size, by)
    if tokenizer.mask_token_id is None:
        raise DataError(f"{where} {by}: the tokenizer has no mask token, which masked language models need")
    # token ids of each split; validation always masks the same places
    samples = []
    for part, what in zip(texts, ("train", "validate", "test"), strict=False):
        ids, of = encode_text(part, tokenizer), f"{where} {by} to {what}"
        samples.append(Masked(ids, length, data.mask, tokenizer, of, fixed=what != "train"))
    train, validation, *test = samples
    about = f"{where} {by}, {train.rows.size:,} tokens to train and {validation.rows.size:,} to validate"
    skipped_samples = tuple(faults.names)
    return Splits(train, validation, about, test=next(iter(test), None), tokenizer=tokenizer, skipped=skipped_samples)


def text_lines(text: str | Text) -> Iterator[str]:
    """Yield a text line by line: encoding it at once would need about a hundred times its size in memory."""
    pieces = iter([text]) if isinstance(text, str) else text.pieces()
    for block in tokens.blocks(pieces):
        yield from block.replace(tokens.END, "\n").splitlines(keepends=True)


def cache_key(text: str | Text) -> str:
    """A cache key for a text: a digest of its content, or path and modification time of a large one."""
    if isinstance(text, Text) and text.is_large:
        return text.key()
    digest = hashlib.sha256()
    for line in text_lines(text):
        digest.update(line.encode(errors="surrogatepass"))
    return digest.hexdigest()


def encode_text(text: str | Text, tokenizer: Any) -> np.ndarray:
    """Token ids of a text's documents, a separator after each: uint16 if the vocabulary allows, or int32."""
    identity = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    return tokens.encode_cached(text, encoder(tokenizer), f"with separators by {identity}").ids


def encoder(tokenizer: Any) -> Encode:
    """A function from a block of text to ids, which adds the separator after each non-blank document."""
    kind = np.uint16 if len(tokenizer) <= 2**16 else np.int32
    end = [] if tokenizer.sep_token_id is None else [tokenizer.sep_token_id]
    size = tokenizers.LONGEST

    def encode(block: str) -> np.ndarray:
        # all lines at once, which the tokenizer encodes in parallel; those beyond its bound in several parts
        documents: list[list[str]] = []
        for part in block.split(tokens.END):
            documents.append([])
            for line in part.splitlines(keepends=True):
                documents[-1] += [line[start : start + size] for start in range(0, len(line), size)]
        lines = [*chain(*documents)]
        line_ids = tokenizers.encode(tokenizer, lines, add_special_tokens=False)["input_ids"] if lines else []
        # documents behind one another
        parts, ids = [], iter(line_ids)
        for place, document in enumerate(documents, 1):
            parts += [next(ids) for _ in document]
            if place < len(documents) and "".join(document).strip():
                parts.append(np.array(end))
        return np.concatenate([np.zeros(0, kind), *parts]).astype(kind)

    return encode
