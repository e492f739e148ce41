"""Budget → ranked shapes: every design of a grid is priced by arithmetic, none is built.

The grid: every depth from the published floor to the baseline's, every head count from the baseline's to three times
it (whole key/value groups), the MLP in steps of a sixteenth of the width up to the baseline's; `grow` keeps head_dim,
`split` keeps inner. The stages that are not the deepest follow it in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leanify.architecture import Architecture, Layer, Stage
from leanify.design.counting import Cost, parameters
from leanify.design.prices import PriceList, StageDesign
from leanify.errors import BudgetError, ShapeError, UnsupportedModel

HeadsMode = Literal["grow", "split", "auto"]
Pin = int | Sequence[int] | None
MOST_HEADS = 3  # times the baseline's
ENOUGH_HEAD_DIM = 64
ENOUGH_MLP = 2  # times the width


@dataclass(frozen=True)
class Request:
    """What is asked of a search. Pins are one number, or one a stage; limits are absolute, None where there is none."""

    max_params: int | None = None
    max_macs: int | None = None
    count: Literal["all", "body"] = "all"
    heads_mode: HeadsMode = "grow"
    depth: Pin = None
    heads: Pin = None
    head_dim: Pin = None
    mlp: Pin = None

    @property
    def limited(self) -> bool:
        return self.max_params is not None or self.max_macs is not None


@dataclass(frozen=True)
class Candidate:
    """A priced design: what each stage becomes (None: as it is), its cost, its predicted κ."""

    designs: tuple[StageDesign | None, ...]
    cost: Cost
    kappa: float

    def applied_to(self, architecture: Architecture) -> Architecture:
        """The architecture of this design."""
        stages = zip(architecture.stages, self.designs, strict=True)
        return replace(
            architecture,
            stages=tuple(stage if d is None else d.applied_to(stage) for stage, d in stages),
        )


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search: the chosen design, its class's Pareto front best first, how many were priced."""

    chosen: Candidate
    front: list[Candidate]
    searched: int


def depth_floor(width: int, depth: int) -> int:
    """The fewest layers a search goes down to: log₃(width) (Levine et al. 2020), or the baseline's if it has fewer."""
    return min(depth, max(1, round(math.log(width, 3))))


# -- the grid -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """All priced designs, one an entry: index of its heads and depth in ``shapes``, its MLP, cost and κ."""

    shapes: list[tuple[StageDesign | None, ...]]
    shape: NDArray[np.int64]
    params: NDArray[np.int64]
    params_body: NDArray[np.int64]
    macs: NDArray[np.int64]
    mlp: NDArray[np.int64]
    depth: NDArray[np.int64]
    head_dim: NDArray[np.int64]
    kappa: NDArray[np.float64]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.params)

    def candidate(self, i: int) -> Candidate:
        row = self.row[i]
        designs = tuple(d and d._replace(mlp=int(d.mlp[row])) for d in self.shapes[self.shape[i]])
        cost = Cost(int(self.params[i]), int(self.params_body[i]), int(self.macs[i]))
        return Candidate(designs, cost, float(self.kappa[i]))


def lead_of(architecture: Architecture, turned: Sequence[int]) -> int:
    """The deepest of the turned stages; the others follow it."""
    return max(turned, key=lambda i: (architecture.stages[i].depth, -i))


def turned_stages(architecture: Architecture, request: Request) -> list[int]:
    """The stages that a request turns: the varied ones, and those that a list of pins names differently."""
    turned = set(architecture.varied)
    for what in ("depth", "heads", "head_dim", "mlp"):
        pins = architecture.per_stage(getattr(request, what), what)
        turned.update(i for i, pin in enumerate(pins) if pin is not None and architecture.stages[i].main)
    return sorted(turned)


def grid(prices: PriceList, request: Request) -> Grid:
    """Price every design that a request allows."""
    shapes: list[tuple[StageDesign | None, ...]] = []
    parts = []
    for designs in _designs(prices.architecture, request):
        lead = designs[lead_of(prices.architecture, prices.turned)]
        assert lead is not None
        cost = prices.total(designs)
        size = np.size(lead.mlp)
        ones = np.ones(size, np.int64)
        columns = (cost.params, cost.params_body, cost.macs, lead.mlp, lead.depth, lead.head_dim, np.arange(size))
        parts.append([len(shapes) * ones, *(ones * column for column in columns), prices.kappa(designs) * ones])
        shapes.append(designs)
    shape, params, body, macs, mlp, depth, head_dim, row, kappa = (np.concatenate(c) for c in zip(*parts, strict=True))
    return Grid(shapes, shape, params, body, macs, mlp, depth, head_dim, kappa, row)


def _designs(architecture: Architecture, request: Request) -> Iterator[tuple[StageDesign | None, ...]]:
    """Every (depth, heads, head_dim) of the grid, each with the array of its MLPs."""
    turned = turned_stages(architecture, request)
    lead = lead_of(architecture, turned)
    stage = architecture.stages[lead]
    pins = {
        what: architecture.per_stage(getattr(request, what), what) for what in ("depth", "heads", "head_dim", "mlp")
    }
    depths = _depths(stage, pins["depth"][lead], request.limited)
    mlps = _mlps(stage, pins["mlp"][lead], request.limited)
    found = False
    for heads, head_dim in _heads(stage, pins["heads"][lead], pins["head_dim"][lead], request):
        for depth in depths:
            designs = [
                _follow(
                    architecture.stages[i],
                    stage,
                    StageDesign(depth, heads, head_dim, mlps),
                    {k: v[i] for k, v in pins.items()},
                )
                if i in turned
                else None
                for i in range(len(architecture.stages))
            ]
            if all(design is not None for i, design in enumerate(designs) if i in turned):
                found = True
                yield tuple(designs)
    if not found:
        raise ShapeError(
            f"no way to {request.heads_mode} heads was found that every stage can follow; name one head count a stage"
        )


def main_of(stage: Stage) -> Layer:
    main = stage.main
    if main is None:
        raise ShapeError(f"stage {stage.name!r} holds no attention")
    return main


def _depths(stage: Stage, pin: int | None, limited: bool) -> list[int]:
    if pin is not None:
        if pin < stage.shortest:
            raise ShapeError(
                f"stage {stage.name!r} was asked for {pin} blocks; its first {stage.shortest} are the fewest with "
                "attention in two of them, or in its only one"
            )
        return [pin]
    if not limited:
        return [stage.depth]
    floor = max(stage.shortest, depth_floor(main_of(stage).width, stage.depth))
    return list(range(floor, stage.depth + 1))


def _mlps(stage: Stage, pin: int | None, limited: bool) -> NDArray[np.int64]:
    main, units = main_of(stage), stage.units
    if pin is not None:
        _check_whole(stage, "mlp", pin, main.mlp, units)
        return np.array([pin], np.int64)
    if not limited or main.mlp == 0:
        return np.array([main.mlp], np.int64)
    step = units * max(1, main.width // 16 // units)
    steps = np.arange(step, main.mlp + 1, step, dtype=np.int64)
    return np.union1d(steps, [main.mlp]).astype(np.int64)


def _check_whole(stage: Stage, what: str, asked: int, old: int, step: int) -> None:
    """Refuse a size of the main layer that the stage's other layers cannot follow in proportion."""
    if asked % step:
        raise ShapeError(
            f"stage {stage.name!r} was asked for {what} {asked}; its layers differ and follow the first, which has "
            f"{old}, in proportion: {what} must be a multiple of {step}"
        )


def _heads(stage: Stage, heads: int | None, head_dim: int | None, request: Request) -> list[tuple[int, int]]:
    """(heads, head_dim) of the lead stage. Growing keeps head_dim, splitting keeps inner."""
    main = main_of(stage)
    if heads is None:
        most = MOST_HEADS * main.heads if request.limited or head_dim is not None else main.heads
        counts = list(range(main.heads, most + 1, stage.group))
    else:
        main.with_heads(heads)  # refuses broken key/value groups
        _check_whole(stage, "heads", heads, main.heads, stage.group)
        counts = [heads]
    grown = [(count, head_dim or main.head_dim) for count in counts]
    split = [(count, main.inner // count) for count in counts if main.inner % count == 0 and count != main.heads]
    split = [(count, d) for count, d in split if head_dim in (None, d)]
    if request.heads_mode == "grow":
        return grown
    if request.heads_mode == "split" and not split:
        if heads is None and not request.limited:
            return [(main.heads, main.head_dim)]
        asked = f"{heads} heads" if heads is not None else f"up to {counts[-1]} heads"
        possible = [
            n for n in range(main.heads + 1, 4 * main.heads + 1) if main.inner % n == 0 and n % stage.group == 0
        ]
        raise ShapeError(
            f"inner {main.inner} does not split into {asked}; it splits into {', '.join(map(str, possible)) or 'none'}"
        )
    return split if request.heads_mode == "split" else [*grown, *split]


def _follow(stage: Stage, lead: Stage, design: StageDesign, pins: dict[str, int | None]) -> StageDesign | None:
    """What ``stage`` becomes when the lead stage becomes ``design``: the same change in proportion; pins win."""
    main, first = main_of(stage), main_of(lead)
    if stage is lead:
        return design
    blocks = round(stage.depth * design.depth / lead.depth)
    depth = pins["depth"] or (stage.depth if stage.fixed else max(stage.shortest, blocks))
    heads = pins["heads"] or stage.group * max(1, round(main.heads * design.heads / first.heads / stage.group))
    main.with_heads(heads)
    _check_whole(stage, "heads", heads, main.heads, stage.group)
    if pins["head_dim"]:
        head_dim = pins["head_dim"]
    elif design.head_dim == first.head_dim:
        head_dim = main.head_dim
    elif main.inner % heads:
        return None
    else:
        head_dim = main.inner // heads
    mlp: Any = pins["mlp"]
    if mlp is None:
        share = main.mlp * design.mlp / max(first.mlp, 1)
        mlp = stage.units * np.maximum(1, np.rint(share / stage.units)).astype(np.int64) if main.mlp else 0
    elif main.mlp:
        _check_whole(stage, "mlp", mlp, main.mlp, stage.units)
    return StageDesign(depth, heads, head_dim, np.broadcast_to(mlp, design.mlp.shape))


# -- the choice ---------------------------------------------------------------------------------------------------


def search(prices: PriceList, request: Request, most: int | None = None) -> SearchResult:
    """The best design within the limits, and of its Pareto front the best ``most``, or all. Raises BudgetError where
    none fits.
    """
    designs = grid(prices, request)
    spent = designs.params if request.count == "all" else designs.params_body
    fits = np.ones(len(designs), bool)
    for limit, cost, unit in ((request.max_params, spent, "parameters"), (request.max_macs, designs.macs, "MACs")):
        if limit is not None:
            if not (cost <= limit).any():
                what = unit if request.count == "all" or unit == "MACs" else "parameters in its blocks"
                raise BudgetError(
                    f"the budget of {limit:,} {what} is below what a redesign reaches here: its smallest design has "
                    f"{int(cost.min()):,} (pin a smaller --depth or --mlp to go below the published floors)"
                )
            fits &= cost <= limit
    if not fits.any():
        raise BudgetError("each limit can be met, but no design meets all of them; loosen one")
    main = main_of(prices.architecture.stages[lead_of(prices.architecture, prices.turned)])
    inside = np.flatnonzero(fits)
    order, tier = rank(designs, inside, main)
    best = order[0]
    peers = order[tier[order] == tier[best]]
    front = [designs.candidate(i) for i in islice(pareto(designs, peers), most)]
    return SearchResult(designs.candidate(best), front, len(designs))


def rank(designs: Grid, inside: NDArray[np.int64], main: Layer) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The designs ``inside`` the budget, best first, and the class of every design. What is preferred, and why:

    1. No head narrower than the baseline's, or than 64 channels: below the rank that its data needs a head cannot
       express the map, however many there are (Amsel et al. 2025, Theorem 2; Bhojanapalli et al. 2020).
    2. An MLP of at least twice the width, or the baseline's if it is narrower: the narrowest MLP among the published
       lean rows (Leaner Transformers, Tables 1-2). Designs equal in 1 and 2 form a class.
    3. In a class, the least κ/depth. The paper's argument is that depth and conditioning do the same work, depth as a
       preconditioner (Arora et al. 2018) and heads by lowering κ (Theorem 3.2); with no published rate of exchange,
       a relative gain in one is worth the same relative loss in the other.
    4. Then the fewest parameters.

    Which design keeps its quality no ranking knows: training beside the control shows it.
    """
    narrow_heads = np.maximum(0, min(main.head_dim, ENOUGH_HEAD_DIM) - designs.head_dim)
    narrow_mlp = np.maximum(0, min(main.mlp, ENOUGH_MLP * main.width) - designs.mlp)
    tier = narrow_heads * (main.mlp + 1) + narrow_mlp
    keys = (designs.params, designs.kappa / designs.depth, narrow_mlp, narrow_heads)
    return inside[np.lexsort([key[inside] for key in keys])], tier


def pareto(designs: Grid, order: NDArray[np.int64]) -> Iterator[int]:
    """Of ``order`` those that no other beats in all of parameters, MACs, κ and depth at once, in the same order."""
    columns = [c[order].astype(float) for c in (designs.params, designs.macs, designs.kappa, -designs.depth)]
    for i, design in enumerate(order):
        no_worse = np.logical_and.reduce([column <= column[i] for column in columns])
        if not any((column[no_worse] < column[i]).any() for column in columns):
            yield int(design)


# -- the control --------------------------------------------------------------------------------------------------


def control(prices: PriceList, chosen: Candidate) -> Candidate | None:
    """Same depth and parameters as ``chosen``, the baseline's heads, a wider MLP: what isolates heads.

    The MLP is the whole number of hidden units that comes nearest. None where the stages have no MLP to widen.
    """
    stages = prices.architecture.stages
    old_heads = tuple(
        d and d._replace(heads=main_of(s).heads, head_dim=main_of(s).head_dim)
        for s, d in zip(stages, chosen.designs, strict=True)
    )
    if not any(d and d.mlp for d in old_heads):
        return None

    def widened(by: float) -> tuple[StageDesign | None, ...]:
        return tuple(
            d and d._replace(mlp=s.units * max(1, round(d.mlp * by / s.units)) if d.mlp else 0)
            for s, d in zip(stages, old_heads, strict=True)
        )

    lead = lead_of(prices.architecture, prices.turned)
    low, high = 0.0, 1.0
    while prices.total(widened(high)).params < chosen.cost.params:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if prices.total(widened(middle)).params < chosen.cost.params:
            low = middle
        else:
            high = middle
    designs = min(
        (_nudged(widened(by), lead, n * stages[lead].units) for by in (low, high) for n in (-1, 0, 1)),
        key=lambda d: abs(prices.total(d).params - chosen.cost.params),
    )
    return Candidate(designs, prices.total(designs), prices.kappa(designs))


def _nudged(designs: tuple[StageDesign | None, ...], lead: int, by: int) -> tuple[StageDesign | None, ...]:
    return tuple(
        d._replace(mlp=max(abs(by), d.mlp + by, 1)) if d is not None and i == lead and d.mlp else d
        for i, d in enumerate(designs)
    )


def baseline(prices: PriceList) -> Candidate:
    """The source as it stands, priced like any design. Raises UnsupportedModel where counting it tells another price:
    then blocks that look alike cost differently (tokens are merged between them), and no design could be trusted.
    """
    designs = tuple(
        StageDesign(stage.depth, main.heads, main.head_dim, main.mlp)
        if i in prices.turned and (main := stage.main)
        else None
        for i, stage in enumerate(prices.architecture.stages)
    )
    priced = Candidate(designs, prices.total(designs), prices.kappa(designs))
    counted = prices.whole and prices.whole[""]
    if counted not in (None, priced.cost.macs) or parameters(prices.model) != priced.cost.params:
        raise UnsupportedModel(
            f"{prices.architecture.source} cannot be priced: blocks of it look alike and do not cost alike, as where "
            f"tokens are merged on the way or drawn at random (they add up to {priced.cost.macs:,} MACs and "
            f"{priced.cost.params:,} parameters; {counted} and {parameters(prices.model)} were counted). leanify.read, "
            "write and grow may still do for it"
        )
    return priced
