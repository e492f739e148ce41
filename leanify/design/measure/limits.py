"""Limits that need a built or traced model: memory and latency.

Memory: the search goes on until the chosen design is predicted to train within the limit. Latency: a few shapes are
timed, a line is fitted to them (`latency`), the search is on that, and what it chose is timed beside the baseline. What
was timed is kept in the user's cache, so that the same question has the same answer; the check at the end is made anew.
"""

from __future__ import annotations

import contextlib
import json
import os
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
from leanify.design.prices import cache as price_cache
from leanify.design.prices.price_list import PriceList, StageDesign
from leanify.design.search import search
from leanify.design.search.amounts import BYTES, TIMES, parse_budget
from leanify.design.search.grid import Candidate, Designs, Request
from leanify.design.search.latency import NANO, SHAPES, Latency, Pace, Timed, corrected, fit, shapes_to_time
from leanify.errors import BudgetError, LeanifyError
from leanify.lens import surgery
from leanify.terminal import track

Search = Callable[[PriceList, Request], search.SearchResult]
WITHIN = (0.95, 1.02)  # of the limit: what is measured of the chosen design
STILL_WITHIN = (0.92, 1.05)  # the same where timings were kept: the same question has the same answer
ATTEMPTS = 4
NOISY = 0.05
FAR = 10**18  # nanoseconds: no limit, but every design is wanted


def setting_of(pace: Pace, tokens: int | None) -> Setting:
    """What is timed. Raises LeanifyError for a device or a type that is not here."""
    dtype = getattr(torch, pace.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise LeanifyError(
            f"--dtype {pace.dtype!r} is not a floating-point type of torch; try float32, bfloat16 or float16"
        )
    if pace.what not in ("pass", "token"):
        raise LeanifyError(f"--latency-of {pace.what!r} is none of pass, token")
    return Setting(machine.device_of(pace.device), dtype, pace.batch, pace.compiled, tokens, pace.what)


@dataclass
class Watch:
    """Times designs of a price list beside the baseline, each once."""

    prices: PriceList
    clock: Clock
    found: dict[Designs, Pair] = field(default_factory=dict)

    @cached_property
    def baseline(self) -> float:
        """Seconds of the baseline, the least so far."""
        return self.clock.alone().baseline

    def pair(self, designs: Designs) -> Pair:
        if designs not in self.found:
            shape = Candidate(designs, self.prices.base, 1.0).applied_to(self.prices.architecture)
            self.found[designs] = self.clock.beside(shape)
        return self.found[designs]

    def seconds(self, designs: Designs) -> float:
        return self.baseline * self.pair(designs).ratio

    def noise(self, designs: Designs) -> float:
        return self.pair(designs).noise


def token_seconds(prices: PriceList, pace: Pace, tokens: int | None, designs: Sequence[Designs]) -> list[float | None]:
    """What one more token takes in each design, the baseline's first; None where nothing is cached in a way we know."""
    try:
        watch = Watch(prices, Clock(prices.appraiser.model, setting_of(replace(pace, what="token"), tokens)))
        return [watch.seconds(one) for one in designs]
    except LeanifyError:
        return [None] * len(designs)


@dataclass(frozen=True)
class Timing:
    """How latencies were found: what was timed, the limit, the shapes fitted to, and how far the line misses them."""

    setting: str
    limit_s: float
    shapes: int
    error: float
    chosen: Designs = field(repr=False)
    watch: Watch = field(repr=False, compare=False)

    @property
    def noise(self) -> float:
        """How far two halves of the chosen design's timings lie apart."""
        return self.watch.noise(self.chosen)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("setting", "limit_s", "shapes", "error", "noise")}

    @property
    def warnings(self) -> list[str]:
        """What the user must know of the check at the end."""
        measured = self.watch.seconds(self.chosen)
        found = []
        if self.noise > NOISY:
            found.append(
                f"the machine is busy: timings scatter by {self.noise:.0%}, and latencies are as uncertain as that; "
                "a quiet machine, one thread (OMP_NUM_THREADS=1) or a larger --batch-size helps"
            )
        if measured > self.limit_s * STILL_WITHIN[1]:
            found.append(f"lean was measured {measured / self.limit_s - 1:.1%} above the limit on latency")
        return found


def timed_search(
    prices: PriceList, request: Request, pace: Pace, tokens: int | None, look: Search, key: str | None
) -> tuple[PriceList, search.SearchResult, Timing]:
    """The prices with latency, what ``look`` finds with them, and how latency was found.

    Raises BudgetError where no sensible design is within the limit.
    """
    setting = setting_of(pace, tokens)
    watch = Watch(prices, Clock(prices.appraiser.model, setting))
    limit = parse_budget("--max-latency", pace.budget, watch.baseline, TIMES)
    place = _place(key, setting)
    timed = _kept(*place) if place else None
    least, most = STILL_WITHIN if timed else WITHIN
    if timed is None:
        grids = search.grids_of(prices, replace(request, max_ns=FAR))
        shapes = shapes_to_time(prices, grids)
        timed = [_timed(watch, designs) for designs in track(shapes, "timing shapes")]
    for _ in range(ATTEMPTS):
        latency = _line(prices, timed, watch.baseline)
        priced = prices.timed(latency)
        outcome = look(priced, replace(request, max_ns=round(NANO * limit)))
        share = watch.seconds(outcome.chosen.designs) / limit
        if least <= share <= most or timed[-1].designs == outcome.chosen.designs:
            break
        timed.append(_timed(watch, outcome.chosen.designs))
    if place:
        with contextlib.suppress(OSError):
            price_cache.write(*place, [[one.designs, one.seconds, one.noise] for one in timed])
    return priced, outcome, Timing(setting.words, limit, len(timed), latency.error, outcome.chosen.designs, watch)


def _timed(watch: Watch, designs: Designs) -> Timed:
    """In multiples of the baseline's time."""
    pair = watch.pair(designs)
    return Timed(designs, pair.ratio, pair.noise)


def _line(prices: PriceList, timed: Sequence[Timed], baseline: float) -> Latency:
    """The fitted line in seconds of today; through the last shape, if one was chosen and timed after the first ones."""
    in_seconds = [replace(one, seconds=one.seconds * baseline) for one in timed]
    latency = fit(prices, in_seconds)
    if len(timed) <= SHAPES:
        return latency
    last = in_seconds[-1]
    said = int(prices.timed(latency).total(last.designs).ns) / NANO
    return corrected(latency, last.seconds / said)


def _place(key: str | None, setting: Setting) -> tuple[Path, str] | None:
    """Where timings are kept: by what is priced, what is timed, and on which machine."""
    if key is None or os.environ.get("LEANIFY_PRICES") == "off":
        return None
    whole = json.dumps([key, setting.words, setting.tokens, _chip(setting.device), torch.__version__])
    return price_cache.place_of("latency", whole), whole


def _chip(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return platform.processor()


def _kept(file: Path, key: str) -> list[Timed] | None:
    return price_cache.read(
        file,
        key,
        lambda rows: [
            Timed(tuple(design and StageDesign(*design) for design in designs), float(seconds), float(noise))
            for designs, seconds, noise in rows
        ],
    )


# -- memory -------------------------------------------------------------------------------------------------------


def within_memory(
    prices: PriceList, request: Request, budget: float | int | str, tokens: int | None, look: Search
) -> search.SearchResult:
    """Search; while the chosen design is predicted to train above the limit, ask for one with so many MACs fewer."""

    def training_bytes(design: nn.Module) -> float:
        return profiling.predicted_training_bytes(design, 1, tokens, torch.cuda.is_available())

    limit = parse_budget("--max-memory", budget, training_bytes(prices.appraiser.model), BYTES)
    request = replace(request, max_macs=request.max_macs or search.baseline(prices).cost.macs)
    over = float("inf")
    for _ in range(12):
        try:
            outcome = look(prices, request)
        except BudgetError:
            break
        model = surgery.write(prices.appraiser.model, outcome.chosen.applied_to(prices.architecture))
        over = training_bytes(model) / limit
        if over <= 1:
            return outcome
        request = replace(request, max_macs=int(outcome.chosen.cost.macs * min(0.98, 0.5 + 0.5 / over)))
    raise BudgetError(
        f"no design was found within --max-memory {limit:.4g} bytes; the last one tried was {over:.2f} times over; "
        "loosen it"
    )
