"""Warnings about a plan: where it crosses a published floor or breaks a rule."""

from __future__ import annotations

from collections.abc import Iterator

from leanify.architecture import Architecture, Layer, primary_of
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import StageShape
from leanify.design.search.control import CLOSE
from leanify.design.search.design import Design, changes
from leanify.design.search.limits import UNSPENT
from leanify.design.search.request import Request
from leanify.design.search.rules import depth_floor
from leanify.design.search.search import MORE_HEADS, SearchResult
from leanify.units import percent

UNEQUAL = 0.1  # difference of MACs between lean and its control that is told
OLD_HEADS = "no control: lean has the baseline's heads"


def warnings(
    prices: PriceList, request: Request, old: Design, found: SearchResult, control: Design | None
) -> Iterator[str]:
    """The warnings of a plan."""
    lean = found.chosen
    yield from _heads_warnings(request, old, lean, found)
    left = [1 - getattr(lean.cost, cost) / limit for cost, limit in request.limits.items()]
    if left and min(left) > UNSPENT:
        yield f"lean leaves {percent(min(left))} of its budget unspent: no sensible design is nearer to it"
    yield from _depth_warnings(old.architecture, lean.architecture)
    for i, (before, after) in zip(prices.changed, changes(old, lean), strict=True):
        stage = prices.architecture.stages[i]
        name = f"stage {stage.name}: " if len(prices.changed) > 1 else ""
        heads = {(layer.heads, layer.head_dim) for layer in stage.primaries}
        mlps = {layer.mlp for layer in stage.primaries if layer.mlp}
        if len(heads) > 1 or len(mlps) > 1:
            yield f"{name}layers differ; the first is shown, and the others change in proportion to it"
        for warning in _stage_warnings(primary_of(stage), prices.tokens[i], before, after):
            yield name + warning
    yield from _control_warnings(prices, request, old, lean, control)


def _heads_warnings(request: Request, old: Design, lean: Design, found: SearchResult) -> Iterator[str]:
    stages = changes(old, lean)
    keeps_layers = all(before.depth == after.depth for before, after in stages)
    if keeps_layers and any(before.heads < after.heads and after.mlp < before.mlp for before, after in stages):
        yield "no layer is left out: narrower MLPs alone pay for the heads"
    more = max((after.heads / before.heads for before, after in stages), default=1)
    if request.wants_heads and 1 < more < MORE_HEADS:
        yield f"lean has {percent(more - 1)} more heads: no design with a quarter more is within the budget"
    for name in found.headless:
        yield f"{name}: no heads were added; within the rules its budget leaves no layers to trade"


def _depth_warnings(old: Architecture, new: Architecture) -> Iterator[str]:
    """All stages count: the input passes through one after the other."""
    width = max(layer.width for layer in old.layers())
    floor = min(old.depth, depth_floor(width))
    if new.depth < floor:
        layers = "1 layer is" if new.depth == 1 else f"{new.depth} layers are"
        yield (
            f"{layers} below {floor}, about log3 of the width {width}: the published depth floor (Levine et al. 2020)"
        )
    if new.depth <= 2 < old.depth:
        yield f"depth {new.depth}: tasks that need several steps in sequence are not solved so shallow"


def _stage_warnings(primary: Layer, tokens: int, before: StageShape, after: StageShape) -> Iterator[str]:
    if after.head_dim < before.head_dim:
        harm = "strong evidence of harm" if after.head_dim < 32 else "evidence of harm"
        yield (
            f"heads are split, {before.head_dim} → {after.head_dim} channels each: there is {harm} below the rank "
            "that the data needs (Amsel et al. 2025), and the theorem predicts nothing for a split"
        )
    units = after.mlp * max(1, after.active or primary.active)
    if after.mlp and after.mlp < before.mlp and units < 2 * primary.width:
        yield f"an MLP of {units} units is below twice the width {primary.width}: no published lean model has so few"
    if 0.8 <= after.inner / tokens <= 1.25:
        yield f"inner {after.inner} is close to {tokens} tokens, where κ peaks: more or fewer heads condition better"
    elif before.inner < after.inner < tokens:
        yield f"with {tokens} tokens and inner {after.inner} more heads make κ worse, until inner passes the tokens"


def _control_warnings(
    prices: PriceList, request: Request, old: Design, lean: Design, control: Design | None
) -> Iterator[str]:
    if control is None:
        stages = changes(old, lean)
        has_old_heads = all(before.heads == after.heads for before, after in stages)
        has_mlp = any(after.mlp for _, after in stages)
        yield OLD_HEADS if has_old_heads and has_mlp else "no control: these stages have no MLP to widen"
        return
    off = control.params / lean.params - 1
    if abs(off) > CLOSE:
        yield f"the control is {off:+.2%} off in parameters: one step of the MLP more or less is as near as it comes"
    more_macs = lean.macs / control.macs - 1
    if abs(more_macs) > UNEQUAL:
        yield (
            f"lean has {percent(abs(more_macs))} {'more' if more_macs > 0 else 'fewer'} MACs than the control: at "
            "equal parameters they do not cost the same time"
        )
    for stage, shape in zip(prices.architecture.stages, control.shape, strict=True):
        if shape and shape.mlp % request.rules.mlp_multiple(stage):
            near = f"no coarser step is within {percent(CLOSE)} of lean's parameters"
            yield f"the control's MLP has {shape.mlp} units: {near}"
            return
