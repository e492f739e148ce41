"""Which tokens must stay, and which stay besides them.

A text whose tokens all stay is split as before, and any other text without an unknown where it had none:

- special and added tokens stay, an unknown token that is only an added one among them;
- single characters stay (in a byte-level BPE these are the 256 bytes), or with byte fallback ``<0x00>`` to ``<0xFF>``;
  so does a token that single characters cannot spell;
- WordPiece takes the longest match from the left, and Unigram the path of the highest score: of a text whose tokens
  stay, no longer match and no better path appears. The lowest score stays, because the penalty of unknown characters
  hangs on it;
- a BPE reaches a token through the products of merges: with a token stay the pieces through which its merges pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from leanify.core.errors import BudgetError, UnsupportedModel
from leanify.vocabulary.kinds import BYTE, Vocabulary, spell


@dataclass(frozen=True)
class KeptTokens:
    """The ids of the tokens that stay, in their old order; a token's new id is its place."""

    ids: tuple[int, ...]
    old_count: int

    @cached_property
    def new_ids(self) -> dict[int, int]:
        return {old: old if self.is_all else new for new, old in enumerate(self.ids)}

    @property
    def is_all(self) -> bool:
        return len(self.ids) == self.old_count

    def rows(self, count: int) -> list[int]:
        """The rows of a table of ``count`` rows that stay. A table may have fewer rows than the tokenizer tokens."""
        return list(range(count)) if self.is_all else [number for number in self.ids if number < count]


def required_tokens(vocabulary: Vocabulary, others: Collection[int] = ()) -> set[int]:
    """Return the ids that always stay; ``others`` are those that the model names, which stay as well."""
    ids, by_id = vocabulary.ids, vocabulary.tokens
    # special and added tokens, and what the configuration names
    kept = vocabulary.added | (set(others) & by_id.keys())
    names = {*vocabulary.special, str(vocabulary.model.get("unk_token"))}
    kept |= {ids[name] for name in names if name in ids}
    if vocabulary.kind == "Unigram":
        kept |= {number for number in (vocabulary.model.get("unk_id"),) if number is not None}
        kept |= {number for number, score in vocabulary.scores.items() if score >= 0}
        kept.add(min(vocabulary.scores, key=lambda number: vocabulary.scores[number]))
    # what spells every other token
    if vocabulary.has_byte_fallback:
        kept |= {number for word, number in ids.items() if BYTE.fullmatch(word)}
    else:
        for word, number in ids.items():
            symbols = spell(vocabulary, word)
            if len(symbols) == 1 or any(symbol not in ids for symbol in symbols):
                kept.add(number)
    return _with_pieces(vocabulary, kept, {pair: rank for rank, pair in enumerate(vocabulary.merges)})


def keep_tokens(
    vocabulary: Vocabulary, ranking: Sequence[int], count: int, others: Collection[int] = (), multiple: int = 1
) -> KeptTokens:
    """Return at most ``count`` tokens: those that must stay, then the first of the ranking with their pieces.

    ``count`` is rounded to a multiple of ``multiple``, so that a table has as many rows and none without a token.
    Raises BudgetError where more must stay, and UnsupportedModel where all must.
    """
    total = len(vocabulary.tokens)
    kept = required_tokens(vocabulary, others)
    if len(kept) == total:
        raise UnsupportedModel("every token of the vocabulary is a special one, a character or a byte: none can go")
    limit = count // multiple * multiple
    if len(kept) > limit:
        rounded = -(-len(kept) // multiple) * multiple
        raise BudgetError(
            f"{count:,} tokens are too few: special tokens and single characters alone are {len(kept):,}; the smallest "
            f"vocabulary has {min(rounded, total):,}"
        )
    if limit >= total:
        return KeptTokens(tuple(vocabulary.tokens), total)
    # the best of the rest; one whose pieces do not fit is passed over
    by_id, ids = vocabulary.tokens, vocabulary.ids
    ranks = {pair: rank for rank, pair in enumerate(vocabulary.merges)}
    for number in ranking:
        if len(kept) >= limit:
            break
        if number in kept:
            continue
        new = {number} | {ids[piece] for piece in pieces(vocabulary, by_id[number], ranks) if piece in ids}
        if len(kept) + len(new - kept) <= limit:
            kept |= new
    return KeptTokens(tuple(sorted(kept)), total)


def _with_pieces(vocabulary: Vocabulary, kept: Iterable[int], ranks: dict[tuple[str, str], int]) -> set[int]:
    """Return the ids and those of the pieces through which their merges pass; an added token is never merged."""
    by_id, ids = vocabulary.tokens, vocabulary.ids
    closed = set(kept)
    for number in closed - vocabulary.added:
        if not BYTE.fullmatch(by_id[number]):
            closed |= {ids[piece] for piece in pieces(vocabulary, by_id[number], ranks) if piece in ids}
    return closed


def pieces(vocabulary: Vocabulary, word: str, ranks: dict[tuple[str, str], int]) -> Iterator[str]:
    """Yield the pieces that appear while a BPE merges the characters of a token; nothing for another kind."""
    if not ranks:
        return
    parts = spell(vocabulary, word)
    yield from parts
    unknown = len(ranks)
    while len(parts) > 1:
        best, place = unknown, 0
        for index in range(len(parts) - 1):
            rank = ranks.get((parts[index], parts[index + 1]), unknown)
            if rank < best:
                best, place = rank, index
        if best == unknown:
            return
        parts[place : place + 2] = [vocabulary.join(parts[place], parts[place + 1])]
        yield parts[place]
