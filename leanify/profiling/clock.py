"""Measure a model's latency and the baseline's alternately, so that both see the same disturbances.

The clock is the process's CPU time on one CPU thread (other programs change it little), the wall clock on
several, and events on the stream on CUDA. Disturbances only add time, so the minimum over many rounds counts.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from leanify.core import machine
from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError
from leanify.core.units import format_bytes
from leanify.profiling import profile as profiling
from leanify.profiling.counting import call
from leanify.reshaping import surgery
from leanify.upstream.inputs import example_inputs

MIN_SECONDS = 0.01  # of one measurement: a short pass is repeated within it
MIN_ROUNDS, MAX_ROUNDS = 4, 10
QUIET = 0.02  # noise at which no more rounds are needed
Work = Callable[[], object]


@dataclass(frozen=True)
class Pair:
    """Seconds of the baseline, how many times as long another model takes, and the noise of this ratio."""

    baseline: float
    ratio: float
    noise: float


class Clock:
    """Times a model against its other shapes: a forward pass of one sample, in float32.

    ``model`` is on meta; ``tokens`` is the length of a text input. Raises LeanifyError if memory is short.
    """

    def __init__(self, model: nn.Module, tokens: int | None = None) -> None:
        self.device = machine.parse_device(None)
        self.tokens = tokens
        self.model = copy.deepcopy(model).float()
        # two models share the memory: the baseline and the design
        size = 2 * profiling.weights_bytes(self.model)
        free = machine.available_memory(self.device)
        if free is not None and size > free:
            raise LeanifyError(
                f"timing takes two models at once, {format_bytes(size)}; {format_bytes(free)} are free on "
                f"{self.device}: leave out --max-latency, or use a machine with more"
            )
        self._run_baseline = self._runner(self.model)

    @property
    def setting(self) -> str:
        """Describe the timed pass and the clock for people."""
        if self.device.type == "cuda":
            return f"a pass at batch 1, float32, on {self.device} (CUDA events)"
        threads = torch.get_num_threads()
        clock = "processor time" if threads == 1 else "wall clock"
        return f"a pass at batch 1, float32, on cpu, {threads} thread{'s' * (threads != 1)} ({clock})"

    @cached_property
    def baseline(self) -> float:
        """Seconds of the baseline, timed against itself."""
        return alternate(self._run_baseline, self._run_baseline, self.device).baseline

    def pair(self, shape: Architecture) -> Pair:
        """The baseline and the model in this shape."""
        return alternate(self._run_baseline, self._runner(surgery.write(self.model, shape)), self.device)

    def _runner(self, model: nn.Module) -> Work:
        """A forward pass of the model, with small random weights on the device."""
        real = profiling.materialise(model, self.device)
        inputs = example_inputs(real, 1, self.tokens, self.device)
        return lambda: call(real, inputs)


@torch.no_grad()
def alternate(baseline: Work, other: Work, device: torch.device) -> Pair:
    """The minimum time of each function over the rounds, until the noise is small or the rounds are many.

    The noise is the distance between the ratios of the even and the odd rounds.
    """
    # repeat short passes, so that each measurement is long enough for the clock
    works = (baseline, other)
    repeats = []
    for work in works:
        measure(work, 2, device)  # warm up
        once = measure(work, 1, device)
        repeats.append(max(1, min(1000, round(MIN_SECONDS / max(once, 1e-6)))))

    # take turns, so that a long disturbance hits both, until the two halves of the rounds agree on the ratio
    times: tuple[list[float], list[float]] = ([], [])
    noise = float("inf")
    while len(times[0]) < MIN_ROUNDS or (noise > QUIET and len(times[0]) < MAX_ROUNDS):
        for model_times, work, count in zip(times, works, repeats, strict=True):
            model_times.append(measure(work, count, device) / count)
        if len(times[0]) >= MIN_ROUNDS:
            even, odd = (min(times[1][half::2]) / min(times[0][half::2]) for half in (0, 1))
            noise = abs(even / odd - 1)
    return Pair(min(times[0]), min(times[1]) / min(times[0]), noise)


def measure(work: Work, count: int, device: torch.device) -> float:
    """Seconds of ``count`` calls."""
    # on a GPU its own events count, because calls return before the work is done
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)
        begin.record()
        for _ in range(count):
            work()
        end.record()
        torch.cuda.synchronize(device)
        return float(begin.elapsed_time(end)) / 1e3
    # one thread: processor time, which other processes do not disturb
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = now()
    for _ in range(count):
        work()
    return now() - start
