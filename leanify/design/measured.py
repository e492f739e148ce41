"""Limits on what only a built or traced model shows: search until the chosen design measures within them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from leanify.design import profiling, search
from leanify.design.amounts import BYTES, TIMES, Budget, parse_budget
from leanify.design.grid import Request
from leanify.design.prices import PriceList
from leanify.errors import BudgetError
from leanify.lens import surgery
from leanify.upstream.inputs import example_inputs


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
        model = surgery.write(prices.appraiser.model, outcome.chosen.applied_to(prices.architecture))
        over = max(limit.measure(model) / limit.limit for limit in measured)
        if over <= 1:
            return outcome
        request = replace(request, max_macs=int(outcome.chosen.cost.macs * min(0.98, 0.5 + 0.5 / over)))
    asked = " and ".join(f"{limit.name} {limit.limit:.4g} {limit.unit}" for limit in measured)
    raise BudgetError(f"no design was found within {asked}; the last one tried was {over:.2f} times over; loosen it")
