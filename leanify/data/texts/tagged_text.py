"""The user's own sentences with one tag per token: named entities, parts of speech, chunks.

A table has a column of tokens and one of tags, as lists of equal length or as strings separated by blanks; CoNLL files
have one token and tag per line (`leanify.data.tables.conll`). The model reads the tokens joined by blanks. Only a
token's first piece has the tag; its other pieces are ignored, as in Devlin et al. 2019 (5.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from leanify.data.faults import Faults
from leanify.data.samples import IGNORED
from leanify.data.tables.columns import (
    TAGS,
    TOKENS,
    by_class_name,
    class_names,
    in_order,
    missing_columns,
    one_of,
    parts_of,
)
from leanify.data.tables.rows import rows_of_table
from leanify.data.texts.encoded import Sentences
from leanify.data.texts.labelled_text import place_of
from leanify.errors import DataError
from leanify.runs.recipe import DataSection

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OUTSIDE = "O"  # the tag of a token outside any entity


@dataclass(frozen=True)
class Tagged:
    """One file: its columns, and (tokens, tags) for each sentence."""

    file: Path
    tokens: str
    tags: str
    rows: list[tuple[tuple[str, ...], tuple[str, ...]]]
    order: tuple[str, ...] = ()  # the tags' names in the order of the file's numbers, if it has them

    @staticmethod
    def read(file: Path, data: DataSection, faults: Faults) -> Tagged:
        """Read a file. Raises DataError for a row with different numbers of tokens and tags, unless skipped."""
        names: tuple[str, str] | None = None
        order: tuple[str, ...] = ()
        rows: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        for place, row in rows_of_table(file, faults):
            if names is None:
                names = columns_of(file, list(row), data)
                order = class_names(file, names[1])
            tokens, tags = parts_of(row.get(names[0])), parts_of(by_class_name(row.get(names[1]), order))
            if problem := _problem(tokens, tags, names):
                faults.found(f"{file}, {place}: {problem}")
            elif tokens and tags:
                rows.append((tokens, tags))
        if names is None or not rows:
            raise DataError(f"{file} has no row with tokens and tags")
        return Tagged(file, *names, rows, order)

    @property
    def names(self) -> list[str]:
        """The tags: O first, then sorted."""
        found = {tag for _, tags in self.rows for tag in tags}
        return [OUTSIDE] * (OUTSIDE in found) + in_order(found - {OUTSIDE}, self.order)

    @property
    def lines(self) -> Iterator[str]:
        """All sentences, to train a tokenizer on."""
        return (" ".join(tokens) for tokens, _ in self.rows)

    @property
    def columns(self) -> str:
        return f"{self.tokens} → {self.tags}"

    def encoded(
        self, names: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int, types: bool
    ) -> TaggedSentences:
        """Tokenise; targets are indices into ``names`` at the first piece of every token. Raises DataError."""
        rows = [(tokens, [place_of(tag, names, self.file) for tag in tags]) for tokens, tags in self.rows]
        return TaggedSentences(rows, tokenizer, length, types)


def columns_of(file: Path, found: Sequence[str], data: DataSection) -> tuple[str, str]:
    """The columns of tokens and tags, as the recipe names them or guessed by name. Raises DataError."""
    asked = (data.label,) if data.label else ()
    tokens, tags = one_of(data.text[:1] or TOKENS, found), one_of(asked or TAGS, found)
    if tokens is None or tags is None:
        raise missing_columns(file, found, text=(data.text[:1], TOKENS), label=(asked, TAGS))
    return tokens, tags


def column_of_tokens(file: Path, found: Sequence[str], data: DataSection) -> str:
    """The column of tokens, as the recipe names it or guessed by name. Raises DataError."""
    tokens = one_of(data.text[:1] or TOKENS, found)
    if tokens is None:
        raise missing_columns(file, found, text=(data.text[:1], TOKENS))
    return tokens


def _problem(tokens: Sequence[str] | None, tags: Sequence[str] | None, names: Sequence[str]) -> str | None:
    """What is wrong with a row; None if nothing is."""
    for cells, name in ((tokens, names[0]), (tags, names[1])):
        if cells is None:
            return f"{name} is neither a list nor a string"
    if tokens is None or tags is None or len(tokens) != len(tags):
        return f"{len(tokens or ())} {names[0]} and {len(tags or ())} {names[1]}"
    if not tokens:
        return f"{names[0]} is empty"
    blank = next((token for token in tokens if not token or token != "".join(token.split())), None)
    return None if blank is None else f"the token {blank[:40]!r} is empty or contains a blank"


class TaggedSentences(Sentences):
    """Tokenised sentences. ``targets`` is the number of tags per sample, ``token_starts`` each token's first piece."""

    def __init__(
        self,
        rows: Sequence[tuple[Sequence[str], Sequence[int]]],
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        types: bool,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise DataError("this tokenizer does not map pieces to tokens; use a fast tokenizer")
        super().__init__([((" ".join(tokens),), 0) for tokens, _ in rows], tokenizer, length, types, offsets=True)
        self.token_starts = [first_pieces(tokens, spans) for (tokens, _), spans in zip(rows, self.offsets, strict=True)]
        self.offsets = []
        targets = np.full(self.lengths.sum(), IGNORED)
        for start, token_starts, (_, tags) in zip(self.starts, self.token_starts, rows, strict=True):
            for place, tag in zip(token_starts, tags, strict=True):
                if place is not None:
                    targets[start + place] = tag
        self.tags = targets
        self.targets = np.array(
            [sum(place is not None for place in token_starts) for token_starts in self.token_starts]
        )

    def batch(self, indices: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """→ inputs as in `Sentences`, (B, N) each; tags (B, N), IGNORED except at tokens' first pieces"""
        inputs, _ = super().batch(indices)
        lengths = self.lengths[indices, None]
        places = np.arange(lengths.max())
        there = places < lengths
        tags = np.where(there, self.tags[np.where(there, self.starts[indices, None] + places, 0)], IGNORED)
        return inputs, torch.from_numpy(tags)


def first_pieces(tokens: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """The index of each token's first piece in the sentence; None for a token without pieces.

    ``spans`` are the pieces' (start, end) in the tokens joined by blanks. A piece belongs to the token of its last
    character, because some tokenizers include the preceding blank in a token's first piece.
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
