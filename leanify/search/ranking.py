"""The order of designs that `redesign`, studies and tables share: a score, lowest is best.

It reflects published practice and does not forecast quality; only training shows which design keeps it.
`recipes/results/rule.md` compares it with simpler rules on every trained sweep.

1. Bidirectional attention. Designs with at least a quarter more heads come before the others. If a lean model of this
   kind and size was published (`published.toml`), the nearest design comes first: the smallest sum of |ln ratio| to the
   row's shares of depth, heads (weighted slightly less) and MLP. Rows that split heads say nothing about the useful
   number of grown heads, so then depth and MLP count, and heads grow as far as the budget allows. Without a row, the
   deepest design comes first, and among equals the one with the widest MLP.
2. Causal attention: the old heads and the old MLP come first, with fewer layers; designs with other heads follow as in
   1. Maximising attention was the worst rule on causal tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanify.core.architecture import Layer, primary_layer
from leanify.profiling.cost import Shape
from leanify.profiling.price_list import PriceList
from leanify.search.grid import Grid
from leanify.search.published import Row, nearest_row
from leanify.search.rules import ENOUGH_HEAD_DIM
from leanify.search.towers import Tower, towers

Ranking = Callable[[Grid], NDArray[np.float64]]  # scores of all designs, lowest is best

MORE_HEADS = 1.25  # minimum factor on the baseline's heads; fewer are barely a trade
# Added to a score: more than the range of scores within a class.
FEW_HEADS, NARROW_HEADS, OTHER_CLASS = 1.0, 5.0, 20.0
HEADS_WEIGHT = 0.8  # heads give way first if the budget does not allow a row's sizes
ODD_HEADS = 0.01  # penalty for a number of heads not divisible by four: a tie-break
DEEPEST = "the deepest with a quarter more heads"


@dataclass(frozen=True)
class Preference:
    """The reference that scores the designs of one tower.

    old, old_depth  the baseline's primary layer and depth in the leading stage
    causal          whether a token sees earlier tokens only
    row             the published row to follow, None if there is none
    """

    old: Layer
    old_depth: int
    causal: bool
    row: Row | None

    def score(self, depth: Any, heads: Any, head_dim: Any, mlp: Any) -> Any:
        """Return the scores of designs by their leading stage; arguments are arrays of one length, or numbers."""
        old = self.old
        narrow = NARROW_HEADS * (np.asarray(head_dim) < min(old.head_dim, ENOUGH_HEAD_DIM))
        # Causal attention puts designs with the old heads first, bidirectional attention designs with more.
        mlp_change = _log_ratio(mlp, old.mlp)
        with_old_heads = np.abs(_log_ratio(np.multiply(heads, head_dim), old.inner)) + np.abs(mlp_change)
        has_old_heads = np.less_equal(heads, old.heads)
        # among designs with more heads
        few_heads = FEW_HEADS * np.less(heads, MORE_HEADS * old.heads)
        odd = ODD_HEADS * (np.mod(heads, 4) != 0)
        growth = _log_ratio(heads, old.heads)
        if self.row is None:
            # Depth decides: one layer outweighs the sum of all other terms.
            layers_lost = -_log_ratio(depth, self.old_depth)
            lean = few_heads + layers_lost + 0.3 * odd + 0.003 * (np.abs(mlp_change) + growth)
        else:
            before, after = self.row.baseline, self.row.lean
            off = np.abs(_log_ratio(depth, self.old_depth * after.depth / before.depth))
            off = off + np.abs(_log_ratio(mlp, old.mlp * after.mlp / before.mlp))
            heads_off = HEADS_WEIGHT * np.abs(_log_ratio(heads, old.heads * after.heads / before.heads))
            # A row that splits heads is matched by splits; grown heads only use up the budget.
            follows_heads = np.less(head_dim, old.head_dim) if self.row.is_split else True
            lean = few_heads + odd + off + np.where(follows_heads, heads_off, -0.1 * growth)
        # the class that comes later
        if self.causal:
            return np.where(has_old_heads, with_old_heads, OTHER_CLASS + (lean + narrow))
        return np.where(has_old_heads, OTHER_CLASS + with_old_heads, lean + narrow)

    @property
    def rule(self) -> str:
        """Describe the rule or row that lean follows."""
        if self.row is None:
            return DEEPEST
        return f"the paper's {self.row.name} ({self.row.shape})"


def _log_ratio(value: Any, reference: Any) -> Any:
    """Return ln(value / reference); 0 without a reference, as in a stage without an MLP."""
    if not reference:
        return np.zeros(np.shape(value))
    return np.log(np.maximum(value, 1e-9) / reference)


def preference(prices: PriceList, tower: Tower) -> Preference:
    """Return the reference that scores the designs of a tower."""
    lead = prices.architecture.stages[tower.lead]
    row = nearest_row(prices, tower)
    return Preference(primary_layer(lead), lead.depth, prices.facts.causal[tower.lead], row)


def rank(
    grid: Grid, indices: NDArray[np.int64], preferred: Preference, ranking: Ranking | None = None
) -> NDArray[np.int64]:
    """Sort the designs at these indices, best first; the smallest comes first among equal scores.

    A user's ``ranking`` replaces the order, except that heads narrower than the baseline's or than 64 channels come
    last: with fewer channels than the rank that its data needs, a head cannot express the map (Amsel et al. 2025,
    Theorem 2; Bhojanapalli et al. 2020).
    """
    if ranking is None:
        keys = [grid.params, grid_scores(grid, preferred)]
    else:
        keys = [grid.params, ranking(grid), np.maximum(0, min(grid.old.head_dim, ENOUGH_HEAD_DIM) - grid.head_dim)]
    return np.asarray(indices[np.lexsort([key[indices] for key in keys])])


def grid_scores(grid: Grid, preferred: Preference) -> NDArray[np.float64]:
    """Return the score of every design of a grid."""
    scores = preferred.score(grid.depth, grid.heads, grid.head_dim, grid.mlp)
    return np.asarray(scores, np.float64)


def is_published(grid: Grid, preferred: Preference) -> NDArray[np.bool_]:
    """Mask of the design that was published for exactly this model, which may leave the rules as the row does."""
    row = preferred.row
    if row is None or not row.is_baseline(preferred.old, preferred.old_depth):
        return np.zeros(len(grid), bool)
    lean = row.lean
    is_same = (grid.depth == lean.depth) & (grid.heads == lean.heads) & (grid.head_dim == lean.head_dim)
    return np.asarray(is_same & (grid.mlp == lean.mlp))


def score(prices: PriceList, shape: Shape) -> float:
    """Return the score of one shape, lowest is best: the mean over towers, weighted by parameters."""
    scores, weights = [], []
    for tower in towers(prices.architecture, prices.stage_indices):
        lead = shape[tower.lead]
        if lead is not None:
            preferred = preference(prices, tower)
            scores.append(float(preferred.score(lead.depth, lead.heads, lead.head_dim, lead.mlp)))
            weights.append(prices.fixed_cost(tower.stages, "params"))
    return float(np.average(scores, weights=weights))


def is_causal(prices: PriceList) -> bool:
    """Whether every tower that changes is causal, so that the design without more heads comes first."""
    return all(prices.facts.causal[tower.lead] for tower in towers(prices.architecture, prices.stage_indices))


def lean_rule(prices: PriceList) -> str:
    """Describe the rule that lean follows, per tower if they differ."""
    rules: dict[str, list[str]] = {}
    for tower in towers(prices.architecture, prices.stage_indices):
        rules.setdefault(preference(prices, tower).rule, []).append(tower.name)
    if len(rules) == 1:
        return next(iter(rules))
    return "; ".join(f"{', '.join(names)}: {rule}" for rule, names in rules.items())
