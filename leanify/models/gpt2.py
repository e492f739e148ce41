"""The GPT-2 that the paper trains on TinyStories: 512 wide, 12 heads of 42 channels, 64 tokens of context.

Pre-norm, learned positions, query, key and value without bias, the output projection with, a ReLU MLP, and a head with
a bias that is not tied to the embedding. transformers' GPT-2 can say neither the biases nor 12 × 42 in 512.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leanify.models.layers import Attention, Block, Mlp, OwnModel, boolean


class Gpt2(OwnModel):
    def __init__(
        self,
        *,
        vocab: int = 50257,
        length: int = 64,
        width: int = 512,
        depth: int = 12,
        heads: int = 12,
        head_dim: int = 42,
        mlp: int = 2048,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.vocab, self.length = vocab, length
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            Block(
                width,
                Attention(width, heads, head_dim, qkv_bias=False, bias=True, causal=True, dropout=dropout),
                Mlp(width, mlp, nn.ReLU()),
                eps=1e-5,
                dropout=dropout,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab)
        self.init_weights()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """B, N → B, N, V: the logits of the next token; at most ``length`` tokens."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.embedding(input_ids) + self.positions(places)
        mask = boolean(attention_mask)
        for block in self.blocks:
            x = block(x, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits
