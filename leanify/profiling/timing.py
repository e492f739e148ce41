"""Time several models in rounds that alternate between them, so that background noise affects all equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import nn

from leanify.core import machine
from leanify.profiling import profile as profiling
from leanify.upstream.inputs import example_inputs

MIN_ROUNDS, MAX_ROUNDS = 3, 7
MAX_SECONDS = 30  # after which `MIN_ROUNDS` suffice


@dataclass(frozen=True)
class Timing:
    """A time in seconds over the rounds: the median, and the lower and upper quartile."""

    median: float
    low: float
    high: float

    @staticmethod
    def from_rounds(times: list[float]) -> Timing:
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        return Timing(statistics.median(times), low, high)


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
    return {name: tuple(map(Timing.from_rounds, columns)) for name, columns in times.items()}


def time_latencies(shells: Mapping[str, nn.Module], tokens: int | None) -> dict[str, Timing]:
    """Time one sample through each model; ``shells`` are on meta, and one real model is in memory at a time."""
    device = machine.parse_device(None)

    def time_one(shell: nn.Module) -> float:
        model = profiling.materialise(shell, device)
        return profiling.median_seconds(model, example_inputs(model, 1, tokens, device), 3)

    timings = time_rounds({name: [partial(time_one, shell)] for name, shell in shells.items()})
    return {name: timing for name, (timing,) in timings.items()}
