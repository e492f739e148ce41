"""Layers that the models share: attention with arbitrary inner width, MLPs, the pre-norm block.

Shapes: B batch, N tokens, D width, h heads, d head_dim, M hidden units. A mask is B × N, false for padding. Each
attention and MLP carries the row by which leanify reads it, as docs/guides/own-modules.md explains.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.lens.families import Row, attach

ATTENTION = Row("Attention", rows={"qkv": "3 h d"}, columns={"proj": "h d"}, attributes={"heads": "h", "head_dim": "d"})
MLP = Row("Mlp", rows={"fc1": "m"}, columns={"fc2": "m"})
GATED_MLP = Row("GatedMlp", rows={"fc1": "2 m"}, columns={"fc2": "m"})


class TokenModel(nn.Module):
    """A module that makes examples of its input, says its vocabulary, and can re-initialise itself."""

    vocab: int  # token ids
    length: int  # positions

    def example_ids(self, batch: int, tokens: int | None = None) -> Tensor:
        """Random token ids, by default as many as the model has positions. → B, N"""
        return torch.randint(self.vocab, (batch, tokens or self.length))

    def example_inputs(self, batch: int, tokens: int | None = None) -> dict[str, Tensor]:
        """A random batch by argument name of the forward."""
        return {"input_ids": self.example_ids(batch, tokens)}

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module: linear maps and embeddings from N(0, 0.02), zero biases, identity norms."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def init_weights(self) -> None:
        """Re-initialise the whole model, in place."""
        self.apply(self._init_weights)


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, eq. 1); heads × head_dim may differ from the width."""

    def __init__(
        self, width: int, heads: int, head_dim: int, *, qkv_bias: bool, bias: bool, causal: bool, dropout: float
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.causal, self.dropout = heads, head_dim, causal, dropout
        self.qkv = nn.Linear(width, 3 * heads * head_dim, bias=qkv_bias)
        self.proj = nn.Linear(heads * head_dim, width, bias=bias)
        attach(self, ATTENTION)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """B, N, D → B, N, D"""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)  # each B, h, N, d
        joined: Tensor = self.proj(self.mix(q, k, v, mask).transpose(1, 2).flatten(2))
        return joined

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """A_i = softmax(q_i k_iᵀ / √d) v_i for every head i. B, h, N, d → B, h, N, d"""
        allowed = None if mask is None else mask[:, None, None, :]
        if allowed is not None and self.causal:
            allowed = allowed & torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        dropout = self.dropout if self.training else 0.0
        causal = self.causal and mask is None
        return F.scaled_dot_product_attention(q, k, v, allowed, dropout_p=dropout, is_causal=causal)


class Mlp(nn.Module):
    """fc2(f(fc1(x))) with M hidden units."""

    def __init__(self, width: int, mlp: int, activation: nn.Module) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, mlp)
        self.activation = activation
        self.fc2 = nn.Linear(mlp, width)
        attach(self, MLP)

    def forward(self, x: Tensor) -> Tensor:
        """B, N, D → B, N, D"""
        x = self.fc2(self.activation(self.fc1(x)))
        return x


class GatedMlp(nn.Module):
    """Gated MLP (Shazeer 2020) with M hidden units and no biases: fc2(a · gelu(b)) with [a, b] = fc1(x)."""

    def __init__(self, width: int, mlp: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * mlp, bias=False)
        self.fc2 = nn.Linear(mlp, width, bias=False)
        attach(self, GATED_MLP)

    def forward(self, x: Tensor) -> Tensor:
        """B, N, D → B, N, D"""
        value, gate = self.fc1(x).chunk(2, dim=-1)
        x = self.fc2(value * F.gelu(gate))
        return x


class Block(nn.Module):
    """Pre-norm residual block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, attention: nn.Module, mlp: nn.Module, *, eps: float, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attention = attention
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = mlp
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """B, N, D → B, N, D"""
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        x = x + self.dropout(self.mlp(self.norm2(x)))
        return x


def boolean(attention_mask: Tensor | None) -> Tensor | None:
    """Convert a mask of ones and zeros to booleans; None stays None."""
    return None if attention_mask is None else attention_mask.bool()
