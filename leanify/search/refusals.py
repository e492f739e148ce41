"""Explain why no design was found: what binds, the smallest budget that works, and the options that reach this one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leanify.core.errors import BudgetError
from leanify.core.units import format_count
from leanify.profiling.price_list import PriceList
from leanify.search.amounts import COUNTS, parse_budget
from leanify.search.grid import Grid, make_grids
from leanify.search.limits import Limits, is_within, share_out, trades_layers
from leanify.search.options import AXES, USUAL_AXES, spell_pin
from leanify.search.ranking import MORE_HEADS
from leanify.search.request import Request, make_request
from leanify.search.rules import DEEPEST_CUT, MAX_MACS, MIN_MLP, max_width
from leanify.search.towers import tower_stages

OPTIONS = {
    "params": ("--target-params", "parameters"),
    "params_body": ("--target-params", "parameters in its blocks"),
    "macs": ("--max-macs", "MACs"),
    "kv": ("--max-kv", "bytes of key/value cache a token"),
}
LOOSER_MLPS = (1.0, 0.5)  # minimum MLPs to try, in widths; the sweeps had none narrower

HasDesigns = Callable[[PriceList, Request], bool]


def refusal(prices: PriceList, request: Request, attempt: Request, has_designs: HasDesigns) -> BudgetError:
    """Return the error for a request without designs. ``attempt`` has the loosest bounds that were tried for it;
    ``has_designs`` tells whether a search of another request succeeds.
    """
    grids = make_grids(prices, attempt)
    if request.tower_params:
        return _tower_refusal(request, grids, share_out(prices, attempt, grids))
    # a single limit below the smallest design
    for cost, limit in request.limits.items():
        total = int(getattr(prices.total(prices.baseline), cost))
        smallest = _smallest(grids, attempt, cost, total)
        if smallest is None:
            return _nothing_to_trade(prices, request, attempt, grids, has_designs)
        if smallest > limit:
            message = _minimum_text(prices, request, cost, total, smallest)
            min_params = smallest if cost == "params" else None
            return BudgetError(message, _binding_rules(prices, request, attempt, grids, cost, has_designs), min_params)
    # every limit can be met: the MACs of more heads are too high, or the limits conflict
    for grid, limits in zip(grids, share_out(prices, attempt, grids), strict=True):
        if (is_within(grid, limits) & trades_layers(grid, attempt)).any():
            return BudgetError(
                f"every design with more heads within the budget takes over {MAX_MACS} times the MACs of one without "
                "them, which is slower at equal parameters",
                f". Pinned values are used as they are: --heads {math.ceil(MORE_HEADS * grid.old.heads / 2) * 2}",
            )
    return BudgetError("each limit can be met, but no design within the bounds meets all of them; loosen one")


def _nothing_to_trade(
    prices: PriceList, request: Request, attempt: Request, grids: Sequence[Grid], has_designs: HasDesigns
) -> BudgetError:
    """Return the error for a model whose largest tower has no design with fewer layers and more heads."""
    grid = max(grids, key=lambda grid: prices.fixed_cost(grid.tower.stages, "params"))
    name = f"{grid.tower.name}: " if len(grids) > 1 else ""
    message = "no design within the published bounds has fewer layers and more heads"
    if grid.depth.min() < grid.old_depth:
        why = f"{name}no number of heads above {grid.old.heads} satisfies the rules"
        return BudgetError(f"{message}: {why}", ". See --max-heads")
    why = f"{name}its {grid.old_depth} blocks are the fewest{_depth_reason(prices, attempt, grid, grid.old_depth)}"
    remedies = list(_remedies(prices, request, grid.old_depth, has_designs))
    fewer = _budget_of_fewer_blocks(prices, request, grid.old_depth)
    if fewer and remedies:
        fewer = f"; {fewer}"
    reached = _join_remedies(remedies) if remedies else ""
    return BudgetError(f"{message}: {why}", f". {reached}{fewer}")


def _remedies(prices: PriceList, request: Request, depth: int, has_designs: HasDesigns) -> Iterator[str]:
    """Yield the options with which this request has designs; each was tried. ``depth`` is the fewest blocks so far.

    A minimum depth is not lowered below a third of the fewest blocks, and no further than needed.
    """
    options = request.options
    min_mlp = MIN_MLP if options.min_mlp is None else options.min_mlp
    mlps = [mlp for mlp in LOOSER_MLPS if mlp < min_mlp]
    # one bound alone
    fewest = _sufficient_depth(prices, request, depth, has_designs)
    if fewest is not None:
        yield f"--min-depth {fewest}"
    sufficient_mlp = next((mlp for mlp in mlps if has_designs(prices, _loosen(request, min_mlp=mlp))), None)
    if sufficient_mlp is not None:
        yield f"--min-mlp {sufficient_mlp:g}"
    if fewest is not None or sufficient_mlp is not None:
        return
    # both bounds
    for mlp in mlps:
        fewest = _sufficient_depth(prices, _loosen(request, min_mlp=mlp), depth, has_designs)
        if fewest is not None:
            yield f"--min-depth {fewest} --min-mlp {mlp:g}"
            break


def _body_remedy(prices: PriceList, request: Request, has_designs: HasDesigns) -> str:
    """Name ``--count body`` if the same share, of the blocks alone, has designs."""
    target = request.options.target_params
    if request.params_cost != "params" or target is None or parse_budget("--target-params", target, 0.0, COUNTS):
        return ""  # an amount, not a share
    body = make_request(prices, replace(request.options, count="body"), prices.total(prices.baseline))
    return "; the same share of its blocks alone works: --count body" if has_designs(prices, body) else ""


def _loosen(request: Request, **bounds: Any) -> Request:
    """Return the request with these bounds, by the names of the options."""
    return replace(request, options=replace(request.options, **bounds))


def _sufficient_depth(prices: PriceList, request: Request, depth: int, has_designs: HasDesigns) -> int | None:
    """Return the largest minimum depth below ``depth``, and at least a third of it, with which the request has designs;
    None if there is none. A smaller minimum depth keeps all designs, so the range is halved until one is left.
    """
    low, high = math.ceil(depth / DEEPEST_CUT), depth - 1
    if low > high or not has_designs(prices, _loosen(request, min_depth=low)):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if has_designs(prices, _loosen(request, min_depth=middle)):
            low = middle
        else:
            high = middle - 1
    return low


def _join_remedies(remedies: Sequence[str]) -> str:
    return f"This budget works with {', or with '.join(remedies)}"


def _budget_of_fewer_blocks(prices: PriceList, request: Request, depth: int) -> str:
    """Name the minimum depth of one block less with the budget that it needs, unless this budget is enough."""
    fewest = max(1, depth - 1)
    loose = _loosen(request, min_depth=fewest)
    total = int(prices.total(prices.baseline).params)
    smallest = _smallest(make_grids(prices, loose), loose, "params", total)
    if smallest is None or list(request.limits) != ["params"]:
        return f"--min-depth {fewest} allows fewer"
    if smallest <= request.limits["params"]:
        return ""
    return f"--min-depth {fewest} works from --target-params {math.ceil(smallest / total * 1000) / 1000:g}"


def _depth_reason(prices: PriceList, request: Request, grid: Grid, depth: int) -> str:
    """Explain why a tower's leading stage has at least ``depth`` blocks: the tower's width, or the deepest cut."""
    stages = [prices.architecture.stages[i] for i in tower_stages(prices.architecture, grid.tower)]
    if request.options.min_depth is not None or depth <= grid.shortest:
        return ""
    if depth <= request.rules.depth_floor(prices.architecture.stages[grid.tower.lead]) and depth < grid.old_depth:
        return f" (a third of {grid.old_depth}, the deepest cut that was published)"
    return f" (about log3 of the width {max_width(stages)}, the published floor)"


def _tower_refusal(request: Request, grids: Sequence[Grid], shares: Sequence[Limits]) -> BudgetError:
    """Return the error for budgets of single towers."""
    # the first tower whose blocks do not fit its budget
    for grid, limits in zip(grids, shares, strict=True):
        name = grid.tower.name
        lean, fits = trades_layers(grid, request), is_within(grid, limits)
        if not fits.any() or (name in request.tower_params and not (fits & lean).any()):
            budget = request.tower_params.get(name, 0)
            smallest = int((grid.params[lean] if lean.any() else grid.params).min())
            needed_params = budget + int(smallest - limits["params"].maximum)
            return BudgetError(
                f"{name} cannot be built from {budget:,} parameters: its smallest design within the bounds has "
                f"{needed_params:,} in its blocks"
            )
    return BudgetError("no tower has a design within the bounds and its budget")


def _smallest(grids: Sequence[Grid], request: Request, cost: str, total: int) -> int | None:
    """Return the cost of the smallest sensible design; None if no tower can trade layers for heads."""
    smallest, has_lean = total, not request.wants_heads
    for grid in grids:
        column = np.asarray(getattr(grid.cost, cost))
        lean = trades_layers(grid, request)
        has_lean |= bool(lean.any())
        smallest += int((column[lean] if lean.any() else column).min()) - total
    return smallest if has_lean else None


def _minimum_text(prices: PriceList, request: Request, cost: str, total: int, smallest: int) -> str:
    """Return the message for a budget below the smallest design, with the budget that this design needs."""
    option, unit = OPTIONS[cost]
    if cost == "macs" and request.options.max_macs is None and request.options.max_latency is not None:
        option = "in proportion --max-latency"
    per = prices.facts.context if cost == "kv" else 1  # --max-kv counts one token
    # The budget in a form that the option accepts: a share, rounded up, or an amount.
    enough = str(math.ceil(smallest / per))
    if smallest <= total:
        enough = f"{math.ceil(smallest / total * 1000) / 1000:g}"
    elif cost == "kv":
        enough = f"{math.ceil(smallest / per / 1000)}KB"
    # pins and embeddings that raise the minimum
    axes = request.options.axes
    pins = [] if axes == USUAL_AXES else [f"--axes {axes}"]
    for name, pin in request.options.pins.items():
        is_left_out = name in AXES and name not in request.options.axis_names
        if pin and not is_left_out:
            pins.append(f"--{name.replace('_', '-')} {spell_pin(pin)}")
    where = f" with {' and '.join(pins)}: the smallest" if pins else ": the smallest that trades layers for heads"
    outside = ""
    if cost == "params":
        blocks = int(prices.total(prices.baseline).params_body)
        exceeds = ", which alone exceed the budget" if total - blocks >= request.limits[cost] else ""
        outside = f"; {format_count(total - blocks)} of them are outside of its blocks, in embeddings and the like"
        outside += exceeds
    return (
        f"the budget of {request.limits[cost] // per:,} {unit} is below every design within the published bounds"
        f"{where} has {math.ceil(smallest / per):,} ({option} {enough}){outside}."
    )


def _binding_rules(
    prices: PriceList, request: Request, attempt: Request, grids: Sequence[Grid], cost: str, has_designs: HasDesigns
) -> str:
    """Describe the rules that keep the smallest design from being smaller, and the options that reach the budget."""
    # pins bind before rules do
    if any(request.options.pins.values()):
        return " The pinned values prevent it: leave them free"
    if all(grid.old_depth == 1 for grid in grids):
        return " It has one block, which its layers share if there are several, so only the MLP can pay for heads"
    # the smallest design of the largest tower, and the rules that it touches
    grid = max(grids, key=lambda grid: prices.fixed_cost(grid.tower.stages, "params"))
    name = f"{grid.tower.name}: its" if len(grids) > 1 else "Its"
    lean = np.flatnonzero(trades_layers(grid, attempt))
    design = lean[np.argmin(np.asarray(getattr(grid.cost, cost))[lean])] if lean.size else 0
    depth, mlp = int(grid.depth[design]), int(grid.mlp[design])
    bounds = []
    if depth > grid.shortest:
        bounds.append(f"{depth} blocks are the fewest{_depth_reason(prices, attempt, grid, depth)}")
    if mlp and mlp < grid.old.mlp:
        width = grid.old.width / max(1, grid.old.active)
        bounds.append(f"MLP of {mlp} units is the narrowest ({mlp / width:.3g} widths)")
    remedies = list(_remedies(prices, request, depth, has_designs))
    reached = _join_remedies(remedies) if remedies else "No looser bound reaches this budget"
    if not bounds and not remedies:
        reached = "See --max-heads"
    reached += _body_remedy(prices, request, has_designs)
    if not bounds:
        return f" {reached}"
    return f" {name} {' and its '.join(bounds)}. {reached}"
