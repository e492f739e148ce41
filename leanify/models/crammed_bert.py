"""Crammed BERT (Geiping & Goldstein 2022): a BERT that a day on one GPU can train.

Pre-norm, gated MLPs, linear maps without bias, norms with (as the parameter count of 119.590 M shows), scaled
sinusoidal positions, a decoder tied to the embedding. ``mlp`` counts the units behind the gate: 1536 is the
papers' 3072 → 1536.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.models.layers import Attention, Block, GatedMlp, OwnModel, boolean

POOLER = 1024  # width of the classifier's hidden layer in fine-tuning


class ScaledSinusoidal(nn.Module):
    """The sinusoids of Vaswani et al. 2017 (section 3.5) times one learned scale, 1/√D at first (Hua et al. 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.scale = nn.Parameter(torch.full((1,), width**-0.5))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.width**-0.5)

    def forward(self, length: int) -> Tensor:
        """N → N, D: sines in the even channels, cosines in the odd ones."""
        place = torch.arange(length, device=self.scale.device)[:, None]
        channel = torch.arange(0, self.width, 2, device=self.scale.device)
        angle = place * torch.exp(channel * (-math.log(10000.0) / self.width))
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, : self.width]
        return self.scale * table.to(self.scale.dtype)


class CrammedBert(OwnModel):
    """``classes=0``: a masked language model; otherwise its first token is classified, as GLUE asks."""

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
        """B, N → B, N, V logits of the words, or B, classes; ``attention_mask`` B, N is 1 where a token counts.

        ``chosen`` B, N is true where the words are asked for: K of them → K, V, at a quarter of the decoder's cost
        where a quarter is masked (the "sparse token prediction" of section 4.2 of the paper).
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
        return F.linear(x if chosen is None else x[chosen], self.embedding.weight)
