"""Ways in which people write modules: where their numbers lie, what their lists hold, what their forwards count."""

from __future__ import annotations

import re
import types
import warnings
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import leanify
from leanify.lens.obstacles import describe_obstacle

WIDTH, HEADS, DEPTH, UNITS = 24, 4, 3, 40


@dataclass(frozen=True)
class Frozen:
    width: int = WIDTH
    heads: int = HEADS


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    width: int = WIDTH
    heads: int = HEADS


class Pair(NamedTuple):
    width: int = WIDTH
    heads: int = HEADS


class Locked:
    def __init__(self) -> None:
        vars(self).update(width=WIDTH, heads=HEADS)

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(f"{name} cannot be set")


class Items(UserDict[str, int]):
    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["data"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Nested:
    inner: Frozen

    @property
    def width(self) -> int:
        return self.inner.width

    @property
    def heads(self) -> int:
        return self.inner.heads


CONFIGS: dict[str, Callable[[], Any]] = {
    "frozen": Frozen, "frozen slots": FrozenSlots, "named tuple": Pair, "locked": Locked,
    "mapping": lambda: Items(width=WIDTH, heads=HEADS), "nested": lambda: Nested(Frozen()),
    "namespace": lambda: types.SimpleNamespace(width=WIDTH, heads=HEADS),
}  # fmt: skip


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.qkv, self.out = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.config.heads, width // self.config.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width))  # type: ignore[no-any-return]


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, UNITS), nn.GELU(), nn.Linear(UNITS, WIDTH))


class Block(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(config), feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Masked(nn.Module):
    """A block that makes a mask for each sample and head: from a number of its own, or from one that is written out."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.nhead = way, HEADS
        self.attention, self.mlp = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        if self.way == "product":
            mask = x.new_zeros(b * self.nhead, n, n)
        elif self.way == "repeated":
            mask = x.new_zeros(b, n, n).repeat_interleave(self.nhead, 0)
        else:
            mask = x.new_zeros(b * 4, n, n)
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)  # type: ignore[no-any-return]


class PerBatch(nn.Module):
    """Heads of any count on a batch of two, of four only on others."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(Frozen()), feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        if len(x) != 2 and self.attention.out.in_features != WIDTH:
            raise ValueError("made for 24 channels")
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Lists(nn.Module):
    """Lists that hold None beside blocks."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        blocks: list[Any] = [Block(Frozen()) for _ in range(4)]
        if way == "first":
            entries: list[Any] = [None, *blocks]
        elif way == "every second":
            entries = [blocks[0], None, blocks[1], None, blocks[2]]
        elif way == "pairs":
            pairs: list[Any] = [[Block(Frozen()) if index % 2 else None, block] for index, block in enumerate(blocks)]
            entries = [nn.ModuleList(pair) for pair in pairs]
        else:
            parts: list[Any] = [{"before": None, "block": block} for block in blocks]
            entries = [nn.ModuleDict(part) for part in parts]
        self.layers = nn.ModuleList(entries)

    def forward(self, x: Tensor) -> Tensor:
        layers: Any = self.layers
        for layer in layers:
            parts = layer.values() if isinstance(layer, nn.ModuleDict) else layer if self.way == "pairs" else [layer]
            for part in parts:
                x = x if part is None else part(x)
        return x


class Latent(nn.Module):
    """Multi-head latent attention (DeepSeek-AI 2024): keys and values from ``kv_b(kv_a(x))``, one rotated key for all.

    ``latent`` is the width of ``kv_a``, of which the last four channels are the shared key.
    """

    def __init__(self, heads: int, latent: int) -> None:
        super().__init__()
        self.heads, self.latent = heads, latent - 4
        self.q, self.kv_a = nn.Linear(WIDTH, heads * 12), nn.Linear(WIDTH, latent)
        self.norm, self.kv_b = nn.LayerNorm(latent - 4), nn.Linear(latent - 4, heads * 16)
        self.out, self.mlp = nn.Linear(heads * 8, WIDTH), feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, 12).transpose(1, 2)
        latent, shared = self.kv_a(x).split([self.latent, 4], -1)
        k, v = self.kv_b(self.norm(latent)).view(b, n, self.heads, 16).transpose(1, 2).chunk(2, -1)
        k = torch.cat([k, shared[:, None].expand(b, self.heads, n, 4)], -1)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, -1)
        x = x + self.out(a)
        return x + self.mlp(x)  # type: ignore[no-any-return]


def tower(make: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(*(make() for _ in range(DEPTH)))


def check_growth(model: nn.Module, heads: int = HEADS) -> None:
    """Twice the heads give the same outputs on batches that no trial saw."""
    model = model.double().eval()
    example = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    grown = leanify.grow(model, factor=2, inputs=example)
    assert all(layer.heads == 2 * heads for layer in leanify.read(grown).layers())
    for batch in (1, 2, 4, 5):
        x = torch.randn(batch, 9, WIDTH, dtype=torch.float64)
        torch.testing.assert_close(grown(x), model(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_numbers_are_followed_in_every_configuration(name: str) -> None:
    config = CONFIGS[name]()
    check_growth(tower(lambda: Block(config)))
    assert (config.width, config.heads) == (WIDTH, HEADS)  # shared, and left as it was


@pytest.mark.filterwarnings("ignore::UserWarning")  # it has no MLP
def test_attention_that_is_the_model_is_read() -> None:
    """Where leanify's own record lies beside the user's numbers."""
    check_growth(Attention(Pair()))


class NoReturn(nn.Module):
    """As in many a detector: what freezes a part in ``train`` forgets to return the module."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)


@pytest.mark.parametrize("part", [Attention, Block, nn.Sequential])
def test_train_may_return_nothing(part: type[nn.Module]) -> None:
    forgetful = type("Forgetful", (NoReturn, part), {})
    parts = [Block(Frozen()) if part is nn.Sequential else forgetful(Pair()) for _ in range(DEPTH)]
    model = (forgetful if part is nn.Sequential else nn.Sequential)(*parts).double()
    example = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    grown = leanify.grow(model, factor=2, inputs=example)
    for one in (grown, model):
        one.eval()
    torch.testing.assert_close(grown(example[:1]), model(example[:1]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", [lambda: Masked("written out"), PerBatch], ids=["mask", "batch"])
def test_nothing_grows_by_chance(block: Callable[[], nn.Module]) -> None:
    """What fits the example's batch of two alone is refused."""
    with pytest.raises(leanify.UnsupportedModel, match="not in the requested shape"):
        leanify.grow(tower(block), factor=2, inputs=torch.randn(2, 7, WIDTH))


@pytest.mark.parametrize("way", ["first", "every second", "pairs", "dictionaries"])
def test_none_beside_blocks_is_no_block(way: str) -> None:
    model = Lists(way)
    check_growth(model)
    plan = leanify.redesign(model, target_params=0.6, multiple=4, min_mlp=0.3, min_depth=1)
    lean = plan.build()
    assert sum(parameter.numel() for parameter in lean.parameters()) == plan.chosen.params
    assert lean(torch.randn(3, 5, WIDTH, dtype=torch.float64)).isfinite().all()


@pytest.mark.parametrize(("heads", "latent"), [(4, 40), (4, 42), (4, 32), (4, 48), (4, 16), (16, 36), (8, 36)])
def test_latent_width_is_no_heads(heads: int, latent: int) -> None:
    """Also where it divides by the heads, and where it is as wide as all heads (32) or all queries (48)."""
    check_growth(tower(lambda: Latent(heads, latent)), heads)


class Windows(nn.Module):
    """An attention that cuts its windows out itself: the width before and behind it, the width of heads between."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.qkv, self.out, self.mlp = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        windows = x.view(b, 1, n, width).permute(1, 0, 2, 3).reshape(-1, n, width)
        count, tokens, _ = windows.shape
        qkv = self.qkv(windows).reshape(count, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        logits = qkv[0] @ qkv[1].transpose(-2, -1) * (width // self.heads) ** -0.5
        y = self.out((logits.softmax(-1) @ qkv[2]).transpose(1, 2).reshape(count, tokens, width))
        x = x + y.view(1, b, n, width).permute(1, 0, 2, 3).reshape(b, n, width)
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Cached(nn.Module):
    """Keys and values go through a buffer, one of whose other axes is as long as there are heads."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.qkv, self.out, self.mlp = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), feed_forward()
        self.register_buffer("cache", torch.zeros(HEADS, 8, 16, HEADS, WIDTH // HEADS), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = (part.view(b, n, self.heads, width // self.heads) for part in self.qkv(x).chunk(3, -1))
        self.cache[0, :b, :n], self.cache[1, :b, :n] = k, v
        k, v = self.cache[:2, :b, :n].clone().unbind()
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.out(y.transpose(1, 2).reshape(b, n, width))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Halves(nn.Module):
    """Queries are as long as keys and values together, ``way`` says in which order those are."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.n_heads, self.n_kv_heads, self.head_dim = way, HEADS, HEADS // 2, WIDTH // HEADS
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        if self.way == "keys first":
            k, v = self.kv(x).view(b, n, 2, self.n_kv_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        else:
            k, v = self.kv(x).view(b, n, self.n_kv_heads, 2, self.head_dim).permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, -1))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Separate(nn.Module):
    """An attention of four maps, which ``change`` replaces or wraps, and an MLP."""

    def __init__(self, change: Callable[[nn.Linear], nn.Module] = lambda part: part) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (change(nn.Linear(WIDTH, WIDTH)) for _ in range(4))
        self.heads, self.mlp = HEADS, feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = (part(x).view(b, n, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Normed(Separate):
    """Queries and keys are normed over all heads (OLMo et al. 2024)."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.q_norm, self.k_norm = norm(WIDTH), norm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        parts = self.q_norm(self.q(x)), self.k_norm(self.k(x)), self.v(x)
        q, k, v = (part.view(b, n, self.heads, -1).transpose(1, 2) for part in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, -1))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Edges(Separate):
    """A bias for each head from the pairs of tokens, as of a graph's edges (Ying et al. 2021, Graphormer)."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Linear(WIDTH, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        bias = self.edge(x[:, :, None] - x[:, None]).permute(0, 3, 1, 2)
        q, k, v = (part(x).view(b, n, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, -1))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Relative(Separate):
    """Relative positions: queries times a table of one head's channels (Shaw et al. 2018; Huang et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = WIDTH // HEADS
        self.table = nn.Parameter(torch.randn(16, WIDTH // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        parts = self.q(x), self.k(x), self.v(x)
        q, k, v = (part.view(b, n, self.heads, self.head_dim).transpose(1, 2) for part in parts)
        by_distance = torch.einsum("bhid,rd->bhir", q, self.table[:n])
        logits = (q @ k.transpose(-2, -1) + by_distance) / self.head_dim**0.5
        x = x + self.out((logits.softmax(-1) @ v).transpose(1, 2).reshape(b, n, width))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Reduced(nn.Module):
    """Fewer keys by a convolution (Wang et al. 2021, PVT), between which the width is the width of tokens again."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.reduce, self.norm, self.mlp = nn.Conv1d(WIDTH, WIDTH, 2, 2), nn.LayerNorm(WIDTH), feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q = self.q(x).reshape(b, n, self.heads, width // self.heads).permute(0, 2, 1, 3)
        fewer = self.reduce(x.permute(0, 2, 1).reshape(b, width, n)).reshape(b, width, -1).permute(0, 2, 1)
        k, v = self.kv(self.norm(fewer)).reshape(b, -1, 2, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        y = (logits.softmax(-1) @ v).transpose(1, 2).reshape(b, n, width)
        x = x + self.out(y)
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Summed(nn.Module):
    """Maps in bare parameters by head, and three factors in one sum."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(0.2 * torch.randn(HEADS, WIDTH, WIDTH // HEADS)) for _ in range(3))
        self.out, self.mlp = nn.Parameter(0.2 * torch.randn(HEADS, WIDTH // HEADS, WIDTH)), feed_forward()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bnw,hwd->bhnd", x, part) for part in (self.q, self.k, self.v))
        attention = torch.einsum("bhnd,bhmd->bhnm", q, k).softmax(-1)
        x = x + torch.einsum("bhnm,bhmd,hdw->bnw", attention, v, self.out)
        return x + self.mlp(x)  # type: ignore[no-any-return]


STYLES: dict[str, Callable[[], nn.Module]] = {
    "windows": Windows,
    "cache": Cached,
    "keys first": lambda: Halves("keys first"),
    "keys with values": lambda: Halves("keys with values"),
    "mean squares": lambda: Normed(nn.RMSNorm),
    "edges": Edges,
    "reduced": Reduced,
    "relative": Relative,
    "summed": Summed,
    "means": lambda: Normed(nn.LayerNorm),
    "a product's mask": lambda: Masked("product"),
    "a repeated mask": lambda: Masked("repeated"),
}


@pytest.mark.parametrize("name", STYLES)
def test_attentions_of_many_styles_grow(name: str) -> None:
    check_growth(tower(STYLES[name]))


class Packed(nn.Module):
    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("packed", torch.randint(-9, 9, like.weight.shape, dtype=torch.int8))
        self.scale = nn.Parameter(torch.full((like.out_features, 1), 0.02))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.get_buffer("packed").to(x.dtype) * self.scale)


class Decomposed(nn.Linear):
    """DoRA (Liu et al. 2024, equation 5): a magnitude times the direction of a weight and its low-rank addition."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like.in_features, like.out_features)
        self.magnitude = nn.Parameter(torch.ones(like.out_features, 1))
        self.a, self.b = nn.Parameter(torch.randn(2, WIDTH)), nn.Parameter(torch.randn(WIDTH, 2))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.b @ self.a
        return F.linear(x, self.magnitude * weight / weight.norm(dim=1, keepdim=True), self.bias)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.matmul(q, k.transpose(-2, -1)), -1).matmul(v)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch.jit is deprecated, and in use
    scripted_attention = torch.jit.script(plain_attention)


class Scripted(Separate):
    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = (part(x).view(b, n, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.out(scripted_attention(q, k, v).transpose(1, 2).reshape(b, n, width))
        return x + self.mlp(x)  # type: ignore[no-any-return]


OBSTACLES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "weight norm": (lambda: Separate(parametrizations.weight_norm), "remove_parametrizations"),
    "older weight norm": (lambda: Separate(torch.nn.utils.weight_norm), "remove_weight_norm"),
    "older spectral norm": (lambda: Separate(torch.nn.utils.spectral_norm), "remove_spectral_norm.*or prune.remove"),
    "integers": (lambda: Separate(Packed), "holds its weights as integers .packed"),
    "DoRA": (lambda: Separate(Decomposed), "several matrices .weight, magnitude, a, b"),
    "script": (Scripted, "calls scripted_attention, a torch.jit script.*PYTORCH_JIT=0"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", OBSTACLES)
def test_obstacle_is_named(name: str) -> None:
    make, expected = OBSTACLES[name]
    with pytest.raises(leanify.UnsupportedModel, match=expected):
        leanify.read(tower(make), inputs=torch.randn(2, 7, WIDTH))


class Calls(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return plain_attention(x, x, x)


class Flexible(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return flex_attention(x, x, x)  # type: ignore[name-defined,no-any-return] # noqa: F821


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_parts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that a forward calls, the forward itself, a kernel."""
    assert "calls flex_attention" in describe_obstacle(nn.Sequential(Flexible(4, 4)))
    assert not describe_obstacle(Calls(4, 4))
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "plain_attention", torch.compile(plain_attention))
        assert re.search("calls plain_attention.*TORCHDYNAMO_DISABLE=1", describe_obstacle(Calls(4, 4)))
    monkeypatch.setattr(Calls, "forward", torch.compile(Calls.forward))
    assert re.search("calls forward.*TORCHDYNAMO_DISABLE=1", describe_obstacle(Calls(4, 4)))


def test_forward_of_another_module_is_refused() -> None:
    """A copy would call the old module's forward, and compute what that computes."""
    model: Any = tower(lambda: Block(Frozen()))
    old = model.forward
    model.forward = lambda x: old(x)
    with pytest.raises(leanify.UnsupportedModel, match=r"del model\.forward"):
        leanify.grow(model, factor=2, inputs=torch.randn(2, 7, WIDTH))
    del model.forward
    check_growth(model)
