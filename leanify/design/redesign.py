"""`redesign`: a source and its options in, a plan out.

find → price → search → choose → (build → save)

If the prices are known (`prices.costs`), nothing here imports torch; `Plan.build` does.
"""

from __future__ import annotations

import time
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.design.options import Options, check_names, parameters
from leanify.design.plan import Plan
from leanify.design.prices.costs import ModelCosts
from leanify.design.prices.of_source import costs_of
from leanify.design.prices.price_list import PriceList
from leanify.design.search import request as requests
from leanify.design.search import search
from leanify.design.search.control import control as control_of
from leanify.design.search.design import Design, design_of
from leanify.design.search.ranking import Ranking, ranked_by, recommendation
from leanify.design.search.request import Request
from leanify.design.search.towers import changed_stages, towers
from leanify.design.search.warnings import warnings
from leanify.errors import ShapeError
from leanify.runs.recipe import Recipe
from leanify.terminal import track

if TYPE_CHECKING:
    from leanify.design.measure.limits import Timing
    from leanify.design.prices.cache import Source

HALF = 0.5  # of the parameters, if nothing is asked for


def redesign(
    source: Source,
    options: Options | None = None,
    *,
    ranking: Ranking | None = None,
    inputs: Any = None,
    rows: Any = None,
    **changes: Any,
) -> Plan:
    """Trade layers for heads: the plan that ``leanify redesign`` prints. Nothing is built but on ``meta``.

    ``source`` is a name, a path, a recipe as a value or a resolved model. ``options``, and keyword arguments of the
    same names (``redesign("vit_base", target_params=0.5)``), are those of the command. A budget is a share of the
    baseline (``0.5``), a count (``43_000_000``, ``"43M"``), or for latency, memory and cache an amount (``"12ms"``,
    ``"8GB"``, ``"64KB"`` a token); ``"encoder=0.75,decoder=0.5"`` limits towers one by one. Latency is that of a
    forward pass, or of one more token (``latency_of``): a few shapes are timed, the search uses a line through them,
    and all designs that are shown are timed beside the baseline. Memory is predicted for a training step of batch 1.
    With neither a budget nor a pin it is half of the parameters.
    Pins fix a value: one number, one for each stage, or one for each tower by name (``depth={"encoder": 5}``).
    ``overrides`` and ``cls`` are those of `leanify.load`. ``ranking`` scores a grid of designs, lowest is best.
    A module of the user's own is a source too, with ``inputs``, an example of what its forward takes (and ``rows``, as
    in `leanify.read`); its MACs are those of that example.

    Raises SourceError, UnsupportedModel, ShapeError, and BudgetError if no sensible design is within the limits.

    >>> import leanify
    >>> plan = leanify.redesign("vit_tiny", target_params=0.6)
    >>> plan.chosen.depth < plan.baseline.depth and plan.chosen.heads > plan.baseline.heads
    True
    """
    check_names("redesign", changes)
    options = replace(options or Options(), **changes)
    source = _with_inputs(source, options, inputs, rows)
    if options.asks_nothing:
        options = replace(options, target_params=HALF)
    costs = costs_of(source, options)
    prices = _prices(_name(source), costs, options)
    baseline = search.baseline_of(prices)
    request = requests.request_of(prices, options, baseline.cost)
    find = _Search(options, ranking)
    timing = None
    if options.max_latency is None:
        result = find(prices, request)
    else:
        from leanify.design.measure.limits import timed_search

        prices, result, timing = timed_search(prices, request, find, costs.key)
    shape = control_of(prices, result.chosen.shape, request.rules)
    control = None if shape is None else design_of(prices, shape)
    plan = Plan(
        source=_name(source),
        options=options,
        baseline=baseline,
        chosen=result.chosen,
        control=control,
        plain=result.plain,
        plain_name=None if result.plain is None else search.plain_name(baseline, result.plain),
        candidates=result.front,
        warnings=list(warnings(prices, request, baseline, result, control)),
        searched=result.searched,
        seconds=find.seconds,
        tokens=prices.tokens[towers(prices.architecture, prices.changed)[0].lead],
        inputs=prices.facts.inputs,
        towers=[tower.name for tower in towers(prices.architecture, prices.changed)],
        recommended=recommendation(prices, result.recommended, ranking),
        ranked_by="a ranking of the caller's own" if ranking is not None else ranked_by(prices),
        budget=requests.words_of(request, baseline.cost),
        given=source,
        prices=prices,
        request=request,
        ranking=ranking,
    )
    costs.keep()
    return plan if timing is None else _timed(plan, timing)


def _with_inputs(source: Source, options: Options, inputs: Any, rows: Any) -> Source:
    """The source; as a module that is read, where it is one or where its input is given."""
    if inputs is None and rows is None and isinstance(source, (str, Path, Recipe)):
        return source
    from torch import nn

    from leanify.lens import surgery
    from leanify.sources import find

    if isinstance(source, (str, Path)):
        source = find.load(source, overrides=options.overrides, cls=options.cls)
    if isinstance(source, nn.Module):
        surgery.read(source, inputs, rows)
    return source


def _show_options() -> None:
    """Show every option by its name in the signature of `redesign`, for ``help`` and the documentation."""
    shown = signature(redesign)
    own = [each for each in shown.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    redesign.__signature__ = shown.replace(parameters=[*own, *parameters()])  # type: ignore[attr-defined]


_show_options()


class _Search:
    """A search, within a limit on training memory if there is one; ``seconds`` is the time of all of them."""

    def __init__(self, options: Options, ranking: Ranking | None) -> None:
        self.options, self.ranking, self.seconds = options, ranking, 0.0

    def __call__(self, prices: PriceList, request: Request) -> search.SearchResult:
        if self.options.max_memory is None:
            return self._search(prices, request)
        from leanify.design.measure.limits import within_memory

        return within_memory(prices, request, self._search)

    def _search(self, prices: PriceList, request: Request) -> search.SearchResult:
        began = time.perf_counter()
        found = search.search(prices, request, self.options.top, self.ranking)
        self.seconds += time.perf_counter() - began
        return found


def _name(source: Source) -> str:
    """The name of a source in a plan."""
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, Recipe):
        return source.model.source
    found: Any = source
    return str(found.origin) if hasattr(found, "origin") else type(found).__name__


def _prices(name: str, costs: ModelCosts, options: Options) -> PriceList:
    architecture = costs.facts.architecture
    changed = changed_stages(architecture, options.pins)
    stages = [architecture.stages[i] for i in changed]
    has_something_to_trade = any(s.shortest < s.depth or (s.primary and s.primary.mlp) for s in stages)
    if options.heads is None and not has_something_to_trade:
        raise ShapeError(
            f"{name} has nothing to trade for heads: its attentions stand in no list of blocks that could be "
            "shorter, and no MLP beside them is known; leanify.grow and leanify.write change its heads"
        )
    return PriceList(costs, changed)


def _timed(plan: Plan, timing: Timing) -> Plan:
    """The plan with the latency of every design, timed beside the baseline; for a decoder also that of a token."""
    from leanify.design.measure.limits import token_seconds

    shown = [plan.baseline, *plan.candidates, *(design for design in (plan.control, plan.plain) if design)]
    shapes = list(dict.fromkeys(design.shape for design in shown))
    seconds = {shape: timing.watch.seconds(shape) for shape in track(shapes, "timing designs")}
    tokens: dict[Any, float | None] = {}
    if plan.baseline.serving is not None and plan.options.latency_of == "pass":
        tokens = dict(zip(shapes, token_seconds(plan.prices, plan.options, shapes), strict=True))

    def timed(design: Design) -> Design:
        return replace(
            design,
            latency_predicted_s=int(plan.prices.total(design.shape).ns) / 1e9,
            latency_s=seconds[design.shape],
            token_latency_s=tokens.get(design.shape),
        )

    return replace(
        plan,
        baseline=timed(plan.baseline),
        chosen=timed(plan.chosen),
        control=plan.control and timed(plan.control),
        plain=plan.plain and timed(plan.plain),
        candidates=[timed(design) for design in plan.candidates],
        warnings=[*plan.warnings, *timing.warnings],
        timing=timing,
    )
