"""The user's own sentences with one tag per token: named entities, parts of speech, chunks.

A table has a column of tokens and one of tags, as lists of equal length or as strings separated by blanks;
CoNLL files have one token and tag per line (`leanify.data.tables.rows`). The model reads the tokens joined
by blanks. Only a token's first piece has the tag; its other pieces are ignored, as in Devlin et al. 2019
(5.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanify.data.faults import Faults
from leanify.data.samples import IGNORED
from leanify.data.tables.columns import TAGS, TOKENS, by_class_name, class_names, in_order, parts_of, pick
from leanify.data.tables.rows import rows_of_table
from leanify.data.texts.encoded import Sentences
from leanify.data.texts.labelled_text import Labelled, place_of
from leanify.errors import DataError
from leanify.runs.recipe import DataSection

OUTSIDE = "O"  # the tag of a token outside any entity


@dataclass(frozen=True)
class Tagged(Labelled):
    """One file of rows (tokens, tags), a row a sentence."""

    @staticmethod
    def read(file: Path, data: DataSection, faults: Faults) -> Tagged:
        """Read a file. Raises DataError for unequal numbers of tokens and tags, unless skipped."""
        names: tuple[str, str] | None = None
        order: tuple[str, ...] = ()
        rows = []
        for place, row in rows_of_table(file, faults):
            if names is None:
                asked = (data.label,) if data.label else ()
                picked = pick(file, list(row), text=(data.text[:1], TOKENS), label=(asked, TAGS))
                names = picked["text"][0], picked["label"][0]
                order = class_names(file, names[1])
            tokens, tags = parts_of(row.get(names[0])), parts_of(by_class_name(row.get(names[1]), order))
            problem = _problem(tokens, tags, names)
            if problem:
                faults.found(f"{file}, {place}: {problem}")
            elif tokens and tags:
                rows.append((tokens, tags))
        if names is None or not rows:
            raise DataError(f"{file} has no row with tokens and tags")
        return Tagged(file, f"{names[0]} → {names[1]}", rows, order)

    @property
    def names(self) -> list[str]:
        """The tags: O first, then sorted."""
        found = {tag for _, tags in self.rows for tag in tags}
        return [OUTSIDE] * (OUTSIDE in found) + in_order(found - {OUTSIDE}, self.order)

    @property
    def lines(self) -> Iterator[str]:
        """All sentences, to train a tokenizer on."""
        for tokens, _ in self.rows:
            yield " ".join(tokens)

    def encoded(self, names: Sequence[str], tokenizer: Any, length: int, types: bool) -> TaggedSentences:
        """Tokenise; targets are indices into ``names`` at the first piece of every token."""
        rows = [(tokens, [place_of(tag, names, self.file) for tag in tags]) for tokens, tags in self.rows]
        return TaggedSentences(rows, tokenizer, length, types)


def column_of_tokens(file: Path, found: Sequence[str], data: DataSection) -> str:
    """The column of tokens, as the recipe names it or guessed by name. Raises DataError."""
    return pick(file, found, text=(data.text[:1], TOKENS))["text"][0]


def _problem(tokens: Sequence[str] | None, tags: Sequence[str] | None, names: Sequence[str]) -> str | None:
    """What is wrong with a row; None if nothing is."""
    if tokens is None or tags is None:
        return f"{names[0] if tokens is None else names[1]} is neither a list nor a string"
    if len(tokens) != len(tags):
        return f"{len(tokens)} {names[0]} and {len(tags)} {names[1]}"
    for token in tokens:
        if not token or token != "".join(token.split()):
            return f"the token {token[:40]!r} is empty or contains a blank"
    return None if tokens else f"{names[0]} is empty"


class TaggedSentences(Sentences):
    """Tokenised sentences. ``targets``: tags per sample; ``token_starts``: each token's first piece."""

    def __init__(
        self,
        rows: Sequence[tuple[Sequence[str], Sequence[int]]],
        tokenizer: Any,
        length: int,
        types: bool,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise DataError("this tokenizer does not map pieces to tokens; use a fast tokenizer")
        super().__init__([((" ".join(tokens),), 0) for tokens, _ in rows], tokenizer, length, types, offsets=True)
        self.token_starts: list[list[int | None]] = []
        self.tags = np.full(self.lengths.sum(), IGNORED)
        counts = []
        for (tokens, tags), spans, start in zip(rows, self.offsets, self.starts, strict=True):
            places = first_pieces(tokens, spans)
            self.token_starts.append(places)
            known = [(place, tag) for place, tag in zip(places, tags, strict=True) if place is not None]
            for place, tag in known:
                self.tags[start + place] = tag
            counts.append(len(known))
        self.offsets = []
        self.targets = np.array(counts)

    def batch(self, indices: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """→ inputs as in `Sentences`, (B, N) each; tags (B, N), IGNORED except at tokens' first pieces"""
        inputs, _ = super().batch(indices)
        there, spots = self.layout(indices)
        return inputs, torch.from_numpy(np.where(there, self.tags[spots], IGNORED))


def first_pieces(tokens: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """The index of each token's first piece in the sentence; None for a token without pieces.

    ``spans`` are the pieces' (start, end) in the tokens joined by blanks. A piece belongs to the token of its
    last character, because some tokenizers include the preceding blank in a token's first piece.
    """
    ends = np.cumsum([0, *(len(token) + 1 for token in tokens)])
    found: list[int | None] = [None] * len(tokens)
    owner = np.full(ends[-1], -1)
    for number, (start, end) in enumerate(pairwise(ends)):
        owner[start : end - 1] = number
    for place, (start, end) in enumerate(spans):
        if end > start and (number := owner[end - 1]) >= 0 and found[number] is None:
            found[number] = place
    return found
