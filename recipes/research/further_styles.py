"""Further styles of attention and of blocks, in the way that papers and libraries write them, small.

Each function builds a model and returns it with an example of its input. `STYLES` says what its author would answer.
"""

from __future__ import annotations

import math
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


def maps(count: int, inner: int = WIDTH, bias: bool = True) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(WIDTH, inner, bias=bias) for _ in range(count))


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


class Cosine(Mixer):
    """Cosines of queries and keys, with a temperature for each head (Swin v2)."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(HEADS, 1, 1))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.temperature.exp()).softmax(-1) @ v


class NormedHeads(Mixer):
    """Queries and keys normalised in each head (Henry et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)


class Rotary(Mixer):
    """Halves of each head are turned by their position (Su et al. 2021)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rates = 100.0 ** -(torch.arange(0, q.shape[-1], 2, device=q.device) / q.shape[-1])
        angles = torch.outer(torch.arange(q.shape[-2], device=q.device), rates).to(q.dtype)
        cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
        turned = []
        for x in (q, k):
            one, other = x.chunk(2, -1)
            turned.append(x * cos + torch.cat([-other, one], -1) * sin)
        return F.scaled_dot_product_attention(*turned, v)


class Alibi(Mixer):
    """Slopes computed from the number of heads in the forward, equal for heads with equal rank (Press et al. 2022)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slopes = torch.tensor([2.0 ** -(1 + head) for head in range(self.heads)], dtype=q.dtype)
        places = torch.arange(q.shape[-2])
        bias = -(places[:, None] - places[None]).abs() * slopes[:, None, None]
        return (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v


class AlibiOfCount(Mixer):
    """Slopes that depend on the number of heads, as in the paper: more heads change the old ones."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slopes = 2 ** (-8 * torch.arange(1, self.heads + 1, dtype=q.dtype) / self.heads)
        places = torch.arange(q.shape[-2])
        bias = -(places[:, None] - places[None]).abs() * slopes[:, None, None]
        return (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v


class AlibiMatrix(Mixer):
    """The whole bias in a buffer, heads × tokens × tokens."""

    def __init__(self) -> None:
        super().__init__()
        places = torch.arange(16)
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)
        self.register_buffer("alibi", -(places[:, None] - places[None]).abs() * slopes[:, None, None])

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tokens = q.shape[-2]
        return (q @ k.mT / q.shape[-1] ** 0.5 + self.alibi[:, :tokens, :tokens]).softmax(-1) @ v


class TalkingHeads(Mixer):
    """A map over heads before and after softmax (Shazeer et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.post = nn.Linear(HEADS, HEADS, bias=False), nn.Linear(HEADS, HEADS, bias=False)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = self.pre((q @ k.mT).permute(0, 2, 3, 1)).softmax(-2)
        return self.post(scores).permute(0, 3, 1, 2) @ v


class RelativeKeys(Mixer):
    """Vectors of relative positions, shared by all heads (Shaw et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(2 * 8 + 1, SIZE)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[-2], device=q.device)
        vectors = self.places((place[:, None] - place[None]).clamp(-8, 8) + 8)
        scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, vectors)
        return (scores / q.shape[-1] ** 0.5).softmax(-1) @ v


class XlBias(Mixer):
    """Two biases for each head and a map of sinusoids (Dai et al. 2019, Transformer-XL)."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v_bias = nn.Parameter(torch.zeros(HEADS, SIZE)), nn.Parameter(torch.zeros(HEADS, SIZE))
        self.to_r = nn.Linear(WIDTH, WIDTH, bias=False)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[-2], device=q.device, dtype=q.dtype)
        waves = torch.sin(place[:, None] / 100.0 ** (torch.arange(WIDTH, device=q.device) / WIDTH))
        r = self.to_r(waves.to(q.dtype)).view(-1, self.heads, q.shape[-1]).transpose(0, 1)
        scores = (q + self.u[:, None]) @ k.mT + (q + self.v_bias[:, None]) @ r.mT
        return (scores / q.shape[-1] ** 0.5).softmax(-1) @ v


class SinkLogit(Mixer):
    """One more logit for each head, which takes weight and gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.zeros(HEADS))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        sink = self.sink.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v


class Memory(Mixer):
    """Learnt keys and values beside the tokens' (Sukhbaatar et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.mem_k, self.mem_v = nn.Parameter(torch.randn(HEADS, 3, SIZE)), nn.Parameter(torch.randn(HEADS, 3, SIZE))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = torch.cat([self.mem_k.expand(len(k), -1, -1, -1), k], 2)
        v = torch.cat([self.mem_v.expand(len(v), -1, -1, -1), v], 2)
        return F.scaled_dot_product_attention(q, k, v)


class Differential(nn.Module):
    """The difference of two softmaxes, each head's own (Ye et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.share = nn.Parameter(torch.full((HEADS, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.q, self.k, self.v))
        (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
        weights = (q1 @ k1.mT).softmax(-1) - self.share * (q2 @ k2.mT).softmax(-1)
        return self.o(merge_heads(weights @ v))


class Linearised(Mixer):
    """elu(q) + 1 and elu(k) + 1 in place of a softmax (Katharopoulos et al. 2020)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        context = torch.einsum("bhnd,bhne->bhde", k, v)
        return torch.einsum("bhnd,bhde,bhn->bhne", q, context, 1 / torch.einsum("bhnd,bhd->bhn", q, k.sum(2)))


class Efficient(Mixer):
    """Softmaxes over channels of queries and over tokens of keys (Shen et al. 2021)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.softmax(-1) @ (k.softmax(-2).mT @ v)


class Sigmoids(Mixer):
    """Sigmoids in place of a softmax (Ramapuram et al. 2024)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / q.shape[-1] ** 0.5 - math.log(k.shape[-2])).sigmoid() @ v


class CrossCovariance(Mixer):
    """Attention among the channels of a head (El-Nouby et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(HEADS, 1, 1))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-2), F.normalize(k, dim=-2)
        return v @ (k.mT @ q * self.temperature).softmax(-2)


class Linformer(Mixer):
    """Keys and values of all tokens are mixed into a few (Wang et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.proj_k, self.proj_v = nn.Linear(LENGTH, 5, bias=False), nn.Linear(LENGTH, 5, bias=False)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, self.proj_k(k.mT).mT, self.proj_v(v.mT).mT)


class LinformerMatrices(Mixer):
    """The same with bare matrices, before the heads are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.E, self.F = nn.Parameter(torch.randn(LENGTH, 5)), nn.Parameter(torch.randn(LENGTH, 5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        k, v = (torch.einsum("bnd,nk->bkd", part, matrix) for part, matrix in ((k, self.E), (v, self.F)))
        q, k, v = (heads_first(part, self.heads) for part in (q, k, v))
        return self.to_out(merge_heads(self.mix(q, k, v)))


class Nystrom(Mixer):
    """A pseudo-inverse whose start takes a maximum over all heads (Xiong et al. 2021, as one library writes it)."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        few_q, few_k = q[..., :4, :], k[..., :4, :]
        middle = (few_q @ few_k.mT).softmax(-1)
        inverse = middle.mT / (middle.abs().sum(-1).max() * middle.abs().sum(-2).max())
        for _ in range(3):
            inverse = inverse @ (2 * torch.eye(4, dtype=q.dtype) - middle @ inverse)
        return (q @ few_k.mT).softmax(-1) @ (inverse @ ((few_q @ k.mT).softmax(-1) @ v))


class TopScores(Mixer):
    """Only the largest three scores of each query count."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        least = scores.topk(3, -1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ v


class Banded(Mixer):
    """A causal window of three tokens, by a mask."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[-2])
        distance = place[:, None] - place[None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(distance >= 0) & (distance < 3))


class ScaledHeads(Mixer):
    """Each head's output has a scale (NormFormer)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(HEADS))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().mix(q, k, v) * self.scale.view(1, -1, 1, 1)


class NormedOutput(Mixer):
    """Each head's output is normalised on its own (RetNet's group norm)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(SIZE)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.norm(super().mix(q, k, v))


class Retention(Mixer):
    """Decay in place of a softmax, a gate on the output (Sun et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.to_gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(map_(x), self.heads) for map_ in (self.to_q, self.to_k, self.to_v))
        place = torch.arange(x.shape[1])
        decay = 1 - 2.0 ** (-5.0 - torch.arange(self.heads, dtype=x.dtype))
        weights = q @ k.mT * (decay[:, None, None] ** (place[:, None] - place[None]).clamp(min=0)).tril()
        return self.to_out(merge_heads(weights @ v) * F.silu(self.to_gate(x)))


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


class Letters(nn.Module):
    """Bare tensors of width × heads × channels (Mesh TensorFlow's way)."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(WIDTH, HEADS, SIZE) / 5) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(HEADS, SIZE, WIDTH) / 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bnw,whd->bhnd", x, weight) for weight in (self.wq, self.wk, self.wv))
        return torch.einsum("bhnd,hdw->bnw", F.scaled_dot_product_attention(q, k, v), self.wo)


class FusedGate(nn.Module):
    """Queries, keys, values and a gate of the output in one map."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkvg, self.out = HEADS, nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        *parts, gate = self.qkvg(x).chunk(4, -1)
        q, k, v = (heads_first(part, self.heads) for part in parts)
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)) * gate.sigmoid())


class FusedGateOfHeads(nn.Module):
    """Queries, keys, values and one gate a head in one map."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.qkvg, self.out = nn.Linear(WIDTH, 3 * WIDTH + HEADS), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        inner = (self.qkvg.out_features - self.heads) // 3
        *parts, gate = self.qkvg(x).split([inner, inner, inner, self.heads], -1)
        q, k, v = (heads_first(part, self.heads) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v) * gate.sigmoid().mT[..., None]
        return self.out(merge_heads(mixed))


class LowRankLinear(nn.Linear):
    """A linear map with a trained low-rank addition (Hu et al. 2021)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(rank, inputs)), nn.Parameter(torch.randn(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + x @ self.lora_A.T @ self.lora_B.T


class LowRank(Mixer):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_v = LowRankLinear(WIDTH, WIDTH), LowRankLinear(WIDTH, WIDTH)


class LowRankBeside(nn.Module):
    """LoRA around a linear map: the map is a part."""

    def __init__(self, inputs: int = WIDTH, outputs: int = WIDTH) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class LowRankAround(Mixer):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_v = LowRankBeside(), LowRankBeside()


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


class Quantised(nn.Linear):
    """A linear map with a scale for each output, as in training for int8."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.scale = nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.scale[:, None], self.bias)


class QuantisedMaps(Mixer):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (Quantised(WIDTH, WIDTH) for _ in range(3))


class Convolved(Mixer):
    """Depthwise convolutions over tokens after the three maps (Primer)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_q, self.conv_k, self.conv_v = (nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        pairs = ((self.to_q, self.conv_q), (self.to_k, self.conv_k), (self.to_v, self.conv_v))
        q, k, v = (heads_first(conv(map_(x).mT).mT, self.heads) for map_, conv in pairs)
        return self.to_out(merge_heads(self.mix(q, k, v)))


class HardWidth(nn.Module):
    """The number of heads and their size are written as figures in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(*x.shape[:2], 4, 6).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape[:2], 24))


class Folded(nn.Module):
    """Heads folded into the batch, as in fairseq: tokens first."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.embed_dim = HEADS, SIZE, WIDTH
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        tokens, batch, embed_dim = x.size()
        q, k, v = (map_(x) for map_ in (self.q_proj, self.k_proj, self.v_proj))
        shape = tokens, batch * self.num_heads, self.head_dim
        q, k, v = (part.contiguous().view(*shape).transpose(0, 1) for part in (q * self.head_dim**-0.5, k, v))
        mixed = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
        mixed = mixed.transpose(0, 1).contiguous().view(tokens, batch, embed_dim)
        return self.out_proj(mixed).transpose(0, 1)


class AveragedWeights(nn.Module):
    """As fairseq's and ESM's: an assertion on the width, and the weights' average over heads as a second output."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.embed_dim = HEADS, SIZE, WIDTH
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        bsz, tgt_len, embed_dim = query.size()
        assert embed_dim == self.embed_dim
        q, k, v = (
            map_(query).view(bsz, tgt_len, self.num_heads, self.head_dim).transpose(1, 2) for map_ in self.maps()
        )
        attn_weights = (q @ k.mT * self.head_dim**-0.5).softmax(-1)
        attn = (attn_weights @ v).transpose(1, 2).contiguous().view(bsz, tgt_len, embed_dim)
        return self.out_proj(attn), attn_weights.mean(1)

    def maps(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.q_proj, self.k_proj, self.v_proj


class FirstOf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = AveragedWeights()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)[0]


class EvenSplit(nn.Module):
    """Heads cut by split and joined by cat (the tensors of TransGAN, FT-Transformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.W_q, self.W_k, self.W_v, self.W_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        size = q.shape[-1] // self.heads
        q, k, v = (torch.cat(part.split(size, 2), 0) for part in (q, k, v))
        mixed = (q @ k.mT / size**0.5).softmax(-1) @ v
        return self.W_out(torch.cat(mixed.split(x.shape[0], 0), 2))


class SpatialReduction(Mixer):
    """Keys and values of every second token only, by a convolution over tokens (PVT)."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce, self.norm = nn.Conv1d(WIDTH, WIDTH, 2, 2), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        few = self.norm(self.reduce(x.mT).mT)
        q, k, v = (heads_first(y, self.heads) for y in (self.to_q(x), self.to_k(few), self.to_v(few)))
        return self.to_out(merge_heads(self.mix(q, k, v)))


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


class ParallelBlock(nn.Module):
    """Attention and MLP side by side behind one norm (GPT-J)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.mlp = nn.LayerNorm(WIDTH), Mixer(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attn(y) + self.mlp(y)


class PostNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Mixer(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x * 1.5 + self.attn(x))
        return self.norm2(x * 1.5 + self.mlp(x))


class Sandwich(nn.Module):
    """A norm before and after each part, and a scale for each channel (LayerScale)."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(4))
        self.gamma1, self.gamma2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.attn, self.mlp = Mixer(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma1 * self.norms[1](self.attn(self.norms[0](x)))
        return x + self.gamma2 * self.norms[3](self.mlp(self.norms[2](x)))


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


class Gated(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(WIDTH, UNITS), nn.Linear(UNITS, WIDTH), nn.Linear(WIDTH, UNITS)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.activation(self.w1(x)) * self.w3(x))


class FusedGated(nn.Module):
    """Gate and values in one map (GEGLU)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * UNITS), nn.Linear(UNITS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(F.gelu(gate) * value)


class NormedFeedForward(nn.Module):
    """A norm over the hidden units: more of them change it, so the number stays."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(WIDTH, UNITS), nn.LayerNorm(UNITS), nn.Linear(UNITS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(F.gelu(self.up(x))))


class ConvolvedFeedForward(nn.Module):
    """Convolutions of one token, with a depthwise one over tokens between (LocalViT)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv1d(WIDTH, UNITS, 1), nn.Conv1d(UNITS, WIDTH, 1)
        self.dw = nn.Conv1d(UNITS, UNITS, 3, padding=1, groups=UNITS)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.dw(F.gelu(self.fc1(x.mT))))).mT


class SquaredRelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, UNITS, bias=False), nn.ReLU(), nn.Dropout(0.1))
        self.out = nn.Linear(UNITS, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.net(x) ** 2)


class BareFeedForward(nn.Module):
    """Bare matrices, inputs × outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.W1, self.W2 = nn.Parameter(torch.randn(WIDTH, UNITS) / 5), nn.Parameter(torch.randn(UNITS, WIDTH) / 5)
        self.b1, self.b2 = nn.Parameter(torch.zeros(UNITS)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.W1 + self.b1) @ self.W2 + self.b2


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


class BiasOfFirst(Model):
    """The first block's attention owns the table; the others take its bias (as T5's first layer)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BlockWithBias() for _ in range(DEPTH))
        self.blocks[0].attn.table = nn.Embedding(15, HEADS)

    def run(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        bias = self.blocks[0].attn.table(place[:, None] - place[None] + 7).permute(2, 0, 1)
        for one in self.blocks:
            x = one(x, bias)
        return x


class GraphBias(BiasOfModel):
    """A bias by the distance in a graph, with a parameter for each distance and head (Graphormer)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = None
        self.distance = nn.Parameter(torch.zeros(15, HEADS))

    def run(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        bias = self.distance[place[:, None] - place[None] + 7].permute(2, 0, 1)
        for one in self.blocks:
            x = one(x, bias)
        return x


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


class TwoBlocksInTurn(Model):
    """Two blocks take turns."""

    def __init__(self) -> None:
        super().__init__()
        one, other = (block(Mixer, FeedForward)() for _ in range(2))
        self.blocks = nn.ModuleList([one, other] * 2)

    def run(self, x: Tensor) -> Tensor:
        for each in self.blocks:
            x = each(x)
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


class Detection(Model):
    """An encoder, a decoder of queries with self- and cross-attention (DETR)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(block(Mixer, FeedForward)() for _ in range(2))
        self.decoder = nn.ModuleList(DecoderBlock() for _ in range(2))
        self.queries = nn.Parameter(torch.randn(5, WIDTH))

    def run(self, x: Tensor) -> Tensor:
        for one in self.encoder:
            x = one(x)
        y = self.queries.expand(len(x), -1, -1)
        for one in self.decoder:
            y = one(y, x)
        return y


class DecoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.attn, self.cross, self.mlp = Mixer(), Cross(), FeedForward()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.attn(self.norms[0](x))
        x = x + self.cross(self.norms[1](x), context)
        return x + self.mlp(self.norms[2](x))


class Alternating(Model):
    """Two kinds of block in turn, in one list: full attention, then a window."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block((Mixer, Banded)[i % 2], FeedForward)() for i in range(4))

    def run(self, x: Tensor) -> Tensor:
        for one in self.blocks:
            x = one(x)
        return x


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


class Extractor(nn.Module):
    """One block outside every list, behind a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(10, WIDTH), block(Mixer, FeedForward)(), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean(1))


def between(layer: Callable[[], nn.Module], every: int = 1) -> Example:
    """Blocks between other layers in a Sequential."""
    layers: list[nn.Module] = []
    for i in range(DEPTH):
        layers += [block(Mixer, FeedForward)()] + [layer()] * (i % every == 0)
    return Tower(nn.Sequential(*layers)), torch.randn(2, LENGTH, 10)


def dropout_between() -> Example:
    return between(lambda: nn.Dropout(0.1))


def norms_between() -> Example:
    return between(lambda: nn.LayerNorm(WIDTH))


def maps_between() -> Example:
    return between(lambda: nn.Linear(WIDTH, WIDTH))


def rearranged() -> Example:
    """einops' Rearrange with a fixed number of heads, in a Sequential."""
    from einops.layers.torch import Rearrange

    class Arranged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.to_qkv = nn.Sequential(
                nn.Linear(WIDTH, 3 * WIDTH), Rearrange("b n (k h d) -> k b h n d", k=3, h=HEADS)
            )
            self.to_out = nn.Sequential(Rearrange("b h n d -> b n (h d)"), nn.Linear(WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return self.to_out(F.scaled_dot_product_attention(*self.to_qkv(x)))

    return tower(block(Arranged, FeedForward))


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
            Cosine, NormedHeads, Rotary, Alibi, AlibiMatrix, TalkingHeads, RelativeKeys, XlBias, SinkLogit, Memory,
            Differential, Linearised, Efficient, Sigmoids, CrossCovariance, Linformer, LinformerMatrices, TopScores,
            Banded, ScaledHeads, NormedOutput, Retention, Latent, SharedQueryKey, OutputPerHead, HeadModules, Letters,
            FusedGate, FusedGateOfHeads, LowRank, LowRankAround, QuantisedMaps, Convolved, HardWidth, Folded,
            EvenSplit, SpatialReduction, FirstOf,
        )
    },
    # more heads change the old ones: right is a refusal
    **{kind.__name__: (of(kind), None) for kind in (AlibiOfCount, Nystrom)},
    **{
        f"Fused({order})": (of(lambda order=order: Fused(order)), PLAIN)
        for order in ("3hd", "3dh", "h3d", "hd3", "d3h", "dh3")
    },
    "Grouped(2)": (of(Grouped), PLAIN.replace("6,", "6 on 2 kv,")),
    "Grouped(1)": (of(lambda: Grouped(1)), PLAIN.replace("6,", "6 on 1 kv,")),
    **{
        kind.__name__: (of(Mixer, kind), PLAIN)
        for kind in (Gated, FusedGated, ConvolvedFeedForward, SquaredRelu, BareFeedForward)
    },
    "NormedFeedForward": (of(Mixer, NormedFeedForward), PLAIN.replace("mlp 40", "mlp 0")),
    "LowRankEverywhere": (of(LowRankEverywhere, LowRankFeedForward), PLAIN),
    **{
        kind.__name__: (lambda kind=kind: tower(kind), PLAIN)
        for kind in (FusedParallel, ParallelBlock, PostNorm, Sandwich, Adaptive)
    },
    "Palm": (lambda: tower(Palm), PLAIN.replace("6,", "6 on 1 kv,")),
    "SpaceTime": (lambda: tower(SpaceTime), f"{DEPTH} × [4×6, mlp 0, width 24, 4×6, mlp 40, width 24]"),
    **{
        kind.__name__: (built(kind), PLAIN)
        for kind in (
            BiasOfModel, BiasOfFirst, GraphBias, OneFeedForward, FeedForwardOutside, ValueResidual, HeadsOutside,
        )
    },
    "OneBlockRepeated": (built(OneBlockRepeated), ONE),
    "OneBlockListed": (built(OneBlockListed), ONE),
    "TwoBlocksInTurn": (built(TwoBlocksInTurn), f"{ONE}; {ONE}"),
    "Hourglass": (built(Hourglass), f"{TWO}; {TWO}"),
    "Perceiver": (built(Perceiver), f"{ONE}; {PLAIN}"),
    "Detection": (built(Detection), f"{TWO}; 2 × [4×6, mlp 0, width 24, 4×6, mlp 40, width 24]"),
    "Alternating": (built(Alternating), PLAIN.replace("3 ×", "4 ×", 1)),
    "ConvolutionsBetween": (built(ConvolutionsBetween), PLAIN),
    "Pyramid": (built(Pyramid), "2 × [2×12, mlp 48, width 24]; 2 × [4×12, mlp 96, width 48]"),
    "Extractor": (built(Extractor), ONE),
    **{make.__name__: (make, PLAIN) for make in (dropout_between, norms_between, maps_between)},
    **{make.__name__: (make, PLAIN) for make in (rearranged, rearranged_by_size, by_einops)},
}  # fmt: skip
