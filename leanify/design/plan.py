"""`redesign`: a source and a budget in, a plan out; and the plan built.

find → price → search → choose → (build → save)

Where the prices are known (`price_cache`), no step before `build` imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leanify.architecture import Architecture
from leanify.design import budget, price_cache, search
from leanify.design.amounts import BYTES, COUNTS, Budget
from leanify.design.constraints import Constraints
from leanify.design.control import control as control_of
from leanify.design.facts import Appraiser
from leanify.design.grid import Candidate, Designs, HeadsMode, Request, turned_stages
from leanify.design.latency import Pace
from leanify.design.prices import PriceList
from leanify.design.serving import Serving, serving
from leanify.design.towers import Pin, towers
from leanify.design.warnings import warnings
from leanify.errors import BudgetError, LeanifyError, ShapeError
from leanify.terminal import track

if TYPE_CHECKING:
    from torch import nn

    from leanify.design.measured import Timing
    from leanify.sources.source import ModelSource

Carry = Callable[["nn.Module", Architecture], "nn.Module"]


@dataclass(frozen=True)
class Design:
    """One shape with its costs. The numbers are integers, or a list with one for every stage where stages differ.

    ``params_active`` are the parameters that one token meets; ``serving`` is None where nothing is cached; ``score`` is
    what the ranking goes by, the least is the best (see `search.rank`). Latencies are of the line that was fitted to
    timed shapes, as measured, and of one more token as measured; None where nothing was timed.
    """

    depth: int | list[int]
    heads: int | list[int]
    head_dim: int | list[int]
    inner: int | list[int]
    mlp: int | list[int]
    params: int
    params_body: int
    params_active: int
    macs: int
    kappa_predicted: float
    score: float
    architecture: Architecture
    serving: Serving | None = None
    latency_predicted_s: float | None = None
    latency_s: float | None = None
    token_latency_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity: an infinite κ is written as the string ``inf``."""
        plain = {name: value for name, value in vars(self).items() if name not in ("architecture", "serving")}
        kappa = "inf" if self.kappa_predicted == float("inf") else self.kappa_predicted
        served = vars(self.serving) if self.serving else dict.fromkeys(Serving.__dataclass_fields__)
        return {**plain, "kappa_predicted": kappa, **served, "architecture": self.architecture.to_json()}


@dataclass(frozen=True)
class Plan:
    """What `redesign` found, best candidate first.

    control   None where the stages have no MLP to widen, or lean has the baseline's heads
    plain     a design without more heads that ranks above lean, None where there is none; ``plain_name`` says which
    towers    the parts that change independently of each other, by name
    inputs    what the MACs are of, in words
    ranked_by the rule that ranked the designs, in words
    """

    source: str
    baseline: Design
    chosen: Design
    control: Design | None
    plain: Design | None
    plain_name: str | None
    candidates: list[Design]
    warnings: list[str]
    searched: int
    seconds: float
    tokens: int
    inputs: str
    towers: list[str]
    ranked_by: str
    budget: str
    asked: price_cache.Asked = field(repr=False)
    prices: PriceList = field(repr=False, compare=False)
    request: Request = field(repr=False)
    candidate: Candidate = field(repr=False, compare=False)
    ranking: search.Ranking | None = field(default=None, repr=False, compare=False)
    timing: Timing | None = None
    directory: str | None = None
    with_control: bool = False

    @cached_property
    def found(self) -> ModelSource:
        """What the source leads to; torch is imported here at the latest."""
        return self.asked.find()

    @property
    def name(self) -> str:
        """What the source is called: upstream's name, or that of the user's directory."""
        here = Path(self.source).expanduser()
        named = here.parent.resolve().name if here.is_file() else here.resolve().name
        return named if here.exists() else self.source if "/" in self.source else self.prices.facts.name

    def to_json(self) -> dict[str, Any]:
        """The object that ``redesign --json`` prints."""
        return {
            "source": self.source,
            "baseline": self.baseline.to_json(),
            "chosen": self.chosen.to_json(),
            "control": self.control and self.control.to_json(),
            "plain": self.plain and {"name": self.plain_name, **self.plain.to_json()},
            "candidates": [design.to_json() for design in self.candidates],
            "warnings": self.warnings,
            "directory": self.directory,
            "searched": self.searched,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "inputs": self.inputs,
            "towers": self.towers,
            "ranked_by": self.ranked_by,
            "timing": self.timing and self.timing.to_json(),
        }

    def build(
        self,
        weights: str | Path | None = None,
        seed: int = 0,
        pretrained: bool = False,
        design: Design | None = None,
        carry: Carry | None = None,
    ) -> nn.Module:
        """The chosen model, or another design of the plan: initialised by upstream, or with the weights of a SOURCE
        carried over by ``carry``, which makes a model of another shape from one with weights.
        """
        import torch

        from leanify.lens import surgery
        from leanify.sources import find
        from leanify.sources import weights as weights_of

        shape = (design or self.chosen).architecture
        torch.manual_seed(seed)
        if weights is not None or pretrained:
            if carry is None:
                return surgery.write(find.with_weights(self.found, weights, pretrained), shape)
            whole = weights_of.with_all_layers(
                lambda: find.with_weights(self.found, weights, pretrained), weights or self.source
            )
            return carry(whole, shape)
        return weights_of.fresh(replace(self.found, architecture=shape))

    def _streamed(self, weights: str | Path | None, seed: int, directory: str | Path, force: bool) -> bool:
        """Whether the weights lie in shards; they are then carried over tensor by tensor."""
        import torch

        from leanify.design.build import room_on_disk
        from leanify.sources import find, streaming

        if weights is None:
            return False
        found = replace(self.found, weights=find.find(weights).weights)
        shards = streaming.shards_of(found)
        if shards is None:
            return False
        size = sum(file.stat().st_size for file in set(shards.values()))
        room_on_disk(size * self.chosen.params // self.baseline.params, Path(directory))
        torch.manual_seed(seed)
        streaming.save(found, shards, self.chosen.architecture, Path(directory), force)
        return True

    def save(
        self,
        directory: str | Path,
        weights: str | Path | None = None,
        seed: int = 0,
        pretrained: bool = False,
        control: bool = False,
        force: bool = False,
        carry: Carry | None = None,
        model_type: str | None = None,
    ) -> Plan:
        """Build the chosen model and write it as a lean directory; the plan that knows where it lies.

        With ``control`` lean and control are written side by side, as ``lean`` and ``control`` in the directory; with
        ``force`` what leanify wrote there before is replaced. ``model_type`` writes it as another type of
        transformers that says the same shape. Raises LeanifyError where there is no control to write.
        """
        from leanify.design.build import room_for
        from leanify.sources import lean_directory

        lean_directory.check_new_directory(directory, force)
        if not control and carry is None and model_type is None and self._streamed(weights, seed, directory, force):
            return replace(self, directory=str(directory))
        if not control:
            room_for(4 * self.chosen.params, Path(directory))
            lean_directory.save(self.build(weights, seed, pretrained, None, carry), directory, force, model_type)
            return replace(self, directory=str(directory))
        if self.control is None:
            raise LeanifyError(f"there is no control to write beside lean ({'; '.join(self.warnings)})")
        room_for(4 * (self.chosen.params + self.control.params), Path(directory))
        with lean_directory.new_directory(directory, force) as folder:
            for name, design in (("lean", self.chosen), ("control", self.control)):
                lean_directory.save(
                    self.build(weights, seed, pretrained, design, carry), folder / name, False, model_type
                )
        return replace(self, directory=str(directory), with_control=True)


def redesign(
    source: str | Path,
    *,
    target_params: Budget = None,
    count: Literal["all", "body"] = "all",
    max_macs: Budget = None,
    max_latency: Budget = None,
    max_memory: Budget = None,
    max_active: Budget = None,
    max_kv: Budget = None,
    depth: Pin = None,
    heads: Pin = None,
    head_dim: Pin = None,
    mlp: Pin = None,
    heads_mode: HeadsMode = "grow",
    multiple: int | None = None,
    tensor_parallel: int | None = None,
    min_mlp: float | None = None,
    min_depth: int | None = None,
    max_heads: float = 3.0,
    context: int | None = None,
    batch_size: int = 1,
    device: str | None = None,
    dtype: str = "float32",
    compiled: bool = False,
    latency_of: Literal["pass", "token"] = "pass",
    top: int = 3,
    tokens: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    cls: str | None = None,
    ranking: search.Ranking | None = None,
) -> Plan:
    """Trade layers for heads: the plan that ``leanify redesign`` prints. Nothing is built but on ``meta``.

    A budget is a share of the baseline (``0.5``), a count (``43_000_000``, ``"43M"``), or for latency, memory and cache
    an amount (``"12ms"``, ``"8GB"``, ``"64KB"`` a token); ``"encoder=0.75,decoder=0.5"`` limits towers one by one.
    Latency is that of a forward pass, or of one more token (``latency_of``), at ``batch_size``, on ``device``, in
    ``dtype``: a few shapes are timed, the search is on a line through them, and all designs that are shown are timed
    beside the baseline. Memory is predicted for a training step of batch 1. Pins fix a value: one, one a
    stage, or one a tower by name. ``multiple``, ``tensor_parallel``, ``min_mlp``, ``min_depth`` and ``max_heads`` are
    the rules of `constraints.Constraints`. ``ranking`` scores a grid of designs, the least is the best.

    Raises SourceError, UnsupportedModel, ShapeError, and BudgetError where no sensible design is within the limits.
    """
    rules = Constraints(multiple, tensor_parallel, min_mlp, min_depth, max_heads)
    pins = (depth, heads, head_dim, mlp)
    budgets = (target_params, max_macs, max_latency, max_memory, max_active, max_kv)
    if all(asked is None for asked in (*pins, *budgets)):
        raise BudgetError("nothing is asked for: give a budget (--target-params 0.5) or a shape (--depth 7 --heads 16)")
    request = Request(
        count=count, heads_mode=heads_mode, depth=depth, heads=heads, head_dim=head_dim, mlp=mlp, constraints=rules
    )
    asked = price_cache.Asked(str(source), dict(overrides or {}), cls, tokens, context)
    appraiser = price_cache.appraiser(asked)
    prices = _prices(source, appraiser, request)
    baseline = search.baseline(prices)
    request = _with_limits(request, prices, baseline, target_params, max_macs, max_active, max_kv)
    seconds = 0.0

    def look(prices: PriceList, request: Request) -> search.SearchResult:
        nonlocal seconds
        began = time.perf_counter()
        found = search.search(prices, request, max(top, 1), ranking)
        seconds += time.perf_counter() - began
        return found

    def look_within(prices: PriceList, request: Request) -> search.SearchResult:
        if max_memory is None:
            return look(prices, request)
        from leanify.design.measured import within_memory

        return within_memory(prices, request, max_memory, tokens, look)

    timing = None
    if max_latency is None:
        outcome = look_within(prices, request)
    else:
        from leanify.design.measured import timed_search

        pace = Pace(max_latency, batch_size, device, dtype, compiled, latency_of)
        key = price_cache.key_of(asked)
        prices, outcome, timing = timed_search(prices, request, pace, tokens, look_within, key)
        baseline = search.baseline(prices)
    control = control_of(prices, outcome.chosen, rules)
    design = designer(prices)
    plan = Plan(
        source=str(source),
        baseline=design(baseline),
        chosen=design(outcome.chosen),
        control=None if control is None else design(control),
        plain=None if outcome.plain is None else design(outcome.plain),
        plain_name=None if outcome.plain is None else search.plain_name(baseline, outcome.plain),
        candidates=[design(candidate) for candidate in outcome.front],
        warnings=list(warnings(prices, request, baseline, outcome, control)),
        searched=outcome.searched,
        seconds=seconds,
        tokens=prices.tokens[search.lead_of(prices)],
        inputs=prices.facts.inputs,
        towers=[tower.name for tower in towers(prices.architecture, prices.turned)],
        ranked_by="a ranking of the caller's own" if ranking is not None else search.ranked_by(prices),
        budget=budget.words_of(request, _spent(baseline, count)),
        asked=asked,
        prices=prices,
        request=request,
        candidate=outcome.chosen,
        ranking=ranking,
    )
    appraiser.keep()
    return plan if timing is None else _with_latencies(plan, baseline, outcome, control, pace, timing)


def _with_latencies(
    plan: Plan,
    baseline: Candidate,
    outcome: search.SearchResult,
    control: Candidate | None,
    pace: Pace,
    timing: Timing,
) -> Plan:
    """The plan with the latency of every design in it, timed beside the baseline; of a decoder a token's too."""
    from leanify.design.measured import token_seconds

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


def _prices(source: str | Path, appraiser: Appraiser, request: Request) -> PriceList:
    changed = turned_stages(appraiser.facts.architecture, request)
    stages = [appraiser.facts.architecture.stages[i] for i in changed]
    if request.heads is None and not any(s.shortest < s.depth or (s.primary and s.primary.mlp) for s in stages):
        raise ShapeError(
            f"{source} has nothing to trade for heads: its attentions stand in no list of blocks that could be "
            "shorter, and no MLP beside them is known; leanify.grow and leanify.write change its heads"
        )
    return PriceList(appraiser, changed)


def _spent(baseline: Candidate, count: str) -> int:
    return int(baseline.cost.params if count == "all" else baseline.cost.params_body)


def _with_limits(
    request: Request,
    prices: PriceList,
    baseline: Candidate,
    target_params: Budget,
    max_macs: Budget,
    max_active: Budget,
    max_kv: Budget,
) -> Request:
    """The request with its budgets in absolute numbers."""
    if isinstance(target_params, str) and "=" in target_params:
        request = replace(request, tower_params=budget.tower_limits(target_params, prices))
        target_params = None
        if max_macs or max_active or max_kv:
            raise BudgetError("budgets for single towers stand alone: leave out --max-macs, --max-active and --max-kv")
    if max_kv is not None and not baseline.cost.kv:
        raise BudgetError(f"--max-kv {max_kv}: {prices.architecture.source} keeps no key/value cache")
    limit = budget.limit_of
    cached = limit("--max-kv", max_kv, baseline.cost.kv / prices.facts.context, BYTES)
    return replace(
        request,
        max_params=limit("--target-params", target_params, _spent(baseline, request.count), COUNTS),
        max_macs=limit("--max-macs", max_macs, baseline.cost.macs, COUNTS),
        max_active=limit("--max-active", max_active, baseline.cost.active, COUNTS),
        max_kv=cached and cached * prices.facts.context,
    )


def designer(prices: PriceList) -> Callable[[Candidate], Design]:
    """How candidates of a price list become designs."""

    def design(candidate: Candidate) -> Design:
        architecture = candidate.applied_to(prices.architecture)
        stages = [(stage.depth, stage.primary) for stage in architecture.stages]
        rows = [(d, m.heads, m.head_dim, m.inner, m.mlp) for d, m in stages if m is not None]
        depth, heads, head_dim, inner, mlp = (
            column[0] if len(set(column)) == 1 else list(column) for column in zip(*rows, strict=True)
        )
        c = candidate.cost
        costs = (c.params, c.params_body, c.active, c.macs, candidate.kappa, search.score(prices, candidate))
        return Design(depth, heads, head_dim, inner, mlp, *costs, architecture, serving(prices, candidate))

    return design
