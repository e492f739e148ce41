"""Rank the tokens of a vocabulary: counts on texts, smoothed by the tokenizer's scores or order.

A tokenizer was trained on far more text than a user has. Its Unigram scores are log probabilities; the merges of a BPE
and the ids of BERT's WordPiece lie in the order of frequency, to which Zipf's law gives a probability (1 / rank). The
two are mixed after Witten and Bell (1991): the prior's weight is the number of different tokens that the texts have
shown, four times, so it counts most where texts are few (recipes/results/vocabulary.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from leanify.vocabulary.kinds import Vocabulary, spell

STRENGTH = 4  # occurrences that the prior counts for, for each different token that was counted
FIRST_RANK = 100  # added to a rank, as the first words are less frequent than 1 / rank says (Mandelbrot 1953)


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
        ranks = _merge_ranks(vocabulary) if vocabulary.kind == "BPE" else _id_ranks(vocabulary)
        weights = {number: 1 / (rank + FIRST_RANK) for number, rank in ranks.items()}
    total = sum(weights.values()) or 1.0
    return {number: value / total for number, value in weights.items()}


def _id_ranks(vocabulary: Vocabulary) -> dict[int, int]:
    """The rank of each token in the order of ids, without single characters and BERT's places for later words."""
    ranks, word_count = {}, 0
    for word, number in sorted(vocabulary.ids.items(), key=lambda item: item[1]):
        is_word = len(spell(vocabulary, word)) > 1 and not word.startswith("[unused") and number not in vocabulary.added
        ranks[number] = word_count if is_word else len(vocabulary.ids)
        word_count += is_word
    return ranks


def _merge_ranks(vocabulary: Vocabulary) -> dict[int, int]:
    """The rank of each token: single symbols first, then in the order of merges; tokens that none makes come last."""
    ranks = {}
    for word, number in vocabulary.ids.items():
        makers = vocabulary.makers.get(word)
        ranks[number] = vocabulary.ranks[makers[0]] if makers else len(vocabulary.ranks)
    for word, number in vocabulary.ids.items():
        if len(spell(vocabulary, word)) == 1:
            ranks[number] = 0
    return ranks
