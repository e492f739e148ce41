"""Every design of one tower that the rules allow, priced by arithmetic; none is built.

The grid has every depth from the floor to the baseline's, the baseline's head count and those above it, and MLPs in
steps, narrower and wider than the baseline's (`Rules`). `grow` keeps head_dim, `split` keeps inner. The other stages of
a tower follow the leading one in proportion. An axis with too many values is thinned out evenly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanify.architecture import Architecture, Layer, Stage, primary_of
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Cost, Shape, StageShape
from leanify.design.search.request import Request
from leanify.design.search.rules import Rules
from leanify.design.search.towers import Tower, changed_stages, pins_of, towers
from leanify.errors import ShapeError

MOST_DEPTHS, MOST_HEAD_COUNTS, MOST_MLPS = 64, 64, 512


@dataclass(frozen=True)
class Grid:
    """All priced designs of one tower, with the other towers as in the baseline: parallel arrays, one entry per design.

    old, old_depth             the baseline's primary layer and depth in the leading stage
    shortest                   the minimum depth of the leading stage
    shapes, shape, row         a design is ``shapes[shape[i]]`` with the MLP at index ``row[i]``
    depth, heads, head_dim, mlp   of the leading stage
    cost, kappa                of the whole model
    attention                  the share of attention in a block's parameters
    mlp_params                 the parameters of a block's MLP that one token uses
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
    attention: NDArray[np.float64]
    mlp_params: NDArray[np.float64]
    cost: Cost

    def __len__(self) -> int:
        return len(self.mlp)

    @property
    def params(self) -> NDArray[np.int64]:
        return np.asarray(self.cost.params)

    @property
    def macs(self) -> NDArray[np.int64]:
        return np.asarray(self.cost.macs)

    def shape_at(self, i: int) -> Shape:
        """The shape of one design; None for the stages of other towers."""
        row = self.row[i]
        return tuple(stage and stage._replace(mlp=int(stage.mlp[row])) for stage in self.shapes[self.shape[i]])


def grids_of(prices: PriceList, request: Request) -> list[Grid]:
    """The priced designs of every tower."""
    changed = changed_stages(prices.architecture, request.options.pins)
    return [grid(prices, request, tower) for tower in towers(prices.architecture, changed)]


def grid(prices: PriceList, request: Request, tower: Tower) -> Grid:
    """Price every design of a tower that a request allows. Raises ShapeError if there is none."""
    architecture, mixtures = mixed(prices.architecture, request)
    fixed = [None if i in tower.stages else stage for i, stage in enumerate(prices.baseline)]
    others = prices.total(tuple(fixed))
    shapes: list[Shape] = []
    columns: dict[str, list[NDArray[Any]]] = defaultdict(list)
    for unmixed in _shapes(architecture, request, tower):
        shape = tuple(stage and stage._replace(**mixtures[i]) for i, stage in enumerate(unmixed))
        lead, cost = shape[tower.lead], others
        assert lead is not None
        for i, stage in enumerate(shape):
            if stage is not None:
                cost = cost + prices.stage(i, stage)
        size = np.size(lead.mlp)
        values = {
            "shape": len(shapes),
            "row": np.arange(size),
            "depth": lead.depth,
            "heads": lead.heads,
            "head_dim": lead.head_dim,
            "mlp": lead.mlp,
            "kappa": prices.kappa(shape),
            "attention": prices.attention_share(tower.lead, lead),
            "mlp_params": prices.mlp_params(tower.lead, lead),
            **vars(cost),
        }
        for name, value in values.items():
            columns[name].append(np.broadcast_to(value, size))
        shapes.append(shape)
    joined: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items()}
    costs = Cost(*(joined.pop(name) for name in Cost.__dataclass_fields__))
    old = architecture.stages[tower.lead]
    causal = prices.facts.causal[tower.lead]
    return Grid(tower, primary_of(old), old.depth, old.shortest, causal, shapes, cost=costs, **joined)


def mixed(architecture: Architecture, request: Request) -> tuple[Architecture, list[dict[str, int]]]:
    """The architecture with the pinned numbers of experts, and for each stage those pins as fields of `StageShape`.

    A single number applies to every mixture. Raises ShapeError if there is none, or none in a stage that is named.
    """
    options = request.options
    pins = pins_of(architecture, options.pins)
    fields: list[dict[str, int]] = []
    for experts, active in zip(pins["experts"], pins["active_experts"], strict=True):
        named = {"experts": experts, "active": active}
        fields.append({name: value for name, value in named.items() if value is not None})
    stages = architecture.stages
    if all(isinstance(pin, int) or pin is None for pin in (options.experts, options.active_experts)):
        if any(fields) and not any(stage.mixture for stage in stages):
            raise ShapeError(f"{architecture.source} has no routed experts whose number could change")
        fields = [named if stage.mixture else {} for named, stage in zip(fields, stages, strict=True)]
    changed = [stage.mixing(**named) if named else stage for stage, named in zip(stages, fields, strict=True)]
    return replace(architecture, stages=tuple(changed)), fields


def _shapes(architecture: Architecture, request: Request, tower: Tower) -> Iterator[Shape]:
    """Every (depth, heads, head_dim) of the grid, each with the array of its MLPs."""
    lead = architecture.stages[tower.lead]
    pins = pins_of(architecture, request.options.pins)
    depths = _depths(lead, pins["depth"][tower.lead], request)
    mlps = _mlps(lead, pins["mlp"][tower.lead], request)
    is_empty = True
    for heads, head_dim in _heads(lead, pins["heads"][tower.lead], pins["head_dim"][tower.lead], request):
        for depth in depths:
            first = StageShape(depth, heads, head_dim, mlps)
            shape: list[StageShape | None] = [None] * len(architecture.stages)
            for i in tower.stages:
                own = {what: values[i] for what, values in pins.items()}
                shape[i] = _follow(architecture.stages[i], lead, first, own, request.rules)
            if all(shape[i] is not None for i in tower.stages):
                is_empty = False
                yield tuple(shape)
    if is_empty:
        mode = request.options.heads_mode
        raise ShapeError(f"no way to {mode} heads was found that every stage can follow; name one head count a stage")


def thin(values: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the values, evenly spread, including the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _depths(stage: Stage, pin: int | None, request: Request) -> list[int]:
    if pin is not None:
        if pin < stage.shortest:
            raise ShapeError(
                f"stage {stage.name!r} was asked for {pin} blocks; its first {stage.shortest} are the fewest with "
                "attention in two of them, or in its only one"
            )
        return [pin]
    if not request.is_limited:
        return [stage.depth]
    return thin(range(request.rules.depth_floor(stage), stage.depth + 1), MOST_DEPTHS)


def _mlps(stage: Stage, pin: int | None, request: Request) -> NDArray[np.int64]:
    primary, step = primary_of(stage), request.rules.mlp_step(stage)
    if pin is not None:
        _check_divisible(stage, "mlp", pin, primary.mlp, stage.units)
        return np.array([pin], np.int64)
    if not request.is_limited or primary.mlp == 0:
        return np.array([primary.mlp], np.int64)
    fewest, most = request.rules.mlp_range(stage)
    first = step * -(-fewest // step)
    return np.array(sorted({*thin(range(first, most + 1, step), MOST_MLPS), primary.mlp}), np.int64)


def _check_divisible(stage: Stage, what: str, asked: int, old: int, step: int) -> None:
    """Refuse a size of the primary layer that the stage's other layers cannot follow in proportion."""
    if asked % step:
        raise ShapeError(
            f"stage {stage.name!r} was asked for {what} {asked}; its layers differ and follow the first, which has "
            f"{old}, in proportion: {what} must be a multiple of {step}"
        )


def _heads(stage: Stage, heads: int | None, head_dim: int | None, request: Request) -> list[tuple[int, int]]:
    """(heads, head_dim) of the leading stage. Growing keeps head_dim, splitting keeps inner."""
    primary, rules, mode = primary_of(stage), request.rules, request.options.heads_mode
    is_free = heads is None and (request.is_limited or head_dim is not None)
    if heads is not None:
        primary.with_heads(heads)  # raises if key/value groups are broken
        _check_divisible(stage, "heads", heads, primary.heads, stage.group)
        counts = [heads]
    elif is_free and mode == "split":
        counts = thin(range(primary.heads, rules.most_heads(stage) + 1, stage.group), 8 * MOST_HEAD_COUNTS)
    elif is_free:
        counts = [primary.heads, *thin(rules.head_counts(stage), MOST_HEAD_COUNTS)]
    else:
        counts = [primary.heads]
    grown = [(count, head_dim or primary.head_dim) for count in counts]
    if mode == "grow":
        return grown
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
    asked = f"{heads} heads" if heads is not None else f"up to {counts[-1]} heads"
    possible = []
    for more in range(primary.heads + 1, 4 * primary.heads + 1):
        if primary.inner % more == 0 and more % stage.group == 0:
            possible.append(str(more))
    raise ShapeError(
        f"inner {primary.inner} does not split into {asked}; it splits into {', '.join(possible) or 'none'}"
    )


def _follow(
    stage: Stage, lead: Stage, wanted: StageShape, pins: Mapping[str, int | None], rules: Rules
) -> StageShape | None:
    """What ``stage`` becomes when the leading stage becomes ``wanted``: the same change in proportion, unless pinned.

    None if it cannot follow.
    """
    if stage is lead:
        return wanted
    primary, first = primary_of(stage), primary_of(lead)
    heads = pins["heads"]
    if heads is None:
        exact = primary.heads * wanted.heads / first.heads
        step = rules.head_step(stage) if exact > primary.heads else stage.group
        heads = primary.heads if exact == primary.heads else step * max(1, round(exact / step))
    primary.with_heads(heads)
    _check_divisible(stage, "heads", heads, primary.heads, stage.group)
    head_dim = pins["head_dim"]
    if head_dim is None and wanted.head_dim == first.head_dim:
        head_dim = primary.head_dim
    elif head_dim is None:
        head_dim, rest = divmod(primary.inner, heads)
        if rest:
            return None
    mlp: Any = pins["mlp"]
    if mlp is None:
        step, (floor, _) = rules.mlp_step(stage), rules.mlp_range(stage)
        share = np.rint(primary.mlp * wanted.mlp / max(first.mlp, 1) / step).astype(np.int64) * step
        mlp = np.where(wanted.mlp < first.mlp, np.clip(share, floor, primary.mlp), np.maximum(share, primary.mlp))
        mlp = np.where(wanted.mlp == first.mlp, primary.mlp, mlp)
    elif primary.mlp:
        _check_divisible(stage, "mlp", mlp, primary.mlp, stage.units)
    least = stage.depth if stage.fixed else rules.following_depth(stage)
    depth = pins["depth"] or max(least, round(stage.depth * wanted.depth / lead.depth))
    return StageShape(depth, heads, head_dim, np.broadcast_to(mlp, np.shape(wanted.mlp)))
