"""A model of latency: a few timed shapes, and a line through them. Imports no torch.

    seconds = a + b·layers + c·maps + d·MACs of attention and the rest + e·MACs of MLPs          a, …, e ≥ 0

``layers`` is the fixed time of a layer (norms, kernel launches), ``maps`` the number of entries of the softmax maps,
heads × N² for each layer: many narrow heads have the MACs of few wide ones and take up to 1.8 times as long. The
weights are fitted by non-negative least squares on relative errors (Lawson and Hanson 1974).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Shape, StageShape
from leanify.design.search.grid import Grid

SHAPES = 8  # timed to begin with, for five weights
TERMS = 5
NANO = 1e9


@dataclass(frozen=True)
class Timed:
    """A timed shape. ``noise`` is the relative difference between two halves of its timings."""

    shape: Shape
    seconds: float
    noise: float = 0.0


@dataclass(frozen=True)
class Latency:
    """The fitted weights, in seconds, and the largest relative error on the shapes that they were fitted to."""

    weights: tuple[float, ...]
    error: float

    def applied_to(self, prices: PriceList) -> PriceList:
        """The prices with nanoseconds."""
        return prices.timed(round(NANO * self.weights[0]), self._stage_ns)

    def _stage_ns(self, prices: PriceList, index: int, shape: StageShape) -> Any:
        seconds = sum(weight * part for weight, part in zip(self.weights[1:], work(prices, index, shape), strict=True))
        return np.rint(NANO * seconds).astype(np.int64)

    def scaled(self, factor: float) -> Latency:
        """The line ``factor`` times as high, through a shape that was timed later."""
        return replace(self, weights=tuple(factor * weight for weight in self.weights))


def work(prices: PriceList, index: int, shape: StageShape) -> tuple[Any, ...]:
    """Layers, softmax entries, other MACs and MACs of MLPs of one stage; MACs above the shortest model's."""
    macs = prices.counted(index, shape).macs
    attention = prices.counted(index, shape._replace(mlp=0 * shape.mlp)).macs
    return shape.depth, shape.depth * shape.heads * prices.tokens[index] ** 2, attention, macs - attention


def terms(prices: PriceList, shape: Shape) -> NDArray[np.float64]:
    """(5,), or (5, n) for arrays of ``mlp``: one, and `work` summed over stages. None is the baseline's stage."""
    total: Any = np.zeros(TERMS - 1)
    for i, (stage, now) in enumerate(zip(shape, prices.baseline, strict=True)):
        if now is not None:
            parts = np.stack(np.broadcast_arrays(*(np.asarray(part, float) for part in work(prices, i, stage or now))))
            total = total[:, None] + parts if parts.ndim > total.ndim else total + parts
    return np.concatenate([np.ones_like(total[:1]), total])


def fit(prices: PriceList, timed: Sequence[Timed]) -> Latency:
    """Fit the weights by non-negative least squares."""
    from scipy.optimize import nnls

    seconds = np.array([one.seconds for one in timed])
    rows = np.stack([terms(prices, one.shape) for one in timed]) / seconds[:, None]
    scale = np.abs(rows).max(0)
    scale[scale == 0] = 1
    weights, _ = nnls(rows / scale, np.ones(len(timed)))
    error = float(np.abs(rows @ (weights / scale) - 1).max())
    return Latency(tuple((weights / scale).tolist()), error)


def shapes_to_time(prices: PriceList, grids: Sequence[Grid], count: int = SHAPES) -> list[Shape]:
    """The baseline and the most informative shapes of a search: each time the shape whose terms are farthest
    from those chosen so far (greedy D-optimal design, Fedorov 1972), of every depth and head count with the
    narrowest, a middle and the widest MLP.
    """
    pool = [prices.baseline]
    for grid in grids:
        for shape in grid.shapes:
            lead = shape[grid.tower.lead]
            assert lead is not None
            size = np.size(lead.mlp)
            for row in sorted({0, size // 2, size - 1}):
                stages = zip(shape, prices.baseline, strict=True)
                pool.append(tuple(new._replace(mlp=int(new.mlp[row])) if new else old for new, old in stages))
    rows = np.stack([terms(prices, shape) for shape in pool])
    rows /= np.abs(rows).max(0).clip(1e-30)
    rows /= rows[:, 1:].mean(1, keepdims=True).clip(1e-3)  # roughly shares of the time, because errors are relative
    chosen = [0]
    while len(chosen) < min(count, len(pool)):
        known = rows[chosen].T @ rows[chosen] + 1e-6 * np.eye(TERMS)
        information = np.einsum("ij,jk,ik->i", rows, np.linalg.inv(known), rows)
        information[chosen] = -1
        chosen.append(int(information.argmax()))
    return [pool[i] for i in chosen]
