"""All designs of one tower that the rules allow, priced by arithmetic; no model is built.

The grid has every depth from the minimum to the baseline's, the baseline's head count and larger ones, and MLPs in
steps, from the narrowest published one to the baseline's (`Rules`). `grow` keeps head_dim, `split` keeps inner.
The other stages of a tower follow the leading one in proportion. Axes with too many values are thinned out evenly.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanify.core.architecture import Architecture, Layer, Stage, primary_layer
from leanify.core.errors import ShapeError
from leanify.profiling.cost import Cost, Shape, StageShape
from leanify.profiling.price_list import PriceList
from leanify.search.published import Row, nearest_row
from leanify.search.request import Request
from leanify.search.rules import EVEN_HEADS, Rules, tower_floor
from leanify.search.towers import Tower, pins_per_stage, stages_to_change, tower_stages, towers

MOST_DEPTHS, MOST_HEAD_COUNTS, MOST_MLPS = 64, 64, 512


@dataclass(frozen=True)
class Grid:
    """All priced designs of one tower, with the other towers as in the baseline: parallel arrays, one entry per design.

    old, old_depth             the baseline's primary layer and depth in the leading stage
    shortest                   the minimum depth of the leading stage
    shapes, shape, row         design i is ``shapes[shape[i]]`` with the MLP at index ``row[i]``
    depth, heads, head_dim, mlp   sizes of the leading stage
    cost, kappa                costs and κ of the whole model
    causal                     whether a token sees earlier tokens only
    """

    tower: Tower
    old: Layer
    old_depth: int
    shortest: int
    causal: bool
    shapes: list[Shape]
    shape: NDArray[np.int64]
    row: NDArray[np.int64]
    depth: NDArray[np.int64]
    heads: NDArray[np.int64]
    head_dim: NDArray[np.int64]
    mlp: NDArray[np.int64]
    kappa: NDArray[np.float64]
    cost: Cost

    def __len__(self) -> int:
        return len(self.mlp)

    @property
    def params(self) -> NDArray[np.int64]:
        return np.asarray(self.cost.params)

    @property
    def macs(self) -> NDArray[np.int64]:
        return np.asarray(self.cost.macs)

    def get_shape(self, i: int) -> Shape:
        """Return the shape of one design; None for the stages of other towers."""
        row = self.row[i]
        return tuple(stage and stage._replace(mlp=int(stage.mlp[row])) for stage in self.shapes[self.shape[i]])


def make_grids(prices: PriceList, request: Request) -> list[Grid]:
    """Return the priced designs of every tower."""
    stage_indices = stages_to_change(prices.architecture, request.options.pins)
    return [grid(prices, request, tower) for tower in towers(prices.architecture, stage_indices)]


def grid(prices: PriceList, request: Request, tower: Tower) -> Grid:
    """Price every design of a tower that the request allows. Raises ShapeError if there is none."""
    # the pinned experts in every mixture
    architecture, experts = prices.architecture, request.options.experts
    if experts and not any(stage.mixture for stage in architecture.stages):
        raise ShapeError(f"{architecture.source} has no routed experts whose number could change")
    mixtures = [experts if stage.mixture else {} for stage in architecture.stages]
    if experts:
        mixed = [stage.mixing(**experts) if stage.mixture else stage for stage in architecture.stages]
        architecture = replace(architecture, stages=tuple(mixed))
    # the cost of everything outside this tower
    fixed_stages = [None if i in tower.stages else stage for i, stage in enumerate(prices.baseline)]
    others = prices.total(tuple(fixed_stages))
    shapes: list[Shape] = []
    columns: dict[str, list[NDArray[Any]]] = defaultdict(list)
    # one row of values per shape; its MLPs are an array
    for stage_shapes in _shapes(prices, architecture, request, tower):
        shape = tuple(stage and stage._replace(**mixtures[i]) for i, stage in enumerate(stage_shapes))
        lead, cost = shape[tower.lead], prices.total(shape, others)
        assert lead is not None
        size = np.size(lead.mlp)
        values = {
            "shape": len(shapes),
            "row": np.arange(size),
            "depth": lead.depth,
            "heads": lead.heads,
            "head_dim": lead.head_dim,
            "mlp": lead.mlp,
            "kappa": prices.kappa(shape),
            **vars(cost),
        }
        for name, value in values.items():
            columns[name].append(np.broadcast_to(value, size))
        shapes.append(shape)
    if not shapes:
        mode = request.options.heads_mode
        raise ShapeError(f"no way to {mode} heads was found that every stage can follow; name one head count a stage")
    # concatenate over all shapes
    arrays: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items()}
    costs = Cost(*(arrays.pop(name) for name in Cost.__dataclass_fields__))
    old = architecture.stages[tower.lead]
    causal = prices.facts.causal[tower.lead]
    return Grid(tower, primary_layer(old), old.depth, old.shortest, causal, shapes, cost=costs, **arrays)


def _shapes(prices: PriceList, architecture: Architecture, request: Request, tower: Tower) -> Iterator[Shape]:
    """Yield every (depth, heads, head_dim) of the grid, each with the array of its MLPs."""
    # the rules' ranges for each stage, and the published row of this model
    lead = architecture.stages[tower.lead]
    pins = pins_per_stage(architecture, request.options.pins)
    row = nearest_row(prices, tower)
    if row is not None and not row.is_baseline(primary_layer(lead), lead.depth):
        row = None  # only the row's own baseline may leave the rules as the row does
    mlp_ranges = {}
    for i in tower.stages:
        mlp_ranges[i] = request.rules.mlp_range(architecture.stages[i], prices.is_gated(i))
    depths = _depths(architecture, tower, pins["depth"][tower.lead], request, row)
    # the hidden units of the leading stage, in ascending order
    primary, step, pinned_mlp = primary_layer(lead), request.rules.mlp_step(lead), pins["mlp"][tower.lead]
    units = [primary.mlp]
    if pinned_mlp is not None:
        _check_divisible(lead, "mlp", pinned_mlp, primary.mlp, lead.units)
        units = [pinned_mlp]
    elif request.is_limited and primary.mlp:
        min_mlp, max_mlp = mlp_ranges[tower.lead]
        steps = range(step * -(-min_mlp // step), max_mlp + 1, step)
        units = sorted({*thin(steps, MOST_MLPS), primary.mlp})
    mlps = np.array(units, np.int64)
    head_sizes = _heads(lead, pins["heads"][tower.lead], pins["head_dim"][tower.lead], request)
    if row is not None and row.is_split and request.wants_heads and request.options.heads_mode != "grow":
        head_sizes = list(dict.fromkeys([*head_sizes, (row.lean.heads, row.lean.head_dim)]))
    # every combination, in which the other stages follow the leading one
    for heads, head_dim in head_sizes:
        for depth in depths:
            first = StageShape(depth, heads, head_dim, mlps)
            shape: list[StageShape | None] = [None] * len(architecture.stages)
            for i in tower.stages:
                stage_pins = {what: values[i] for what, values in pins.items()}
                shape[i] = _follow(architecture.stages[i], lead, first, stage_pins, request.rules, mlp_ranges[i][0])
            if all(shape[i] is not None for i in tower.stages):
                yield tuple(shape)


def thin(values: Sequence[int], max_values: int) -> list[int]:
    """Return at most ``max_values`` of the values, evenly spaced, including the first and the last."""
    if len(values) <= max_values:
        return list(values)
    return [values[round(i * (len(values) - 1) / (max_values - 1))] for i in range(max_values)]


def _depths(architecture: Architecture, tower: Tower, pin: int | None, request: Request, row: Row | None) -> list[int]:
    """Return the depths of the leading stage, from the minimum to the baseline's."""
    stage, rules = architecture.stages[tower.lead], request.rules
    # a pinned depth, or the baseline's without a budget
    if pin is not None:
        if pin < stage.shortest:
            raise ShapeError(
                f"stage {stage.name!r} cannot have {pin} blocks: its first {stage.shortest} are the fewest with "
                "attention in two of them, or in its only one"
            )
        return [pin]
    if not request.is_limited:
        return [stage.depth]
    # the minimum of the rules
    floor = rules.depth_floor(stage)
    if request.options.min_depth is None:
        # All stages of a tower count: the input passes through one after the other.
        stages = [architecture.stages[i] for i in tower_stages(architecture, tower)]
        others = [architecture.stages[i] for i in tower.stages if i != tower.lead]
        fixed_depth = sum(other.depth for other in stages) - stage.depth - sum(other.depth for other in others)
        needed_depth = tower_floor(stages) - fixed_depth
        while floor < stage.depth:
            following_depth = sum(_following_depth(other, stage, floor, rules) for other in others)
            if floor + following_depth >= needed_depth:
                break
            floor += 1
        if row is not None:
            floor = min(floor, row.lean.depth)
    return thin(range(floor, stage.depth + 1), MOST_DEPTHS)


def _check_divisible(stage: Stage, what: str, value: int, old: int, step: int) -> None:
    """Raise ShapeError for a size of the primary layer that the stage's other layers cannot follow in proportion."""
    if value % step:
        raise ShapeError(
            f"stage {stage.name!r} cannot have {what} {value}: its layers differ and follow the first, which has "
            f"{old}, in proportion: {what} must be a multiple of {step}"
        )


def _heads(stage: Stage, heads: int | None, head_dim: int | None, request: Request) -> list[tuple[int, int]]:
    """Return (heads, head_dim) pairs of the leading stage. Growing keeps head_dim, splitting keeps inner."""
    primary, rules, mode = primary_layer(stage), request.rules, request.options.heads_mode
    is_free = heads is None and (request.is_limited or head_dim is not None)
    # the numbers of heads: pinned, of split heads, or of grown heads
    if heads is not None:
        primary.set_heads(heads)  # raises if key/value groups are broken
        _check_divisible(stage, "heads", heads, primary.heads, stage.group)
        counts = [heads]
    elif is_free and mode == "split":
        step = math.lcm(stage.group, EVEN_HEADS)
        first = step * -(-primary.heads // step)
        counts = thin(range(first, rules.most_heads(stage) + 1, step), 8 * MOST_HEAD_COUNTS)
    elif is_free:
        counts = [primary.heads, *thin(rules.head_counts(stage), MOST_HEAD_COUNTS)]
    else:
        counts = [primary.heads]
    # grown heads keep head_dim
    grown = [(count, head_dim or primary.head_dim) for count in counts]
    if mode == "grow":
        return grown
    # split heads keep the inner width
    split = []
    for count in counts:
        narrower, rest = divmod(primary.inner, count)
        if rest == 0 and count != primary.heads and head_dim in (None, narrower):
            split.append((count, narrower))
    if mode == "auto":
        return [*grown, *split]
    if split:
        return split
    if heads is None and not request.is_limited:
        return [(primary.heads, primary.head_dim)]
    # no number splits inner: name numbers that do
    request_text = f"{heads} heads" if heads is not None else f"up to {counts[-1]} heads"
    more = range(primary.heads + 1, 4 * primary.heads + 1)
    possible = [str(count) for count in more if primary.inner % count == 0 and count % stage.group == 0]
    raise ShapeError(
        f"inner {primary.inner} does not split into {request_text}; it splits into {', '.join(possible) or 'none'}"
    )


def _follow(
    stage: Stage, lead: Stage, lead_shape: StageShape, pins: Mapping[str, int | None], rules: Rules, min_mlp: int
) -> StageShape | None:
    """Return the shape of a stage beside the leading stage's: in proportion unless pinned; None if it cannot follow."""
    # heads in proportion to the leading stage's
    if stage is lead:
        return lead_shape
    primary, first = primary_layer(stage), primary_layer(lead)
    heads = pins["heads"]
    if heads is None:
        exact = primary.heads * lead_shape.heads / first.heads
        step = rules.head_step(stage) if exact > primary.heads else stage.group
        heads = primary.heads if exact == primary.heads else step * max(1, round(exact / step))
    primary.set_heads(heads)
    _check_divisible(stage, "heads", heads, primary.heads, stage.group)
    # head_dim: pinned, the stage's own, or split like the leading stage's
    head_dim = pins["head_dim"]
    if head_dim is None and lead_shape.head_dim == first.head_dim:
        head_dim = primary.head_dim
    elif head_dim is None:
        head_dim, rest = divmod(primary.inner, heads)
        if rest:
            return None
    # MLPs in proportion, between the floor and the direction of the leading stage
    mlp: Any = pins["mlp"]
    if mlp is None:
        step = rules.mlp_step(stage)
        share = np.rint(primary.mlp * lead_shape.mlp / max(first.mlp, 1) / step).astype(np.int64) * step
        mlp = np.where(lead_shape.mlp < first.mlp, np.clip(share, min_mlp, primary.mlp), np.maximum(share, primary.mlp))
        mlp = np.where(lead_shape.mlp == first.mlp, primary.mlp, mlp)
    elif primary.mlp:
        _check_divisible(stage, "mlp", mlp, primary.mlp, stage.units)
    depth = pins["depth"] or _following_depth(stage, lead, lead_shape.depth, rules)
    return StageShape(depth, heads, head_dim, np.broadcast_to(mlp, np.shape(lead_shape.mlp)))


def _following_depth(stage: Stage, lead: Stage, lead_depth: int, rules: Rules) -> int:
    """The blocks of a stage whose leading stage has ``lead_depth``: in proportion, and not below its own floor."""
    min_depth = stage.depth if stage.is_fixed else rules.following_depth(stage)
    return max(min_depth, round(stage.depth * lead_depth / lead.depth))
