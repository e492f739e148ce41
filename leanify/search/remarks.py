"""What a plan says beside its designs: crossed bounds, costs of lean, and why a budget is too small."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from leanify.core.architecture import primary_layer
from leanify.core.errors import BudgetError
from leanify.core.units import format_count, format_share
from leanify.profiling.price_list import PriceList
from leanify.search.control import CLOSE
from leanify.search.design import Design, changes
from leanify.search.grid import Grid, make_grids
from leanify.search.options import AXES, COUNTS, USUAL_AXES, parse_budget, spell_pin
from leanify.search.ranking import MORE_HEADS
from leanify.search.request import Request
from leanify.search.rules import DEEPEST_CUT, MAX_MACS, MIN_GATED_MLP, MIN_MLP, max_width, tower_floor
from leanify.search.search import UNSPENT, SearchResult, is_within, share_out, trades_layers
from leanify.search.towers import tower_stages, towers

UNEQUAL = 0.05  # report lean's MACs if they exceed its control's or plain's by this share
OPTIONS = {
    "params": ("--target-params", "parameters"),
    "params_body": ("--target-params", "parameters in its blocks"),
    "macs": ("--max-macs", "MACs"),
    "kv": ("--max-kv", "bytes of key/value cache a token"),
}


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
    # multiply-adds beside designs with as many parameters
    parts = []
    for name, other in (("control", control), ("plain", result.plain)):
        if other is not None and lean.macs > (1 + UNEQUAL) * other.macs:
            parts.append(f"{format_share(lean.macs / other.macs - 1)} more MACs than {name}")
    if parts:
        yield f"lean has {' and '.join(parts)}: at equal parameters it takes more time"
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
        # more heads that do not improve the conditioning
        tokens = prices.tokens[i]
        if 0.8 <= after.inner / tokens <= 1.25:
            peak = f"inner {after.inner} is close to {tokens} tokens, where κ peaks"
            yield f"{name}{peak}: more or fewer heads condition better"
        elif before.inner < after.inner < tokens:
            worse = f"with {tokens} tokens and inner {after.inner} more heads make κ worse"
            yield f"{name}{worse}, until inner passes the tokens"
    yield from _control_remarks(prices, request, old, lean, control)


def _stage_label(prices: PriceList, index: int) -> str:
    """The stage's name as a prefix, if there is more than one stage."""
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


def _control_remarks(
    prices: PriceList, request: Request, old: Design, lean: Design, control: Design | None
) -> Iterator[str]:
    """Yield a remark if the control is missing, or has another number of parameters."""
    if control is None:
        stages = changes(old, lean)
        has_old_heads = all(before.heads == after.heads for before, after in stages)
        has_mlp = any(after.mlp for _, after in stages)
        reason = "lean has the baseline's heads" if has_old_heads and has_mlp else "these stages have no MLP to widen"
        yield f"no control: {reason}"
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


# -- why there is no lean ---------------------------------------------------------------------------------------------


def lean_needs(prices: PriceList, request: Request) -> str:
    """Describe the needs of a design with fewer layers and more heads, if none is within the bounds and limits."""
    grids = make_grids(prices, request)
    if all(grid.old_depth == 1 for grid in grids):
        return "it has one block, which its layers share if there are several, and only narrower MLPs pay for heads"
    # what the first tower whose own budget has no lean design would need
    if request.tower_params:
        for grid in grids:
            lean = trades_layers(grid, request)
            if grid.tower.name in request.tower_params and lean.any():
                smallest = _tower_params(prices, grid, int(grid.params[lean].min()))
                if smallest > request.tower_params[grid.tower.name]:
                    needed = f"{smallest:,} parameters in its blocks"
                    return f"{grid.tower.name}: smallest within the published bounds {needed}"
        return _blocks_need(prices, grids)
    # the first limit that is below the smallest lean design
    baseline = prices.total(prices.baseline)
    for cost, limit in request.limits.items():
        smallest_lean = _smallest(prices, request, grids, cost)
        if smallest_lean is None:
            return _blocks_need(prices, grids)
        if smallest_lean > limit:
            # the bound of depth that the smallest design of the largest tower touches
            grid = _largest(prices, grids)
            depth = int(grid.depth.min())
            bound = f" ({depth} blocks{_depth_reason(prices, grid, depth)})" if depth > grid.shortest else ""
            option, _ = OPTIONS[cost]
            share = f"{math.ceil(smallest_lean / int(getattr(baseline, cost)) * 1000) / 1000:g}"
            enough = share if option == "--target-params" else f"{option} {share}"
            alternative = _body_alternative(prices, request, grids)
            return f"smallest within the published bounds {enough}{bound}{alternative}"
    for grid, limits in zip(grids, share_out(prices, request, grids), strict=True):
        if (is_within(grid, limits) & trades_layers(grid, request)).any():
            return f"every design with more heads takes over {MAX_MACS} times the MACs of one without them"
    return "each limit can be met, but no design within the bounds meets all of them"


def _smallest(prices: PriceList, request: Request, grids: Sequence[Grid], cost: str) -> int | None:
    """Return the cost of the smallest design that trades layers for heads; None if no tower has one."""
    total = int(getattr(prices.total(prices.baseline), cost))
    smallest, has_lean = total, False
    for grid in grids:
        column = np.asarray(getattr(grid.cost, cost))
        lean = trades_layers(grid, request)
        has_lean |= bool(lean.any())
        smallest += int((column[lean] if lean.any() else column).min()) - total
    return smallest if has_lean else None


def _largest(prices: PriceList, grids: Sequence[Grid]) -> Grid:
    return max(grids, key=lambda grid: prices.fixed_cost(grid.tower.stages, "params"))


def _blocks_need(prices: PriceList, grids: Sequence[Grid]) -> str:
    """Describe why no budget has a lean design: all blocks are needed, or no number of heads meets the rules."""
    grid = _largest(prices, grids)
    name = f"{grid.tower.name}: " if len(grids) > 1 else ""
    if grid.depth.min() < grid.old_depth:
        return f"{name}no number of heads above {grid.old.heads} satisfies the rules; see --max-heads"
    depth = grid.old_depth
    hint = f"; --min-depth {depth - 1} allows fewer" if depth > max(1, grid.shortest) else ""
    reason = _depth_reason(prices, grid, depth)
    return f"{name}its {depth} blocks are the fewest within the published bounds{reason}{hint}"


def _depth_reason(prices: PriceList, grid: Grid, depth: int) -> str:
    """Explain why a tower's leading stage has at least ``depth`` blocks: the tower's width, or the deepest cut."""
    stages = [prices.architecture.stages[i] for i in tower_stages(prices.architecture, grid.tower)]
    if depth == math.ceil(grid.old_depth / DEEPEST_CUT):
        return f", a third of {grid.old_depth}"
    return f", about log3 of the width {max_width(stages)}"


def _body_alternative(prices: PriceList, request: Request, grids: Sequence[Grid]) -> str:
    """Name ``--count body`` if the same share, of the blocks alone, has a lean design."""
    target = request.options.target_params
    if request.params_cost != "params" or target is None or list(request.limits) != ["params"]:
        return ""
    share = parse_budget("--target-params", target, 1.0, COUNTS)
    body = int(prices.total(prices.baseline).params_body)
    smallest = _smallest(prices, request, grids, "params_body")
    is_enough = share <= 1 and smallest is not None and smallest <= share * body
    return "; or --count body" if is_enough else ""


def _tower_params(prices: PriceList, grid: Grid, params: int) -> int:
    """Return the parameters of a tower's blocks in a model with ``params`` in all whose other towers are unchanged."""
    total = int(prices.total(prices.baseline).params)
    return params - total + prices.fixed_cost(grid.tower.stages, "params")


# -- why there is no design at all ------------------------------------------------------------------------------------


def refusal(prices: PriceList, request: Request, reasons: Sequence[str]) -> BudgetError:
    """Return the error for a budget that no design meets; ``reasons`` say why a narrower model is none."""
    options, baseline = request.options, prices.total(prices.baseline)
    pins = [] if options.axes == USUAL_AXES else [f"--axes {options.axes}"]
    for name, pin in options.pins.items():
        if pin and not (name in AXES and name not in options.axis_names):
            pins.append(f"--{name.replace('_', '-')} {spell_pin(pin)}")
    grids = make_grids(prices, request)
    # a tower with its own budget
    for grid in grids:
        if grid.tower.name in request.tower_params:
            budget = request.tower_params[grid.tower.name]
            smallest = _tower_params(prices, grid, int(grid.params.min()))
            if smallest > budget:
                return BudgetError(
                    f"{grid.tower.name} cannot be built from {budget:,} parameters: its smallest design within the "
                    f"bounds has {smallest:,} in its blocks"
                )
    # one limit below the smallest design
    for cost, limit in request.limits.items():
        total, per = int(getattr(baseline, cost)), prices.facts.context if cost == "kv" else 1
        smallest = total + sum(int(np.min(getattr(grid.cost, cost))) - total for grid in grids)
        if smallest <= limit:
            continue
        option, unit = OPTIONS[cost]
        if cost == "macs" and options.max_macs is None and options.max_latency is not None:
            option = "in proportion --max-latency"
        outside_params = int(baseline.params) - int(baseline.params_body)
        message = f"the budget of {limit // per:,} {unit} is below every design within the published bounds"
        message += f" with {' and '.join(pins)}" if pins else ""
        amount, share = math.ceil(smallest / per), math.ceil(smallest / total * 1000) / 1000
        enough = f"{share:g}" if share <= 1 else str(amount)  # a number above 1 is an amount
        message += f": the smallest has {amount:,} ({option} {enough})"
        if cost == "params" and outside_params > limit:
            message += (
                f"; {format_count(outside_params)}, {format_share(outside_params / total)}, are outside of its blocks, "
                "in embeddings, a backbone and the like, which alone exceed the budget"
            )
            if "token ids" in prices.facts.inputs:
                request_text = options.target_params if isinstance(options.target_params, (int, float, str)) else limit
                message += (
                    ". A smaller vocabulary makes them smaller: "
                    f"leanify shrink CHECKPOINT --data DIR --target-params {request_text}"
                )
        elif pins:
            message += ". The pinned values prevent it: leave them free"
        return BudgetError("; ".join([message, *reasons]))
    return BudgetError("each limit can be met, but no design within the bounds meets all of them; loosen one")
