"""The request of a search: the options, with their budgets in absolute numbers. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leanify.core.errors import BudgetError, ShapeError
from leanify.core.units import format_count, format_operations, format_share
from leanify.profiling.cost import Cost
from leanify.profiling.price_list import PriceList
from leanify.search.options import BYTES, COUNTS, Options, parse_budget
from leanify.search.rules import Rules
from leanify.search.towers import towers


@dataclass(frozen=True)
class Request:
    """The request of a search.

    limits        the largest allowed cost, by the name of the cost in `Cost`
    tower_params  the largest number of parameters in a tower's blocks, by the tower's name
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
    def is_pinned(self) -> bool:
        return any(pin is not None for pin in self.options.pins.values())

    @property
    def is_measured(self) -> bool:
        """Whether a limit needs a model to measure."""
        return self.options.max_memory is not None or self.options.max_latency is not None

    @property
    def params_cost(self) -> str:
        """The name of the cost that a budget on parameters limits."""
        return "params" if self.options.count == "all" else "params_body"


def make_request(prices: PriceList, options: Options, baseline: Cost) -> Request:
    """Return the options with their budgets in absolute numbers. Raises BudgetError, ShapeError."""
    request = Request(options)
    target, tower_params = options.target_params, {}
    if isinstance(target, str) and "=" in target:
        tower_params, target = _tower_limits(target, prices), None
        if options.max_macs or options.max_kv:
            raise BudgetError(
                "budgets for single towers cannot be combined with others: leave out --max-macs and --max-kv"
            )
    if options.max_kv is not None and not baseline.kv:
        raise BudgetError(f"--max-kv {options.max_kv}: {prices.architecture.source} keeps no key/value cache")
    limits: dict[str, int] = {}
    params = request.params_cost
    if target is not None:
        limits[params] = int(parse_budget("--target-params", target, getattr(baseline, params), COUNTS))
    if options.max_macs is not None:
        limits["macs"] = int(parse_budget("--max-macs", options.max_macs, baseline.macs, COUNTS))
    if options.max_kv is not None:  # the budget counts one token
        context = prices.facts.context
        limits["kv"] = context * int(parse_budget("--max-kv", options.max_kv, baseline.kv / context, BYTES))
    return Request(options, limits, tower_params)


def _tower_limits(value: str, prices: PriceList) -> dict[str, int]:
    """Parse ``encoder=0.75,decoder=20M`` into the parameters of each tower's blocks. Raises BudgetError, ShapeError."""
    towers_by_name = {tower.name: tower for tower in towers(prices.architecture, prices.stage_indices)}
    limits: dict[str, int] = {}
    for part in value.split(","):
        tower_name, _, amount = (word.strip() for word in part.partition("="))
        names = [name for name in towers_by_name if name == tower_name or (tower_name and name.startswith(tower_name))]
        if len(names) != 1:
            raise ShapeError(
                f"--target-params names a tower {tower_name!r}; this model has {', '.join(towers_by_name)}"
            )
        if names[0] in limits:
            raise BudgetError(f"--target-params {value}: two budgets for {names[0]}; give one")
        embedding_params = prices.fixed_cost(towers_by_name[names[0]].stages, "params")
        limits[names[0]] = int(parse_budget(f"--target-params {tower_name}", amount, embedding_params, COUNTS))
    return limits


def describe_budget(request: Request, baseline: Cost) -> str:
    """Describe the budget on parameters, or the budget on another cost if there is none."""
    if request.tower_params:
        parts = [f"{name} {format_count(limit_params)}" for name, limit_params in request.tower_params.items()]
        return f"blocks of {', '.join(parts)}"
    max_params = request.limits.get(request.params_cost)
    if max_params is None:
        if (limit := request.limits.get("macs")) is not None:
            share = format_share(limit / baseline.macs)
            return f"budget {format_operations(limit)} MACs, {share} of {format_operations(baseline.macs)}"
        return "no budget on parameters"
    baseline_params = getattr(baseline, request.params_cost)
    where = "" if request.params_cost == "params" else " in the blocks"
    share = format_share(max_params / baseline_params)
    return f"budget {format_count(max_params)}{where}, {share} of {format_count(baseline_params)}"
