"""The one order of designs: published rows, depth, direction; and one score for grids, designs and studies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import price_list

import leanify
from leanify.core.architecture import Layer
from leanify.profiling.price_list import PriceList
from leanify.search.design import make_design
from leanify.search.grid import Grid, make_grids
from leanify.search.options import Options
from leanify.search.published import rows
from leanify.search.ranking import Preference, grid_scores, lean_rule, preference, rank, score
from leanify.search.request import Request


@pytest.fixture(scope="module")
def searched() -> dict[str, tuple[PriceList, Grid]]:
    """The prices of a ViT and a GPT-2, each with the grid of a search."""
    sizes = {"n_embd": 48, "n_head": 4, "n_layer": 8, "vocab_size": 50}
    vit = price_list(leanify.load("vit_small", device="meta"), 16)
    gpt2 = price_list(leanify.load("gpt2", overrides=sizes, device="meta"), 16)
    (of_vit,) = make_grids(vit, Request(Options(heads_mode="auto"), {"params": 11 * 10**6}))
    (of_gpt2,) = make_grids(gpt2, Request(limits={"params": 10**5}))
    return {"vit": (vit, of_vit), "gpt2": (gpt2, of_gpt2)}


VIT_B, CAUSAL = Layer(768, 12, 12, 64, 3072), Layer(1024, 16, 16, 64, 4096)


def first(preferred: Preference, designs: list[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    """The design, as (depth, heads, head_dim, mlp), that is first in the order."""
    depth, heads, head_dim, mlp = np.array(designs).T
    scores = preferred.score(depth, heads, head_dim, mlp)
    return designs[int(np.argmin(scores))]


def test_published_row_is_first() -> None:
    """Of all designs the row itself; around it the one that moves its sizes least, and heads before the MLP."""
    (row,) = (row for row in rows() if row.name == "ViT-B")
    preferred = Preference(VIT_B, 12, False, row)
    everything = [(d, h, 64, m) for d in range(4, 13) for h in range(12, 26, 2) for m in range(1024, 3136, 64)]
    assert first(preferred, everything) == (7, 16, 64, 1536)
    assert first(preferred, [(7, 18, 64, 1536), (7, 16, 64, 1792), (5, 30, 64, 1536)]) == (7, 18, 64, 1536)
    assert first(preferred, [(7, 12, 64, 2304), (7, 14, 64, 2048), (9, 16, 64, 1024)]) == (9, 16, 64, 1024)
    assert preferred.rule == "the paper's ViT-B (7 × 16, 1536)"


def test_deepest_is_first_elsewhere() -> None:
    """With a quarter more heads; of one depth the widest MLP, and heads that four divides."""
    preferred = Preference(Layer(384, 6, 6, 64, 1536), 12, False, None)
    assert first(preferred, [(10, 6, 64, 1536), (7, 8, 64, 768), (8, 8, 64, 768), (8, 8, 64, 832)]) == (8, 8, 64, 832)
    assert first(preferred, [(9, 7, 64, 768), (5, 8, 64, 768)]) == (5, 8, 64, 768)
    assert first(preferred, [(8, 10, 64, 832), (8, 12, 64, 768)]) == (8, 12, 64, 768)


def test_fewer_layers_are_first_where_causal() -> None:
    """The old heads and the old MLP; more heads come after all of them."""
    preferred = Preference(CAUSAL, 24, True, None)
    designs = [(12, 16, 64, 4096), (14, 16, 64, 3328), (12, 20, 64, 4096), (16, 20, 64, 2048)]
    assert first(preferred, designs) == designs[0]
    assert first(preferred, designs[1:]) == designs[1]
    assert first(preferred, designs[2:]) == designs[3]


def test_narrow_heads_come_last() -> None:
    """Heads of fewer channels than the baseline's, or than 64; wide ones are no better."""
    preferred = Preference(VIT_B, 12, False, None)
    scores = preferred.score(8, 16, np.array([32, 63, 64, 65, 128]), 1536)
    assert (scores[:2] > scores[2:].max()).all()
    assert np.ptp(scores[2:]) == 0


@pytest.mark.parametrize("which", ["vit", "gpt2"])
def test_one_order_for_grid_and_design(which: str, searched: dict[str, tuple[PriceList, Grid]]) -> None:
    """What a search ranks and what a study ranks have one score."""
    prices, grid = searched[which]
    scores = grid_scores(grid, preference(prices, grid.tower))
    for i in range(0, len(grid), len(grid) // 20):
        assert score(prices, grid.get_shape(i)) == pytest.approx(scores[i])
        assert make_design(prices, grid.get_shape(i)).score == pytest.approx(scores[i])
    order = rank(grid, np.arange(len(grid)), preference(prices, grid.tower))
    assert (np.diff(scores[order]) >= 0).all()
    assert grid.causal == (which == "gpt2")


def test_caller_ranking_is_followed(searched: dict[str, tuple[PriceList, Grid]]) -> None:
    """Equal scores go by size; narrower heads come later whatever the score."""
    prices, vit = searched["vit"]
    inside = np.arange(0, len(vit), 5)

    def deepest(grid: Grid) -> Any:
        return -grid.depth.astype(float)

    order = rank(vit, inside, preference(prices, vit.tower), deepest)
    keys = [(max(0, 64 - int(vit.head_dim[i])), -int(vit.depth[i]), int(vit.params[i])) for i in order]
    assert keys == sorted(keys)
    assert len({key[0] for key in keys}) > 1
    assert len(order) == len(inside)


def test_extra_blocks_cost_the_last(searched: dict[str, tuple[PriceList, Grid]]) -> None:
    """Blocks beyond the last one cost what it costs."""
    prices, _ = searched["vit"]
    (stage,) = prices.baseline
    at = {depth: prices.total((stage._replace(depth=depth),)) for depth in (11, 12, 15)}
    last = at[12] - at[11]
    assert (at[15].params, at[15].macs) == (at[12].params + 3 * last.params, at[12].macs + 3 * last.macs)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("vit_base", "the paper's ViT-B (7 × 16, 1536)"),
        ("deit3_base_patch16_224", "the paper's ViT-B (7 × 16, 1536)"),
        ("vit_small", "the deepest with a quarter more heads"),
        ("swin_base_patch4_window7_224", "the deepest with a quarter more heads"),
        ("xcit_large_24_p16_224", "the paper's XCiT-L (12 × 24 split, 3072)"),
        ("bert", "the paper's Crammed BERT (10 × 24 split, 1536)"),
        ("gpt2", "the paper's GPT-2 (TinyStories) (4 × 16 split, 2048)"),
        ("llama", "the deepest with a quarter more heads"),
        ("t5", "the deepest with a quarter more heads"),
    ],
)
def test_nearest_row_has_kind_and_size(source: str, rule: str) -> None:
    assert lean_rule(price_list(leanify.load(source, device="meta"), 16)) == rule
