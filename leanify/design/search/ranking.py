"""Which design is preferred: the order of a tower's designs, and the evidence that it rests on.

The rule is one of small models, trained briefly (`recipes/results/ranking.md`). Which design keeps its
quality no ranking knows: training beside the control shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Shape
from leanify.design.search.grid import Grid
from leanify.design.search.request import Request
from leanify.design.search.towers import towers

Ranking = Callable[[Grid], NDArray[np.float64]]  # a score for every design, lowest is best

ENOUGH_HEAD_DIM = 64
MEASURED_MLP = (1, 10)  # times the width
MEASURED_INNER = 3  # times the width
USUAL_MLP = 2.0  # times the width
EVEN = 0.5  # the share of attention in a block with as many parameters in its MLP
ALIKE = 0.02  # shares of attention whose difference no experiment shows


def rank(
    grid: Grid, inside: NDArray[np.int64], ranking: Ranking | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The designs at the indices ``inside``, best first, and the class of every design. In order of preference:

    1. No head narrower than the baseline's, or than 64 channels: with fewer channels than the rank that its data needs,
       a head cannot express the map, however many there are (Amsel et al. 2025, Theorem 2; Bhojanapalli et al. 2020).
       Designs that are equal in this form a class.
    2. An MLP of 1 to 10 widths or the baseline's, an inner of at most 3 widths, at least a quarter of the baseline's
       layers: what was measured.
    3. Where tokens see each other in both directions: the largest share of attention in a block's parameters. Where
       they see earlier ones only: no larger share of attention than of the MLP, and then as many layers as possible.
       Shares within 0.02 are alike; among them the depth nearest to the baseline's is first.

    `EVIDENCE` has the figures for 3, and `tests/benchmarks/ranking_rules.py` computes them. A ``ranking`` of
    the caller's own replaces 2 and 3.
    """
    narrow_heads = np.maximum(0, min(grid.old.head_dim, ENOUGH_HEAD_DIM) - grid.head_dim)
    keys: tuple[NDArray[Any], ...]
    if ranking is not None:
        keys = (grid.params, ranking(grid), narrow_heads)
    else:
        share = grid.attention if grid.causal else -grid.attention
        layers_changed = np.abs(grid.depth - grid.old_depth)
        steps = np.round(score_of(grid.attention, grid.causal) / ALIKE)
        keys = (grid.params, share, layers_changed, steps, is_unmeasured(grid), narrow_heads)
    return inside[np.lexsort([key[inside] for key in keys])], narrow_heads


def score_of(attention: Any, causal: bool) -> Any:
    """The ranking's score of a share of attention, lowest is best."""
    return np.maximum(attention, EVEN) if causal else -attention


def is_usual(grid: Grid, request: Request) -> NDArray[np.bool_]:
    """Which designs have an MLP of at least two widths or the baseline's, a gated one by its parameters.

    The rule is monotone, so with attention in both directions it picks the narrowest MLP allowed. It was
    measured on small models only, and every published lean model has an MLP of two widths or more, so lean
    does not go further by itself; the alternatives show what lies beyond. Nothing was published on mixtures,
    so their experts only keep to the limits, as every design does under ``--min-mlp``.
    """
    if request.options.min_mlp is not None or grid.old.experts:
        return np.ones(len(grid), bool)
    return np.asarray((grid.mlp_params >= 2 * USUAL_MLP * grid.old.width**2) | (grid.mlp >= grid.old.mlp))


def is_unmeasured(grid: Grid) -> NDArray[np.bool_]:
    """Which designs lie outside of what the ranking was measured on; the baseline's own MLP never does."""
    mlp = grid.mlp * max(1, grid.old.active) / grid.old.width
    inner = grid.heads * grid.head_dim / grid.old.width
    is_known = (mlp >= MEASURED_MLP[0]) & (mlp <= MEASURED_MLP[1]) | (grid.mlp == grid.old.mlp)
    return np.asarray((4 * grid.depth < grid.old_depth) | ~is_known | (inner > MEASURED_INNER))


def pareto(grid: Grid, order: NDArray[np.int64]) -> Iterator[int]:
    """The designs of ``order`` that no other beats in all of parameters, MACs, κ and depth, in this order."""
    columns = [c[order].astype(float) for c in (grid.params, grid.macs, grid.kappa, -grid.depth)]
    for i, design in enumerate(order):
        no_worse = np.logical_and.reduce([column <= column[i] for column in columns])
        if not any((column[no_worse] < column[i]).any() for column in columns):
            yield int(design)


def score(prices: PriceList, shape: Shape) -> float:
    """The ranking's score of a shape, lowest is best: the mean over towers, weighted by parameters."""
    found, weights = [], []
    for tower in towers(prices.architecture, prices.changed):
        lead = shape[tower.lead]
        if lead is not None:
            share = prices.attention_share(tower.lead, lead)
            found.append(score_of(share, prices.facts.causal[tower.lead]))
        weights.append(prices.held(tower.stages, "params"))
    return float(np.average(found, weights=weights))


@dataclass(frozen=True)
class Evidence:
    """The evidence for the rule of one direction of attention.

    regret    of the rule's first choice on ``tasks`` tasks: 0 is the best of ten designs, 1 a random one
    held_out  the same, with the rule chosen on the other tasks
    """

    rule: str
    regret: float
    held_out: float
    tasks: int


EVIDENCE = {  # by whether attention is causal; recomputed from recipes/results/ranking.csv by a test
    False: Evidence("most attention among MLPs of two widths and more", 0.24, 0.83, 2),
    True: Evidence("no more attention than MLP, then most layers", 0.17, 0.17, 2),
}


@dataclass(frozen=True)
class Recommendation:
    """The recommended design (lean or plain), the held-out regret of the rule, and both in words.

    ``regret`` is None for a ranking of the caller's own.
    """

    design: str
    regret: float | None
    evidence: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def recommendation(prices: PriceList, design: str, ranking: Ranking | None = None) -> Recommendation:
    """What the evidence says of a design, by the directions of the model's towers."""
    if ranking is not None:
        return Recommendation(design, None, "a ranking of the caller's own")
    words, regrets = [], []
    for causal in directions(prices):
        known = EVIDENCE[causal]
        attention = "causal" if causal else "bidirectional"
        words.append(f"{known.rule} (regret {known.held_out:.2f} on {known.tasks} small {attention} tasks)")
        regrets.append(known.held_out)
    scale = "0 is the best design and 1 a random one"
    strength = "weak evidence: that direction matters was seen in these data, not predicted"
    return Recommendation(design, max(regrets), f"{'; '.join(words)}; {scale}; {strength}")


def directions(prices: PriceList) -> list[bool]:
    """Whether attention is causal, for the towers of a model: [False], [True] or both."""
    return sorted({prices.facts.causal[tower.lead] for tower in towers(prices.architecture, prices.changed)})


def ranked_by(prices: PriceList) -> str:
    """The rule that ranks the designs of this model, in words."""
    return "; ".join(EVIDENCE[causal].rule for causal in directions(prices))
