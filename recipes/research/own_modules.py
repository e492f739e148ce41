"""Transformers as people write them, small: each function builds one and returns it with an example of its input.

Written from the descriptions of their architectures, to differ in what a reader of modules must cope with: where heads
lie, what the parts are called, what a forward takes for granted, where blocks stand.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, UNITS, VOCABULARY, LENGTH = 24, 4, 3, 40, 31, 7
Example = tuple[nn.Module, Any]


class FusedAttention(nn.Module):
    """As nanoGPT's: one map to q, k and v, a width that is taken for the heads' inner width."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head, self.n_embd = config.n_head, config.n_embd

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.size()
        parts = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (p.view(batch, tokens, self.n_head, width // self.n_head).transpose(1, 2) for p in parts)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(heads.transpose(1, 2).contiguous().view(batch, tokens, width))


class GptBlock(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = FusedAttention(config)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(config.n_embd, UNITS), "act": nn.GELU(), "c_proj": nn.Linear(UNITS, config.n_embd)}
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](self.mlp["act"](self.mlp["c_fc"](self.ln_2(x))))


class Gpt(nn.Module):
    """Blocks in a ModuleList inside a ModuleDict, embeddings tied to the head."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        parts = {
            "wte": nn.Embedding(VOCABULARY, config.n_embd),
            "wpe": nn.Embedding(32, config.n_embd),
            "h": nn.ModuleList(GptBlock(config) for _ in range(config.n_layer)),
            "ln_f": nn.LayerNorm(config.n_embd),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(config.n_embd, VOCABULARY, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        places = torch.arange(idx.size(1), device=idx.device)
        x = self.transformer["wte"](idx) + self.transformer["wpe"](places)
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def token_ids(length: int = LENGTH) -> Tensor:
    return torch.randint(0, VOCABULARY, (2, length))


def gpt() -> Example:
    return Gpt(SimpleNamespace(n_embd=WIDTH, n_head=HEADS, n_layer=DEPTH)), token_ids()


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


def apply_rotary(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions as complex numbers: x is batch, tokens, heads, head_dim."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, :, None]).flatten(3).type_as(x)


class GroupedAttention(nn.Module):
    """As Meta's Llama: wq wk wv wo, key/value heads that are repeated, counts of heads "on this device"."""

    def __init__(self, args: dict[str, int]) -> None:
        super().__init__()
        width, self.head_dim = args["dim"], args["dim"] // args["n_heads"]
        self.n_local_heads, self.n_local_kv_heads = args["n_heads"], args["n_kv_heads"]
        self.n_rep = args["n_heads"] // args["n_kv_heads"]
        self.wq = nn.Linear(width, args["n_heads"] * self.head_dim, bias=False)
        self.wk = nn.Linear(width, args["n_kv_heads"] * self.head_dim, bias=False)
        self.wv = nn.Linear(width, args["n_kv_heads"] * self.head_dim, bias=False)
        self.wo = nn.Linear(args["n_heads"] * self.head_dim, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q = apply_rotary(self.wq(x).view(batch, tokens, self.n_local_heads, self.head_dim), angles)
        k = apply_rotary(self.wk(x).view(batch, tokens, self.n_local_kv_heads, self.head_dim), angles)
        v = self.wv(x).view(batch, tokens, self.n_local_kv_heads, self.head_dim)
        k, v = (t.repeat_interleave(self.n_rep, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim) + mask
        heads = torch.matmul(F.softmax(scores.float(), dim=-1).type_as(q), v)
        return self.wo(heads.transpose(1, 2).reshape(batch, tokens, -1))


class Gated(nn.Module):
    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, units, bias=False), nn.Linear(width, units, bias=False)
        self.w2 = nn.Linear(units, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    def __init__(self, args: dict[str, int]) -> None:
        super().__init__()
        self.attention, self.feed_forward = GroupedAttention(args), Gated(args["dim"], UNITS)
        self.attention_norm, self.ffn_norm = RootMeanSquare(args["dim"]), RootMeanSquare(args["dim"])

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles, mask)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """A complex table of positions made for one head_dim, kept as a plain attribute."""

    def __init__(self, args: dict[str, int]) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, args["dim"])
        self.layers = nn.ModuleList(LlamaBlock(args) for _ in range(args["n_layers"]))
        self.norm, self.output = RootMeanSquare(args["dim"]), nn.Linear(args["dim"], VOCABULARY, bias=False)
        size = args["dim"] // args["n_heads"]
        angles = torch.outer(torch.arange(64), 100.0 ** -(torch.arange(0, size, 2) / size))
        self.angles = torch.polar(torch.ones_like(angles), angles)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = torch.full((length, length), -torch.inf, device=tokens.device).triu(1)
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.angles[:length].to(tokens.device), mask)
        return self.output(self.norm(x)).float()


def llama() -> Example:
    return Llama({"dim": WIDTH, "n_heads": HEADS, "n_kv_heads": 2, "n_layers": DEPTH}), token_ids()


class KernelAttention(nn.Module):
    """Bare kernels of rank 3, multiplied by einsum, as in JAX code that was carried over."""

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(width, heads, size) / width**0.5) for _ in range(3))
        self.out = nn.Parameter(torch.randn(heads, size, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bnw,whd->bhnd", x, kernel) for kernel in (self.q, self.k, self.v))
        weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhnd,hdw->bnw", torch.einsum("bhqk,bhkd->bhqd", weights, v), self.out)


class KernelBlock(nn.Module):
    """An MLP of bare matrices beside the attention, in the block itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = KernelAttention(WIDTH, HEADS, WIDTH // HEADS)
        self.up, self.bias = nn.Parameter(torch.randn(WIDTH, UNITS) / 5), nn.Parameter(torch.zeros(UNITS))
        self.down = nn.Parameter(torch.randn(UNITS, WIDTH) / 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + F.relu(self.norm2(x) @ self.up + self.bias) @ self.down


class Tower(nn.Module):
    """Vectors in, blocks in a list, a class out."""

    def __init__(self, blocks: nn.Module, features: int = 10) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = nn.Linear(features, WIDTH), blocks, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks.children():
            x = block(x)
        return self.head(x.mean(1))


def tower(block: Callable[[], nn.Module]) -> Example:
    return Tower(nn.ModuleList(block() for _ in range(DEPTH))), torch.randn(2, LENGTH, 10)


def kernels() -> Example:
    return tower(KernelBlock)


class Head(nn.Module):
    """One head as a module of its own, as in lectures."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(32, 32)))

    def forward(self, x: Tensor) -> Tensor:
        tokens, size = x.shape[1], self.key.out_features
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * size**-0.5
        scores = scores.masked_fill(self.tril[:tokens, :tokens] == 0, -torch.inf)
        return scores.softmax(-1) @ self.value(x)


class ListOfHeads(nn.Module):
    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.proj = nn.ModuleList(Head(size) for _ in range(heads)), nn.Linear(heads * size, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class LectureBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sa, self.ffwd = (
            ListOfHeads(HEADS, WIDTH // HEADS),
            nn.Sequential(nn.Linear(WIDTH, UNITS), nn.ReLU(), nn.Linear(UNITS, WIDTH)),
        )
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class Lecture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(32, WIDTH)
        self.blocks = nn.Sequential(*(LectureBlock() for _ in range(DEPTH)))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1], device=idx.device))
        return self.lm_head(self.ln_f(self.blocks(x)))


def lecture() -> Example:
    return Lecture(), token_ids()


class FourLinears(nn.Module):
    """As in the Annotated Transformer: four maps in one list, told apart by their place."""

    def __init__(self) -> None:
        super().__init__()
        self.h, self.d_k = HEADS, WIDTH // HEADS
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        projections = zip(self.linears, (query, key, value), strict=False)
        q, k, v = (map_(x).view(len(query), -1, self.h, self.d_k).transpose(1, 2) for map_, x in projections)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -1e9)
        heads = scores.softmax(dim=-1) @ v
        return self.linears[-1](heads.transpose(1, 2).contiguous().view(len(query), -1, self.h * self.d_k))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(WIDTH, UNITS), nn.Linear(UNITS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(self.w_1(x).relu())


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.feed_forward = FourLinears(), FeedForward()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.self_attn(y, y, y)
        return x + self.feed_forward(self.norms[1](x))


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.src_attn, self.feed_forward = FourLinears(), FourLinears(), FeedForward()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.self_attn(y, y, y, mask)
        x = x + self.src_attn(self.norms[1](x), memory, memory)
        return x + self.feed_forward(self.norms[2](x))


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(DEPTH))
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(DEPTH))
        self.src, self.tgt, self.out = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Linear(WIDTH, VOCABULARY),
        )

    def forward(self, src: Tensor, tgt: Tensor, tgt_mask: Tensor) -> Tensor:
        memory, x = self.src(src), self.tgt(tgt)
        for layer in self.encoder:
            memory = layer(memory)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask)
        return self.out(x)


def encoder_decoder() -> Example:
    return EncoderDecoder(), (token_ids(), token_ids(5), torch.ones(1, 5, 5).tril())


class PlainBlock(nn.Module):
    """torch's attention, and an MLP as a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, UNITS), nn.GELU(), nn.Linear(UNITS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def torch_attention() -> Example:
    return tower(PlainBlock)


def torch_encoder() -> Example:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, UNITS, 0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False), torch.randn(2, LENGTH, WIDTH)


def torch_encoder_post_norm() -> Example:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, UNITS, 0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, DEPTH), torch.randn(2, LENGTH, WIDTH)


def torch_transformer() -> Example:
    model = nn.Transformer(WIDTH, HEADS, DEPTH, DEPTH, UNITS, 0.0, batch_first=True)
    return model, (torch.randn(2, LENGTH, WIDTH), torch.randn(2, 5, WIDTH))


class InlineBlock(nn.Module):
    """Attention and gated MLP written into the block's own forward; q, k and v interleaved within each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.h = HEADS
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * UNITS), nn.Linear(UNITS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, n, self.h, c // self.h, 3).permute(4, 0, 2, 1, 3)
        heads = (q @ k.mT * (c // self.h) ** -0.5).softmax(-1) @ v
        x = x + self.o(heads.transpose(1, 2).reshape(b, n, c))
        gate, units = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * units)


def inline() -> Example:
    return tower(InlineBlock)


class VisionAttention(nn.Module):
    """As DINOv2's and timm's: one map, reshaped to three, permuted; B, N, C taken from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.scale = HEADS, (WIDTH // HEADS) ** -0.5
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q * self.scale @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, C))


class ScaledBlock(nn.Module):
    """Layer scale, and a gated MLP with both maps in one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), VisionAttention()
        self.w12, self.w3 = nn.Linear(WIDTH, 2 * UNITS), nn.Linear(UNITS, WIDTH)
        self.ls1, self.ls2 = nn.Parameter(torch.full((WIDTH,), 0.1)), nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1 * self.attn(self.norm1(x))
        one, two = self.w12(self.norm2(x)).chunk(2, dim=-1)
        return x + self.ls2 * self.w3(F.silu(one) * two)


class ImageTower(nn.Module):
    """Patches by a convolution, a class token, blocks in a Sequential whose keys are names."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 17, WIDTH) / 5)
        self.layers = nn.Sequential(OrderedDict((f"layer_{i}", block()) for i in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.layers(x))[:, 0])


def vision() -> Example:
    return ImageTower(ScaledBlock), torch.randn(2, 3, 16, 16)


class ToQkv(nn.Module):
    """As vit-pytorch's: the norm inside, an inner width of its own, the output projection in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.scale = HEADS, (WIDTH // HEADS) ** -0.5
        self.norm, self.to_qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.to_out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(self.norm(x)).chunk(3, dim=-1))
        return self.to_out(((q @ k.mT * self.scale).softmax(-1) @ v).transpose(1, 2).flatten(2))


class PairBlock(nn.ModuleList):
    """A block that is a list of two, called by the stack around it."""

    def __init__(self) -> None:
        feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, UNITS), nn.GELU(), nn.Linear(UNITS, WIDTH))
        super().__init__([ToQkv(), feed])


class PairTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = nn.Linear(10, WIDTH), nn.ModuleList(), nn.Linear(WIDTH, 3)
        self.blocks.extend(PairBlock() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for attn, feed in self.blocks:
            x = x + attn(x)
            x = x + feed(x)
        return self.head(x.mean(1))


def pairs() -> Example:
    return PairTower(), torch.randn(2, LENGTH, 10)


class Interleaved(nn.Module):
    """As lit-GPT's: in one map the queries of each group, then its key and its value."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.n_query_groups, self.head_size = HEADS, 2, WIDTH // HEADS
        self.attn = nn.Linear(WIDTH, (HEADS + 2 * 2) * self.head_size, bias=False)
        self.proj = nn.Linear(HEADS * self.head_size, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        group_size = self.n_head // self.n_query_groups
        qkv = (
            self.attn(x).view(batch, tokens, self.n_query_groups, group_size + 2, self.head_size).permute(0, 2, 3, 1, 4)
        )
        q, k, v = qkv.split((group_size, 1, 1), dim=2)
        k, v = (t.expand(-1, -1, group_size, -1, -1).reshape(batch, -1, tokens, self.head_size) for t in (k, v))
        q = q.reshape(batch, -1, tokens, self.head_size)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(heads.transpose(1, 2).reshape(batch, tokens, self.head_size * self.n_head))


class Parallel(nn.Module):
    """Attention and MLP from one norm, added at once."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.mlp = nn.LayerNorm(WIDTH), Interleaved(), Gated(WIDTH, UNITS)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attn(y) + self.mlp(y)


def interleaved_qkv() -> Example:
    return tower(Parallel)


class OneKey(nn.Module):
    """One key and value for all heads; q and k normalised; the square of a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.dim = HEADS, WIDTH // HEADS
        self.to_q, self.to_kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * self.dim, bias=False)
        self.o, self.fc, self.back = (
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.Linear(WIDTH, UNITS, bias=False),
            nn.Linear(UNITS, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.rms_norm(x, (WIDTH,))
        q = self.to_q(y).view(*x.shape[:2], self.heads, self.dim).transpose(1, 2)
        k, v = self.to_kv(y).chunk(2, dim=-1)
        q, k = F.rms_norm(q, (self.dim,)), F.rms_norm(k, (self.dim,))
        heads = torch.einsum("bhij,bjd->bhid", torch.einsum("bhid,bjd->bhij", q, k).softmax(-1), v)
        x = x + self.o(heads.transpose(1, 2).reshape(*x.shape[:2], self.heads * self.dim))
        return x + self.back(F.relu(self.fc(F.rms_norm(x, (WIDTH,)))).square())


def one_key() -> Example:
    return tower(OneKey)


class Bert(nn.Module):
    """The output projection outside the module that counts heads; the MLP in two modules beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": BertHeads(), "output": nn.Linear(WIDTH, WIDTH)})
        self.intermediate, self.output = nn.Linear(WIDTH, UNITS), nn.Linear(UNITS, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention["output"](self.attention["self"](x)))
        return self.norm2(x + self.output(F.gelu(self.intermediate(x))))


class BertHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_attention_heads, self.attention_head_size = HEADS, WIDTH // HEADS
        self.all_head_size = WIDTH
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.size()[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        heads = (q @ k.transpose(-1, -2) / math.sqrt(self.attention_head_size)).softmax(-1) @ v
        heads = heads.permute(0, 2, 1, 3).contiguous()
        return heads.view(*heads.size()[:-2], self.all_head_size)


def bert() -> Example:
    return tower(Bert)


def sequential() -> Example:
    """Everything in one Sequential: an embedding, blocks, a head."""
    return nn.Sequential(nn.Linear(10, WIDTH), *(PlainBlock() for _ in range(DEPTH)), nn.Linear(WIDTH, 3)), torch.randn(
        2, LENGTH, 10
    )


class NumberedBlocks(nn.Module):
    """Loops over a number that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.n_layer, self.embed = DEPTH, nn.Linear(10, WIDTH)
        self.blocks = nn.ModuleList(InlineBlock() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for i in range(self.n_layer):
            x = self.blocks[i](x)
        return x.mean(1)


def numbered_blocks() -> Example:
    return NumberedBlocks(), torch.randn(2, LENGTH, 10)


class NamedBlocks(nn.Module):
    """Blocks as numbered attributes, called one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(10, WIDTH)
        self.block1, self.block2, self.block3 = InlineBlock(), InlineBlock(), InlineBlock()

    def forward(self, x: Tensor) -> Tensor:
        return self.block3(self.block2(self.block1(self.embed(x)))).mean(1)


def named_blocks() -> Example:
    return NamedBlocks(), torch.randn(2, LENGTH, 10)


EXAMPLES: tuple[Callable[[], Example], ...] = (
    gpt, llama, kernels, lecture, encoder_decoder, torch_attention, torch_encoder, torch_encoder_post_norm,
    torch_transformer, inline, vision, pairs, interleaved_qkv, one_key, bert, sequential, numbered_blocks, named_blocks,
)  # fmt: skip
