"""Limits that need a built or traced model: memory and latency.

Memory: the search is repeated until the chosen design is predicted to train within the limit. Latency: a few
shapes are timed, a line is fitted to them (`latency`), the search uses the line, and the design that it finds
is timed beside the baseline. Timings are kept in the user's cache, so that the same question has the same
answer; the check at the end is always made anew.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanify import machine
from leanify.design.measure import profiling
from leanify.design.measure.clock import Clock, Pair, Setting
from leanify.design.options import Options
from leanify.design.prices import cache
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Shape, StageShape, applied
from leanify.design.search import search
from leanify.design.search.amounts import BYTES, TIMES, parse_budget
from leanify.design.search.grid import grids_of
from leanify.design.search.latency import NANO, SHAPES, Timed, fit, shapes_to_time
from leanify.design.search.request import Request
from leanify.errors import BudgetError, LeanifyError
from leanify.lens import surgery
from leanify.terminal import track
from leanify.units import binary, percent

Search = Callable[[PriceList, Request], search.SearchResult]
WITHIN = (0.95, 1.02)  # share of the limit at which the chosen design may be measured
STILL_WITHIN = (0.92, 1.05)  # the same if timings were kept: the same question has the same answer
ATTEMPTS = 4
NOISY = 0.05
NO_LIMIT = {"ns": 10**18}  # every design is wanted


def setting_of(options: Options) -> Setting:
    """What is timed. Raises LeanifyError for a device or a type that does not exist here."""
    dtype = getattr(torch, options.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise LeanifyError(
            f"--dtype {options.dtype!r} is not a floating-point type of torch; try float32, bfloat16 or float16"
        )
    device = machine.device_of(options.device)
    return Setting(device, dtype, options.batch_size, options.compiled, options.tokens, options.latency_of)


class Stopwatch:
    """Times shapes of a price list beside the baseline, each once."""

    def __init__(self, prices: PriceList, setting: Setting) -> None:
        self.prices, self.clock = prices, Clock(prices.costs.model, setting)
        self.pairs: dict[Shape, Pair] = {}

    @cached_property
    def baseline(self) -> float:
        """Seconds of the baseline."""
        return self.clock.alone().baseline

    def pair(self, shape: Shape) -> Pair:
        """The baseline and this shape."""
        if shape not in self.pairs:
            self.pairs[shape] = self.clock.beside(applied(shape, self.prices.architecture))
        return self.pairs[shape]

    def seconds(self, shape: Shape) -> float:
        return self.baseline * self.pair(shape).ratio

    def relative(self, shape: Shape) -> Timed:
        """In multiples of the baseline's time."""
        pair = self.pair(shape)
        return Timed(shape, pair.ratio, pair.noise)


def token_seconds(prices: PriceList, options: Options, shapes: Sequence[Shape]) -> list[float | None]:
    """The time of one more token in each shape, the baseline's first; None if its cache is not understood."""
    try:
        watch = Stopwatch(prices, setting_of(replace(options, latency_of="token")))
        return [watch.seconds(shape) for shape in shapes]
    except LeanifyError:
        return [None] * len(shapes)


@dataclass(frozen=True)
class Timing:
    """How latencies were found.

    setting    what was timed, in words
    limit_s    the limit
    shapes     the number of shapes that the line was fitted to
    error      the largest relative error of the line on them
    """

    setting: str
    limit_s: float
    shapes: int
    error: float
    chosen: Shape = field(repr=False)
    watch: Stopwatch = field(repr=False, compare=False)

    @property
    def noise(self) -> float:
        """The relative difference between two halves of the chosen design's timings."""
        return self.watch.pair(self.chosen).noise

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("setting", "limit_s", "shapes", "error", "noise")}

    @property
    def warnings(self) -> list[str]:
        """What the user must know of the check at the end."""
        measured = self.watch.seconds(self.chosen)
        found = []
        if self.noise > NOISY:
            found.append(
                f"the machine is busy: timings scatter by {percent(self.noise)}, and latencies are as uncertain; "
                "a quiet machine, one thread (OMP_NUM_THREADS=1) or a larger --batch-size helps"
            )
        if measured > self.limit_s * STILL_WITHIN[1]:
            found.append(f"lean was measured {percent(measured / self.limit_s - 1)} above the limit on latency")
        return found


def timed_search(
    prices: PriceList, request: Request, find: Search, key: str | None
) -> tuple[PriceList, search.SearchResult, Timing]:
    """The prices with latency, what ``find`` finds with them, and how latency was found; ``key`` is that of the prices.

    Raises BudgetError if no sensible design is within the limit.
    """
    assert request.options.max_latency is not None
    setting = setting_of(request.options)
    watch = Stopwatch(prices, setting)
    limit = parse_budget("--max-latency", request.options.max_latency, watch.baseline, TIMES)
    file = None
    if key is not None:
        machine_words = [setting.words, setting.tokens, _chip(setting.device), torch.__version__]
        file = cache.place_of("latency", json.dumps([key, *machine_words]))
    timed = cache.kept(file, timed_in)
    least, most = STILL_WITHIN if timed else WITHIN
    if timed is None:
        grids = grids_of(prices, replace(request, limits={**request.limits, **NO_LIMIT}))
        timed = [watch.relative(shape) for shape in track(shapes_to_time(prices, grids), "timing shapes")]
    limited = replace(request, limits={**request.limits, "ns": round(NANO * limit)})
    for _ in range(ATTEMPTS):
        in_seconds = [replace(one, seconds=one.seconds * watch.baseline) for one in timed]
        latency = fit(prices, in_seconds)
        if len(timed) > SHAPES:  # a chosen design was timed after the first shapes: the line passes through the last
            last = in_seconds[-1]
            predicted = int(latency.applied_to(prices).total(last.shape).ns) / NANO
            latency = latency.scaled(last.seconds / predicted)
        priced = latency.applied_to(prices)
        result = find(priced, limited)
        chosen = result.chosen.shape
        if least <= watch.seconds(chosen) / limit <= most or timed[-1].shape == chosen:
            break
        timed.append(watch.relative(chosen))
    cache.keep(file, [[one.shape, one.seconds, one.noise] for one in timed])
    return priced, result, Timing(setting.words, limit, len(timed), latency.error, chosen, watch)


def _chip(device: torch.device) -> str:
    """The name of what computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return ""
    return platform.processor()


def timed_in(rows: Any) -> list[Timed]:
    timed = []
    for stages, seconds, noise in rows:
        shape = tuple(stage and StageShape(*stage) for stage in stages)
        timed.append(Timed(shape, float(seconds), float(noise)))
    return timed


def within_memory(prices: PriceList, request: Request, find: Search) -> search.SearchResult:
    """Search; while the chosen design is predicted to train above the limit, ask for one with fewer MACs."""
    options = request.options
    assert options.max_memory is not None

    def training_bytes(model: nn.Module) -> float:
        return profiling.predicted_training_bytes(model, 1, options.tokens, torch.cuda.is_available())

    limit = parse_budget("--max-memory", options.max_memory, training_bytes(prices.costs.model), BYTES)
    most = request.limits.get("macs") or int(prices.total(prices.baseline).macs)
    over = float("inf")
    for _ in range(12):
        try:
            result = find(prices, replace(request, limits={**request.limits, "macs": most}))
        except BudgetError:
            break
        over = training_bytes(surgery.write(prices.costs.model, result.chosen.architecture)) / limit
        if over <= 1:
            return result
        most = int(result.chosen.macs * min(0.98, 0.5 + 0.5 / over))
    tried = f"; the last one tried needs {over:,.2f} times as much" if over < float("inf") else ""
    raise BudgetError(f"no design was found within --max-memory {binary(limit)}{tried}; allow more")
