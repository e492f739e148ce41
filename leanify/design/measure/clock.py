"""Measure a model's latency and the baseline's alternately, so that both see the same disturbances.

The clock is the process's CPU time on one CPU thread (other programs hardly change it), the wall clock on
several, and events on the stream on CUDA. Disturbances only add time, so the minimum over many rounds counts.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanify import machine
from leanify.architecture import Architecture
from leanify.design.measure import profiling
from leanify.design.prices.counting import call
from leanify.errors import LeanifyError
from leanify.lens import surgery
from leanify.units import binary
from leanify.upstream.inputs import example_inputs

BLOCK = 0.01  # seconds that are timed at a time, at least
ROUNDS = (4, 10)  # at least, at most
QUIET = 0.02  # noise at which no more rounds are needed
Work = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """What is timed: ``what`` is a forward pass ("pass") or one more token behind the cached ones ("token")."""

    device: torch.device
    dtype: torch.dtype
    batch: int = 1
    compiled: bool = False
    tokens: int | None = None
    what: str = "pass"

    @property
    def words(self) -> str:
        threads = torch.get_num_threads()
        how = {"cuda": "CUDA events"}.get(self.device.type, "processor time" if self.on_one_thread else "wall clock")
        place = str(self.device) if self.device.type != "cpu" else f"cpu, {threads} thread{'s' * (threads != 1)}"
        kind = str(self.dtype).removeprefix("torch.") + (", compiled" if self.compiled else "")
        return f"a {self.what} at batch {self.batch}, {kind}, on {place} ({how})"

    @property
    def on_one_thread(self) -> bool:
        return self.device.type == "cpu" and torch.get_num_threads() == 1


@dataclass(frozen=True)
class Pair:
    """Seconds of the baseline and of another model, and the noise of their ratio."""

    baseline: float
    other: float
    noise: float

    @property
    def ratio(self) -> float:
        return self.other / self.baseline


class Clock:
    """Times shapes of a model on ``meta`` beside the model itself. Raises LeanifyError where memory is short."""

    def __init__(self, model: nn.Module, setting: Setting) -> None:
        self.setting = setting
        self.model = copy.deepcopy(model).to(setting.dtype)
        size = 2 * profiling.weights_bytes(self.model)
        free = machine.available(setting.device)
        if free is not None and size > free:
            raise LeanifyError(
                f"timing takes two models at once, {binary(size)}; {binary(free)} are free on "
                f"{setting.device}: leave out --max-latency, or name a --device with more"
            )
        self.baseline = self.worker(self.model)

    def worker(self, model: nn.Module) -> Work:
        """What is timed of a model: its weights are small random numbers."""
        setting = self.setting
        real = profiling.fresh(model, setting.device)
        inputs = example_inputs(real, setting.batch, setting.tokens, setting.device)
        if setting.what == "token":
            return _one_more_token(real, inputs)
        ready: Any = torch.compile(real) if setting.compiled else real
        return lambda: call(ready, inputs)

    def beside(self, shape: Architecture) -> Pair:
        """The baseline and the model in this shape."""
        return in_turn(self.baseline, self.worker(surgery.write(self.model, shape)), self.setting)

    def alone(self) -> Pair:
        """The baseline beside itself: what two equal models measure."""
        return in_turn(self.baseline, self.baseline, self.setting)


@torch.no_grad()
def in_turn(one: Work, other: Work, setting: Setting) -> Pair:
    """The least time of each over the rounds, until the noise is small or there were many.

    The noise is how far the ratios of the even rounds and of the odd rounds lie apart.
    """
    works = (one, other)
    repeats = []
    for work in works:
        for _ in range(2):  # warm up
            work()
        once = _seconds(work, 1, setting)
        repeats.append(max(1, min(1000, round(BLOCK / max(once, 1e-6)))))
    found: list[list[float]] = [[], []]
    noise = float("inf")
    while len(found[0]) < ROUNDS[0] or (noise > QUIET and len(found[0]) < ROUNDS[1]):
        for times, work, count in zip(found, works, repeats, strict=True):
            times.append(_seconds(work, count, setting) / count)
        if len(found[0]) >= 4:
            even, odd = (min(found[1][half::2]) / min(found[0][half::2]) for half in (0, 1))
            noise = abs(even / odd - 1)
    return Pair(min(found[0]), min(found[1]), noise)


def _seconds(work: Work, count: int, setting: Setting) -> float:
    if setting.device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(setting.device)
        begin.record()
        for _ in range(count):
            work()
        end.record()
        torch.cuda.synchronize(setting.device)
        return float(begin.elapsed_time(end)) / 1e3
    now = time.process_time if setting.on_one_thread else time.perf_counter
    start = now()
    for _ in range(count):
        work()
    return now() - start


@torch.no_grad()
def _one_more_token(model: nn.Module, inputs: dict[str, Tensor]) -> Work:
    """One decoding step behind the inputs' tokens; the cache is cut back after each. Raises LeanifyError."""
    ids = inputs.get("input_ids")
    cache: Any = None
    if ids is not None and "decoder_input_ids" not in inputs:
        cache = getattr(model(input_ids=ids, use_cache=True), "past_key_values", None)
    if ids is None or not hasattr(cache, "crop"):
        raise LeanifyError("a token's latency is that of a decoder with a key/value cache; this model keeps none")

    def step() -> None:
        model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)
        cache.crop(-1)

    return step
