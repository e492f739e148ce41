"""Sentences as vectors that point where a teacher's point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import Inputs
from leanify.errors import RecipeError


class SentenceEmbedding:
    """One vector a sentence; the loss is 1 − cosine to the target, which is a teacher's vector of the same sentence."""

    metric, sign, margin = "cosine", 1, 0.01

    def __init__(self, pooling: Sequence[str]) -> None:
        self.pooling = tuple(pooling)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B, width) → the sum over B"""
        return (1 - self._cosines(model, inputs, targets)).sum()

    def count(self, targets: Tensor) -> int:
        return len(targets)

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        return {"cosine": self._cosines(model, inputs, targets).sum(), "count": torch.tensor(len(targets))}

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """The mean loss and the mean cosine."""
        cosine = (found["cosine"] / found["count"]).item()
        return {"loss": 1 - cosine, "cosine": cosine}

    def _cosines(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        return F.cosine_similarity(embed(model, inputs, self.pooling), targets.float(), dim=-1)


def embed(model: nn.Module, inputs: Inputs, pooling: Sequence[str]) -> Tensor:
    """token ids (B, N) → (B, modes · width) in float32: the pooled hidden states of the last layer."""
    assert isinstance(inputs, dict)
    output = model(**inputs)
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is None:
        raise RecipeError(
            f"{type(model).__name__} has a head and gives no hidden states to make embeddings of: name the encoder "
            'without it, class = "AutoModel" in [model]'
        )
    mask = inputs.get("attention_mask")
    there = torch.ones_like(inputs["input_ids"]) if mask is None else mask
    return torch.cat([pooled(hidden.float(), there, mode) for mode in pooling], -1)


def pooled(hidden: Tensor, mask: Tensor, mode: str) -> Tensor:
    """(B, N, width) and (B, N) → (B, width), as sentence-transformers pools (Reimers & Gurevych 2019)."""
    there = mask[..., None].to(hidden.dtype)
    if mode in ("cls", "lasttoken"):
        last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
        first = mask.argmax(1)
        return hidden[torch.arange(len(hidden), device=hidden.device), first if mode == "cls" else last]
    if mode == "max":
        return hidden.masked_fill(there == 0, -torch.inf).amax(1)
    if mode == "weightedmean":
        there = there * torch.arange(1, mask.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)[:, None]
    total, count = (hidden * there).sum(1), there.sum(1).clamp(min=1e-9)
    return total / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)
