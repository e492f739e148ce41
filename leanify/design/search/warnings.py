"""Warnings about a plan: where it crosses a published floor or breaks a rule."""

from __future__ import annotations

from collections.abc import Iterator

from leanify.architecture import Architecture
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import StageShape
from leanify.design.search.control import CLOSE
from leanify.design.search.design import Design
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
    yield from _budget_warnings(request, lean)
    yield from _depth_warnings(old.architecture, lean.architecture)
    for i in prices.changed:
        before, after, stage = old.shape[i], lean.shape[i], prices.architecture.stages[i]
        assert before is not None
        assert after is not None
        name = f"stage {stage.name}: " if len(prices.changed) > 1 else ""
        heads = {(layer.heads, layer.head_dim) for layer in stage.primaries}
        mlps = {layer.mlp for layer in stage.primaries if layer.mlp}
        if len(heads) > 1 or len(mlps) > 1:
            yield f"{name}layers differ; the first is shown, and the others change in proportion to it"
        for warning in _stage_warnings(prices, i, before, after):
            yield name + warning
    yield from _control_warnings(prices, request, old, lean, control)


def _heads_warnings(request: Request, old: Design, lean: Design, found: SearchResult) -> Iterator[str]:
    pairs = [(a, b) for a, b in zip(old.shape, lean.shape, strict=True) if a is not None and b is not None]
    if all(a.depth == b.depth for a, b in pairs) and any(a.heads < b.heads and b.mlp < a.mlp for a, b in pairs):
        yield "no layer is left out: narrower MLPs alone pay for the heads"
    more = [b.heads / a.heads for a, b in pairs if b.heads > a.heads]
    if request.wants_heads and more and max(more) < MORE_HEADS:
        yield f"lean has {percent(max(more) - 1)} more heads: no design with a quarter more is within the budget"
    for name in found.headless:
        yield f"{name}: no heads were added; within the rules its budget leaves no layers to trade"


def _budget_warnings(request: Request, lean: Design) -> Iterator[str]:
    left = [1 - getattr(lean.cost, cost) / limit for cost, limit in request.limits.items()]
    if left and min(left) > UNSPENT:
        yield f"lean leaves {percent(min(left))} of its budget unspent: no sensible design is nearer to it"


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


def _stage_warnings(prices: PriceList, index: int, before: StageShape, after: StageShape) -> Iterator[str]:
    if after.head_dim < before.head_dim:
        harm = "strong evidence of harm" if after.head_dim < 32 else "evidence of harm"
        yield (
            f"heads are split, {before.head_dim} → {after.head_dim} channels each: there is {harm} below the rank "
            "that the data needs (Amsel et al. 2025), and the theorem predicts nothing for a split"
        )
    primary = prices.architecture.stages[index].primary
    if primary is not None and after.mlp and after.mlp < before.mlp:
        units = after.mlp * max(1, after.active or primary.active)
        if units < 2 * primary.width:
            yield (
                f"an MLP of {units} units is below twice the width {primary.width}: no published lean model has so few"
            )
    tokens = prices.tokens[index]
    if 0.8 <= after.inner / tokens <= 1.25:
        yield f"inner {after.inner} is close to {tokens} tokens, where κ peaks: more or fewer heads condition better"
    elif before.inner < after.inner < tokens:
        yield f"with {tokens} tokens and inner {after.inner} more heads make κ worse, until inner passes the tokens"


def _control_warnings(
    prices: PriceList, request: Request, old: Design, lean: Design, control: Design | None
) -> Iterator[str]:
    if control is None:
        pairs = [(a, b) for a, b in zip(old.shape, lean.shape, strict=True) if a is not None and b is not None]
        has_old_heads = all(a.heads == b.heads for a, b in pairs)
        has_mlp = any(b.mlp for _, b in pairs)
        if has_old_heads and has_mlp:
            yield OLD_HEADS
        else:
            yield "no control: these stages have no MLP to widen"
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
    stages = zip(prices.architecture.stages, control.shape, strict=True)
    odd = [shape.mlp for stage, shape in stages if shape and shape.mlp % request.rules.mlp_multiple(stage)]
    if odd:
        yield f"the control's MLP has {odd[0]} units: no coarser step is within {percent(CLOSE)} of lean's parameters"
