"""Limits that need a built or traced model: memory and latency.

Memory: the search is repeated until the best design is predicted to train within the limit. Latency: the search
gets a limit in MACs, the best designs that it finds are timed alternately with the baseline, and the designs within
the latency limit are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from leanify.core.errors import BudgetError
from leanify.core.terminal import track
from leanify.core.units import format_bytes, format_seconds, format_share
from leanify.profiling.measuring import Clock, Pair
from leanify.profiling.price_list import PriceList
from leanify.profiling.training_memory import predict_training_bytes
from leanify.reshaping import surgery
from leanify.search.design import Design
from leanify.search.options import BYTES, TIMES, Options, parse_budget
from leanify.search.remarks import refusal
from leanify.search.request import Request
from leanify.search.search import SearchResult

Search = Callable[[Request, int], SearchResult]  # (request, top) → the best designs within it
MAX_TIMED = 20  # designs to time per search
ATTEMPTS = 5  # number of searches, each with another limit on MACs
SPENT = 0.9  # if the slowest timed design takes less than this share of the limit, more MACs are allowed
NOISY = 0.05


@dataclass(frozen=True)
class Timing:
    """The latencies of designs, each measured once in alternation with the baseline; ``limit_s`` is the limit."""

    limit_s: float
    clock: Clock = field(repr=False, compare=False)
    pairs: dict[str, Pair] = field(default_factory=dict, repr=False)

    def time_design(self, design: Design) -> Design:
        key = str(design.architecture)
        if key not in self.pairs:
            self.pairs[key] = self.clock.pair(design.architecture)
        return replace(design, latency_s=self.clock.baseline * self.pairs[key].ratio)

    def noise(self, design: Design) -> float:
        """Return the relative difference between the two halves of a design's timings."""
        return self.pairs[str(design.architecture)].noise

    def warnings(self, chosen: Design) -> list[str]:
        """Return a warning if the timings scatter too much."""
        noise = self.noise(chosen)
        if noise <= NOISY:
            return []
        return [
            f"the machine is busy: timings scatter by {format_share(noise)}, and latencies are as uncertain; a quiet "
            "machine or one thread (OMP_NUM_THREADS=1) helps"
        ]

    def to_json(self, design: Design) -> dict[str, Any]:
        return {
            "setting": self.clock.setting,
            "limit_s": self.limit_s,
            "shapes": len(self.pairs),
            "noise": self.noise(design),
        }


def limit_latency(
    prices: PriceList, request: Request, find: Search, memory: MemoryLimit | None
) -> tuple[SearchResult, Request, Timing]:
    """Return the best designs within ``--max-latency``, the request with its limit on MACs, and the timings.

    The best design is also within the memory limit, if there is one. Raises BudgetError if no timed design is within
    the limits.
    """
    assert request.options.max_latency is not None
    clock = Clock(prices.costs.live.model, request.options.tokens)
    limit = parse_budget("--max-latency", request.options.max_latency, clock.baseline, TIMES)
    timing = Timing(limit, clock)
    result: SearchResult | None = None
    fastest = float("inf")
    # first limit MACs to the same share as the latency, then adjust by the measurements
    largest = request.limits.get("macs") or int(prices.total(prices.baseline).macs)
    macs = largest * min(1.0, limit / clock.baseline)
    limited_request = request
    # up to 5 searches, until a design is within the limit and uses most of it
    for _ in range(ATTEMPTS):
        trial_request = replace(request, limits={**request.limits, "macs": int(macs)})
        designs = find(trial_request, MAX_TIMED)
        if not designs.front:
            if not timing.pairs:
                raise refusal(prices, trial_request, [])
            break
        # time the best designs; the memory limit rejects those at the front
        timed_designs = [timing.time_design(design) for design in track(designs.front, "timing designs")]
        latencies = [design.latency_s or 0.0 for design in timed_designs]
        fastest = min(fastest, *latencies)
        fits = [design for design, latency in zip(timed_designs, latencies, strict=True) if latency <= limit]
        while memory and fits and memory.share(fits[0]) > 1:
            fits = fits[1:]
        # within the limit: keep the result, and allow more MACs if the limit is not used up
        if fits:
            lean = None if designs.lean is None else fits[0]
            result, limited_request = replace(designs, lean=lean, front=fits), trial_request
            if max(latencies) >= SPENT * limit or macs >= largest:
                break
            macs = min(largest, macs * limit / max(latencies))
        elif result is not None:
            break
        else:
            macs *= 0.97 * min(1.0, limit / min(latencies))  # fast enough, but too large for the memory: fewer MACs
    if result is None:
        raise BudgetError(
            f"no design was measured within --max-latency {format_seconds(limit)}: the fastest of "
            f"{len(timing.pairs)} takes {format_seconds(fastest)}, {format_share(fastest / clock.baseline)} of the "
            "baseline; allow more"
        )
    plain = _plain_within(result.plain, limited_request, find, timing)
    return replace(result, plain=plain), limited_request, timing


def _plain_within(plain: Design | None, request: Request, find: Search, timing: Timing) -> Design | None:
    """Return the design without more heads, with fewer MACs if it is too slow; None if there is none."""
    # reduce the MACs until the design is fast enough
    for _ in range(ATTEMPTS):
        if plain is None:
            break
        plain = timing.time_design(plain)
        share = (plain.latency_s or 0.0) / timing.limit_s
        if share <= 1:
            return plain
        smaller = replace(request, limits={**request.limits, "macs": int(0.97 * plain.macs / share)})
        plain = find(smaller, 1).plain
    return None


class MemoryLimit:
    """A limit on the memory of training a design, predicted for batch 1."""

    def __init__(self, prices: PriceList, options: Options) -> None:
        assert options.max_memory is not None
        self._model, self._tokens = prices.costs.live.model, options.tokens
        self.bytes = parse_budget("--max-memory", options.max_memory, self._training_bytes(self._model), BYTES)

    def _training_bytes(self, model: nn.Module) -> int:
        return predict_training_bytes(model, 1, self._tokens, torch.cuda.is_available())

    def share(self, design: Design) -> float:
        """Return the memory of a design as a multiple of the limit."""
        return self._training_bytes(surgery.write(self._model, design.architecture)) / self.bytes


def limit_memory(prices: PriceList, request: Request, find: Search, top: int, limit: MemoryLimit) -> SearchResult:
    """Search again with fewer MACs until the best design is predicted to train within the limit."""
    # up to 12 searches; each cuts at most half of the MACs
    macs = request.limits.get("macs") or int(prices.total(prices.baseline).macs)
    share = float("inf")
    for _ in range(12):
        result = find(replace(request, limits={**request.limits, "macs": macs}), top)
        if not result.front:
            break
        share = limit.share(result.front[0])
        if share <= 1:
            return result
        macs = int(result.front[0].macs * min(0.98, 0.5 + 0.5 / share))
    trial_text = f"; the last one tried needs {share:,.2f} times as much" if share < float("inf") else ""
    raise BudgetError(f"no design was found within --max-memory {format_bytes(limit.bytes)}{trial_text}; allow more")
