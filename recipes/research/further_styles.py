"""Further styles of attention and of blocks, in the way that papers and libraries write them, small.

Each function builds a model and returns it with an example of its input. `STYLES` says what its author would answer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.research.own_modules import DEPTH, HEADS, LENGTH, UNITS, WIDTH, Example, FeedForward, Tower, tower
from recipes.research.own_styles import block, heads_first, merge_heads

SIZE = WIDTH // HEADS


def of(mixer: Callable[[], nn.Module], feed_forward: Callable[[], nn.Module] = FeedForward) -> Callable[[], Example]:
    """The function that builds a model of pre-norm blocks with this attention."""
    return lambda: tower(block(mixer, feed_forward))


class Mixer(nn.Module):
    """Four maps; ``mix`` computes the heads from queries, keys and values, batch × heads × tokens × channels."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.to_q, self.to_k, self.to_v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.to_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.to_q, self.to_k, self.to_v))
        return self.to_out(merge_heads(self.mix(q, k, v)))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


# -- attentions: scores -------------


class AlibiOfCount(Mixer):
    """Slopes that depend on the number of heads, as in the paper: more heads change the old ones."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slopes = 2 ** (-8 * torch.arange(1, self.heads + 1, dtype=q.dtype) / self.heads)
        places = torch.arange(q.shape[-2])
        bias = -(places[:, None] - places[None]).abs() * slopes[:, None, None]
        return (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v


class AlibiMask(Mixer):
    """A slope for each head in a buffer, given to a fused kernel as its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slopes", 0.5 ** torch.arange(1, HEADS + 1))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        places = torch.arange(q.shape[-2])
        mask = -(places[:, None] - places).abs() * self.slopes[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None].expand(len(q), -1, -1, -1).to(q))


class PlacesLike(Mixer):
    """A bias that is made for the type of the input (``.to(x)``), and for its shape."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.to_q, self.to_k, self.to_v))
        places = torch.arange(x.shape[1])
        scores = q @ k.mT / q.shape[-1] ** 0.5
        bias = -(places[:, None] - places).abs().to(x) + torch.zeros(1).type_as(x)
        return self.to_out(merge_heads((scores + bias.expand_as(scores)).softmax(-1) @ v))


class Windows(nn.Module):
    """Windows whose number takes what a wrong head_dim leaves over: the forward runs, and is wrong (Swin)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        maps = self.qkv(x.view(-1, LENGTH, c)).view(-1, LENGTH, 3, self.heads, c // self.heads)
        y = F.scaled_dot_product_attention(*maps.permute(2, 0, 3, 1, 4))
        return self.out(y.transpose(1, 2).reshape(b, n, -1))


class NormedGroups(Mixer):
    """A norm in groups over the concatenated heads, a group for each (RetNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(HEADS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.to_q, self.to_k, self.to_v))
        y = merge_heads(self.mix(q, k, v))
        return self.to_out(self.norm(y.flatten(0, 1)).view_as(y))


class KeyCache(Mixer):
    """Keys and values are written into tensors that are no buffers, as in Meta's Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = torch.zeros(8, HEADS, 32, 6), torch.zeros(8, HEADS, 32, 6)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, _, n, _ = k.shape
        keys, values = self.keys.to(k, copy=True), self.values.to(v, copy=True)
        keys[:b, :, :n], values[:b, :, :n] = k, v
        return super().mix(q, keys[:b, :, :n], values[:b, :, :n])


class SplitBiases(nn.Module):
    """One map without a bias, and biases of queries and values alone, joined (Swin v2, BEiT)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = HEADS, nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.q_bias, self.v_bias = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        q, k, v = (heads_first(one, self.heads) for one in F.linear(x, self.qkv.weight, bias).chunk(3, -1))
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class StackedMaps(nn.Module):
    """Three maps in one parameter with an axis of its own for them (modded-nanogpt)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = HEADS, nn.Linear(WIDTH, WIDTH)
        self.qkv = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        maps = F.linear(x, self.qkv.flatten(end_dim=1)).view(*x.shape[:2], 3 * self.heads, -1).transpose(1, 2)
        return self.out(merge_heads(F.scaled_dot_product_attention(*maps.chunk(3, 1))))


class TorchWithBias(nn.Module):
    """torch's attention with a learnt key and value, and one of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, add_bias_kv=True, add_zero_attn=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, attn_mask=torch.ones(x.shape[1], x.shape[1]).triu(1).bool())[0]


class TalkingHeads(Mixer):
    """A map over heads before and after softmax (Shazeer et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.post = nn.Linear(HEADS, HEADS, bias=False), nn.Linear(HEADS, HEADS, bias=False)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = self.pre((q @ k.mT).permute(0, 2, 3, 1)).softmax(-2)
        return self.post(scores).permute(0, 3, 1, 2) @ v


class Linformer(Mixer):
    """Keys and values of all tokens are mixed into a few (Wang et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.proj_k, self.proj_v = nn.Linear(LENGTH, 5, bias=False), nn.Linear(LENGTH, 5, bias=False)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, self.proj_k(k.mT).mT, self.proj_v(v.mT).mT)


class Nystrom(Mixer):
    """A pseudo-inverse whose start takes a maximum over all heads (Xiong et al. 2021, as one library writes it)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        few_q, few_k = q[..., :4, :], k[..., :4, :]
        middle = (few_q @ few_k.mT).softmax(-1)
        inverse = middle.mT / (middle.abs().sum(-1).max() * middle.abs().sum(-2).max())
        for _ in range(3):
            inverse = inverse @ (2 * torch.eye(4, dtype=q.dtype) - middle @ inverse)
        return (q @ few_k.mT).softmax(-1) @ (inverse @ ((few_q @ k.mT).softmax(-1) @ v))


# -- attentions: maps -------------


class Fused(nn.Module):
    """One map to queries, keys and values, cut in one of several orders."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.num_heads, self.order = HEADS, order
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        size = self.qkv.out_features // 3 // self.num_heads
        lengths = {"3": 3, "h": self.num_heads, "d": size}
        parts = self.qkv(x).view(batch, tokens, *(lengths[letter] for letter in self.order))
        places = [2 + self.order.index(letter) for letter in "3hd"]
        q, k, v = parts.permute(places[0], 0, places[1], 1, places[2])
        return self.proj(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class Grouped(nn.Module):
    """Two key/value heads for four heads, by repetition."""

    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = HEADS, groups, SIZE
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, groups * SIZE, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q = heads_first(self.wq(x), self.n_heads)
        k, v = (heads_first(map_(x), self.n_kv_heads) for map_ in (self.wk, self.wv))
        k, v = (part.repeat_interleave(self.n_heads // self.n_kv_heads, 1) for part in (k, v))
        return self.wo(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class Latent(nn.Module):
    """Keys and values come from a narrow map that all heads share (DeepSeek's MLA)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.q, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.norm, self.up = nn.RMSNorm(8), nn.Linear(8, 2 * WIDTH)
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q = heads_first(self.q(x), self.heads)
        k, v = heads_first(self.up(self.norm(self.down(x))), self.heads).chunk(2, -1)
        return self.o(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class SharedQueryKey(nn.Module):
    """Queries serve as keys (Kitaev et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.toqk, self.tov = HEADS, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.to_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        qk, v = heads_first(self.toqk(x), self.heads), heads_first(self.tov(x), self.heads)
        return self.to_out(merge_heads(F.scaled_dot_product_attention(qk, F.normalize(qk, dim=-1), v)))


class OutputPerHead(nn.Module):
    """Each head has its own output map; their results are added."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.outs = nn.ModuleList(nn.Linear(SIZE, WIDTH, bias=False) for _ in range(HEADS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return sum(out(mixed[:, number]) for number, out in enumerate(self.outs))


class HeadModules(nn.Module):
    """A list of whole heads, each with its own four maps."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(OneHead() for _ in range(HEADS))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part(x) for part in self.parts]).sum(0)


class OneHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, SIZE, bias=False) for _ in range(3))
        self.o = nn.Linear(SIZE, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


class FusedGate(nn.Module):
    """Queries, keys, values and a gate of the output in one map."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkvg, self.out = HEADS, nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        *parts, gate = self.qkvg(x).chunk(4, -1)
        q, k, v = (heads_first(part, self.heads) for part in parts)
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)) * gate.sigmoid())


class LowRankLinear(nn.Linear):
    """A linear map with a trained low-rank addition (Hu et al. 2021)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(rank, inputs)), nn.Parameter(torch.randn(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + x @ self.lora_A.T @ self.lora_B.T


class LowRankEverywhere(nn.Module):
    """Every map of the block has a low-rank addition, the output projection and the MLP too."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.q, self.k, self.v, self.o = (LowRankLinear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.q, self.k, self.v))
        return self.o(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class LowRankFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = LowRankLinear(WIDTH, UNITS), LowRankLinear(UNITS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class HardWidth(nn.Module):
    """The number of heads and their size are written as figures in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(*x.shape[:2], 4, 6).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape[:2], 24))


# -- blocks -------------


class Palm(nn.Module):
    """Queries, one key, one value and a gated MLP in one map; both outputs in one (Chowdhery et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.norm = HEADS, nn.LayerNorm(WIDTH)
        self.parts = (WIDTH, SIZE, SIZE, 2 * UNITS)
        self.fused_in = nn.Linear(WIDTH, sum(self.parts), bias=False)
        self.attn_out, self.ff_out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(UNITS, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, both = self.fused_in(self.norm(x)).split(self.parts, -1)
        mixed = F.scaled_dot_product_attention(heads_first(q, self.heads), k[:, None], v[:, None])
        up, gate = both.chunk(2, -1)
        return x + self.attn_out(merge_heads(mixed)) + self.ff_out(F.silu(gate) * up)


class FusedParallel(nn.Module):
    """Queries, keys, values and hidden units in one map, both outputs in one map (ViT-22B, Flux)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.norm = HEADS, nn.LayerNorm(WIDTH)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 3 * WIDTH + UNITS), nn.Linear(WIDTH + UNITS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        qkv, hidden = self.linear1(self.norm(x)).split([3 * WIDTH, UNITS], -1)
        q, k, v = (heads_first(part, self.heads) for part in qkv.chunk(3, -1))
        return x + self.linear2(torch.cat([merge_heads(F.scaled_dot_product_attention(q, k, v)), F.gelu(hidden)], -1))


class Adaptive(nn.Module):
    """Shift, scale and gate come from a condition (DiT)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
        self.attn, self.mlp = Mixer(), FeedForward()
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = self.ada(x.mean(1, keepdim=True)).chunk(6, -1)
        x = x + c * self.attn(self.norm1(x) * (1 + b) + a)
        return x + f * self.mlp(self.norm2(x) * (1 + e) + d)


class SpaceTime(nn.Module):
    """Two attentions and one MLP (TimeSformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.space, self.mlp = Mixer(), Mixer(), FeedForward()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.time(self.norms[0](x.flip(1)))
        x = x + self.space(self.norms[1](x))
        return x + self.mlp(self.norms[2](x))


class NormedFeedForward(nn.Module):
    """A norm over the hidden units: more of them change it, so the number stays."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(WIDTH, UNITS), nn.LayerNorm(UNITS), nn.Linear(UNITS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(F.gelu(self.up(x))))


class SquaredRelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, UNITS, bias=False), nn.ReLU(), nn.Dropout(0.1))
        self.out = nn.Linear(UNITS, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.net(x) ** 2)


# -- models -------------


class Model(nn.Module):
    """An embedding, blocks that a subclass runs, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(10, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.run(self.embed(x)).mean(1))

    def run(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class BiasOfModel(Model):
    """One table of relative positions, an embedding of buckets × heads, that all blocks add (T5)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(15, HEADS)
        self.blocks = nn.ModuleList(BlockWithBias() for _ in range(DEPTH))

    def run(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        bias = self.bias(place[:, None] - place[None] + 7).permute(2, 0, 1)
        for one in self.blocks:
            x = one(x, bias)
        return x


class BlockWithBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn, self.mlp = (
            nn.LayerNorm(WIDTH),
            nn.LayerNorm(WIDTH),
            BiasGiven(),
            FeedForward(),
        )

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), bias)
        return x + self.mlp(self.norm2(x))


class BiasGiven(Mixer):
    def forward(self, x: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.to_q, self.to_k, self.to_v))
        return self.to_out(merge_heads((q @ k.mT + bias).softmax(-1) @ v))


class OneFeedForward(Model):
    """All blocks share one MLP (Pires et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        shared = FeedForward()
        self.blocks = nn.ModuleList(block(Mixer, lambda: shared)() for _ in range(DEPTH))

    def run(self, x: Tensor) -> Tensor:
        for one in self.blocks:
            x = one(x)
        return x


class FeedForwardOutside(Model):
    """The shared MLP stands outside the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH))
        self.layers = nn.ModuleList(Mixer() for _ in range(DEPTH))
        self.mlp = FeedForward()

    def run(self, x: Tensor) -> Tensor:
        for norm, attention in zip(self.norms, self.layers, strict=False):
            x = x + attention(norm(x))
            x = x + self.mlp(x)
        return x


class OneBlockRepeated(Model):
    """One block runs several times (Universal Transformer, ALBERT)."""

    def __init__(self) -> None:
        super().__init__()
        self.block = block(Mixer, FeedForward)()

    def run(self, x: Tensor) -> Tensor:
        for _ in range(DEPTH):
            x = self.block(x)
        return x


class OneBlockListed(Model):
    """One block stands several times in its list."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block(Mixer, FeedForward)()] * DEPTH)

    def run(self, x: Tensor) -> Tensor:
        for one in self.blocks:
            x = one(x)
        return x


class ValueResidual(Model):
    """The first block's values are mixed into the later ones' (Zhou et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BlockOfValues() for _ in range(DEPTH))

    def run(self, x: Tensor) -> Tensor:
        first = None
        for one in self.blocks:
            x, values = one(x, first)
            first = values if first is None else first
        return x


class BlockOfValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), FeedForward()
        self.attn = ValuesGiven()

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        y, values = self.attn(self.norm1(x), first)
        x = x + y
        return x + self.mlp(self.norm2(x)), values


class ValuesGiven(Mixer):
    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.to_q, self.to_k, self.to_v))
        v = v if first is None else 0.5 * (v + first)
        return self.to_out(merge_heads(self.mix(q, k, v))), v


class Hourglass(Model):
    """Two lists of blocks with a skip between (U-ViT)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = (nn.ModuleList(block(Mixer, FeedForward)() for _ in range(2)) for _ in range(2))
        self.join = nn.Linear(2 * WIDTH, WIDTH)

    def run(self, x: Tensor) -> Tensor:
        for one in self.down:
            x = one(x)
        skip = x
        for one in self.up:
            x = one(x)
        return self.join(torch.cat([x, skip], -1))


class Perceiver(Model):
    """Latents read the tokens once, then blocks among latents."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(5, WIDTH))
        self.cross, self.blocks = CrossBlock(), nn.ModuleList(block(Mixer, FeedForward)() for _ in range(DEPTH))

    def run(self, x: Tensor) -> Tensor:
        y = self.cross(self.latents.expand(len(x), -1, -1), x)
        for one in self.blocks:
            y = one(y)
        return y


class CrossBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), FeedForward(), Cross()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), context)
        return x + self.mlp(self.norm2(x))


class Cross(Mixer):
    def forward(self, x: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = (heads_first(y, self.heads) for y in (self.to_q(x), self.to_k(context), self.to_v(context)))
        return self.to_out(merge_heads(self.mix(q, k, v)))


class ConvolutionsBetween(Model):
    """Convolutions in the same list as the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(DEPTH):
            self.layers += [TokenConvolution(), block(Mixer, FeedForward)()]

    def run(self, x: Tensor) -> Tensor:
        for one in self.layers:
            x = one(x)
        return x


class TokenConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x.mT).mT


class Pyramid(nn.Module):
    """Two stages of different widths, patches merged between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.merge = nn.Linear(10, WIDTH), nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.stage1 = nn.Sequential(*(WideBlock(WIDTH, 2) for _ in range(2)))
        self.stage2 = nn.Sequential(*(WideBlock(2 * WIDTH, 4) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage1(self.embed(x))
        return self.stage2(self.merge(x.unflatten(1, (-1, 2)).flatten(2))).mean(1)


class WideBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(part, self.heads) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.proj(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class HeadsOutside(Model):
    """The model holds the lists of norms, attentions and MLPs side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(Mixer() for _ in range(DEPTH))
        self.mlps = nn.ModuleList(FeedForward() for _ in range(DEPTH))

    def run(self, x: Tensor) -> Tensor:
        for attention, mlp in zip(self.attentions, self.mlps, strict=True):
            x = x + attention(x)
            x = x + mlp(x)
        return x


def between(layer: Callable[[], nn.Module], every: int = 1) -> Example:
    """Blocks between other layers in a Sequential."""
    layers: list[nn.Module] = []
    for i in range(DEPTH):
        layers += [block(Mixer, FeedForward)()] + [layer()] * (i % every == 0)
    return Tower(nn.Sequential(*layers)), torch.randn(2, LENGTH, 10)


def dropout_between() -> Example:
    return between(lambda: nn.Dropout(0.1))


def maps_between() -> Example:
    return between(lambda: nn.Linear(WIDTH, WIDTH))


def rearranged_by_size() -> Example:
    """Rearrange with a fixed head_dim."""
    from einops.layers.torch import Rearrange

    class Arranged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (
                nn.Sequential(nn.Linear(WIDTH, WIDTH), Rearrange("b n (h d) -> b h n d", d=SIZE)) for _ in range(3)
            )
            self.out = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(merge_heads(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))))

    return tower(block(Arranged, FeedForward))


def by_einops() -> Example:
    """einops' functions with the number of heads that the module keeps."""
    from einops import rearrange

    class Arranged(Mixer):
        def forward(self, x: Tensor) -> Tensor:
            parts = (map_(x) for map_ in (self.to_q, self.to_k, self.to_v))
            q, k, v = (rearrange(part, "b n (h d) -> b h n d", h=self.heads) for part in parts)
            return self.to_out(rearrange(self.mix(q, k, v), "b h n d -> b n (h d)"))

    return tower(block(Arranged, FeedForward))


def built(kind: Callable[[], nn.Module]) -> Callable[[], Example]:
    return lambda: (kind(), torch.randn(2, 8 if kind is Pyramid else LENGTH, 10))


PLAIN = f"{DEPTH} × [{HEADS}×{SIZE}, mlp {UNITS}, width {WIDTH}]"
TWO = PLAIN.replace(f"{DEPTH} ×", "2 ×", 1)
ONE = PLAIN.replace(f"{DEPTH} ×", "1 ×", 1)
# name → how it is made, and its shape as its author would say it; None where no shape of ours describes it
Style = tuple[Callable[[], Example], str | None]
STYLES: dict[str, Style] = {
    **{
        kind.__name__: (of(kind), PLAIN)
        for kind in (
            AlibiMask, PlacesLike, Windows, NormedGroups, KeyCache, SplitBiases, StackedMaps, TorchWithBias,
            TalkingHeads, Linformer, Latent, SharedQueryKey, OutputPerHead, HeadModules, FusedGate, HardWidth,
        )
    },
    # more heads change the old ones: right is a refusal
    **{kind.__name__: (of(kind), None) for kind in (AlibiOfCount, Nystrom)},
    **{f"Fused({order})": (of(lambda order=order: Fused(order)), PLAIN) for order in ("3hd", "h3d", "dh3")},
    "Grouped(2)": (of(Grouped), PLAIN.replace("6,", "6 on 2 kv,")),
    "SquaredRelu": (of(Mixer, SquaredRelu), PLAIN),
    "NormedFeedForward": (of(Mixer, NormedFeedForward), PLAIN.replace("mlp 40", "mlp 0")),
    "LowRankEverywhere": (of(LowRankEverywhere, LowRankFeedForward), PLAIN),
    **{kind.__name__: (lambda kind=kind: tower(kind), PLAIN) for kind in (FusedParallel, Adaptive)},
    "Palm": (lambda: tower(Palm), PLAIN.replace("6,", "6 on 1 kv,")),
    "SpaceTime": (lambda: tower(SpaceTime), f"{DEPTH} × [4×6, mlp 0, width 24, 4×6, mlp 40, width 24]"),
    **{
        kind.__name__: (built(kind), PLAIN)
        for kind in (BiasOfModel, OneFeedForward, FeedForwardOutside, ValueResidual, HeadsOutside, ConvolutionsBetween)
    },
    "OneBlockRepeated": (built(OneBlockRepeated), ONE),
    "OneBlockListed": (built(OneBlockListed), ONE),
    "Hourglass": (built(Hourglass), f"{TWO}; {TWO}"),
    "Perceiver": (built(Perceiver), f"{ONE}; {PLAIN}"),
    **{make.__name__: (make, PLAIN) for make in (dropout_between, maps_between, rearranged_by_size, by_einops)},
}  # fmt: skip
