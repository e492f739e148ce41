"""Sentence embeddings that point in the same direction as a teacher's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.recipe import TrainingRecipe
from leanify.data.samples import Inputs, Splits
from leanify.sources.heads import Dense, Pooling
from leanify.tasks import Tally, UsualSettings, get_hidden, mean
from leanify.tasks.references import Mean

USUAL = UsualSettings(
    "a table with a column of text, a file with a sentence a line, or a folder with train.csv", distill=(1.0, 1.0)
)


def task(recipe: TrainingRecipe, splits: Splits) -> SentenceEmbedding:
    return SentenceEmbedding(splits.pooling)


class SentenceEmbedding:
    """One vector per sentence; the loss is 1 − cosine similarity to a teacher's embedding."""

    metric, sign, best, unit = "cosine", 1, 1.0, "of cosine similarity"
    mean_column = ("cosine", 1.0)

    def __init__(self, pooling: Pooling) -> None:
        self.pooling = pooling
        self.reference = Mean("mean embedding") if pooling else None  # without a teacher it has no targets

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B, width) → the loss summed over B"""
        return (1 - self._cosines(model, inputs, targets)).sum()

    def count(self, targets: Tensor) -> int:
        return len(targets)

    def tally_batch(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tally:
        return {"cosine": self._cosines(model, inputs, targets), "count": torch.ones(len(targets))}

    def metrics(self, tally: Tally) -> dict[str, float]:
        """The mean loss and the mean cosine similarity."""
        cosine = mean(tally, "cosine")
        return {"loss": 1 - cosine, "cosine": cosine}

    def _cosines(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        return F.cosine_similarity(embed(model, inputs, self.pooling), targets.float(), dim=-1)


def embed(model: nn.Module, inputs: Inputs, pooling: Pooling) -> Tensor:
    """token ids (B, N) → pooled last hidden states (B, modes · width), or what layers behind make of them, in float32.

    Raises RecipeError.
    """
    assert isinstance(inputs, dict)
    output = model(**inputs)
    if isinstance(output, Tensor):  # a reference gives embeddings
        return output
    hidden = get_hidden(output).float()  # (B, N, width)
    # without a mask every position counts
    mask = inputs.get("attention_mask")
    token_mask = torch.ones_like(inputs["input_ids"]) if mask is None else mask
    vectors = torch.cat([pool(hidden, token_mask, mode) for mode in pooling if isinstance(mode, str)], -1)
    for layer in pooling:
        if isinstance(layer, Dense):
            vectors = layer(vectors).float()
    return vectors


def pool(hidden: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Hidden states (B, N, width), mask (B, N) → (B, width), by sentence-transformers' modes."""
    token_mask = mask[..., None].to(hidden.dtype)
    if mode in ("cls", "lasttoken"):
        place = mask.argmax(1) if mode == "cls" else mask.shape[1] - 1 - mask.flip(1).argmax(1)
        return hidden[torch.arange(len(hidden), device=hidden.device), place]
    if mode == "max":
        return hidden.masked_fill(token_mask == 0, -torch.inf).amax(1)
    if mode == "weightedmean":
        token_mask = token_mask * torch.arange(1, mask.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)[:, None]
    total, count = (hidden * token_mask).sum(1), token_mask.sum(1).clamp(min=1e-9)
    if mode == "mean_sqrt_len_tokens":
        count = count.sqrt()
    return total / count
