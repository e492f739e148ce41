"""Which targets of a language model with fewer tokens the original teaches: tokens that are split as before.

There the original with these tokens alone computes the same as the whole original: its logits are equal for the kept
tokens. Where a token that went is split into pieces it knows nothing better than the text, which teaches instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanify.data.sampling import Key
from leanify.data.texts.corpus import Corpus
from leanify.data.texts.masked import Masked
from leanify.training.distillation import TAUGHT
from leanify.vocabulary.closure import KeptTokens
from leanify.vocabulary.kinds import BYTE, Vocabulary


class TaughtSamples:
    """Samples of a text whose inputs mark the targets that the teacher's logits teach.

    places  of the samples among all windows of the text
    taught  of each token of the text; the target of a causal model's first token is the second one
    """

    def __init__(self, samples: Any, window: Corpus | Masked, places: np.ndarray, taught: np.ndarray) -> None:
        self.samples, self.places = samples, places
        self.length, self.first = (window.length, 1) if isinstance(window, Corpus) else (window.rows.shape[1], 0)
        self.taught = taught
        if hasattr(samples, "batch"):
            self.batch = lambda indices: self._add_taught_mask(samples.batch(indices), indices)
        if hasattr(samples, "draw"):
            self.draw = self._draw

    def __len__(self) -> int:
        return len(self.samples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.samples, name)

    def _draw(self, seed: int, keys: Sequence[Key]) -> tuple[dict[str, Tensor], Tensor]:
        return self._add_taught_mask(self.samples.draw(seed, keys), np.array([index for _, index in keys]))

    def _add_taught_mask(
        self, batch: tuple[dict[str, Tensor], Tensor], indices: np.ndarray
    ) -> tuple[dict[str, Tensor], Tensor]:
        inputs, targets = batch
        places = self.places[indices][:, None] * self.length + self.first + np.arange(self.length)
        taught = self.taught[np.minimum(places, len(self.taught) - 1)]
        return {**inputs, TAUGHT: torch.from_numpy(taught)}, targets


def taught_tokens(old: np.ndarray, new: np.ndarray, vocabulary: Vocabulary, kept: KeptTokens) -> np.ndarray:
    """Return for each token of a text by the smaller vocabulary whether it, and the one before, is split as before.

    ``old`` and ``new`` are the ids of one text. Tokens are aligned by their ends, in bytes of the vocabulary's words.
    """
    lengths = np.ones(1 + max(vocabulary.tokens), np.int64)
    for number, word in vocabulary.tokens.items():
        lengths[number] = 1 if BYTE.fullmatch(word) else len(word.removeprefix(vocabulary.prefix).encode()) or 1
    kept_ids = np.array(kept.ids)
    old_ends, new_ends = lengths[old].cumsum(), lengths[kept_ids[new]].cumsum()
    # the old token that ends where the new one does, if it is the same one
    places = np.minimum(old_ends.searchsorted(new_ends), len(old) - 1)
    is_same: np.ndarray = (old_ends[places] == new_ends) & (old[places] == kept_ids[new])
    was_same = np.concatenate([[True], is_same[:-1]])
    both: np.ndarray = is_same & was_same
    return both
