"""What torch's CPU allocator holds, by its profiler: an oracle for predicted memory, kernels' own tensors included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from leanify.profiling import measuring
from leanify.profiling import training_memory as peak
from leanify.profiling.forward import call, unmasked_inputs

ADAMW = 3  # weights and two moments, in units of the weights


def weight_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def peak_bytes(step: Callable[[], Any]) -> int:
    """The most bytes that a step holds beyond what was there before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events = record.profiler.kineto_results.events()
    sizes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(np.cumsum([size for _, size in sizes])))


def training_peak(shell: nn.Module, batch: int, tokens: int | None, loss: peak.Loss = peak.squares) -> int:
    """Weights, moments and the most that the second of two AdamW steps holds, in float32 on the CPU."""
    model = measuring.materialise(shell, torch.device("cpu")).train()
    inputs: dict[str, Tensor] = unmasked_inputs(model, tokens, "cpu", batch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step() -> None:
        loss(call(model, inputs)).backward()
        optimiser.step()
        optimiser.zero_grad()

    step()
    return ADAMW * weight_bytes(model) + peak_bytes(step)
