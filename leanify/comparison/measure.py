"""Measure the designs' costs in interleaved rounds, so that background noise affects all designs equally."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leanify.comparison.plan import StudyPlan
from leanify.comparison.values import Costs
from leanify.core import machine
from leanify.profiling import measuring
from leanify.profiling.training_memory import predict_training_bytes
from leanify.training.preparation import model_on_meta
from leanify.upstream.inputs import example_inputs

MAX_SAMPLES = 32  # largest batch measured


def measure(plan: StudyPlan) -> dict[str, Costs]:
    """Measure every design on this machine, on the GPU or with the study's number of CPU threads."""
    assert plan.recipe.schedule is not None
    batch = min(plan.recipe.schedule.batch_size, MAX_SAMPLES)
    tokens = None if plan.recipe.data is None else plan.recipe.data.length
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        shells = {design.name: model_on_meta(design.model) for design in plan.designs}
        # the first training step loads libraries that are not part of any design, so memory comes second
        seconds = measuring.time_rounds({name: _work(shell, batch, tokens, device) for name, shell in shells.items()})
        memory = {}
        for name, shell in shells.items():
            predicted_bytes = predict_training_bytes(shell, batch, tokens, is_fused=device.type == "cuda")
            before = machine.settled_resident_set()
            real = measuring.materialise(shell, device)
            inputs = example_inputs(real, batch, tokens, device)
            memory[name] = measuring.measure_memory(real, inputs, predicted_bytes, before)
            del real, inputs  # before the next one is measured
    finally:
        torch.set_num_threads(threads)
    costs = {}
    for name, (sample_timing, batch_timing, step_timing) in seconds.items():
        costs[name] = Costs(
            latency_s=sample_timing.median,
            throughput_per_s=batch / batch_timing.median,
            train_per_s=batch / step_timing.median,
            train_peak_bytes=memory[name].train_peak_bytes,
            train_predicted_bytes=memory[name].train_predicted_bytes,
            batch=batch,
            device=machine.device_name(device),
            latency_range=(sample_timing.low, sample_timing.high),
            throughput_range=(batch / batch_timing.high, batch / batch_timing.low),
            train_range=(batch / step_timing.high, batch / step_timing.low),
        )
    return costs


def _work(shell: nn.Module, batch: int, tokens: int | None, device: torch.device) -> list[Callable[[], float]]:
    """The timed functions of a design: a forward of one sample, of a batch, and a training step; each in seconds."""
    real: Any = measuring.materialise(shell, device)
    sample_inputs, batch_inputs = (example_inputs(real, size, tokens, device) for size in (1, batch))

    def forward(inputs: Any) -> float:
        real.eval()
        return measuring.median_seconds(real, inputs, 3)

    def train() -> float:
        real.train()
        start = time.perf_counter()
        measuring.training_steps(real, batch_inputs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / 2

    return [lambda: forward(sample_inputs), lambda: forward(batch_inputs), train]
