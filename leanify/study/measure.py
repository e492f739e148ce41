"""Measure the designs' costs in interleaved rounds, so that background noise affects all designs equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from leanify import machine
from leanify.design.measure import counted, profiling
from leanify.lens import surgery
from leanify.runs.recipe import ModelSection
from leanify.sources import find
from leanify.study.plan import StudyPlan
from leanify.study.values import Costs
from leanify.upstream.inputs import example_inputs

ROUNDS = (3, 7)  # at least, at most
ENOUGH = 30  # seconds, after which the least number of rounds suffices
MOST_SAMPLES = 32  # largest batch measured


def on_meta(section: ModelSection) -> nn.Module:
    """A [model] section's model on torch's meta device."""
    model = find.build_on_meta(find.find(section.source, overrides=section.override, cls=section.cls))
    return surgery.write(model, section.shape(surgery.read(model))) if section.reshapes else model


def measure(plan: StudyPlan) -> dict[str, Costs]:
    """Measure every design on this machine, on the GPU or with the study's number of CPU threads."""
    assert plan.recipe.schedule is not None
    batch = min(plan.recipe.schedule.batch_size, MOST_SAMPLES)
    tokens = None if plan.recipe.data is None else plan.recipe.data.length
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        shells = {design.name: on_meta(design.model) for design in plan.kept}
        # what a process loads at its first training step belongs to no design, so memory comes second
        seconds = _rounds({name: _work(shell, batch, tokens, device) for name, shell in shells.items()})
        memory = {name: _memory(shell, batch, tokens, device) for name, shell in shells.items()}
    finally:
        torch.set_num_threads(threads)
    costs = {}
    for name, (one, many, step) in seconds.items():
        costs[name] = Costs(
            latency_s=one.median,
            throughput_per_s=batch / many.median,
            train_per_s=batch / step.median,
            train_peak_bytes=memory[name].train_peak_bytes,
            train_predicted_bytes=memory[name].train_predicted_bytes,
            batch=batch,
            device=machine.device_name(device),
            latency_range=(one.low, one.high),
            throughput_range=(batch / many.high, batch / many.low),
            train_range=(batch / step.high, batch / step.low),
        )
    return costs


def _memory(shell: nn.Module, batch: int, tokens: int | None, device: torch.device) -> counted.Memory:
    """What a design takes; its model is gone before the next one is measured."""
    predicted = profiling.predicted_training_bytes(shell, batch, tokens, fused=device.type == "cuda")
    before = machine.settled_resident_set()
    real = profiling.fresh(shell, device)
    return profiling.measured_memory(real, example_inputs(real, batch, tokens, device), predicted, before)


def _work(shell: nn.Module, batch: int, tokens: int | None, device: torch.device) -> list[Callable[[], float]]:
    """The timed functions of a design: a forward of one sample, of a batch, and a training step; each in seconds."""
    real: Any = profiling.fresh(shell, device)
    one, many = (example_inputs(real, size, tokens, device) for size in (1, batch))

    def forward(inputs: Any) -> float:
        real.eval()
        return profiling.seconds(real, inputs, 3)

    def train() -> float:
        real.train()
        begun = time.perf_counter()
        profiling.training_steps(real, many)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begun) / 2

    return [lambda: forward(one), lambda: forward(many), train]


@dataclass(frozen=True)
class Seconds:
    """A time over the rounds: the median, and the middle half."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(times: list[float]) -> Seconds:
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        return Seconds(statistics.median(times), low, high)


def latencies(models: Mapping[str, ModelSection], tokens: int | None) -> dict[str, Seconds]:
    """The time of one sample through each model, in rounds that alternate between them; one is in memory at a time."""
    place = machine.device_of(None)

    def timed(shell: nn.Module) -> float:
        real = profiling.fresh(shell, place)
        return profiling.seconds(real, example_inputs(real, 1, tokens, place), 3)

    found = _rounds({name: [partial(timed, on_meta(section))] for name, section in models.items()})
    return {name: one for name, (one,) in found.items()}


def _rounds(work: dict[str, list[Callable[[], float]]]) -> dict[str, tuple[Seconds, ...]]:
    """The time of each function over ROUNDS, alternating between designs; fewer rounds where each takes long.

    All designs have the same number of functions.
    """
    each = len(next(iter(work.values())))
    times: dict[str, list[list[float]]] = {name: [[] for _ in pieces] for name, pieces in work.items()}
    begun = time.perf_counter()
    for done in range(ROUNDS[1]):
        if done >= ROUNDS[0] and time.perf_counter() - begun > ENOUGH:
            break
        for place in range(each):
            for name, pieces in work.items():
                times[name][place].append(pieces[place]())
    return {name: tuple(Seconds.of(column) for column in columns) for name, columns in times.items()}
