"""Which design is preferred: the order of a tower's designs, and the evidence that it rests on.

The rule is one of small models, trained briefly (`recipes/results/ranking.md`). Which design keeps its quality no
ranking knows: training beside the control shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
MEASURED_MLP = (0.8, 10)  # times the width
MEASURED_INNER = 3  # times the width
USUAL_MLP = 2.0  # times the width
ALIKE = 0.02  # shares of attention whose difference no experiment shows


def rank(
    grid: Grid, inside: NDArray[np.int64], ranking: Ranking | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The designs at the indices ``inside``, best first, and the class of every design. In order of preference:

    1. No head narrower than the baseline's, or than 64 channels: with fewer channels than the rank that its data needs,
       a head cannot express the map, however many there are (Amsel et al. 2025, Theorem 2; Bhojanapalli et al. 2020).
       Designs that are equal in this form a class.
    2. At least a quarter of the baseline's layers, an inner of at most 3 widths, an MLP of 0.8 to 10 widths: nothing
       was measured outside.
    3. The share of attention in a block's parameters: the largest where tokens see each other in both directions, the
       smallest where they see earlier ones only. Among shares within 0.02, the depth nearest to the baseline's.

    The evidence for 3 is ten designs of equal parameters on each of six tasks (widths 64-96, 0.2-0.45 M parameters in
    the blocks, one learning rate). Spearman's ρ of the rule with the quality reached:

        Fashion-MNIST 0.83   CIFAR-10 0.84   masked TinyStories 0.84   ListOps 0.18   (both directions)
        enwik8 0.44          TinyStories 0.63                                         (causal)

    0.63 on average, 95 % interval 0.17 to 0.89. On two tasks that had no part in the choice: 0.90 (masked, longer
    samples), -0.10 (causal, short samples). The best single rule for both directions is the least predicted κ, with
    0.35 (-0.13 to 0.75); κ/depth, the paper's argument in one number, has 0.29 (-0.19 to 0.70), and with an MLP of at
    least two widths first -0.15 (`recipes/results/ranking.md`). That direction separates the tasks was seen in these
    data, not predicted. For causal attention the evidence is weak: no rule is better than chance there, and this one
    changes heads least. For large models nothing is shown.

    A ``ranking`` of the caller's own replaces 2 and 3.
    """
    narrow_heads = np.maximum(0, min(grid.old.head_dim, ENOUGH_HEAD_DIM) - grid.head_dim)
    keys: tuple[NDArray[Any], ...]
    if ranking is not None:
        keys = (grid.params, ranking(grid), narrow_heads)
    else:
        scores = signed_share(grid.attention, grid.causal)
        layers_changed = np.abs(grid.depth - grid.old_depth)
        keys = (grid.params, scores, layers_changed, np.round(scores / ALIKE), is_unmeasured(grid), narrow_heads)
    return inside[np.lexsort([key[inside] for key in keys])], narrow_heads


def signed_share(attention: Any, causal: bool) -> Any:
    """The ranking's score of a share of attention, lowest is best."""
    return attention if causal else -attention


def is_usual(grid: Grid, request: Request) -> NDArray[np.bool_]:
    """Which designs have an MLP of at least two widths, or the baseline's: lean is one of them if there is one.

    The rule is monotone, so with attention in both directions it picks the narrowest MLP allowed. It was measured on
    small models only, and every published lean model has an MLP of two widths or more, so lean does not go further by
    itself; the alternatives show what lies beyond. That costs little of what was measured: of the ten designs in
    recipes/results/ranking.csv, the one with most attention and two widths (3 layers of 12 heads) is the best on
    CIFAR-10 and ListOps, the second on Fashion-MNIST, where the best has 0.8, and the second on masked words, where
    MLPs are gated and 1.34 widths cost as much. Nothing was published on mixtures, so their experts only keep to the
    floor, as every design does under ``--min-mlp``.
    """
    if request.options.min_mlp is not None or grid.old.experts:
        return np.ones(len(grid), bool)
    return np.asarray((grid.mlp >= USUAL_MLP * grid.old.width) | (grid.mlp >= grid.old.mlp))


def is_unmeasured(grid: Grid) -> NDArray[np.bool_]:
    """Which designs lie outside of what the ranking was measured on; the baseline's own MLP never does."""
    mlp = grid.mlp * max(1, grid.old.active) / grid.old.width
    inner = grid.heads * grid.head_dim / grid.old.width
    is_known = (mlp >= MEASURED_MLP[0]) & (mlp <= MEASURED_MLP[1]) | (grid.mlp == grid.old.mlp)
    return np.asarray((4 * grid.depth < grid.old_depth) | ~is_known | (inner > MEASURED_INNER))


def pareto(grid: Grid, order: NDArray[np.int64]) -> Iterator[int]:
    """The designs of ``order`` that no other beats in all of parameters, MACs, κ and depth, in the same order."""
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
            found.append(signed_share(share, prices.facts.causal[tower.lead]))
        weights.append(prices.held(tower.stages, "params"))
    return float(np.average(found, weights=weights))


def ranked_by(prices: PriceList) -> str:
    """The rule that ranks the designs of this model, with its evidence, in words."""
    directions = {prices.facts.causal[tower.lead] for tower in towers(prices.architecture, prices.changed)}
    words = {
        False: "most attention for bidirectional blocks (ρ 0.8 with quality on three of four small tasks), first "
        "among MLPs of two widths and more",
        True: "least attention for causal blocks (weak evidence: no rule is known to be better than chance)",
    }
    return "; ".join(words[causal] for causal in sorted(directions))
