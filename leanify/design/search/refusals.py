"""Explain why no sensible design was found: the smallest one there is, and what loosening each rule would gain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leanify.design.prices.price_list import PriceList
from leanify.design.search.grid import Grid, grids_of
from leanify.design.search.limits import Limits, trades_layers, within
from leanify.design.search.request import Request
from leanify.design.search.rules import LEAST_MLP
from leanify.design.search.towers import changed_stages, towers
from leanify.errors import BudgetError, ShapeError
from leanify.units import binary, millions, operations, seconds

FLAGS = {
    "params": ("--target-params", "parameters"),
    "params_body": ("--target-params", "parameters in its blocks"),
    "macs": ("--max-macs", "MACs"),
    "active": ("--max-active", "active parameters"),
    "kv": ("--max-kv", "bytes of key/value cache a token"),
    "ns": ("--max-latency", "microseconds"),
}


def refusal(prices: PriceList, request: Request, grids: Sequence[Grid], shares: Sequence[Limits]) -> BudgetError:
    """The error that says why, which budget would do, and what loosening each rule would gain."""
    if request.tower_params:
        return _of_towers(request, grids, shares)
    whole = prices.total(prices.baseline)
    for cost, limit in request.limits.items():
        total = int(getattr(whole, cost))
        least = smallest(grids, request, cost, total)
        if least is None:
            words = []
            for grid in grids:
                name = f"{grid.tower.name}: " if len(grids) > 1 else ""
                if grid.depth.min() == grid.old_depth and request.options.depth is None:
                    blocks = f"its {grid.old_depth} blocks are" if grid.old_depth > 1 else "its single block is"
                    words.append(f"{name}{blocks} the fewest")
                elif grid.heads.max() == grid.old.heads:
                    words.append(f"{name}no number of heads above {grid.old.heads} keeps to the rules")
            floors = "; ".join(words) or "the rules leave none"
            why = f"no sensible design has fewer layers and more heads: {floors}."
            return BudgetError(why, _looser(prices, request, cost, total, least))
        if least > limit:
            why = _below(prices, request, grids, cost, total, least)
            return BudgetError(why, _looser(prices, request, cost, total, least))
    return BudgetError("each limit can be met, but no sensible design meets all of them; loosen one")


def _of_towers(request: Request, grids: Sequence[Grid], shares: Sequence[Limits]) -> BudgetError:
    """The error for budgets of single towers."""
    for grid, limits in zip(grids, shares, strict=True):
        name = grid.tower.name
        lean, fits = trades_layers(grid, request), within(grid, limits)
        if not fits.any() or (name in request.tower_params and not (fits & lean).any()):
            smallest_params = int((grid.params[lean] if lean.any() else grid.params).min())
            budget = request.tower_params.get(name, 0)
            least = budget + int(smallest_params - limits["params"].most)
            return BudgetError(
                f"{name} cannot be built from {budget:,} parameters: its smallest sensible design has {least:,} in its "
                "blocks"
            )
    return BudgetError("no tower has a sensible design within its budget")


def _below(prices: PriceList, request: Request, grids: Sequence[Grid], cost: str, total: int, least: int) -> str:
    """For a budget that nothing meets: the smallest design there is, and the budget that it needs."""
    flag, unit = FLAGS[cost]
    per = {"kv": prices.facts.context, "ns": 1000}.get(cost, 1)  # --max-kv is for one token
    fixed = []
    for what, pin in request.options.pins.items():
        if pin:
            words = str(pin)
            if isinstance(pin, Mapping):
                words = ",".join(f"{name}={value}" for name, value in pin.items())
            elif isinstance(pin, Sequence):
                words = ",".join(map(str, pin))
            fixed.append(f"--{what.replace('_', '-')} {words}")
    where = ": the smallest that trades layers for heads"
    free = single = ""
    if fixed:
        where = f" with {' and '.join(fixed)}: the smallest"
        unpinned = replace(request, options=replace(request.options, depth=None, heads=None, head_dim=None, mlp=None))
        found = smallest(grids_of(prices, unpinned), unpinned, cost, total)
        if found and found < least:
            free = f" Left free, they reach {_share(found, total)} of the baseline."
    if all(grid.old_depth == 1 for grid in grids):
        single = (
            " It has one block, which all its layers share if there are several, so only the MLP can pay for heads."
        )
    enough = str(math.ceil(least / per))  # in a form that the option takes
    if least <= total:
        enough = _share(least / per, total / per)
    elif cost == "kv":
        enough = f"{math.ceil(least / per / 1000)}KB"
    return (
        f"the budget of {request.limits[cost] // per:,} {unit} is below every sensible design{where} has "
        f"{math.ceil(least / per):,} ({flag} {enough}).{single}{free}"
    )


def smallest(grids: Sequence[Grid], request: Request, cost: str, total: int) -> int | None:
    """The least that a sensible design costs; None if no tower can trade layers for heads."""
    least, has_lean = total, not request.wants_heads
    for grid in grids:
        column = np.asarray(getattr(grid.cost, cost))
        lean = trades_layers(grid, request)
        has_lean |= bool(lean.any())
        least += int((column[lean] if lean.any() else column).min()) - total
    return least if has_lean else None


def _looser(prices: PriceList, request: Request, cost: str, total: int, least: int | None) -> str:
    """What loosening each rule alone would gain, in the units of the budget's option."""
    gains = []
    for flag, change in _loosened(prices, request):
        looser = replace(request, options=replace(request.options, **change))
        try:
            found = smallest(grids_of(prices, looser), looser, cost, total)
        except ShapeError:
            continue
        if found is not None and (least is None or found < 0.995 * least):
            amount = millions(found)
            if cost == "kv":  # a token
                amount = binary(found / prices.facts.context)
            elif cost == "ns":
                amount = seconds(found / 1e9)
            elif cost == "macs":
                amount = operations(found)
            gains.append(f"{flag} {amount} ({_share(found, total)})")
    if not gains:
        return ""
    return f" Loosening a rule reaches: {', '.join(gains)}. Pinned values (--depth, --mlp) keep to no rule."


def _loosened(prices: PriceList, request: Request) -> Iterator[tuple[str, dict[str, Any]]]:
    rules = request.rules
    stages = prices.architecture.stages
    changed = changed_stages(prices.architecture, request.options.pins)
    floors = [rules.depth_floor(stages[tower.lead]) for tower in towers(prices.architecture, changed)]
    fewest = max(1, round(min(floors) * 2 / 3))
    yield f"--min-depth {fewest}", {"min_depth": fewest}
    least = LEAST_MLP if request.options.min_mlp is None else request.options.min_mlp
    yield f"--min-mlp {least / 2:g}", {"min_mlp": least / 2}
    yield f"--max-heads {2 * request.options.max_heads:g}", {"max_heads": 2 * request.options.max_heads}
    yield "--multiple 8", {"multiple": 8}


def _share(part: float, total: float) -> str:
    """A share that is enough, rounded up."""
    return f"{math.ceil(part / total * 1000) / 1000:g}"
