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

from leanify.design.options import BUDGETS, Options, check_names, parameters
from leanify.design.plan import Plan
from leanify.design.prices import cache
from leanify.design.prices.costs import ModelCosts
from leanify.design.prices.price_list import PriceList
from leanify.design.search import request as requests
from leanify.design.search import search
from leanify.design.search.control import control as control_of
from leanify.design.search.design import Design, design_of
from leanify.design.search.ranking import Ranking, ranked_by, recommendation
from leanify.design.search.request import Request
from leanify.design.search.towers import PINS, changed_stages, towers
from leanify.design.search.warnings import warnings
from leanify.errors import ShapeError
from leanify.runs.recipe import Recipe
from leanify.terminal import track

if TYPE_CHECKING:
    from leanify.design.measure.limits import Timing
    from leanify.design.prices.cache import Source
    from leanify.design.prices.live import LiveModel

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

    ``source`` is a name, a path, a recipe as a value, a resolved model, or a module of the user's own with
    ``inputs``, an example of what its forward takes (and ``rows``, as in `leanify.read`); its MACs are those
    of that example. ``options``, and keyword arguments of the same names (``redesign("vit_base",
    target_params=0.5)``), are those of the command. A budget is a share of the baseline (``0.5``), a count
    (``43_000_000``, ``"43M"``), or for latency, memory and cache an amount (``"12ms"``, ``"8GB"``, ``"64KB"``
    a token); ``"encoder=0.75,decoder=0.5"`` limits towers one by one. Latency is that of a forward pass, or
    of one more token (``latency_of``): a few shapes are timed, the search uses a line through them, and all
    designs that are shown are timed beside the baseline. Memory is predicted for a training step of batch 1.
    With neither a budget nor a pin it is half of the parameters. Pins fix a value: one number, one for each
    stage, or one for each tower by name (``depth={"encoder": 5}``). ``overrides`` and ``cls`` are those of
    `leanify.load`. ``ranking`` scores a grid of designs, lowest is best.

    Raises SourceError, UnsupportedModel, ShapeError, and BudgetError if no sensible design is within the limits.

    >>> import leanify
    >>> plan = leanify.redesign("vit_tiny", target_params=0.6)
    >>> plan.chosen.depth < plan.baseline.depth and plan.chosen.heads > plan.baseline.heads
    True
    """
    check_names("redesign", changes)
    options = replace(options or Options(), **changes)
    source = _with_inputs(source, options, inputs, rows)
    if all(getattr(options, name) is None for name in (*BUDGETS, *PINS)):
        options = replace(options, target_params=HALF)
    costs = costs_of(source, options)
    prices = _prices(_name(source), costs, options)
    baseline = search.baseline_of(prices)
    request = requests.request_of(prices, options, baseline.cost)
    seconds = 0.0

    def find(prices: PriceList, request: Request) -> search.SearchResult:
        nonlocal seconds
        began = time.perf_counter()
        found = search.search(prices, request, options.top, ranking)
        seconds += time.perf_counter() - began
        return found

    def find_within_memory(prices: PriceList, request: Request) -> search.SearchResult:
        from leanify.design.measure.limits import within_memory

        return within_memory(prices, request, find)

    find_any = find if options.max_memory is None else find_within_memory
    timing = None
    if options.max_latency is None:
        result = find_any(prices, request)
    else:
        from leanify.design.measure.limits import timed_search

        prices, result, timing = timed_search(prices, request, find_any, costs.key)
    shape = control_of(prices, result.chosen.shape, request.rules)
    control = None if shape is None else design_of(prices, shape)
    changed_towers = towers(prices.architecture, prices.changed)
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
        seconds=seconds,
        tokens=prices.tokens[changed_towers[0].lead],
        inputs=prices.facts.inputs,
        towers=[tower.name for tower in changed_towers],
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


_shown = signature(redesign)  # every option by its name, for ``help`` and the documentation
_own = [each for each in _shown.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
redesign.__signature__ = _shown.replace(parameters=[*_own, *parameters()])  # type: ignore[attr-defined]


def costs_of(source: Source, options: Options) -> ModelCosts:
    """The costs of a source under the options that change its model; may raise what building it raises."""
    return ModelCosts(lambda: live_model(source, options), cache.file_of("prices", source, options))


def live_model(source: Source, options: Options) -> tuple[LiveModel, bool]:
    """The model itself on meta, and whether it is on this machine. Raises ShapeError for one that cannot run."""
    from leanify.design.prices.live import LiveModel
    from leanify.sources import find
    from leanify.upstream.inputs import check_tokens

    found = find.find(source, overrides=options.overrides, cls=options.cls)
    model = find.build_on_meta(found)
    check_tokens(model, options.tokens)
    live = LiveModel(model, options.tokens, options.context)
    for layer in live.located.architecture.layers():
        if layer.kv_heads > layer.heads:
            raise ShapeError(
                f"{found.origin.name} has {layer.heads} heads on {layer.kv_heads} key/value heads, which no attention "
                "can compute: --override one of them (num_attention_heads, num_key_value_heads)"
            )
    return live, not isinstance(found.weights, str)


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
    """The plan with the latency of every design, beside the baseline; of a decoder also that of a token."""
    from leanify.design.measure.limits import token_seconds

    shown = [plan.baseline, *plan.candidates, *(design for design in (plan.control, plan.plain) if design)]
    shapes = list(dict.fromkeys(design.shape for design in shown))
    seconds = {shape: timing.watch.seconds(shape) for shape in track(shapes, "timing designs")}
    of_tokens: dict[Any, float | None] = {}
    if plan.baseline.serving is not None and plan.options.latency_of == "pass":
        of_tokens = dict(zip(shapes, token_seconds(plan.prices, plan.options, shapes), strict=True))

    def timed(design: Design) -> Design:
        return replace(
            design,
            latency_predicted_s=int(plan.prices.total(design.shape).ns) / 1e9,
            latency_s=seconds[design.shape],
            token_latency_s=of_tokens.get(design.shape),
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
