"""Every design of one tower that the rules allow, priced by arithmetic; none is built.

The grid: every depth from the floor to the baseline's, the baseline's head count and those above it, the MLP in steps
up to the baseline's. `grow` keeps head_dim, `split` keeps inner. The stages of a tower follow the deepest one in
proportion. An axis with more values than are worth pricing is thinned out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leanify.architecture import Architecture, Layer, Stage, primary_of
from leanify.design.prices.cost import Cost
from leanify.design.prices.price_list import PriceList, StageDesign
from leanify.design.search.constraints import Constraints
from leanify.design.search.towers import PINS, Pin, Tower, pins_of
from leanify.errors import ShapeError

HeadsMode = Literal["grow", "split", "auto"]
Designs = tuple[StageDesign | None, ...]  # one a stage; None leaves it as it is
MOST_DEPTHS, MOST_HEAD_COUNTS, MOST_MLPS = 64, 64, 512


@dataclass(frozen=True)
class Request:
    """What is asked of a search. Limits are absolute, None where there is none.

    max_params    parameters, of what ``count`` says
    max_macs      multiply-adds of one forward pass
    max_active    parameters that a token meets
    max_kv        bytes of the key/value cache at the context of the price list
    max_ns        nanoseconds by the line that was fitted to timed shapes
    tower_params  parameters of the blocks of single towers, by the tower's name
    depth, …      pins: one number, one a stage, or one a tower by its name
    """

    max_params: int | None = None
    max_macs: int | None = None
    count: Literal["all", "body"] = "all"
    heads_mode: HeadsMode = "grow"
    depth: Pin = None
    heads: Pin = None
    head_dim: Pin = None
    mlp: Pin = None
    experts: Pin = None
    active_experts: Pin = None
    max_active: int | None = None
    max_kv: int | None = None
    max_ns: int | None = None
    tower_params: Mapping[str, int] = field(default_factory=dict)
    constraints: Constraints = field(default_factory=Constraints)

    @property
    def limits(self) -> dict[str, int]:
        """The limits that there are, by the cost that each is on."""
        params = "params" if self.count == "all" else "params_body"
        named = {params: self.max_params, "macs": self.max_macs, "active": self.max_active, "kv": self.max_kv}
        named["ns"] = self.max_ns
        return {cost: limit for cost, limit in named.items() if limit is not None}

    @property
    def limited(self) -> bool:
        return bool(self.limits or self.tower_params)

    @property
    def pins(self) -> dict[str, Pin]:
        return {what: getattr(self, what) for what in PINS}

    @property
    def wants_heads(self) -> bool:
        """Whether lean must have more heads: the user pinned none."""
        return self.limited and self.heads is None and self.head_dim is None


@dataclass(frozen=True)
class Candidate:
    """A priced design: what each stage becomes (None: as it is), its cost, its predicted κ."""

    designs: Designs
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
class Grid:
    """All priced designs of one tower, the other towers as in the baseline; one an entry in every array.

    ``attention`` is the share of attention in a block's parameters, ``causal`` whether tokens see earlier ones alone.
    ``old`` and ``old_depth`` are the baseline's main layer and depth where the tower leads, ``shortest`` is the least
    depth that upstream's blocks allow there. ``shape`` is the index of a
    design's depths and heads in ``shapes``, ``row`` that of its MLP there; mlp, depth, heads and head_dim are those of
    the leading stage.
    """

    tower: Tower
    old: Layer
    old_depth: int
    shortest: int
    shapes: list[Designs]
    shape: NDArray[np.int64]
    row: NDArray[np.int64]
    cost: Cost
    mlp: NDArray[np.int64]
    depth: NDArray[np.int64]
    heads: NDArray[np.int64]
    head_dim: NDArray[np.int64]
    kappa: NDArray[np.float64]
    attention: NDArray[np.float64]
    causal: bool

    def __len__(self) -> int:
        return len(self.mlp)

    @property
    def params(self) -> NDArray[np.int64]:
        return np.asarray(self.cost.params)

    @property
    def macs(self) -> NDArray[np.int64]:
        return np.asarray(self.cost.macs)

    def candidate(self, i: int) -> Candidate:
        row = self.row[i]
        designs = tuple(d and d._replace(mlp=int(d.mlp[row])) for d in self.shapes[self.shape[i]])
        cost = Cost(*(int(column[i]) for column in vars(self.cost).values()))
        return Candidate(designs, cost, float(self.kappa[i]))


def priced(prices: PriceList, designs: Designs) -> Candidate:
    """A candidate of these designs, one a stage."""
    return Candidate(designs, prices.total(designs), prices.kappa(designs))


def baseline_designs(prices: PriceList) -> Designs:
    """What each changed stage is in the source."""
    return tuple(
        StageDesign(stage.depth, primary.heads, primary.head_dim, primary.mlp)
        if i in prices.turned and (primary := stage.primary)
        else None
        for i, stage in enumerate(prices.architecture.stages)
    )


def turned_stages(architecture: Architecture, request: Request) -> list[int]:
    """The stages that a request changes: the varied ones, and those that pins name beside them."""
    changed = set(architecture.varied)
    for values in pins_of(architecture, request.pins).values():
        changed.update(i for i, pin in enumerate(values) if pin is not None and architecture.stages[i].primary)
    return sorted(changed)


def grid(prices: PriceList, request: Request, tower: Tower) -> Grid:
    """Price every design of a tower that a request allows."""
    architecture, mixtures = mixed(prices.architecture, request)
    now = enumerate(baseline_designs(prices))
    others = prices.total(tuple(None if i in tower.stages else design for i, design in now))
    shapes: list[Designs] = []
    parts: list[list[Any]] = []
    for designs in _designs(architecture, request, tower):
        designs = tuple(d and d._replace(**mixtures[i]) for i, d in enumerate(designs))
        lead = designs[tower.lead]
        assert lead is not None
        cost = others
        for i in tower.stages:
            design = designs[i]
            assert design is not None
            cost = cost + prices.more(i, design)
        size = np.size(lead.mlp)
        attention = prices.attention_share(tower.lead, lead)
        numbers = (
            attention,
            len(shapes),
            np.arange(size),
            lead.mlp,
            lead.depth,
            lead.heads,
            lead.head_dim,
            *vars(cost).values(),
        )
        parts.append([prices.kappa(designs), *numbers])
        parts[-1] = [np.broadcast_to(part, size) for part in parts[-1]]
        shapes.append(designs)
    kappa, attention, shape, row, mlp, depth, heads, head_dim, *costs = (
        np.concatenate(c) for c in zip(*parts, strict=True)
    )
    stage, causal = architecture.stages[tower.lead], prices.facts.causal[tower.lead]
    old = primary_of(stage)
    cost = Cost(*costs)
    return Grid(
        tower,
        old,
        stage.depth,
        stage.shortest,
        shapes,
        shape,
        row,
        cost,
        mlp,
        depth,
        heads,
        head_dim,
        kappa,
        attention,
        causal,
    )


def mixed(architecture: Architecture, request: Request) -> tuple[Architecture, list[dict[str, int]]]:
    """The architecture with the pinned numbers of experts, and the pins of each stage as words of `StageDesign`.

    One number goes to every mixture. Raises ShapeError where there is none, or none in a stage that is named.
    """
    pins = pins_of(architecture, request.pins)
    words = [
        {name: value for name, value in (("experts", every), ("active", some)) if value is not None}
        for every, some in zip(pins["experts"], pins["active_experts"], strict=True)
    ]
    stages = architecture.stages
    if all(isinstance(pin, int) or pin is None for pin in (request.experts, request.active_experts)):
        mixtures = [stage.mixture is not None for stage in stages]
        if any(words) and not any(mixtures):
            raise ShapeError(f"{architecture.source} has no routed experts whose number could change")
        words = [named if mixture else {} for named, mixture in zip(words, mixtures, strict=True)]
    pairs = zip(stages, words, strict=True)
    return replace(architecture, stages=tuple(s.mixing(**named) if named else s for s, named in pairs)), words


def _designs(architecture: Architecture, request: Request, tower: Tower) -> Iterator[Designs]:
    """Every (depth, heads, head_dim) of the grid, each with the array of its MLPs."""
    lead = architecture.stages[tower.lead]
    pins = pins_of(architecture, request.pins)
    depths = _depths(lead, pins["depth"][tower.lead], request, tower)
    mlps = _mlps(lead, pins["mlp"][tower.lead], request)
    found = False
    for heads, head_dim in _heads(lead, pins["heads"][tower.lead], pins["head_dim"][tower.lead], request):
        for depth in depths:
            first = StageDesign(depth, heads, head_dim, mlps)
            designs: list[StageDesign | None] = [None] * len(architecture.stages)
            for i in tower.stages:
                own = {what: values[i] for what, values in pins.items()}
                designs[i] = _follow(architecture.stages[i], lead, first, own, request.constraints)
            if all(designs[i] is not None for i in tower.stages):
                found = True
                yield tuple(designs)
    if not found:
        raise ShapeError(
            f"no way to {request.heads_mode} heads was found that every stage can follow; name one head count a stage"
        )


def thin(values: Sequence[int], most: int) -> list[int]:
    """At most so many of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _depths(stage: Stage, pin: int | None, request: Request, tower: Tower) -> list[int]:
    if pin is not None:
        if pin < stage.shortest:
            raise ShapeError(
                f"stage {stage.name!r} was asked for {pin} blocks; its first {stage.shortest} are the fewest with "
                "attention in two of them, or in its only one"
            )
        return [pin]
    if not request.limited:
        return [stage.depth]
    floor = request.constraints.depth_floor(stage, tower.share, tower.cross)
    return thin(range(floor, stage.depth + 1), MOST_DEPTHS)


def _mlps(stage: Stage, pin: int | None, request: Request) -> NDArray[np.int64]:
    primary, step = primary_of(stage), request.constraints.mlp_step(stage)
    if pin is not None:
        _check_whole(stage, "mlp", pin, primary.mlp, stage.units)
        return np.array([pin], np.int64)
    if not request.limited or primary.mlp == 0:
        return np.array([primary.mlp], np.int64)
    floor = request.constraints.mlp_floor(stage)
    first = step * -(-floor // step)
    return np.array(sorted({*thin(range(first, primary.mlp, step), MOST_MLPS), primary.mlp}), np.int64)


def _check_whole(stage: Stage, what: str, asked: int, old: int, step: int) -> None:
    """Refuse a size of the main layer that the stage's other layers cannot follow in proportion."""
    if asked % step:
        raise ShapeError(
            f"stage {stage.name!r} was asked for {what} {asked}; its layers differ and follow the first, which has "
            f"{old}, in proportion: {what} must be a multiple of {step}"
        )


def _heads(stage: Stage, heads: int | None, head_dim: int | None, request: Request) -> list[tuple[int, int]]:
    """(heads, head_dim) of the leading stage. Growing keeps head_dim, splitting keeps inner."""
    primary = primary_of(stage)
    if heads is not None:
        primary.with_heads(heads)  # refuses broken key/value groups
        _check_whole(stage, "heads", heads, primary.heads, stage.group)
        counts = [heads]
    elif request.limited or head_dim is not None:
        counts = [primary.heads, *thin(request.constraints.head_counts(stage), MOST_HEAD_COUNTS)]
    else:
        counts = [primary.heads]
    if request.heads_mode == "split" and heads is None and (request.limited or head_dim is not None):
        most = int(request.constraints.max_heads * primary.heads)
        counts = thin(range(primary.heads, most + 1, stage.group), 8 * MOST_HEAD_COUNTS)
    grown = [(count, head_dim or primary.head_dim) for count in counts]
    split = [
        (count, primary.inner // count) for count in counts if primary.inner % count == 0 and count != primary.heads
    ]
    split = [(count, d) for count, d in split if head_dim in (None, d)]
    if request.heads_mode == "grow":
        return grown
    if request.heads_mode == "split" and not split:
        if heads is None and not request.limited:
            return [(primary.heads, primary.head_dim)]
        asked = f"{heads} heads" if heads is not None else f"up to {counts[-1]} heads"
        possible = [
            n
            for n in range(primary.heads + 1, 4 * primary.heads + 1)
            if primary.inner % n == 0 and n % stage.group == 0
        ]
        others = ", ".join(map(str, possible)) or "none"
        raise ShapeError(f"inner {primary.inner} does not split into {asked}; it splits into {others}")
    return split if request.heads_mode == "split" else [*grown, *split]


def _follow(
    stage: Stage, lead: Stage, design: StageDesign, pins: Mapping[str, int | None], constraints: Constraints
) -> StageDesign | None:
    """What ``stage`` becomes when the lead stage becomes ``design``: the same change in proportion; pins win."""
    if stage is lead:
        return design
    primary, first = primary_of(stage), primary_of(lead)
    wanted = primary.heads * design.heads / first.heads
    step = constraints.head_step(stage) if wanted > primary.heads else stage.group
    heads = pins["heads"] or (primary.heads if wanted == primary.heads else step * max(1, round(wanted / step)))
    primary.with_heads(heads)
    _check_whole(stage, "heads", heads, primary.heads, stage.group)
    head_dim = pins["head_dim"]
    if not head_dim:
        if design.head_dim != first.head_dim and primary.inner % heads:
            return None
        head_dim = primary.head_dim if design.head_dim == first.head_dim else primary.inner // heads
    mlp: Any = pins["mlp"]
    if mlp is None:
        step, floor = constraints.mlp_step(stage), constraints.mlp_floor(stage)
        share = np.rint(primary.mlp * design.mlp / max(first.mlp, 1) / step).astype(np.int64) * step
        mlp = np.where(design.mlp < first.mlp, np.clip(share, floor, primary.mlp), np.maximum(share, primary.mlp))
        mlp = np.where(design.mlp == first.mlp, primary.mlp, mlp)
    elif primary.mlp:
        _check_whole(stage, "mlp", mlp, primary.mlp, stage.units)
    blocks = round(stage.depth * design.depth / lead.depth)
    least = stage.depth if stage.fixed else constraints.least(stage)
    depth = pins["depth"] or max(least, blocks)
    return StageDesign(depth, heads, head_dim, np.broadcast_to(mlp, np.shape(design.mlp)))
