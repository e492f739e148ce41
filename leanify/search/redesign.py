"""`redesign`: turn a source and options into a plan.

find → price → search → choose → (build → save)

If the prices are known (`prices.costs`), this module does not import torch; `Plan.build` does.
"""

from __future__ import annotations

import time
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.core.architecture import Architecture
from leanify.core.errors import ShapeError
from leanify.core.recipe import Recipe
from leanify.core.units import format_seconds as duration
from leanify.core.units import format_share
from leanify.profiling.cost_model import ModelCosts, price_file
from leanify.profiling.price_list import PriceList
from leanify.search import request as requests
from leanify.search import search
from leanify.search.control import control as control_of
from leanify.search.design import Design, make_design
from leanify.search.narrow import Narrow, find_narrower, narrow_remarks, narrowed_architecture, target_params
from leanify.search.options import BUDGETS, PINS, Options, check_names, parameters
from leanify.search.plan import Plan
from leanify.search.published import families_like
from leanify.search.ranking import Ranking, is_causal, lean_rule
from leanify.search.remarks import lean_needs, refusal, remarks, warnings
from leanify.search.request import Request
from leanify.search.towers import stages_to_change, towers

if TYPE_CHECKING:
    from leanify.profiling.cost_model import Source
    from leanify.profiling.live_model import LiveModel
    from leanify.search.measured_limits import Timing

HALF = 0.5  # default share of the parameters
# In decoders the balanced design comes first, since makers' smaller models are such ones; elsewhere lean does.
CAUSAL_ORDER = ("balanced", "plain", "narrow", "lean")
USUAL_ORDER = ("lean", "balanced", "narrow", "plain")


def redesign(
    source: Source,
    options: Options | None = None,
    *,
    ranking: Ranking | None = None,
    inputs: Any = None,
    rows: Any = None,
    **changes: Any,
) -> Plan:
    """Trade layers for heads, and return the plan that ``leanify redesign`` prints. Models are built on ``meta`` only.

    ``source`` is a name, a path, a recipe as a value, a resolved model, or a user's own module with ``inputs``, an
    example of its forward's input (and ``rows``, as in `leanify.read`); its MACs are counted on this example.
    ``options``, and keyword arguments of the same names (``redesign("vit_base", target_params=0.5)``), are the
    command's options. A budget is a share of the baseline (``0.5``), a count (``43_000_000``, ``"43M"``), or an amount
    for latency, memory and cache (``"12ms"``, ``"8GB"``, ``"64KB"`` per token); ``"encoder=0.75,decoder=0.5"`` limits
    towers separately. Latency is measured for a forward pass of one sample: the best designs are timed alternately with
    the baseline, and the designs within the limit are kept. Memory is predicted for a training step of batch 1. Without
    a budget or pin, the budget is half of the parameters. Pins fix a value: one number, one per stage, or one per tower
    by name (``depth={"encoder": 5}``). ``overrides`` are passed on as in `leanify.load`, with ``class`` for its
    ``cls``; ``tokens`` is the length of a text. ``ranking`` scores a grid of designs, lowest is best.

    Where no design with more heads is within the published bounds, ``lean`` is None, and plain, narrow and balanced
    remain. Raises SourceError, UnsupportedModel, ShapeError, and BudgetError if no design at all is within the limits.

    >>> import leanify
    >>> plan = leanify.redesign("vit_tiny", target_params=0.6)
    >>> plan.lean.depth < plan.baseline.depth and plan.lean.heads > plan.baseline.heads
    True
    """
    # the options, the prices of every shape of the source, and the limits that the options mean
    check_names("redesign", changes)
    options = replace(options or Options(), **changes)
    source = _attach_inputs(source, options, inputs, rows)
    costs = model_costs(source, options)
    prices = price_list(_name(source), costs, options)
    baseline = search.baseline_design(prices)
    options, narrow = _set_budget(prices, options)
    options = _pin_left_out_axes(prices, options)
    request = requests.make_request(prices, options, baseline.cost)
    budget = requests.describe_budget(request, baseline.cost)

    # with the axis of the width, the search goes through the shapes of a narrower model
    full_prices, start = prices, baseline
    if "width" in options.axis_names:
        prices = _narrowed_prices(source, prices, request)
        start = search.baseline_design(prices)

    # the best designs, lean's rivals, and the row that is listed first
    result, seconds, request, timing = _find(prices, request, ranking)
    lean, plain = result.lean, result.plain
    control_shape = None if lean is None else control_of(prices, lean.shape, request.rules, request.limits)
    control = None if control_shape is None else make_design(prices, control_shape)
    narrower = _find_narrower(full_prices, request, result, narrow)
    follows = "a ranking of the caller's own"
    if ranking is None:
        follows = lean_rule(prices)
        if "width" in options.axis_names:
            follows += f"; its width is {'pinned' if options.width is not None else 'as in published families'}"
    first = _first(full_prices, request, result, narrower, follows, ranking is not None)
    if first is None:
        raise refusal(prices, request, [rival.reason for rival in narrower.values() if rival.reason])
    first_name, chosen, reason = first
    needs = None if lean is not None else lean_needs(prices, request)

    # bounds that are crossed, what lean costs, and why a rival is missing
    warning_list = [*warnings(prices, request, start, lean), *prices.facts.notes]
    remark_list = [reason] if reason else []
    if needs is not None:
        remark_list.append(f"no lean: {needs}")
    remark_list += remarks(prices, request, start, result, control)
    target = target_params(full_prices, lean, request)
    for name, rival in narrower.items():
        if name == "balanced" and narrower["narrow"].design is None:
            continue  # it is missing for the same reason
        for remark in narrow_remarks(name, rival, baseline.architecture, target, lean is not None, request):
            remark_list.append(remark.replace(prices.architecture.source, _name(source)))  # named without its path

    # measured latencies
    if timing is not None:
        if not (options.target_params or options.max_macs):
            limit, full = timing.limit_s, timing.clock.baseline
            budget = f"budget {duration(limit)} a pass, {format_share(limit / full)} of {duration(full)}"
        baseline, control = timing.time_design(baseline), control and timing.time_design(control)
        warning_list += timing.warnings(chosen)

    # the designs after the first; without lean the best of each depth
    others = [design for design in result.front if design.architecture != chosen.architecture]
    if lean is None and not request.is_measured:
        others = list({str(design.depth): design for design in reversed(others)}.values())[::-1]
    changed_towers = towers(prices.architecture, prices.stage_indices)
    plan = Plan(
        source=_name(source),
        options=options,
        baseline=baseline,
        first=first_name,
        reason=reason,
        chosen=chosen,
        lean=lean,
        control=control,
        narrow=narrower["narrow"].design,
        balanced=narrower["balanced"].design,
        plain=plain,
        plain_name=None if plain is None else search.plain_name(start, plain),
        candidates=[chosen, *others][: options.top],
        warnings=warning_list,
        remarks=remark_list,
        searched=result.searched,
        seconds=seconds,
        tokens=prices.tokens[changed_towers[0].lead],
        inputs=prices.facts.inputs,
        towers=[tower.name for tower in changed_towers],
        follows=follows,
        needs=needs,
        budget=budget,
        source_value=source,
        prices=prices,
        request=request,
        ranking=ranking,
        timing=timing,
    )
    costs.keep()
    return plan


_shown = signature(redesign)  # all options by name, for ``help`` and the documentation
_own = [each for each in _shown.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
redesign.__signature__ = _shown.replace(parameters=[*_own, *parameters()])  # type: ignore[attr-defined]


def model_costs(source: Source, options: Options, shape: Architecture | None = None) -> ModelCosts:
    """Return the costs of a source, or of its model in another ``shape``, under the options that change the model;
    errors of building it are passed on.
    """

    def make() -> tuple[LiveModel, bool]:
        live, is_lasting = live_model(source, options)
        return live if shape is None else live.written(shape), is_lasting

    return ModelCosts(make, price_file(source, options.overrides, options.tokens, options.context, shape))


def live_model(source: Source, options: Options) -> tuple[LiveModel, bool]:
    """Return the model on meta, and whether it is on this machine. Raises ShapeError for one that cannot run."""
    from leanify.profiling.live_model import LiveModel
    from leanify.sources import find
    from leanify.upstream.inputs import check_tokens

    model_source = find.find(source, overrides=options.overrides)
    model = find.build_on_meta(model_source)
    check_tokens(model, options.tokens)
    live = LiveModel(model, options.tokens, options.context)
    for layer in live.located_model.architecture.layers():
        if layer.kv_heads > layer.heads:
            raise ShapeError(
                f"{model_source.origin.name} has {layer.heads} heads on {layer.kv_heads} key/value heads, which no "
                "attention can compute: --override one of them (num_attention_heads, num_key_value_heads)"
            )
    return live, not isinstance(model_source.weights, str)


def _attach_inputs(source: Source, options: Options, inputs: Any, rows: Any) -> Source:
    """Return the source, as a module that has been read if it is a module or an input was passed for it."""
    if inputs is None and rows is None and isinstance(source, (str, Path, Recipe)):
        return source
    from torch import nn

    from leanify.reshaping import surgery
    from leanify.sources import find

    if isinstance(source, (str, Path)):
        source = find.load(source, overrides=options.overrides)
    if isinstance(source, nn.Module):
        surgery.read(source, inputs, rows)
    return source


def _name(source: Source) -> str:
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, Recipe):
        return source.model.source
    named_source: Any = source
    return str(named_source.origin) if hasattr(named_source, "origin") else type(named_source).__name__


def price_list(name: str, costs: ModelCosts, options: Options) -> PriceList:
    """Return the prices of a model's shapes, of the stages that the options may change. Raises ShapeError."""
    architecture = costs.facts.architecture
    stage_indices = stages_to_change(architecture, options.pins)
    stages = [architecture.stages[i] for i in stage_indices]
    has_something_to_trade = any(s.shortest < s.depth or (s.primary and s.primary.mlp) for s in stages)
    if options.heads is None and not has_something_to_trade:
        raise ShapeError(
            f"{name} has nothing to trade for heads: its attentions are not in a list of blocks that could be "
            "shorter, and no MLP beside them is known; leanify.grow and leanify.write change its heads"
        )
    return PriceList(costs, stage_indices)


def _set_budget(prices: PriceList, options: Options) -> tuple[Options, Narrow | None]:
    """Return the options with a budget, and narrow where its width gives it: otherwise half of the parameters."""
    if any(getattr(options, name) is not None for name in (*BUDGETS, *PINS)):
        return options, None
    if options.width is None:
        return replace(options, target_params=HALF), None
    narrow = find_narrower("narrow", prices, None, Request(options))
    return (options if narrow.design is None else replace(options, target_params=narrow.design.params)), narrow


def _pin_left_out_axes(prices: PriceList, options: Options) -> Options:
    """Return the options with the baseline's sizes pinned along the axes that lean may not change."""
    pins: dict[str, Any] = {}
    for axis in ("depth", "heads", "mlp"):
        if axis not in options.axis_names:
            if getattr(options, axis) is not None:
                raise ShapeError(f"--axes {options.axes} leaves out {axis}, and --{axis} fixes it: give one of them")
            pins[axis] = [None if stage is None else getattr(stage, axis) for stage in prices.baseline]
    return replace(options, **pins)


def _narrowed_prices(source: Source, prices: PriceList, request: Request) -> PriceList:
    """Return the prices of the model at the width for the request's budget. Raises ShapeError without a budget."""
    options = request.options
    if not request.limits or options.max_latency is not None or options.max_memory is not None:
        raise ShapeError("--axes width needs a budget on parameters or MACs, and no other: --target-params 0.5")
    costs = model_costs(source, options, narrowed_architecture(prices, request))
    narrowed_prices = PriceList(costs, prices.stage_indices, has_own_width=False)
    costs.keep()
    return narrowed_prices


# -- the designs ------------------------------------------------------------------------------------------------------


def _find(
    prices: PriceList, request: Request, ranking: Ranking | None
) -> tuple[search.SearchResult, float, Request, Timing | None]:
    """Return the best designs, the seconds of the search, and, with a measured limit, its request and timings."""
    seconds = 0.0

    def find(request: Request, top: int) -> search.SearchResult:
        nonlocal seconds
        began = time.perf_counter()
        result = search.search(prices, request, top, ranking)
        seconds += time.perf_counter() - began
        return result

    options = request.options
    if not request.is_measured:
        result = find(request, options.top)
        return result, seconds, request, None
    # limits that require a model to measure
    from leanify.search.measured_limits import MemoryLimit, limit_latency, limit_memory

    memory = None if options.max_memory is None else MemoryLimit(prices, options)

    def find_within_memory(request: Request, top: int) -> search.SearchResult:
        return find(request, top) if memory is None else limit_memory(prices, request, find, top, memory)

    if options.max_latency is None:
        result = find_within_memory(request, options.top)
        return result, seconds, request, None
    result, request, timing = limit_latency(prices, request, find_within_memory, memory)
    return result, seconds, request, timing


def _find_narrower(
    prices: PriceList, request: Request, result: search.SearchResult, narrow: Narrow | None
) -> dict[str, Narrow]:
    """Return narrow and balanced. With pinned sizes only what has them is a design, so nothing is balanced."""
    balanced = Narrow(None)
    if narrow is None and (result.front or request.wants_heads):
        narrow = find_narrower("narrow", prices, result.lean, request)
    if request.wants_heads and not request.is_pinned:
        balanced = find_narrower("balanced", prices, result.lean, request)
    return {"narrow": narrow or Narrow(None), "balanced": balanced}


def _first(
    prices: PriceList,
    request: Request,
    result: search.SearchResult,
    narrower: dict[str, Narrow],
    follows: str,
    is_own_order: bool,
) -> tuple[str, Design, str] | None:
    """Return the row that is listed first, never one above the budget: its name, its design, and why it is first.

    With ``is_own_order`` a ranking of the caller's own decides, so lean comes first. No reason is given if the user's
    pins chose the row. None if no design at all is within the limits.
    """
    designs = {"lean": result.lean, "plain": result.plain}
    # the others keep no budget of a single tower and no pin, and neither their latency nor their memory is known
    if not (request.is_measured or request.is_pinned or request.tower_params):
        designs |= {name: one.design for name, one in narrower.items()}
    present: dict[str, Design] = {}
    for name, design in designs.items():
        if design is not None and all(getattr(design.cost, cost) <= limit for cost, limit in request.limits.items()):
            present[name] = design
    if not request.wants_heads and "lean" in present:
        return "lean", present["lean"], ""
    # the first of the usual order that there is, and why
    causal = is_causal(prices) and not is_own_order
    order = CAUSAL_ORDER if causal else USUAL_ORDER
    first = next((name for name in order if name in present), None)
    if first is None or not request.wants_heads:
        return ("also", result.front[0], "") if result.front else None
    families = ", ".join(dict.fromkeys(family.name for family in families_like(prices)))
    old_heads = "it keeps the baseline's heads, which lost least on causal tasks" if causal else "it has the old heads"
    reasons = {
        "lean": f"it follows {follows}",
        "balanced": f"makers of smaller models take from width and depth alike ({families})",
        "narrow": "it keeps every layer, and none can be left out at this budget",
        "plain": old_heads,
    }
    return first, present[first], f"{first} is first: {reasons[first]}"
