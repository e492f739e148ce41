"""What a search is asked for: the options, and their budgets in absolute numbers. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leanify.design.options import Options
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Cost
from leanify.design.search.amounts import BYTES, COUNTS, parse_budget
from leanify.design.search.rules import Rules
from leanify.design.search.towers import towers
from leanify.errors import BudgetError, ShapeError
from leanify.units import millions, operations, percent


@dataclass(frozen=True)
class Request:
    """What is asked of a search.

    limits        the largest allowed cost, by the name of the cost in `Cost`
    tower_params  the largest number of parameters in the blocks of single towers, by the tower's name
    """

    options: Options = field(default_factory=Options)
    limits: Mapping[str, int] = field(default_factory=dict)
    tower_params: Mapping[str, int] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        return Rules(self.options)

    @property
    def is_limited(self) -> bool:
        return bool(self.limits or self.tower_params)

    @property
    def wants_heads(self) -> bool:
        """Whether lean must have more heads: there is a budget, and the user fixed neither heads nor head_dim."""
        return self.is_limited and self.options.heads is None and self.options.head_dim is None

    @property
    def params_cost(self) -> str:
        """The cost that a budget on parameters limits."""
        return "params" if self.options.count == "all" else "params_body"


def request_of(prices: PriceList, options: Options, baseline: Cost) -> Request:
    """The options with their budgets in absolute numbers. Raises BudgetError, ShapeError."""
    request = Request(options)
    asked, tower_params = options.target_params, {}
    if isinstance(asked, str) and "=" in asked:
        tower_params, asked = _tower_limits(asked, prices), None
        if options.max_macs or options.max_active or options.max_kv:
            raise BudgetError("budgets for single towers stand alone: leave out --max-macs, --max-active and --max-kv")
    if options.max_kv is not None and not baseline.kv:
        raise BudgetError(f"--max-kv {options.max_kv}: {prices.architecture.source} keeps no key/value cache")
    context = prices.facts.context
    limits = {}
    for cost, flag, budget in (
        (request.params_cost, "--target-params", asked),
        ("macs", "--max-macs", options.max_macs),
        ("active", "--max-active", options.max_active),
    ):
        if budget is not None:
            limits[cost] = int(parse_budget(flag, budget, getattr(baseline, cost), COUNTS))
    if options.max_kv is not None:  # the budget is for one token
        limits["kv"] = context * int(parse_budget("--max-kv", options.max_kv, baseline.kv / context, BYTES))
    return Request(options, limits, tower_params)


def _tower_limits(value: str, prices: PriceList) -> dict[str, int]:
    """``encoder=0.75,decoder=20M`` → parameters in each tower's blocks. Raises BudgetError, ShapeError."""
    known = {tower.name: tower for tower in towers(prices.architecture, prices.changed)}
    limits: dict[str, int] = {}
    for part in value.split(","):
        asked, _, amount = (word.strip() for word in part.partition("="))
        names = [name for name in known if name == asked or (asked and name.startswith(asked))]
        if len(names) != 1:
            raise ShapeError(f"--target-params names a tower {asked!r}; this model has {', '.join(known)}")
        if names[0] in limits:
            raise BudgetError(f"--target-params {value}: two budgets for {names[0]}; give one")
        held = prices.held(known[names[0]].stages, "params")
        limits[names[0]] = int(parse_budget(f"--target-params {asked}", amount, held, COUNTS))
    return limits


def words_of(request: Request, baseline: Cost) -> str:
    """The budget on parameters in words; without one, that on what is counted instead."""
    if request.tower_params:
        parts = [f"{name} {millions(most)}" for name, most in request.tower_params.items()]
        return f"blocks of {', '.join(parts)}"
    most = request.limits.get(request.params_cost)
    if most is None:
        for cost, what in (("macs", "MACs"), ("active", "active parameters")):
            if (limit := request.limits.get(cost)) is not None:
                whole = getattr(baseline, cost)
                return f"budget {operations(limit)} {what}, {percent(limit / whole)} of {operations(whole)}"
        return "no budget on parameters"
    whole = getattr(baseline, request.params_cost)
    where = "" if request.params_cost == "params" else " in the blocks"
    return f"budget {millions(most)}{where}, {percent(most / whole)} of {millions(whole)}"
