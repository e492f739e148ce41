"""`redesign`: a source and a budget in, a plan out.

find → price → search → choose → (build → save)

Where the prices are known (`price_cache`), nothing here imports torch; `Plan.build` does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.design.options import Options, parameters
from leanify.design.plan import Plan
from leanify.design.prices import cache as price_cache
from leanify.design.prices.facts import Appraiser
from leanify.design.prices.price_list import PriceList
from leanify.design.search import budget, search
from leanify.design.search.amounts import BYTES, COUNTS, Budget
from leanify.design.search.constraints import Constraints
from leanify.design.search.control import control as control_of
from leanify.design.search.design import Design, designer
from leanify.design.search.grid import Candidate, Designs, Request, turned_stages
from leanify.design.search.latency import Pace
from leanify.design.search.towers import towers
from leanify.design.search.warnings import warnings
from leanify.errors import BudgetError, ShapeError
from leanify.runs.recipe import Recipe
from leanify.terminal import track

if TYPE_CHECKING:
    from leanify.design.measure.limits import Timing
    from leanify.design.prices.cache import Source


def redesign(
    source: Source, options: Options | None = None, *, ranking: search.Ranking | None = None, **changes: Any
) -> Plan:
    """Trade layers for heads: the plan that ``leanify redesign`` prints. Nothing is built but on ``meta``.

    ``source`` is a name, a path, a recipe as a value or a resolved model. ``options``, and keyword arguments of the
    same names (``redesign("vit_base", target_params=0.5)``), are those of the command. A budget is a share of the
    baseline (``0.5``), a count (``43_000_000``, ``"43M"``), or for latency, memory and cache an amount (``"12ms"``,
    ``"8GB"``, ``"64KB"`` a token); ``"encoder=0.75,decoder=0.5"`` limits towers one by one. Latency is that of a
    forward pass, or of one more token (``latency_of``): a few shapes are timed, the search is on a line through them,
    and all designs that are shown are timed beside the baseline. Memory is predicted for a training step of batch 1.
    Pins fix a value: one, one a stage, or one a tower by name (``depth={"encoder": 5}``). ``overrides`` and ``cls``
    are those of `leanify.load`. ``ranking`` scores a grid of designs, the least is the best.

    Raises SourceError, UnsupportedModel, ShapeError, and BudgetError where no sensible design is within the limits.
    """
    options = replace(options or Options(), **changes)
    if options.asks_nothing:
        raise BudgetError("nothing is asked for: give a budget (--target-params 0.5) or a shape (--depth 7 --heads 16)")
    rules = Constraints(
        options.multiple, options.tensor_parallel, options.min_mlp, options.min_depth, options.max_heads
    )
    request = Request(count=options.count, heads_mode=options.heads_mode, constraints=rules, **options.pins)  # type: ignore[arg-type]
    budgets = _Budgets(options.target_params, options.max_macs, options.max_active, options.max_kv)
    max_latency, max_memory, tokens = options.max_latency, options.max_memory, options.tokens
    asked = price_cache.Asked(source, dict(options.overrides), options.cls, tokens, options.context)
    appraiser = price_cache.appraiser(asked)
    prices = _prices(source, appraiser, request)
    baseline = search.baseline(prices)
    request = budgets.limiting(request, prices, baseline)
    look = _Look(options.top, ranking, max_memory, tokens)
    timing = None
    if max_latency is None:
        outcome = look(prices, request)
    else:
        from leanify.design.measure.limits import timed_search

        pace = Pace(
            max_latency, options.batch_size, options.device, options.dtype, options.compiled, options.latency_of
        )
        prices, outcome, timing = timed_search(prices, request, pace, tokens, look, price_cache.key_of(asked))
        baseline = search.baseline(prices)
    control = control_of(prices, outcome.chosen, rules)
    plan = _plan(asked, options, prices, request, baseline, outcome, control, look)
    appraiser.keep()
    return plan if timing is None else _with_latencies(plan, baseline, outcome, control, pace, timing)


def _shown_signature() -> Any:
    """The signature of `redesign` with every option by its name, for ``help`` and the documentation."""
    shown = signature(redesign)
    own = [each for each in shown.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    return shown.replace(parameters=[*own, *parameters()])


redesign.__signature__ = _shown_signature()  # type: ignore[attr-defined]


@dataclass
class _Look:
    """A search, within a limit on training memory where there is one; ``seconds`` is what all of them took."""

    most: int
    ranking: search.Ranking | None
    max_memory: Budget
    tokens: int | None
    seconds: float = 0.0

    def __call__(self, prices: PriceList, request: Request) -> search.SearchResult:
        if self.max_memory is None:
            return self._timed(prices, request)
        from leanify.design.measure.limits import within_memory

        return within_memory(prices, request, self.max_memory, self.tokens, self._timed)

    def _timed(self, prices: PriceList, request: Request) -> search.SearchResult:
        began = time.perf_counter()
        found = search.search(prices, request, self.most, self.ranking)
        self.seconds += time.perf_counter() - began
        return found


def _name(source: Source) -> str:
    """What a source is called in a plan."""
    if isinstance(source, (str, Path)):
        return str(source)
    return source.model.source if isinstance(source, Recipe) else str(source.origin)


def _plan(
    asked: price_cache.Asked,
    options: Options,
    prices: PriceList,
    request: Request,
    baseline: Candidate,
    outcome: search.SearchResult,
    control: Candidate | None,
    look: _Look,
) -> Plan:
    design = designer(prices)
    return Plan(
        source=_name(asked.source),
        options=options,
        baseline=design(baseline),
        chosen=design(outcome.chosen),
        control=None if control is None else design(control),
        plain=None if outcome.plain is None else design(outcome.plain),
        plain_name=None if outcome.plain is None else search.plain_name(baseline, outcome.plain),
        candidates=[design(candidate) for candidate in outcome.front],
        warnings=list(warnings(prices, request, baseline, outcome, control)),
        searched=outcome.searched,
        seconds=look.seconds,
        tokens=prices.tokens[search.lead_of(prices)],
        inputs=prices.facts.inputs,
        towers=[tower.name for tower in towers(prices.architecture, prices.turned)],
        ranked_by="a ranking of the caller's own" if look.ranking is not None else search.ranked_by(prices),
        budget=budget.words_of(request, _spent(baseline, request.count)),
        asked=asked,
        prices=prices,
        request=request,
        candidate=outcome.chosen,
        ranking=look.ranking,
    )


def _with_latencies(
    plan: Plan,
    baseline: Candidate,
    outcome: search.SearchResult,
    control: Candidate | None,
    pace: Pace,
    timing: Timing,
) -> Plan:
    """The plan with the latency of every design in it, timed beside the baseline; of a decoder a token's too."""
    from leanify.design.measure.limits import token_seconds

    shown = [baseline, *outcome.front, *([control] if control else []), *([outcome.plain] if outcome.plain else [])]
    seconds = {c.designs: timing.watch.seconds(c.designs) for c in track(shown, "timing designs")}
    tokens: dict[Designs, float | None] = {}
    if plan.baseline.serving is not None and pace.what == "pass":
        found = token_seconds(plan.prices, pace, plan.asked.tokens, list(seconds))
        tokens = dict(zip(seconds, found, strict=True))

    def timed(design: Design | None, candidate: Candidate | None) -> Any:
        if design is None or candidate is None:
            return None
        return replace(
            design,
            latency_predicted_s=int(candidate.cost.ns) / 1e9,
            latency_s=seconds[candidate.designs],
            token_latency_s=tokens.get(candidate.designs),
        )

    return replace(
        plan,
        baseline=timed(plan.baseline, baseline),
        chosen=timed(plan.chosen, outcome.chosen),
        control=timed(plan.control, control),
        plain=timed(plan.plain, outcome.plain),
        candidates=[timed(design, one) for design, one in zip(plan.candidates, outcome.front, strict=True)],
        warnings=[*plan.warnings, *timing.warnings],
        timing=timing,
    )


def _prices(source: Source, appraiser: Appraiser, request: Request) -> PriceList:
    changed = turned_stages(appraiser.facts.architecture, request)
    stages = [appraiser.facts.architecture.stages[i] for i in changed]
    if request.heads is None and not any(s.shortest < s.depth or (s.primary and s.primary.mlp) for s in stages):
        raise ShapeError(
            f"{_name(source)} has nothing to trade for heads: its attentions stand in no list of blocks that could be "
            "shorter, and no MLP beside them is known; leanify.grow and leanify.write change its heads"
        )
    return PriceList(appraiser, changed)


def _spent(baseline: Candidate, count: str) -> int:
    return int(baseline.cost.params if count == "all" else baseline.cost.params_body)


@dataclass(frozen=True)
class _Budgets:
    """Budgets as the user wrote them."""

    target_params: Budget
    max_macs: Budget
    max_active: Budget
    max_kv: Budget

    def limiting(self, request: Request, prices: PriceList, baseline: Candidate) -> Request:
        """The request with these budgets, in absolute numbers."""
        target_params, max_kv = self.target_params, self.max_kv
        if isinstance(target_params, str) and "=" in target_params:
            request = replace(request, tower_params=budget.tower_limits(target_params, prices))
            target_params = None
            if self.max_macs or self.max_active or max_kv:
                raise BudgetError(
                    "budgets for single towers stand alone: leave out --max-macs, --max-active and --max-kv"
                )
        if max_kv is not None and not baseline.cost.kv:
            raise BudgetError(f"--max-kv {max_kv}: {prices.architecture.source} keeps no key/value cache")
        limit = budget.limit_of
        cached = limit("--max-kv", max_kv, baseline.cost.kv / prices.facts.context, BYTES)
        return replace(
            request,
            max_params=limit("--target-params", target_params, _spent(baseline, request.count), COUNTS),
            max_macs=limit("--max-macs", self.max_macs, baseline.cost.macs, COUNTS),
            max_active=limit("--max-active", self.max_active, baseline.cost.active, COUNTS),
            max_kv=cached and cached * prices.facts.context,
        )
