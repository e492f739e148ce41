"""Warnings and remarks of a plan: bounds that the user's pins cross, and costs of lean."""

from __future__ import annotations

from collections.abc import Iterator

from leanify.core.architecture import primary_layer
from leanify.core.units import format_share
from leanify.profiling.cost import StageShape
from leanify.profiling.price_list import PriceList
from leanify.search.control import CLOSE
from leanify.search.design import Design, changes
from leanify.search.ranking import MORE_HEADS
from leanify.search.request import Request
from leanify.search.rules import MIN_GATED_MLP, MIN_MLP, max_width, tower_floor
from leanify.search.search import UNSPENT, SearchResult
from leanify.search.towers import tower_stages, towers

UNEQUAL = 0.05  # report lean's MACs if they exceed its control's or plain's by this share
OLD_HEADS = "no control: lean has the baseline's heads"


def warnings(prices: PriceList, request: Request, old: Design, lean: Design | None) -> Iterator[str]:
    """Yield the published bounds that lean crosses, which a search does only if a user's pin or limit requires it."""
    if lean is None:
        return
    if _may_cross_depth(request):
        yield from _depth_crossings(prices, lean)
    # heads that are split, and narrow MLPs
    for i, (before, after) in zip(prices.stage_indices, changes(old, lean), strict=True):
        name = _stage_label(prices, i)
        if after.head_dim < before.head_dim:
            harm = "strong evidence of harm" if after.head_dim < 32 else "evidence of harm"
            yield (
                f"{name}heads are split, {before.head_dim} → {after.head_dim} channels each: there is {harm} below the "
                "rank that the data needs (Amsel et al. 2025), and the theorem predicts nothing for a split"
            )
        primary = primary_layer(prices.architecture.stages[i])
        units = after.mlp * max(1, after.active or primary.active)
        min_ratio = MIN_GATED_MLP if prices.is_gated(i) else MIN_MLP
        is_narrow = after.mlp and after.mlp < before.mlp and units < min_ratio * primary.width
        if is_narrow:
            yield (
                f"{name}an MLP of {units} units is below {min_ratio:.3g} times the width {primary.width}: no published "
                "lean model has so few"
            )


def remarks(
    prices: PriceList, request: Request, old: Design, result: SearchResult, control: Design | None
) -> Iterator[str]:
    """Yield further notes on lean: its cost compared with control and plain, and how the budget limited it."""
    lean = result.lean
    if lean is None:
        return
    yield from _cost_remarks(lean, control, result.plain)
    yield from _heads_remarks(request, old, lean, result)
    # unspent budget and crossed bounds
    unused_shares = [1 - getattr(lean.cost, cost) / limit for cost, limit in request.limits.items()]
    if unused_shares and min(unused_shares) > UNSPENT:
        yield f"lean leaves {format_share(min(unused_shares))} of its budget unspent: no design is nearer to it"
    if not _may_cross_depth(request):  # without a pin, only a published row can be this shallow
        for crossing in _depth_crossings(prices, lean):
            yield f"{crossing}; the published row crosses it"
    # per stage: layers that differ, and the conditioning
    for i, (before, after) in zip(prices.stage_indices, changes(old, lean), strict=True):
        stage, name = prices.architecture.stages[i], _stage_label(prices, i)
        heads = {(layer.heads, layer.head_dim) for layer in stage.primaries}
        mlps = {layer.mlp for layer in stage.primaries if layer.mlp}
        if len(heads) > 1 or len(mlps) > 1:
            yield f"{name}layers differ; the first is shown, and the others change in proportion to it"
        for remark in _kappa_remarks(prices.tokens[i], before, after):
            yield name + remark
    yield from _control_remarks(prices, request, old, lean, control)


def _stage_label(prices: PriceList, index: int) -> str:
    """Return the stage's name as a prefix if there is more than one stage."""
    return f"stage {prices.architecture.stages[index].name}: " if len(prices.stage_indices) > 1 else ""


def _may_cross_depth(request: Request) -> bool:
    """Whether the user requested a depth below the bounds."""
    options = request.options
    return options.min_depth is not None or options.depth is not None or not request.is_limited


def _depth_crossings(prices: PriceList, lean: Design) -> Iterator[str]:
    """Yield the towers below their minimum depth, which counts all stages: the input passes through each."""
    changed_towers = towers(prices.architecture, prices.stage_indices)
    for tower in changed_towers:
        indices = tower_stages(prices.architecture, tower)
        old_stages = [prices.architecture.stages[i] for i in indices]
        old_depth = sum(stage.depth for stage in old_stages)
        depth = sum(lean.architecture.stages[i].depth for i in indices)
        floor = tower_floor(old_stages)
        name = f"{tower.name}: " if len(changed_towers) > 1 else ""
        # compare the depth with log3 of the width, a third of the baseline, and two layers
        width = max_width(old_stages)
        layers = "1 layer is" if depth == 1 else f"{depth} layers are"
        if depth < floor:
            yield (
                f"{name}{layers} below {floor}, about log3 of the width {width}: the published depth floor (Levine et "
                "al. 2020)"
            )
        elif 3 * depth < old_depth:
            yield f"{name}{layers} below a third of {old_depth}, the deepest cut that was published"
        if depth <= 2 < old_depth:
            yield f"{name}depth {depth}: tasks that need several steps in sequence are not solved so shallow"


def _cost_remarks(lean: Design, control: Design | None, plain: Design | None) -> Iterator[str]:
    """Yield a remark if lean takes more multiply-adds than designs with as many parameters."""
    parts = []
    for name, other in (("control", control), ("plain", plain)):
        if other is not None and lean.macs > (1 + UNEQUAL) * other.macs:
            parts.append(f"{format_share(lean.macs / other.macs - 1)} more MACs than {name}")
    if parts:
        yield f"lean has {' and '.join(parts)}: at equal parameters it takes more time"


def _heads_remarks(request: Request, old: Design, lean: Design, result: SearchResult) -> Iterator[str]:
    """Yield a remark if the budget leaves few or no additional heads, or no layers to trade."""
    stages = changes(old, lean)
    keeps_layers = all(before.depth == after.depth for before, after in stages)
    if keeps_layers and any(before.heads < after.heads and after.mlp < before.mlp for before, after in stages):
        yield "no layer is left out: narrower MLPs alone pay for the heads"
    max_growth = max((after.heads / before.heads for before, after in stages), default=1)
    if request.wants_heads and 1 < max_growth < MORE_HEADS:
        yield f"lean has {format_share(max_growth - 1)} more heads: no design with a quarter more is within the budget"
    for name in result.headless:
        yield f"{name}: no heads were added; within the rules its budget leaves no layers to trade"


def _kappa_remarks(tokens: int, before: StageShape, after: StageShape) -> Iterator[str]:
    """Yield a remark if more heads do not improve the conditioning."""
    if 0.8 <= after.inner / tokens <= 1.25:
        yield f"inner {after.inner} is close to {tokens} tokens, where κ peaks: more or fewer heads condition better"
    elif before.inner < after.inner < tokens:
        yield f"with {tokens} tokens and inner {after.inner} more heads make κ worse, until inner passes the tokens"


def _control_remarks(
    prices: PriceList, request: Request, old: Design, lean: Design, control: Design | None
) -> Iterator[str]:
    """Yield a remark if the control is missing, or has another number of parameters."""
    if control is None:
        stages = changes(old, lean)
        has_old_heads = all(before.heads == after.heads for before, after in stages)
        has_mlp = any(after.mlp for _, after in stages)
        yield OLD_HEADS if has_old_heads and has_mlp else "no control: these stages have no MLP to widen"
        return
    off = control.params / lean.params - 1
    if abs(off) > CLOSE:
        yield f"the control is {off:+.2%} off in parameters: one step of the MLP more or less is as near as it comes"
    # an MLP in smaller steps than the rules' multiple
    for stage, shape in zip(prices.architecture.stages, control.shape, strict=True):
        if shape and shape.mlp % request.rules.mlp_multiple(stage):
            nearest_text = f"no coarser step is within {format_share(CLOSE)} of lean's parameters"
            yield f"the control's MLP has {shape.mlp} units: {nearest_text}"
            return
