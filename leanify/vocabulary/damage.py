"""Rank the tokens of a model by what is lost if texts must be split into others: how often, and how badly.

A token that goes is split into pieces, whose embeddings then stand for its own. *hiking* loses little by *hik* and
*##ing*, a name much by its syllables. The damage of a token is measured on the table alone, between its embedding and
the mean of its pieces', the longest among the tokens that are more frequent.

A language model pays for each token of a text alike: frequency · (1 − cosine). In an embedding of a whole text rare
words say the most: √frequency · squared distance (recipes/results/vocabulary.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.vocabulary.kinds import BYTE, Vocabulary
from leanify.vocabulary.ranking import rank_tokens, token_frequencies

CHUNK = 4096  # tokens whose embeddings are compared at once


def rank_by_damage(vocabulary: Vocabulary, counts: Mapping[int, int], model: Any, is_language_model: bool) -> list[int]:
    """Return the ids of the tokens that texts are split into, those first whose loss would do the most damage.

    ``counts`` are the occurrences of ids in the user's texts, which the tokenizer's own prior smooths; ``model`` has
    the table of embeddings. Without one, frequencies alone decide.
    """
    ranking, frequencies = rank_tokens(vocabulary, counts), token_frequencies(vocabulary, counts)
    table = _input_table(model)
    if table is None:
        return ranking
    # the pieces of each token among those that are more frequent
    places = {number: place for place, number in enumerate(ranking)}
    parts, rows = {}, len(table)
    for number in ranking:
        pieces = split_into_pieces(vocabulary, number, places)
        if pieces and max(number, *pieces) < rows:
            parts[number] = pieces
    damages = split_damages(table, parts, is_language_model)
    # a token without known pieces, such as one that bytes spell, has the mean damage
    typical = sum(damages.values()) / max(1, len(damages))
    power = 1.0 if is_language_model else 0.5
    losses = {number: frequencies[number] ** power * damages.get(number, typical) for number in ranking}
    return sorted(ranking, key=lambda number: losses[number], reverse=True)  # of equal loss in the order of the ranking


@torch.no_grad()
def split_damages(table: Tensor, parts: Mapping[int, Sequence[int]], by_angle: bool) -> dict[int, float]:
    """Return how far the mean embedding of its pieces is from that of each token: 1 − cosine, or squared distance."""
    damages: dict[int, float] = {}
    numbers = list(parts)
    for start in range(0, len(numbers), CHUNK):
        some = numbers[start : start + CHUNK]
        flat = torch.tensor([piece for number in some for piece in parts[number]])
        lengths = torch.tensor([len(parts[number]) for number in some])
        offsets = lengths.cumsum(0) - lengths
        means = F.embedding_bag(flat, table, offsets, mode="mean").float()
        rows = table[torch.tensor(some)].float()
        distance = 1 - F.cosine_similarity(rows, means) if by_angle else (rows - means).square().sum(1)
        damages |= dict(zip(some, distance.tolist(), strict=True))
    return damages


def _input_table(model: Any) -> Tensor | None:
    """Return the table (tokens, width) that a model reads ids with."""
    try:
        embeddings = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # composite models have several
        return None
    return embeddings.weight.detach() if isinstance(embeddings, nn.Embedding) else None


def split_into_pieces(vocabulary: Vocabulary, number: int, places: Mapping[int, int]) -> list[int]:
    """Split a token into the longest pieces, from the left, of the characters and the tokens with a lower place."""
    word, prefix, suffix = vocabulary.tokens[number], vocabulary.prefix, vocabulary.suffix
    head = prefix if prefix and word.startswith(prefix) else ""
    tail = suffix if suffix and word.endswith(suffix) else ""
    letters = word[len(head) : len(word) - len(tail)]
    ids, place, stop = vocabulary.ids, places[number], len(letters)
    if stop < 2 or BYTE.fullmatch(word):
        return []
    pieces: list[int] = []
    start, end = 0, stop - 1
    while start < stop:
        text = head + letters[start:end]
        piece = ids.get(text + tail if end == stop else text)
        if piece is not None and (end == start + 1 or places.get(piece, place) < place):
            pieces.append(piece)
            start, end, head = end, stop, prefix
            continue
        end -= 1
        if end == start:
            return []
    return pieces
