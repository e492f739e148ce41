"""The GPT-2 that the paper trains on TinyStories: width 512, 12 heads of 42 channels, a context of 64 tokens.

Pre-norm, learned positions, biases in the output projection but not in query, key and value, a ReLU MLP, and
an output head with a bias that is not tied to the embedding. transformers' GPT-2 can express neither these
biases nor heads of 12 × 42 at width 512.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leaner_layers import Attention, Block, Mlp, TokenModel, boolean


class Gpt2(TokenModel):
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
        """B, N → next-token logits B, N, V, for at most ``length`` tokens."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.embedding(input_ids) + self.positions(places)
        mask = boolean(attention_mask)
        for block in self.blocks:
            x = block(x, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits
