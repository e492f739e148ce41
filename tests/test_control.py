"""The control beside every multiple of hidden units that there is: brute force instead of rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import bart_prices, price_list

import leanify
from leanify.profiling.cost import Shape, StageShape
from leanify.profiling.price_list import PriceList
from leanify.search.control import CLOSE, control, has_close_control
from leanify.search.options import Options
from leanify.search.rules import Rules
from leanify.search.towers import towers

LEAN = [  # depth, heads, head_dim, mlp of a ViT of 12 layers, 6 heads of 64, MLP 1536
    (8, 9, 64, 1536), (6, 12, 64, 1024), (4, 18, 64, 960), (9, 8, 64, 520), (7, 13, 62, 1208), (8, 6, 48, 1536),
    (5, 1, 64, 64), (12, 7, 64, 1536), (3, 6, 65, 24),
]  # fmt: skip


@pytest.fixture(scope="module")
def vit() -> PriceList:
    return price_list(leanify.load("vit_small", device="meta"))


@pytest.fixture(scope="module")
def bart() -> PriceList:
    return bart_prices()


@pytest.fixture(scope="module")
def swin() -> PriceList:
    """All four stages of a Swin, the shallow ones too."""
    return PriceList(price_list(leanify.load("swin_tiny_patch4_window7_224", device="meta")).costs, range(4))


def params(prices: PriceList, shape: Shape) -> int:
    return int(prices.total(shape).params)


def allowed(multiple: int) -> list[int]:
    return [one for one in (multiple, 32, 16, 8) if one <= multiple]


def brute(prices: PriceList, lean: StageShape, size: int, multiple: int = 64) -> int:
    """How far the nearest control is: the first multiple that comes within half of a thousandth ends the search."""
    wanted, nearest = params(prices, (lean,)), 10**12
    for step in allowed(multiple):
        stage = lean._replace(heads=6, head_dim=64, mlp=np.arange(step, 12_000, step))
        nearest = min(nearest, int(np.abs(prices.total((stage,)).params - wanted).min()))
        if nearest <= CLOSE * size / 2:
            break
    return nearest


@pytest.mark.parametrize("multiple", [None, 64, 128, 24, 16])
def test_control_uses_largest_close_steps(vit: PriceList, multiple: int | None) -> None:
    leans = [*LEAN, *((depth, heads, 64, 1024) for depth in range(2, 13) for heads in (7, 8, 10, 11, 13))]
    for depth, heads, head_dim, mlp in leans:
        lean = StageShape(depth, heads, head_dim, mlp)
        found = control(vit, (lean,), Rules(Options(multiple=multiple)))
        (stage,) = found
        assert (stage.depth, stage.heads, stage.head_dim) == (depth, 6, 64)
        wanted = params(vit, (lean,))
        assert abs(params(vit, found) - wanted) == brute(vit, lean, wanted, multiple or 64)
        assert any(stage.mlp % one == 0 for one in allowed(multiple or 64))


def test_control_differs_from_lean(vit: PriceList) -> None:
    """With the baseline's heads there is nothing to isolate; a depth alone makes no difference to that."""
    assert control(vit, (StageShape(7, 6, 64, 1000),), Rules()) is None
    assert control(vit, (StageShape(7, 7, 64, 1000),), Rules()) is not None
    assert control(vit, (StageShape(7, 6, 32, 1000),), Rules()) is not None


def test_no_mlp_means_no_control(vit: PriceList) -> None:
    bare = (StageShape(7, 9, 64, 0),)
    assert control(vit, bare, Rules()) is None
    (tower,) = towers(vit.architecture, vit.stage_indices)
    assert has_close_control(vit, tower, bare, params(vit, bare), Rules())


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_towers_have_own_controls(bart: PriceList, which: tuple[int, ...]) -> None:
    """Two towers, of which some get heads: those alone are widened, each to its own size."""
    lean = list(bart.baseline)
    for i in which:
        stage = lean[i]
        lean[i] = stage._replace(depth=stage.depth - 1, heads=4)
    shape = tuple(lean)
    found = control(bart, shape, Rules())
    for i, stage in enumerate(shape):
        if i not in which:
            assert found[i] == stage
            continue
        new = found[i]
        assert (new.heads, new.depth) == (2, stage.depth)
        wanted = bart.stage(i, stage).params
        others = [abs(bart.stage(i, new._replace(mlp=units)).params - wanted) for units in range(8, 400, 8)]
        assert abs(bart.stage(i, new).params - wanted) == min(others)


@pytest.mark.parametrize("lean", LEAN)
def test_close_control_is_within_thousandth(vit: PriceList, lean: Any) -> None:
    """Of the size of the whole model, whatever that is."""
    stage = StageShape(*lean)
    (tower,) = towers(vit.architecture, vit.stage_indices)
    off = brute(vit, stage, params(vit, (stage,)))
    for size in (int(off / CLOSE * 0.999), int(off / CLOSE * 1.001) + 1, params(vit, (stage,))):
        close = brute(vit, stage, size) <= CLOSE * size
        assert has_close_control(vit, tower, (stage,), size, Rules()) == close


@pytest.mark.parametrize(
    ("less", "more"), [(1, 1.4), (1, 2.0), (2, 1.6), (2, 2.3), (3, 1.7), (4, 2.6)]
)  # of the third and the fourth the leading stage goes one step up, of the last one down
def test_stages_widen_by_one_factor(swin: PriceList, less: int, more: float) -> None:
    """Swin: every stage is rounded for itself, the leading one also a step up or down; of three the nearest."""
    prices = swin
    (tower,) = towers(prices.architecture, prices.stage_indices)
    old = list(prices.baseline)
    assert len(old) == 4
    lean = tuple(s._replace(depth=max(1, s.depth - less), heads=round(more * s.heads)) for s in old)
    wanted = params(prices, lean)

    def scaled(factor: float, step: int = 1, further: int = 0) -> Shape:
        mlps = [step * (round(s.mlp * factor / step) + further * (i == tower.lead)) for i, s in enumerate(old)]
        return tuple(s._replace(mlp=mlp, heads=o.heads) for s, o, mlp in zip(lean, old, mlps, strict=True))

    once, thrice = params(prices, scaled(1)), params(prices, scaled(3))
    factor = 1 + 2 * (wanted - once) / (thrice - once)
    tried: list[Shape] = []
    for step in (32, 16, 8):
        tried += [scaled(factor, step, further) for further in (-1, 0, 1)]
        best = min(tried, key=lambda shape: abs(params(prices, shape) - wanted))
        if abs(params(prices, best) - wanted) <= CLOSE * wanted / 2:
            break
    assert control(prices, lean, Rules(Options(multiple=32))) == best
