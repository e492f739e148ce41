"""Explain why no sensible design was found: the smallest one there is, and what loosening each rule would gain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from leanify.design.prices.price_list import PriceList
from leanify.design.search.constraints import Constraints
from leanify.design.search.grid import Grid, Request, baseline_designs, grid, turned_stages
from leanify.design.search.limits import Limits, trades_layers, within
from leanify.design.search.towers import Pin, Tower, towers
from leanify.errors import BudgetError, ShapeError
from leanify.units import millions

FLAGS = {
    "params": ("--target-params", "parameters"),
    "params_body": ("--target-params", "parameters in its blocks"),
    "macs": ("--max-macs", "MACs"),
    "active": ("--max-active", "active parameters"),
    "kv": ("--max-kv", "bytes of key/value cache a token"),
    "ns": ("--max-latency", "microseconds"),
}


def refusal(prices: PriceList, request: Request, grids: Sequence[Grid], shares: Sequence[Limits]) -> BudgetError:
    """The error that says why, which budget would do, and which rule stands in the way."""
    if request.tower_params:
        return BudgetError(_tower_words(request, grids, shares))
    whole = prices.total(baseline_designs(prices))
    for cost, limit in request.limits.items():
        total = getattr(whole, cost)
        least = smallest(grids, request, cost, total)
        if least is None:
            why = f"no sensible design has fewer layers and more heads: {_floors(grids, request)}."
            return BudgetError(why, _looser(prices, request, cost, total, least))
        if least > limit:
            why = _below(prices, request, grids, cost, total, least)
            return BudgetError(why, _looser(prices, request, cost, total, least))
    return BudgetError("each limit can be met, but no sensible design meets all of them; loosen one")


def _below(prices: PriceList, request: Request, grids: Sequence[Grid], cost: str, total: int, least: int) -> str:
    """A budget that nothing meets: the smallest design there is, and the budget that it needs."""
    flag, unit = FLAGS[cost]
    per = {"kv": prices.facts.context, "ns": 1000}.get(cost, 1)  # --max-kv is of a token
    fixed = [f"--{what.replace('_', '-')} {_pin_words(pin)}" for what, pin in request.pins.items() if pin]
    where = f" with {' and '.join(fixed)}: the smallest" if fixed else ": the smallest that trades layers for heads"
    return (
        f"the budget of {request.limits[cost] // per:,} {unit} is below every sensible design{where} has "
        f"{math.ceil(least / per):,} ({flag} {_enough(least / per, total / per, cost)}).{_single_block(grids)}"
        f"{_unpinned(prices, request, cost, total, least)}"
    )


def _single_block(grids: Sequence[Grid]) -> str:
    """Why no layer can be left out where the model has the weights of one block only."""
    if any(designs.old_depth > 1 for designs in grids):
        return ""
    return " It has one block, which all its layers share if there are several, so only the MLP can pay for heads."


def smallest(grids: Sequence[Grid], request: Request, cost: str, total: int) -> int | None:
    """The least that a sensible design costs; None where in no tower layers can be traded for heads."""
    least, any_lean = total, not request.wants_heads
    for designs in grids:
        column = np.asarray(getattr(designs.cost, cost))
        lean = trades_layers(designs, request)
        any_lean |= bool(lean.any())
        least += int((column[lean] if lean.any() else column).min()) - total
    return least if any_lean else None


def _floors(grids: Sequence[Grid], request: Request) -> str:
    """What keeps the layers, or the heads, where they are."""
    words = []
    for designs in grids:
        name = f"{designs.tower.name}: " if len(grids) > 1 else ""
        if designs.depth.min() == designs.old_depth and request.depth is None:
            blocks = f"its {designs.old_depth} blocks are" if designs.old_depth > 1 else "its single block is"
            words.append(f"{name}{blocks} the fewest for a width of {designs.old.width}")
        elif designs.heads.max() == designs.old.heads:
            words.append(f"{name}no number of heads above {designs.old.heads} keeps to the rules")
    return "; ".join(words) or "the rules leave none"


def _looser(prices: PriceList, request: Request, cost: str, total: int, least: int | None) -> str:
    """What each rule, loosened alone, would buy."""
    gains = []
    for flag, constraints in _loosened(prices, request):
        looser = replace(request, constraints=constraints)
        try:
            grids = [grid(prices, looser, tower) for tower in _towers_of(prices, looser)]
        except ShapeError:
            continue
        found = smallest(grids, looser, cost, total)
        if found is not None and (least is None or found < 0.995 * least):
            gains.append(f"{flag} {millions(found)} ({_share(found, total)})")
    return (
        f" Loosening a rule reaches: {', '.join(gains)}. Pinned values (--depth, --mlp) keep to no rule."
        if gains
        else ""
    )


def _unpinned(prices: PriceList, request: Request, cost: str, total: int, least: int) -> str:
    """What leaving the pinned values free would buy."""
    if not any(request.pins.values()):
        return ""
    free = replace(request, depth=None, heads=None, head_dim=None, mlp=None)
    found = smallest([grid(prices, free, tower) for tower in _towers_of(prices, free)], free, cost, total)
    return f" Left free, they reach {_share(found, total)} of the baseline." if found and found < least else ""


def _pin_words(pin: Pin) -> str:
    """A pin as the command line takes it."""
    if isinstance(pin, Mapping):
        return ",".join(f"{name}={value}" for name, value in pin.items())
    return ",".join(map(str, pin)) if isinstance(pin, Sequence) else str(pin)


def _towers_of(prices: PriceList, request: Request) -> list[Tower]:
    return towers(prices.architecture, turned_stages(prices.architecture, request))


def _loosened(prices: PriceList, request: Request) -> Iterator[tuple[str, Constraints]]:
    rules = request.constraints
    depths = [
        rules.depth_floor(prices.architecture.stages[t.lead], t.share, t.cross) for t in _towers_of(prices, request)
    ]
    fewest = max(1, round(min(depths) * 2 / 3))
    yield f"--min-depth {fewest}", replace(rules, min_depth=fewest)
    yield f"--min-mlp {rules.least_mlp / 2:g}", replace(rules, min_mlp=rules.least_mlp / 2)
    yield f"--max-heads {2 * rules.max_heads:g}", replace(rules, max_heads=2 * rules.max_heads)
    yield "--multiple 8", replace(rules, multiple=8)


def _share(part: float, total: float) -> str:
    """A share that is enough, rounded up."""
    return f"{math.ceil(part / total * 1000) / 1000:g}"


def _enough(part: float, total: float, cost: str) -> str:
    """A budget that is enough, in a form that the flag takes: a share of the baseline, or an amount above it."""
    if part <= total:
        return _share(part, total)
    return f"{math.ceil(part / 1000):,}KB".replace(",", "") if cost == "kv" else str(math.ceil(part))


def _tower_words(request: Request, grids: Sequence[Grid], shares: Sequence[Limits]) -> str:
    for designs, limits in zip(grids, shares, strict=True):
        lean = trades_layers(designs, request)
        fits = within(designs, limits)
        if not fits.any() or (designs.tower.name in request.tower_params and not (fits & lean).any()):
            over = int(
                np.asarray(designs.cost.params)[lean if lean.any() else fits | True].min() - limits["params"].most
            )
            asked = request.tower_params.get(designs.tower.name, 0)
            return (
                f"{designs.tower.name} cannot be built from {asked:,} parameters: its smallest sensible design has "
                f"{asked + over:,} in its blocks"
            )
    return "no tower has a sensible design within its budget"
