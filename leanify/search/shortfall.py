"""Explain why a budget is too small: the needs of lean, or the part that alone exceeds the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from leanify.core.errors import BudgetError
from leanify.core.units import format_count, format_share
from leanify.profiling.price_list import PriceList
from leanify.search.grid import Grid, make_grids
from leanify.search.options import AXES, COUNTS, USUAL_AXES, parse_budget, spell_pin
from leanify.search.request import Request
from leanify.search.rules import DEEPEST_CUT, MAX_MACS, max_width
from leanify.search.search import is_within, share_out, trades_layers
from leanify.search.towers import tower_stages

OPTIONS = {
    "params": ("--target-params", "parameters"),
    "params_body": ("--target-params", "parameters in its blocks"),
    "macs": ("--max-macs", "MACs"),
    "kv": ("--max-kv", "bytes of key/value cache a token"),
}


# -- lean -------------------------------------------------------------------------------------------------------------


def lean_needs(prices: PriceList, request: Request) -> str:
    """Describe the needs of a design with fewer layers and more heads, if none is within the bounds and limits."""
    grids = make_grids(prices, request)
    if all(grid.old_depth == 1 for grid in grids):
        return "it has one block, which its layers share if there are several, and only narrower MLPs pay for heads"
    if request.tower_params:
        return _towers_need(prices, request, grids)
    for cost, limit in request.limits.items():
        smallest = _smallest(prices, request, grids, cost)
        if smallest is None:
            return _blocks_need(prices, grids)
        if smallest > limit:
            words = f"smallest within the published bounds {_spell(prices, cost, smallest)}{_binding(prices, grids)}"
            return words + _body_alternative(prices, request, grids)
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


def _spell(prices: PriceList, cost: str, amount: int) -> str:
    """Return a budget as its option takes it: a share of the baseline, rounded up."""
    total = int(getattr(prices.total(prices.baseline), cost))
    option, _ = OPTIONS[cost]
    share = f"{math.ceil(amount / total * 1000) / 1000:g}"
    return share if option == "--target-params" else f"{option} {share}"


def _binding(prices: PriceList, grids: Sequence[Grid]) -> str:
    """Name the bound of depth that the smallest design of the largest tower touches."""
    grid = max(grids, key=lambda grid: prices.fixed_cost(grid.tower.stages, "params"))
    depth = int(grid.depth.min())
    return f" ({depth} blocks{_depth_reason(prices, grid, depth)})" if depth > grid.shortest else ""


def _blocks_need(prices: PriceList, grids: Sequence[Grid]) -> str:
    """Describe why no budget has a lean design: all blocks are needed, or no number of heads meets the rules."""
    grid = max(grids, key=lambda grid: prices.fixed_cost(grid.tower.stages, "params"))
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


def _towers_need(prices: PriceList, request: Request, grids: Sequence[Grid]) -> str:
    """Describe what the first tower whose own budget has no lean design would need."""
    for grid in grids:
        if grid.tower.name in request.tower_params and (lean := trades_layers(grid, request)).any():
            smallest = _tower_params(prices, grid, int(grid.params[lean].min()))
            if smallest > request.tower_params[grid.tower.name]:
                return f"{grid.tower.name}: smallest within the published bounds {smallest:,} parameters in its blocks"
    return _blocks_need(prices, grids)


def _tower_params(prices: PriceList, grid: Grid, params: int) -> int:
    """Return the parameters of a tower's blocks in a model with ``params`` in all whose other towers are unchanged."""
    total = int(prices.total(prices.baseline).params)
    return params - total + prices.fixed_cost(grid.tower.stages, "params")


# -- nothing at all ---------------------------------------------------------------------------------------------------


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
