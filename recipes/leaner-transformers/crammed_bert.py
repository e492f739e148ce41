"""Crammed BERT (Geiping & Goldstein 2022): a BERT that can be trained in a day on one GPU.

Pre-norm, gated MLPs, scaled sinusoidal positions, a decoder tied to the embedding. Linear maps have no bias
but norms do, as the parameter count of 119.590 M shows. ``mlp`` is the number of units after the gate: 1536
corresponds to the paper's 3072 → 1536.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leaner_layers import Attention, Block, GatedMlp, TokenModel, boolean

POOLER = 1024  # width of the classifier's hidden layer in fine-tuning


class ScaledSinusoidal(nn.Module):
    """Sinusoidal positions (Vaswani et al. 2017, 3.5) times a learned scale, at first 1/√D."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.scale = nn.Parameter(torch.full((1,), width**-0.5))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.width**-0.5)

    def forward(self, length: int) -> Tensor:
        """N → N, D; sines in even channels, cosines in odd ones."""
        place = torch.arange(length, device=self.scale.device)[:, None]
        channel = torch.arange(0, self.width, 2, device=self.scale.device)
        angle = place * torch.exp(channel * (-math.log(10000.0) / self.width))
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, : self.width]
        return self.scale * table.to(self.scale.dtype)


class CrammedBert(TokenModel):
    """A masked language model with ``classes=0``; otherwise a classifier on the first token, as for GLUE."""

    def __init__(
        self,
        *,
        vocab: int = 32768,
        length: int = 128,
        width: int = 768,
        depth: int = 16,
        heads: int = 12,
        head_dim: int = 64,
        mlp: int = 1536,
        classes: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vocab, self.length, self.classes = vocab, length, classes
        self.embedding = nn.Embedding(vocab, width)
        self.positions = ScaledSinusoidal(width)
        self.norm_in = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                width,
                Attention(width, heads, head_dim, qkv_bias=False, bias=False, causal=False, dropout=dropout),
                GatedMlp(width, mlp),
                eps=1e-12,
                dropout=dropout,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.classifier = (
            nn.Sequential(nn.Linear(width, POOLER), nn.Tanh(), nn.Linear(POOLER, classes)) if classes else None
        )
        self.init_weights()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ScaledSinusoidal):
            module.reset_parameters()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, chosen: Tensor | None = None) -> Tensor:
        """B, N → vocabulary logits B, N, V, or B, classes; ``attention_mask`` B, N is 1 for tokens and 0 for padding.

        ``chosen`` (K,) are positions of the flattened B · N → K, V: with a quarter masked, the decoder costs
        a quarter ("sparse token prediction", section 4.2 of the paper).
        """
        x = self.embedding(input_ids) + self.positions(input_ids.shape[1])
        x = self.dropout(self.norm_in(x))
        mask = boolean(attention_mask)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        if self.classifier is not None:
            classes: Tensor = self.classifier(x[:, 0])
            return classes
        return F.linear(x if chosen is None else x.flatten(0, 1)[chosen], self.embedding.weight)
