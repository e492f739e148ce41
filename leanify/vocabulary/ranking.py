"""Rank the tokens of a model by what is lost if texts must be split into others: how often, and how badly.

How often: counts on the user's texts, smoothed by the tokenizer, which was trained on far more text. Its Unigram scores
are log probabilities; the merges of a BPE and the ids of BERT's WordPiece lie in the order of frequency, to which
Zipf's law gives a probability (1 / rank). The two are mixed after Witten and Bell (1991): the prior's weight is the
number of different tokens that the texts have shown, four times (recipes/results/vocabulary.md).

How badly: a token that goes is split into pieces, whose embeddings then stand for its own. *hiking* loses little by
*hik* and *##ing*, a name much by its syllables. The damage of a token is measured on the table alone, between its
embedding and the mean of its pieces', the longest among the tokens that are more frequent. A language model pays for
each token of a text alike: frequency · (1 − cosine). In an embedding of a whole text rare words say the most:
√frequency · squared distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.vocabulary.kinds import BYTE, Vocabulary, spell

STRENGTH = 4  # occurrences that the prior counts for, for each different token that was counted
FIRST_RANK = 100  # added to a rank, as the first words are less frequent than 1 / rank says (Mandelbrot 1953)
CHUNK = 4096  # tokens whose embeddings are compared at once


def rank_tokens(vocabulary: Vocabulary, counts: Mapping[int, int], weight: float | None = None) -> list[int]:
    """Return the ids of the tokens that texts are split into, the most frequent first, equal ones by the prior."""
    prior, frequencies = prior_probabilities(vocabulary), token_frequencies(vocabulary, counts, weight)
    return sorted(prior, key=lambda number: (frequencies[number], prior[number]), reverse=True)


def token_frequencies(
    vocabulary: Vocabulary, counts: Mapping[int, int], weight: float | None = None
) -> dict[int, float]:
    """Return the occurrences of each token that texts are split into, smoothed by the prior.

    ``counts`` are the occurrences of ids in the user's texts. ``weight`` is the number of occurrences that the prior
    counts for, by default `STRENGTH` for each different token; with 0 counts alone remain.
    """
    strength = STRENGTH * float(len(counts)) if weight is None else weight
    prior = prior_probabilities(vocabulary)
    return {number: counts.get(number, 0) + strength * value for number, value in prior.items()}


def prior_probabilities(vocabulary: Vocabulary) -> dict[int, float]:
    """Return the probability of each token by the tokenizer itself; they add up to 1."""
    if vocabulary.kind == "Unigram":
        # user-defined and control tokens have a score of 0
        weights = {number: math.exp(score) if score < 0 else 0.0 for number, score in vocabulary.scores.items()}
    else:
        # a BPE's order of merges behind its single symbols, or the order of ids without single characters and BERT's
        # places for later words; tokens outside the order come last
        ranks, word_count = {}, 0
        for word, number in sorted(vocabulary.ids.items(), key=lambda item: item[1]):
            makers, is_symbol = vocabulary.makers.get(word), len(spell(vocabulary, word)) == 1
            if vocabulary.kind == "BPE":
                rank = vocabulary.ranks[makers[0]] if makers else len(vocabulary.ranks)
                ranks[number] = 0 if is_symbol else rank
            else:
                is_word = not is_symbol and not word.startswith("[unused") and number not in vocabulary.added
                ranks[number] = word_count if is_word else len(vocabulary.ids)
                word_count += is_word
        weights = {number: 1 / (rank + FIRST_RANK) for number, rank in ranks.items()}
    total = sum(weights.values()) or 1.0
    return {number: value / total for number, value in weights.items()}


def rank_by_damage(vocabulary: Vocabulary, counts: Mapping[int, int], model: Any, is_language_model: bool) -> list[int]:
    """Return the ids of the tokens that texts are split into, those first whose loss would do the most damage.

    ``counts`` are the occurrences of ids in the user's texts, which the tokenizer's own prior smooths; ``model`` has
    the table of embeddings. Without one, frequencies alone decide.
    """
    ranking, frequencies = rank_tokens(vocabulary, counts), token_frequencies(vocabulary, counts)
    try:
        embeddings = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # composite models have several
        embeddings = None
    if not isinstance(embeddings, nn.Embedding):
        return ranking
    table = embeddings.weight.detach()
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
