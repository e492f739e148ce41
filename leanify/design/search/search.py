"""Budget → the design that is proposed: the best one that trades layers for heads, tower by tower.

A budget is shared out among the towers in proportion to what they hold; where a tower cannot go so low, the others
save the rest. Lean is the best design with fewer layers and more heads. A design without more heads that ranks above
it is shown beside it under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanify.design.prices.price_list import PriceList
from leanify.design.search.control import has_close_control
from leanify.design.search.grid import Candidate as Candidate
from leanify.design.search.grid import Grid, Request, baseline_designs, grid, priced, turned_stages
from leanify.design.search.limits import Limits, adds_heads, nearest, share_out, trades_layers, unspent, within
from leanify.design.search.refusals import refusal
from leanify.design.search.towers import towers
from leanify.errors import UnsupportedModel

ENOUGH_HEAD_DIM = 64
MEASURED_MLP = (0.8, 10)  # times the width
MEASURED_INNER = 3  # times the width
USUAL_MLP = 2.0  # times the width
ALIKE = 0.02  # shares of attention that no experiment tells apart
NEXT_HEADS = 2  # head counts beside that of the best design
AS_GOOD = 24  # designs at the head of a ranking that it hardly tells apart
Ranking = Callable[[Grid], NDArray[np.float64]]  # a score for every design, the least is the best


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search.

    chosen    the best design that trades layers for heads
    plain     a design without more heads that ranks above it, None where there is none
    front     alternatives to the chosen one, itself first: none is beaten in all of parameters, MACs, κ and depth
    searched  how many designs were priced
    headless  the towers in which no head was added, by name
    """

    chosen: Candidate
    plain: Candidate | None
    front: list[Candidate]
    searched: int
    headless: list[str]


@dataclass(frozen=True)
class _Found:
    """Of one tower, by index in its grid: the best with more heads (else the best), the best without, the front."""

    designs: Grid
    chosen: int
    plain: int | None
    plain_is_better: bool
    front: list[int]
    has_heads: bool


def search(
    prices: PriceList, request: Request, most: int | None = None, ranking: Ranking | None = None
) -> SearchResult:
    """The best design within the limits, and the best ``most`` of its Pareto front, or all.

    Raises BudgetError where no sensible design is within them: it says which budget would do, and what loosening
    which rule would buy.
    """
    grids = grids_of(prices, request)
    shares = share_out(prices, request, grids)
    found = [
        _best(prices, designs, limits, request, most, ranking) for designs, limits in zip(grids, shares, strict=True)
    ]
    chosen = [one for one in found if one is not None]
    if len(chosen) < len(found) or (request.wants_heads and not any(one.has_heads for one in chosen)):
        raise refusal(prices, request, grids, shares)
    plain = None
    if any(one.plain_is_better for one in chosen) and all(one.plain is not None for one in chosen):
        plain = _joined(prices, [(one.designs, one.plain) for one in chosen if one.plain is not None])
    longest = max(len(one.front) for one in chosen)
    front = [
        _joined(prices, [(one.designs, one.front[min(k, len(one.front) - 1)]) for one in chosen])
        for k in range(longest if most is None else min(most, longest))
    ]
    headless = [one.designs.tower.name for one in chosen if request.wants_heads and not one.has_heads]
    return SearchResult(front[0], plain, front, sum(map(len, grids)), headless)


def grids_of(prices: PriceList, request: Request) -> list[Grid]:
    """The priced designs of every tower."""
    changed = turned_stages(prices.architecture, request)
    return [grid(prices, request, tower) for tower in towers(prices.architecture, changed)]


def lead_of(prices: PriceList) -> int:
    """The stage that leads the first tower."""
    return towers(prices.architecture, prices.turned)[0].lead


# -- one tower ----------------------------------------------------------------------------------------------------


def _best(
    prices: PriceList, designs: Grid, limits: Limits, request: Request, most: int | None, ranking: Ranking | None
) -> _Found | None:
    """The best designs of one tower; None where nothing is within its limits."""
    inside = within(designs, limits)
    if not inside.any():
        return None
    spent = inside & ~unspent(designs, limits)
    lean = trades_layers(designs, request)
    first = lean & usual(designs, request) if ranking is None else lean
    near = nearest(designs, limits, inside & lean), spent, nearest(designs, limits, inside)
    pool = next(pool for pool in (spent & first, spent & lean, *near) if pool.any())
    order, tier = rank(designs, np.flatnonzero(pool), ranking)
    best = _comparable(prices, designs, order, request)
    peers, _ = rank(designs, np.flatnonzero(spent & lean & (tier == tier[best])), ranking)
    front = list(islice(pareto(designs, peers), most))
    front = [best, *(i for i in front if i != best)][:most]
    overall, _ = rank(designs, np.flatnonzero(spent if spent.any() else inside), ranking)
    plain = next((int(i) for i in overall if not adds_heads(designs)[i]), None) if request.wants_heads else None
    better = plain is not None and plain == overall[0] and bool(lean[best])
    return _Found(designs, best, plain, better, front, bool(lean[best]))


def _comparable(prices: PriceList, designs: Grid, order: NDArray[np.int64], request: Request) -> int:
    """The first of the best designs that has a control within 0.1 %: beside no other can training show anything.

    How far a control is off depends on the heads that it must make up for in whole steps of the MLP, and hardly on the
    depth; in a mixture a step is one of all experts. So the best designs with a few heads more or less are tried too.
    """
    if request.wants_heads:
        for i in [*order[:AS_GOOD], *_with_other_heads(designs, order)]:
            if has_close_control(prices, designs.tower, designs.candidate(i), request.constraints):
                return int(i)
    return int(order[0])


def _with_other_heads(designs: Grid, order: NDArray[np.int64]) -> list[int]:
    """Of ``order`` the first design of each of the head counts that are next to that of the best."""
    counts, first = np.unique(designs.heads[order], return_index=True)
    away = np.argsort(np.abs(counts - designs.heads[order[0]]), kind="stable")
    return [int(order[first[k]]) for k in away[1 : 1 + NEXT_HEADS]]


def rank(
    designs: Grid, inside: NDArray[np.int64], ranking: Ranking | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The designs ``inside`` the budget, best first, and the class of every design. What is preferred, and why:

    1. No head narrower than the baseline's, or than 64 channels: below the rank that its data needs a head cannot
       express the map, however many there are (Amsel et al. 2025, Theorem 2; Bhojanapalli et al. 2020). Designs that
       are equal in this form a class.
    2. No fewer than a quarter of the baseline's layers, an inner of at most 3 widths, an MLP between 0.8 and 10 widths:
       beyond that nothing was measured.
    3. The share of attention in a block's parameters: the largest where tokens see each other in both directions, the
       smallest where they see the earlier ones alone. Of shares within 0.02 the depth nearest to the baseline's.

    3 is what training showed: ten designs of equal parameters on each of six tasks (widths 64-96, 0.2-0.45 M parameters
    in the blocks, briefly trained, one learning rate), Spearman's ρ of the rule with the quality reached:

        Fashion-MNIST 0.83   CIFAR-10 0.84   masked TinyStories 0.84   ListOps 0.18   (both directions)
        enwik8 0.44          TinyStories 0.63                                         (causal)

    0.63 on average, 95 % from 0.17 to 0.89. On two tasks that had no part in the choice: 0.90 (masked, longer samples),
    -0.10 (causal, short samples). Of single rules for both directions the best is the least predicted κ, with 0.35
    (-0.13 to 0.75); κ/depth, the paper's argument in one number, has 0.29 (-0.19 to 0.70), and an MLP of at least two
    widths as the first wish makes it -0.15 (`recipes/results/ranking.md`). That the direction tells the tasks apart was
    seen in these data, not foreseen. Where attention is causal the evidence is weak: no rule is better than chance
    there, and this one changes heads least. For large models nothing is shown.

    A ``ranking`` of one's own replaces 2 and 3. Which design keeps its quality no ranking knows: training beside the
    control shows it.
    """
    narrow_heads = np.maximum(0, min(designs.old.head_dim, ENOUGH_HEAD_DIM) - designs.head_dim)
    keys: tuple[NDArray[Any], ...]
    if ranking is not None:
        keys = (designs.params, ranking(designs), narrow_heads)
    else:
        score = scores(designs.attention, designs.causal)
        away = np.abs(designs.depth - designs.old_depth)
        keys = (designs.params, score, away, np.round(score / ALIKE), unmeasured(designs), narrow_heads)
    return inside[np.lexsort([key[inside] for key in keys])], narrow_heads


def usual(designs: Grid, request: Request) -> NDArray[np.bool_]:
    """Which designs have an MLP of at least two widths, or the baseline's: lean is one of these where there is one.

    `rank` always goes to the edge of what it is given: with both directions, to the least MLP. It was measured on small
    models alone, and every published lean model has an MLP of two widths or more, so lean goes no further by itself;
    the alternatives show what lies beyond. That costs little of what was measured: of the ten designs in
    recipes/results/ranking.csv the one with most attention and two widths (3 layers of 12 heads) is the best on
    CIFAR-10 and ListOps, the second on Fashion-MNIST, where the best has 0.8, and the second on masked words, where
    MLPs are gated and 1.34 widths cost as much. Of mixtures nothing was published, so their experts keep to the floor
    alone, as all do where ``--min-mlp`` is given.
    """
    if request.constraints.min_mlp is not None or designs.old.experts:
        return np.ones(len(designs), bool)
    return np.asarray((designs.mlp >= USUAL_MLP * designs.old.width) | (designs.mlp >= designs.old.mlp))


def scores(attention: Any, causal: bool) -> Any:
    """What the ranking goes by, the least is the best: see `rank`."""
    return attention if causal else -attention


def unmeasured(designs: Grid) -> NDArray[np.bool_]:
    """Which designs lie outside of what the ranking was measured on; the baseline's own MLP never does."""
    mlp = designs.mlp * max(1, designs.old.active) / designs.old.width
    inner = designs.heads * designs.head_dim / designs.old.width
    known = (mlp >= MEASURED_MLP[0]) & (mlp <= MEASURED_MLP[1]) | (designs.mlp == designs.old.mlp)
    return np.asarray((4 * designs.depth < designs.old_depth) | ~known | (inner > MEASURED_INNER))


def pareto(designs: Grid, order: NDArray[np.int64]) -> Iterator[int]:
    """Of ``order`` those that no other beats in all of parameters, MACs, κ and depth at once, in the same order."""
    columns = [c[order].astype(float) for c in (designs.params, designs.macs, designs.kappa, -designs.depth)]
    for i, design in enumerate(order):
        no_worse = np.logical_and.reduce([column <= column[i] for column in columns])
        if not any((column[no_worse] < column[i]).any() for column in columns):
            yield int(design)


# -- all towers ---------------------------------------------------------------------------------------------------


def _joined(prices: PriceList, picked: Sequence[tuple[Grid, int]]) -> Candidate:
    """One design of every tower, as one candidate."""
    parts = [designs.candidate(i) for designs, i in picked]
    together = zip(*(part.designs for part in parts), strict=True)
    return priced(prices, tuple(next((d for d in stage if d is not None), None) for stage in together))


def ranked_by(prices: PriceList) -> str:
    """Which rule ranks the designs of this model, and how much it is worth, in words."""
    directions = {prices.facts.causal[tower.lead] for tower in towers(prices.architecture, prices.turned)}
    words = {
        False: "most attention for bidirectional blocks (ρ 0.8 with quality on three of four small tasks), first "
        "among MLPs of two widths and more",
        True: "least attention for causal blocks (weak evidence: no rule is known to be better than chance)",
    }
    return "; ".join(words[causal] for causal in sorted(directions))


def score(prices: PriceList, candidate: Candidate) -> float:
    """What the ranking goes by, the least is the best: over the towers the mean, by what their blocks hold."""
    every = towers(prices.architecture, prices.turned)
    weights = [prices.held(tower.stages, "params") for tower in every]
    found = [
        scores(prices.attention_share(tower.lead, design), prices.facts.causal[tower.lead])
        for tower in every
        if (design := candidate.designs[tower.lead]) is not None
    ]
    return float(np.average(found, weights=weights))


def plain_name(old: Candidate, plain: Candidate) -> str:
    """What a design without more heads is called, by what it has less of."""
    pairs = [(a, b) for a, b in zip(old.designs, plain.designs, strict=True) if a is not None and b is not None]
    fewer_layers = any(b.depth < a.depth for a, b in pairs)
    narrower = any(b.mlp < a.mlp for a, b in pairs)
    return "plain-cut" if fewer_layers and narrower else "mlp-only" if narrower else "depth-only"


def baseline(prices: PriceList) -> Candidate:
    """The source as it stands, priced like any design. Raises UnsupportedModel where counting it tells another price:
    then blocks that look alike cost differently (tokens are merged between them), and no design could be trusted.
    """
    found = priced(prices, baseline_designs(prices))
    counted, params = prices.facts.macs, prices.facts.params
    if counted not in (None, found.cost.macs) or params != found.cost.params:
        raise UnsupportedModel(
            f"{prices.architecture.source} cannot be priced block by block: what it costs depends on where blocks "
            "stand, as where tokens are merged or something outside reads certain blocks (they add up to "
            f"{found.cost.macs:,} MACs and {found.cost.params:,} parameters; {counted} and {params} were "
            "counted). leanify.read, write and grow may still do for it"
        )
    return found
