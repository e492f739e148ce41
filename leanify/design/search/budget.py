"""Parse budgets: shares of the baseline or amounts, for the whole model or for one tower. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from leanify.design.prices.price_list import PriceList
from leanify.design.search.amounts import COUNTS, Budget, parse_budget
from leanify.design.search.grid import Request
from leanify.design.search.towers import towers
from leanify.errors import BudgetError, ShapeError
from leanify.units import millions


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
