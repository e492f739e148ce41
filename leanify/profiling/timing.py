"""Time models in turns, so that other programs disturb all of them alike.

`Clock` times a model against its other shapes. Its clock is the process's CPU time on one CPU thread, the wall clock
on several, and events on the stream on CUDA. Disturbances only add time, so the minimum over many rounds counts.
`time_rounds` reports the median and the quartiles of several models.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import nn

from leanify.core import machine
from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError
from leanify.core.units import format_bytes
from leanify.profiling import profile as profiling
from leanify.profiling.forward import call
from leanify.reshaping import surgery
from leanify.upstream.inputs import example_inputs

MIN_SECONDS = 0.01  # of one measurement by `Clock`: a short pass is repeated within it
MIN_TURNS, MAX_TURNS = 4, 10
QUIET = 0.02  # noise at which no more turns are needed
MIN_ROUNDS, MAX_ROUNDS = 3, 7
MAX_SECONDS = 30  # after which `MIN_ROUNDS` suffice
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
        return self._alternate(self._run_baseline).baseline

    def pair(self, shape: Architecture) -> Pair:
        """The baseline and the model in this shape."""
        return self._alternate(self._runner(surgery.write(self.model, shape)))

    def _runner(self, model: nn.Module) -> Work:
        """A forward pass of the model, with small random weights on the device."""
        real = profiling.materialise(model, self.device)
        inputs = example_inputs(real, 1, self.tokens, self.device)
        return lambda: call(real, inputs)

    @torch.no_grad()
    def _alternate(self, run_other: Work) -> Pair:
        """The minimum time of each pass over the turns, until the noise is small or the turns are many.

        The noise is the distance between the ratios of the even and the odd turns.
        """
        # repeat short passes, so that each measurement is long enough for the clock
        works = (self._run_baseline, run_other)
        repeats = []
        for work in works:
            self._seconds(work, 2)  # warm up
            repeats.append(max(1, min(1000, round(MIN_SECONDS / max(self._seconds(work, 1), 1e-6)))))

        # take turns, so that a long disturbance hits both, until the two halves of the turns agree on the ratio
        times: tuple[list[float], list[float]] = ([], [])
        noise = float("inf")
        while len(times[0]) < MIN_TURNS or (noise > QUIET and len(times[0]) < MAX_TURNS):
            for model_times, work, count in zip(times, works, repeats, strict=True):
                model_times.append(self._seconds(work, count) / count)
            if len(times[0]) >= MIN_TURNS:
                even, odd = (min(times[1][half::2]) / min(times[0][half::2]) for half in (0, 1))
                noise = abs(even / odd - 1)
        return Pair(min(times[0]), min(times[1]) / min(times[0]), noise)

    def _seconds(self, work: Work, count: int) -> float:
        # on a GPU its own events count, because calls return before the work is done
        if self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(self.device)
            begin.record()
            for _ in range(count):
                work()
            end.record()
            torch.cuda.synchronize(self.device)
            return float(begin.elapsed_time(end)) / 1e3
        # one thread: processor time, which other processes do not disturb
        now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = now()
        for _ in range(count):
            work()
        return now() - start


@dataclass(frozen=True)
class Timing:
    """A time in seconds over the rounds: the lower quartile, the median and the upper quartile."""

    low: float
    median: float
    high: float


def time_rounds(functions: dict[str, list[Callable[[], float]]]) -> dict[str, tuple[Timing, ...]]:
    """Call the timed functions of every model in turn, for `MIN_ROUNDS` to `MAX_ROUNDS` rounds.

    All models have the same number of functions, each of which returns its own time in seconds.
    """
    count = len(next(iter(functions.values())))
    times: dict[str, list[list[float]]] = {name: [[] for _ in range(count)] for name in functions}
    start = time.perf_counter()
    for round_index in range(MAX_ROUNDS):
        if round_index >= MIN_ROUNDS and time.perf_counter() - start > MAX_SECONDS:
            break
        for position in range(count):
            for name, timed_functions in functions.items():
                times[name][position].append(timed_functions[position]())
    timings = {}
    for name, columns in times.items():
        quartiles = [statistics.quantiles(rounds, n=4, method="inclusive") for rounds in columns]
        timings[name] = tuple(Timing(*values) for values in quartiles)
    return timings


def time_latencies(shells: Mapping[str, nn.Module], tokens: int | None) -> dict[str, Timing]:
    """Time one sample through each model; ``shells`` are on meta, and one real model is in memory at a time."""
    device = machine.parse_device(None)

    def time_one(shell: nn.Module) -> float:
        model = profiling.materialise(shell, device)
        return profiling.median_seconds(model, example_inputs(model, 1, tokens, device), 3)

    timings = time_rounds({name: [partial(time_one, shell)] for name, shell in shells.items()})
    return {name: timing for name, (timing,) in timings.items()}
