"""Blocks that a quick reader gets wrong: several MLPs, maps that look like keys or heads, unusual spellings.

Each function builds a small model of them and returns it with an example of its input, as those of `own_modules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.research.own_modules import DEPTH, HEADS, LENGTH, UNITS, WIDTH, Example, FeedForward, tower


def block(mixer: Callable[[], nn.Module], feed_forward: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A pre-norm block of two sublayers."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attn, self.mlp = mixer(), feed_forward()

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    return Block


def heads_first(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.q, self.k, self.v))
        return self.o(merge_heads(F.scaled_dot_product_attention(q, k, v)))


# -- mixtures of experts -------------


class RoutedExperts(nn.Module):
    """A list of experts; each token goes to the best ``top_k`` of them."""

    def __init__(self, experts: int = 4, top_k: int = 2) -> None:
        super().__init__()
        self.experts = nn.ModuleList(FeedForward() for _ in range(experts))
        self.gate, self.top_k = nn.Linear(WIDTH, experts), top_k

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        shares, chosen = self.gate(tokens).softmax(-1).topk(self.top_k)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                result.index_add_(0, rows, expert(tokens[rows]) * shares[rows, places, None])
        return result.view_as(x)


class SoftExperts(nn.Module):
    """Every expert sees every token; their outputs are averaged by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, UNITS), nn.ReLU(), nn.Linear(UNITS, WIDTH)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * self.gate(x).softmax(-1)[..., None, :]).sum(-1)


class SharedExpert(nn.Module):
    """A mixture of narrow experts beside a wide MLP that sees every token."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.routed = FeedForward(), nn.ModuleList(Narrow(16) for _ in range(3))
        self.router = nn.Linear(WIDTH, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        return self.shared(x) + sum(expert(x) * shares[..., i, None] for i, expert in enumerate(self.routed))


class Narrow(nn.Module):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, units), nn.Linear(units, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.gelu(self.down(x)))


def routed_experts() -> Example:
    return tower(block(Attention, RoutedExperts))


def soft_experts() -> Example:
    return tower(block(Attention, SoftExperts))


def shared_expert() -> Example:
    return tower(block(Attention, SharedExpert))


# -- adapters -------------


class WithAdapter(nn.Module):
    """A part followed by a narrow adapter (Houlsby et al. 2019)."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.adapter = part, Narrow(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        return y + self.adapter(y)


class BesideAdapter(nn.Module):
    """An adapter in parallel with the MLP, scaled (He et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter, self.mlp, self.scale = Narrow(4), FeedForward(), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x) + self.scale * self.adapter(x)


class SqueezeExcite(nn.Module):
    """An MLP whose outputs are scaled by a narrow gate on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = FeedForward()
        self.reduce, self.expand = nn.Linear(WIDTH, 6), nn.Linear(6, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(x)
        return y * self.expand(self.reduce(y.mean(1, keepdim=True)).relu()).sigmoid()


def houlsby_adapters() -> Example:
    return tower(block(lambda: WithAdapter(Attention()), lambda: WithAdapter(FeedForward())))


def parallel_adapter() -> Example:
    return tower(block(Attention, BesideAdapter))


def squeeze_excite() -> Example:
    return tower(block(Attention, SqueezeExcite))


# -- conformers -------------


class Convolution(nn.Module):
    """The convolution of a conformer (Gulati et al. 2020), which looks like a gated MLP of its width."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
        self.deep, self.norm = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = F.glu(self.up(x.transpose(1, 2)), dim=1)
        return self.down(F.silu(self.norm(self.deep(y)))).transpose(1, 2)


class ConformerBlock(nn.Module):
    def __init__(self, convolves: bool = True) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.ff1, self.ff2, self.attn = FeedForward(), FeedForward(), Attention()
        self.conv = Convolution() if convolves else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1(self.norms[0](x))
        x = x + self.attn(self.norms[1](x))
        x = x + self.conv(self.norms[2](x))
        return x + 0.5 * self.ff2(self.norms[3](x))


class InlineMacaron(nn.Module):
    """Two MLPs around the attention, all written into the block's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up1, self.down1 = nn.Linear(WIDTH, UNITS), nn.Linear(UNITS, WIDTH)
        self.up2, self.down2 = nn.Linear(WIDTH, UNITS), nn.Linear(UNITS, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.down1(F.silu(self.up1(self.norms[0](x))))
        q, k, v = (heads_first(part, self.heads) for part in self.qkv(self.norms[1](x)).chunk(3, -1))
        x = x + self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        return x + 0.5 * self.down2(F.silu(self.up2(self.norms[2](x))))


def conformer() -> Example:
    return tower(ConformerBlock)


def macaron() -> Example:
    return tower(lambda: ConformerBlock(convolves=False))


def inline_macaron() -> Example:
    return tower(InlineMacaron)


# -- heads and tokens -------------


class ChannelsFirst(nn.Module):
    """Heads taken as what is left (-1); values as heads × channels × tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Conv1d(WIDTH, 3 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
        self.dim_head = WIDTH // HEADS

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        batch, _, tokens = x.shape
        q, k, v = (part.reshape(batch, -1, self.dim_head, tokens) for part in self.qkv(x).chunk(3, 1))
        weights = (torch.einsum("bhdi,bhdj->bhij", q, k) * self.dim_head**-0.5).softmax(-1)
        return self.proj((v @ weights.transpose(-1, -2)).reshape(batch, -1, tokens)).transpose(1, 2)


class HeadsLeftOver(nn.Module):
    """Linear maps, with the heads as what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.size = WIDTH // HEADS

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (p.view(batch, tokens, -1, self.size) for p in (self.to_q(x), *self.to_kv(x).chunk(2, -1)))
        weights = torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1)
        return self.out(torch.einsum("bhij,bjhd->bihd", weights, v).reshape(batch, tokens, -1))


class TokensLast(nn.Module):
    """Values as channels × tokens, so that the tokens stand where a head's channels are expected."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.size = WIDTH // HEADS

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (map_(x).transpose(1, 2).unflatten(1, (-1, self.size)) for map_ in (self.q, self.k, self.v))
        weights = (q.mT @ k / self.size**0.5).softmax(-1)
        return self.o((v @ weights.mT).flatten(1, 2).transpose(1, 2))


def channels_first(tokens: int = 12) -> Example:
    model, _ = tower(block(ChannelsFirst, FeedForward))
    return model, torch.randn(2, tokens, 10)


def heads_left_over() -> Example:
    model, _ = tower(block(HeadsLeftOver, FeedForward))
    return model, torch.randn(2, 12, 10)


def tokens_last() -> Example:
    model, _ = tower(block(TokensLast, FeedForward))
    return model, torch.randn(2, 12, 10)


# -- gates and narrow keys -------------


class GatedHeads(nn.Module):
    """A gate beside the values: ``gate`` outputs in all."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.n_heads, self.head_dim = HEADS, WIDTH // HEADS
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.g = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.n_heads) for map_ in (self.q, self.k, self.v))
        heads = F.scaled_dot_product_attention(q, k, v)
        gate = heads_first(self.g(x), self.n_heads).sigmoid()
        return self.o(merge_heads(heads * gate.repeat_interleave(self.head_dim // gate.shape[-1], -1)))


class NarrowKeys(nn.Module):
    """Queries and keys of ``size`` channels a head, values of the usual number; no groups."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.n_heads = HEADS
        self.q, self.k = nn.Linear(WIDTH, HEADS * size), nn.Linear(WIDTH, HEADS * size)
        self.v, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.n_heads) for map_ in (self.q, self.k, self.v))
        return self.o(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class FusedNarrowKeys(nn.Module):
    """Narrow queries and keys in one map."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.qk, self.v, self.o = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (heads_first(part, self.heads) for part in self.qk(x).chunk(2, -1))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.o(merge_heads(weights @ heads_first(self.v(x), self.heads)))


def narrow_keys() -> Example:
    return tower(block(lambda: NarrowKeys(3), FeedForward))


def narrower_keys() -> Example:
    return tower(block(lambda: NarrowKeys(2), FeedForward))


def fused_narrow_keys() -> Example:
    return tower(block(FusedNarrowKeys, FeedForward))


def gate_of_heads() -> Example:
    return tower(block(lambda: GatedHeads(HEADS), FeedForward))


def gate_of_parts() -> Example:
    return tower(block(lambda: GatedHeads(3 * HEADS), FeedForward))


def gate_of_channels() -> Example:
    return tower(block(lambda: GatedHeads(WIDTH), FeedForward))


# -- spellings -------------


class NamedOddly(nn.Module):
    """An instance that is not called self, and a width that stands for the inner width."""

    def __init__(me) -> None:
        super().__init__()
        me.count, me.qkv, me.proj = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(me, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = me.qkv(x).split(WIDTH, dim=2) if me.qkv.out_features == 3 * WIDTH else me.qkv(x).chunk(3, 2)
        q, k, v = (part.view(b, t, me.count, c // me.count).transpose(1, 2) for part in (q, k, v))
        return me.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous().view(b, t, c))


class WindowTable(nn.Module):
    """Relative positions from a table by an index buffer, as Swin's."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.zeros(2 * LENGTH - 1, HEADS))
        places = torch.arange(LENGTH)
        self.register_buffer("index", places[:, None] - places[None] + LENGTH - 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.table[self.index].permute(2, 0, 1)
        return self.out(merge_heads(scores.softmax(-1) @ v))


class ShuffledTokens(nn.Module):
    """Tokens in another order for the attention, by an index buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()
        order = torch.randperm(LENGTH)
        self.register_buffer("order", order)
        self.register_buffer("back", order.argsort())

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x[:, self.order])[:, self.back]


class EmbeddedPlaces(nn.Module):
    """Relative positions from an embedding with one number a head, as T5's."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Embedding(9, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        q, k, v = (heads_first(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        bias = self.bias((places[:, None] - places[None]).clamp(-4, 4) + 4).permute(2, 0, 1)
        return self.out(merge_heads((q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v))


class SlopeBuffer(nn.Module):
    """ALiBi (Press et al. 2022) with its slopes in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, HEADS + 1))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        q, k, v = (heads_first(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        bias = -(places[:, None] - places[None]).abs() * self.slopes[:, None, None]
        return self.out(merge_heads((q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v))


def named_oddly() -> Example:
    return tower(block(NamedOddly, FeedForward))


def window_table() -> Example:
    return tower(block(WindowTable, FeedForward))


def shuffled_tokens() -> Example:
    return tower(block(ShuffledTokens, FeedForward))


def embedded_places() -> Example:
    return tower(block(EmbeddedPlaces, FeedForward))


def slope_buffer() -> Example:
    return tower(block(SlopeBuffer, FeedForward))


# -- what cannot be read -------------


class PooledMaximum(nn.Module):
    """Logits divided by their maximum over all heads: more heads change the old ones."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return self.out(merge_heads(weights / weights.sum(-2).amax() @ v))


def pooled_maximum() -> Example:
    return tower(block(PooledMaximum, FeedForward))


class RegionalBias(nn.Module):
    """A bias for each head that the model, not the attention, makes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BiasedBlock() for _ in range(DEPTH))
        self.bias = nn.Parameter(torch.zeros(1, HEADS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        for one in self.blocks:
            x = one(x)
            self.blocks[0].attn.scores.mul(self.bias)
        return x


class BiasedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = KeepsScores(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


class KeepsScores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        self.scores = (q @ k.mT).softmax(-1)
        return self.out(merge_heads(self.scores @ v))


def regional_bias() -> Example:
    return RegionalBias(), torch.randn(2, LENGTH, WIDTH)


class Words(nn.Module):
    """A model that returns no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, _ = tower(block(Attention, FeedForward))

    def forward(self, x: Tensor) -> str:
        self.inner(x)
        return "done"


class Drawing(Attention):
    """Drops keys at random, also in evaluation, and adds noise."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1 * torch.randn_like(x)
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.q, self.k, self.v))
        scores = (q @ k.mT).masked_fill(torch.rand(x.shape[1], x.shape[1]) < 0.2, -10.0)
        return self.o(merge_heads(scores.softmax(-1) @ v))


def no_attention() -> Example:
    return nn.Sequential(nn.Linear(10, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)), torch.randn(2, LENGTH, 10)


def no_tensor() -> Example:
    return Words(), torch.randn(2, LENGTH, 10)


def drawn_at_random() -> Example:
    return tower(block(Drawing, FeedForward))


def absent_device() -> Example:
    model, inputs = tower(block(Attention, FeedForward))
    return model, inputs.to("cuda:7")


# (function, heads, head_dim, kv heads, hidden units, experts) as their authors would say
Shape = tuple[Callable[[], Any], int, int, int, int, int]
STYLES: tuple[Shape, ...] = (
    (routed_experts, 4, 6, 4, 40, 4), (soft_experts, 4, 6, 4, 40, 3), (shared_expert, 4, 6, 4, 16, 3),
    (houlsby_adapters, 4, 6, 4, 40, 0), (parallel_adapter, 4, 6, 4, 40, 0), (squeeze_excite, 4, 6, 4, 40, 0),
    (conformer, 4, 6, 4, 40, 0), (macaron, 4, 6, 4, 40, 0), (inline_macaron, 4, 6, 4, 40, 0),
    (channels_first, 4, 6, 4, 40, 0), (heads_left_over, 4, 6, 4, 40, 0), (tokens_last, 4, 6, 4, 40, 0),
    (narrow_keys, 4, 6, 4, 40, 0), (narrower_keys, 4, 6, 4, 40, 0), (fused_narrow_keys, 4, 6, 4, 40, 0),
    (gate_of_heads, 4, 6, 4, 40, 0), (gate_of_parts, 4, 6, 4, 40, 0), (gate_of_channels, 4, 6, 4, 40, 0),
    (named_oddly, 4, 6, 4, 40, 0), (window_table, 4, 6, 4, 40, 0), (shuffled_tokens, 4, 6, 4, 40, 0),
    (embedded_places, 4, 6, 4, 40, 0), (slope_buffer, 4, 6, 4, 40, 0),
)  # fmt: skip
