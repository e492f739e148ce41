"""Budgets as users write them: shares of the baseline or amounts, for all or for one tower; and measured limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from leanify.design import profiling, search
from leanify.design.amounts import BYTES, COUNTS, TIMES, Budget, parse_budget
from leanify.design.grid import Request
from leanify.design.prices import PriceList
from leanify.design.towers import towers
from leanify.errors import BudgetError, ShapeError
from leanify.lens import surgery
from leanify.units import millions
from leanify.upstream.inputs import example_inputs


def limit_of(name: str, value: Budget, baseline: float, units: Mapping[str, float]) -> int | None:
    """A budget as a whole number of what it counts; None where there is none."""
    return None if value is None else int(parse_budget(name, value, baseline, units))


def tower_limits(value: Budget, prices: PriceList) -> dict[str, int]:
    """``encoder=0.75,decoder=20M`` → parameters of each tower's blocks. Raises BudgetError, ShapeError."""
    known = {tower.name: tower for tower in towers(prices.architecture, prices.turned)}
    limits: dict[str, int] = {}
    for part in str(value).split(","):
        asked, _, amount = (word.strip() for word in part.partition("="))
        names = [name for name in known if name == asked or (asked and name.startswith(asked))]
        if len(names) != 1:
            raise ShapeError(f"--target-params names a tower {asked!r}; this model has {', '.join(known)}")
        if names[0] in limits:
            raise BudgetError(f"--target-params {value}: two budgets for {names[0]}; give one")
        held = prices.held(known[names[0]].stages, "params")
        limits[names[0]] = int(parse_budget(f"--target-params {asked}", amount, held, COUNTS))
    return limits


def words_of(request: Request, spent: int) -> str:
    """The budget on parameters, in words."""
    if request.tower_params:
        return "blocks of " + ", ".join(f"{name} {millions(most)}" for name, most in request.tower_params.items())
    if request.max_params is None:
        return "no budget on parameters"
    what = "" if request.count == "all" else " in the blocks"
    return f"budget {millions(request.max_params)}{what}, {request.max_params / spent:.0%} of {millions(spent)}"


# -- measured limits ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A limit on what only a built or traced model shows; ``measure`` gives it for a model on ``meta``."""

    name: str
    limit: float
    unit: str
    measure: Callable[[nn.Module], float]


def measured_limits(model: nn.Module, tokens: int | None, latency: Budget, memory: Budget) -> list[Measured]:
    def seconds(design: nn.Module) -> float:
        real = profiling.fresh(design, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        inputs = example_inputs(real, 1, tokens, next(real.parameters()).device)
        return profiling.seconds(real, inputs, 5)

    def training_bytes(design: nn.Module) -> float:
        return profiling.predicted_training_bytes(design, 1, tokens, torch.cuda.is_available())

    wanted = (("--max-latency", latency, TIMES, "s", seconds), ("--max-memory", memory, BYTES, "bytes", training_bytes))
    return [
        Measured(name, parse_budget(name, value, measure(model), units), unit, measure)
        for name, value, units, unit, measure in wanted
        if value is not None
    ]


def search_within(
    prices: PriceList, request: Request, measured: list[Measured], most: int, ranking: search.Ranking | None = None
) -> search.SearchResult:
    """Search; while the chosen design measures above a limit, ask for one with so many MACs fewer."""
    if not measured:
        return search.search(prices, request, most, ranking)
    request = replace(request, max_macs=request.max_macs or search.baseline(prices).cost.macs)
    over = float("inf")
    for _ in range(12):
        try:
            outcome = search.search(prices, request, most, ranking)
        except BudgetError:
            break
        model = surgery.write(prices.model, outcome.chosen.applied_to(prices.architecture))
        over = max(limit.measure(model) / limit.limit for limit in measured)
        if over <= 1:
            return outcome
        request = replace(request, max_macs=int(outcome.chosen.cost.macs * min(0.98, 0.5 + 0.5 / over)))
    asked = " and ".join(f"{limit.name} {limit.limit:.4g} {limit.unit}" for limit in measured)
    raise BudgetError(f"no design was found within {asked}; the last one tried was {over:.2f} times over; loosen it")
