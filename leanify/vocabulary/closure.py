"""Which tokens must stay, and which stay besides them.

A text whose tokens all stay is split as before, and any other text without a new unknown:

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
from itertools import pairwise

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


@dataclass(frozen=True)
class RankedTokens:
    """The tokens that must stay, and the others, the most useful first and each behind the pieces it needs."""

    required_ids: frozenset[int]
    others: tuple[int, ...]

    @staticmethod
    def of(vocabulary: Vocabulary, ranking: Iterable[int], model_ids: Collection[int] = ()) -> RankedTokens:
        """Close a ranking; ``model_ids`` are ids that the model names, which must stay.

        Raises UnsupportedModel where all tokens must stay.
        """
        required_ids = set(_close(vocabulary, required_tokens(vocabulary, model_ids), set()))
        others = tuple(_close(vocabulary, ranking, set(required_ids)))
        if not others:
            raise UnsupportedModel("every token of the vocabulary is a special one, a character or a byte: none can go")
        return RankedTokens(frozenset(required_ids), others)

    @property
    def total(self) -> int:
        return len(self.required_ids) + len(self.others)

    def keep(self, count: int, multiple: int = 1) -> KeptTokens:
        """Return ``count`` tokens, rounded to a multiple: a table has as many rows, and none without a token.

        Raises BudgetError where more must stay.
        """
        limit = min(count, self.total)
        if limit < self.total:
            limit = limit // multiple * multiple
        if limit < len(self.required_ids):
            smallest = min(self.total, -(-len(self.required_ids) // multiple) * multiple)
            raise BudgetError(
                f"{count:,} tokens are too few: special tokens, characters and bytes alone are "
                f"{len(self.required_ids):,}; the smallest vocabulary has {smallest:,}"
            )
        ids_to_keep = self.required_ids.union(self.others[: limit - len(self.required_ids)])
        return KeptTokens(tuple(sorted(ids_to_keep)), self.total)


def required_tokens(vocabulary: Vocabulary, model_ids: Collection[int] = ()) -> set[int]:
    """Return the ids that always stay, without the pieces of a BPE; ``model_ids`` are those that the model names."""
    ids, by_id = vocabulary.ids, vocabulary.tokens
    # special tokens, added tokens, and the tokens that the configuration names
    ids_to_keep = vocabulary.added | (set(model_ids) & by_id.keys())
    names = {*vocabulary.special, str(vocabulary.model.get("unk_token"))}
    ids_to_keep |= {ids[name] for name in names if name in ids}
    if vocabulary.kind == "Unigram":
        ids_to_keep |= {number for number in (vocabulary.model.get("unk_id"),) if number is not None}
        ids_to_keep |= {number for number, score in vocabulary.scores.items() if score >= 0}
        ids_to_keep.add(min(vocabulary.scores, key=lambda number: vocabulary.scores[number]))
    # what spells every other token: bytes, <0x00> to <0xFF>, or single characters
    if vocabulary.model.get("byte_fallback"):
        return ids_to_keep | {number for word, number in ids.items() if BYTE.fullmatch(word)}
    for word, number in ids.items():
        symbols = spell(vocabulary, word)
        if len(symbols) == 1 or any(symbol not in ids for symbol in symbols):
            ids_to_keep.add(number)
    return ids_to_keep


def _close(vocabulary: Vocabulary, numbers: Iterable[int], yielded_ids: set[int]) -> Iterator[int]:
    """Yield the ids that are not in ``yielded_ids``, each after the pieces through which its merges pass."""
    by_id, ids = vocabulary.tokens, vocabulary.ids
    for number in numbers:
        pending = [number]
        while pending:
            last = pending[-1]
            # an added token and a byte are never merged
            is_merged = last not in vocabulary.added and not BYTE.fullmatch(by_id[last])
            missing = []
            for piece in pieces(vocabulary, by_id[last]) if is_merged and last not in yielded_ids else ():
                if ids.get(piece, last) not in yielded_ids and ids.get(piece, last) != last:
                    missing.append(ids[piece])
            pending += missing
            if not missing:
                pending.pop()
                if last not in yielded_ids:
                    yielded_ids.add(last)
                    yield last


def pieces(vocabulary: Vocabulary, word: str) -> Sequence[str]:
    """Return pieces through which the merges of a BPE token pass; none for another kind.

    These are the two that its only merge joins, or, where several merges make it, all that appear as they run.
    """
    if not vocabulary.ranks:
        return ()
    makers = vocabulary.makers.get(word)
    if makers is not None and len(makers) == 1:
        return makers[0]
    ranks, unknown = vocabulary.ranks, len(vocabulary.ranks)
    parts = spell(vocabulary, word)
    result = list(parts)
    while len(parts) > 1:
        pair_ranks = [ranks.get(pair, unknown) for pair in pairwise(parts)]
        place = min(range(len(pair_ranks)), key=pair_ranks.__getitem__)
        if pair_ranks[place] == unknown:
            break
        parts[place : place + 2] = [vocabulary.join(parts[place], parts[place + 1])]
        result.append(parts[place])
    return result
