"""A GPT of one's own, and the training script that it comes with.

    python own_gpt.py text.txt   trains it on a text file of bytes
    leanify redesign own_gpt.py:make --target-params 0.6 --choose lean -o lean

``make`` is what leanify calls: it returns the model and an example of its input.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    """The sizes of a GPT over bytes."""

    n_layer: int = 8
    n_head: int = 4
    n_embd: int = 64
    block_size: int = 64


class Attention(nn.Module):
    """Causal attention with one map to queries, keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.n_head, self.n_embd = config.n_head, config.n_embd
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.size()
        q, k, v = (
            part.view(batch, tokens, self.n_head, width // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(self.n_embd, dim=2)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(heads.transpose(1, 2).contiguous().view(batch, tokens, width))


class Block(nn.Module):
    """Attention and MLP, each behind a norm and added to the stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Bytes in, the next byte's logits and the loss out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, config.n_embd), nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f, self.lm_head = nn.LayerNorm(config.n_embd), nn.Linear(config.n_embd, 256, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def make() -> tuple[GPT, Tensor]:
    """Return the model and one sample of its input."""
    config = Config()
    return GPT(config), torch.zeros(1, config.block_size, dtype=torch.long)


def train(model: nn.Module, text: bytes, steps: int = 20, length: int = 64) -> list[float]:
    """Train on windows of a text. Returns the loss of every step, in nats a byte."""
    data = torch.tensor(list(text))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - length - 1, (8,)).tolist()
        windows = torch.stack([data[start : start + length + 1] for start in starts])
        loss = model(windows[:, :-1], windows[:, 1:])[1]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    model, _ = make()
    losses = train(model, Path(sys.argv[1]).read_bytes())
    print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}")
