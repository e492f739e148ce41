"""The encoder of Amsel, Yehudai & Bruna 2025 ("When Adding More Heads Hurts", appendix B) for the farthest-point task.

Post-norm blocks with the norm scale · x/‖x‖ (learned scale), ReLU MLPs, no positions, no dropout, and no
embedding or output head: N points of R^d in, N points of R^d out. The number and width of heads are
configurable. The paper instead averages copies of an attention with d/head_dim heads, which is the same
function with other weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leaner_layers import Attention, Mlp, TokenModel


class UnitNorm(nn.Module):
    """scale · x/‖x‖"""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        """…, D → …, D"""
        return self.scale * F.normalize(x, dim=-1)


class PostNormBlock(nn.Module):
    """norm(x + attention(x)), then norm(x + mlp(x))"""

    def __init__(self, width: int, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention, self.norm1 = attention, UnitNorm()
        self.mlp, self.norm2 = mlp, UnitNorm()

    def forward(self, x: Tensor) -> Tensor:
        """B, N, D → B, N, D"""
        x = self.norm1(x + self.attention(x))
        normed: Tensor = self.norm2(x + self.mlp(x))
        return normed


class PointEncoder(TokenModel):
    def __init__(
        self, *, width: int = 64, depth: int = 1, heads: int = 1, head_dim: int = 64, mlp: int = 2048, points: int = 16
    ) -> None:
        super().__init__()
        self.width, self.points = width, points  # points in an example input; the model takes any number
        self.blocks = nn.ModuleList(
            PostNormBlock(
                width,
                Attention(width, heads, head_dim, qkv_bias=True, bias=True, causal=False, dropout=0.0),
                Mlp(width, mlp, nn.ReLU()),
            )
            for _ in range(depth)
        )
        self.init_weights()

    def _init_weights(self, module: nn.Module) -> None:
        """Query, key and value by Glorot & Bengio 2010, zero attention biases; the rest as torch."""
        if isinstance(module, (nn.Linear, UnitNorm)):
            module.reset_parameters()
        if isinstance(module, Attention):
            for part in module.qkv.weight.chunk(3):
                nn.init.xavier_uniform_(part)
            nn.init.zeros_(module.qkv.bias)
            nn.init.zeros_(module.proj.bias)

    def example_inputs(self, batch: int, tokens: int | None = None) -> dict[str, Tensor]:
        """Random points on the sphere. → points B, N, d"""
        return {"points": F.normalize(torch.randn(batch, tokens or self.points, self.width), dim=-1)}

    def forward(self, points: Tensor) -> Tensor:
        """B, N, d → B, N, d"""
        for block in self.blocks:
            points = block(points)
        return points
