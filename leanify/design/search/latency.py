"""How long a forward pass takes, modelled: a few timed shapes, and a line through them. Knows no torch.

    seconds = a + b·layers + c·maps + d·MACs of attention and the rest + e·MACs of MLPs          a, …, e ≥ 0

``layers`` is the fixed time of a layer (norms, kernel launches), ``maps`` the entries of the softmax maps,
heads × N² a layer: many narrow heads take as many MACs as few wide ones and up to 1.8 times as long. The weights are
those of non-negative least squares on relative errors (Lawson and Hanson 1974).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanify.design.prices.price_list import PriceList, StageDesign
from leanify.design.search.grid import Designs, Grid, baseline_designs

SHAPES = 8  # timed to begin with; five weights are looked for
TERMS = 5
NANO = 1e9


@dataclass(frozen=True)
class Pace:
    """A limit on latency, and what is timed: a forward pass, or one more "token" behind cached ones."""

    budget: float | int | str
    batch: int = 1
    device: str | None = None
    dtype: str = "float32"
    compiled: bool = False
    what: str = "pass"


@dataclass(frozen=True)
class Timed:
    """A shape, a design for each stage, that took so many seconds; ``noise`` is how far its halves lie apart."""

    designs: Designs
    seconds: float
    noise: float = 0.0


@dataclass(frozen=True)
class Latency:
    """The fitted weights, of seconds, and the largest relative error on the shapes that they were fitted to."""

    weights: tuple[float, ...]
    error: float

    @property
    def base_ns(self) -> int:
        """What the shortest model takes without what `work` counts of its stages, in nanoseconds."""
        return round(NANO * self.weights[0])

    def stage_ns(self, prices: PriceList, index: int, design: StageDesign) -> Any:
        """What one stage adds, in nanoseconds: an integer, or one for each MLP of the design."""
        found = NANO * sum(w * part for w, part in zip(self.weights[1:], work(prices, index, design), strict=True))
        return np.rint(found).astype(np.int64)


def work(prices: PriceList, index: int, design: StageDesign) -> tuple[Any, ...]:
    """Layers, softmax maps, other MACs and MACs of MLPs of one stage; MACs over those of the shortest model."""
    macs = prices.counted(index, design).macs
    attention = prices.counted(index, design._replace(mlp=0 * design.mlp)).macs
    return design.depth, design.depth * design.heads * prices.tokens[index] ** 2, attention, macs - attention


def terms(prices: PriceList, designs: Designs) -> NDArray[np.float64]:
    """(5,), or (5, n) where the designs hold arrays of MLPs: one, and the sums of `work`. None is the baseline's."""
    total: Any = np.zeros(TERMS - 1)
    for i, (design, now) in enumerate(zip(designs, baseline_designs(prices), strict=True)):
        if now is not None:
            parts = np.broadcast_arrays(*(np.asarray(part, float) for part in work(prices, i, design or now)))
            total = total[:, None] + np.stack(parts) if parts[0].ndim and total.ndim == 1 else total + np.stack(parts)
    return np.concatenate([np.ones_like(total[:1]), total])


def fit(prices: PriceList, timed: Sequence[Timed]) -> Latency:
    """The weights that the timed shapes tell."""
    from scipy.optimize import nnls

    seconds = np.array([one.seconds for one in timed])
    rows = np.stack([terms(prices, one.designs) for one in timed]) / seconds[:, None]
    scale = np.abs(rows).max(0)
    scale[scale == 0] = 1
    weights, _ = nnls(rows / scale, np.ones(len(timed)))
    error = float(np.abs(rows @ (weights / scale) - 1).max())
    return Latency(tuple((weights / scale).tolist()), error)


def shapes_to_time(prices: PriceList, grids: Sequence[Grid], count: int = SHAPES) -> list[Designs]:
    """The baseline, and the designs of a search that tell most about the weights: each the one whose terms lie farthest
    from those that are taken already (greedy D-optimal design, Fedorov 1972).
    """
    pool = list(_pool(prices, grids))
    rows = np.stack([terms(prices, designs) for designs in pool])
    rows /= np.abs(rows).max(0).clip(1e-30)
    rows /= rows[:, 1:].mean(1, keepdims=True).clip(1e-3)  # in shares of the time, roughly: errors are relative
    taken = [0]
    while len(taken) < min(count, len(pool)):
        known = rows[taken].T @ rows[taken] + 1e-6 * np.eye(TERMS)
        news = np.einsum("ij,jk,ik->i", rows, np.linalg.inv(known), rows)
        news[taken] = -1
        taken.append(int(news.argmax()))
    return [pool[i] for i in taken]


def _pool(prices: PriceList, grids: Sequence[Grid]) -> Iterator[Designs]:
    """The baseline, and designs of every depth and head count with the narrowest, a middle and the widest MLP."""
    now = baseline_designs(prices)
    yield now
    for grid in grids:
        for designs in grid.shapes:
            lead = designs[grid.tower.lead]
            assert lead is not None
            size = np.size(lead.mlp)
            for row in sorted({0, size // 2, size - 1}):
                yield tuple(
                    one if d is None else d._replace(mlp=int(d.mlp[row])) for d, one in zip(designs, now, strict=True)
                )


def corrected(latency: Latency, factor: float) -> Latency:
    """The same line, ``factor`` times as high: what was measured beside the baseline at the end is believed."""
    return replace(latency, weights=tuple(factor * weight for weight in latency.weights))
