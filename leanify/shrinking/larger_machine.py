"""Forecast a shrink on another machine: memory of each step, hours and disk, from sizes alone.

Tensors of the model's size are never allocated. Models with a single list of layers are measured with one block and
with two, and the difference is extrapolated; the speed is measured on the linear maps of one block on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from leanify.core.architecture import Architecture
from leanify.core.errors import BudgetError, LeanifyError
from leanify.core.recipe import parse_value, split_setting
from leanify.core.units import format_bytes
from leanify.lens import surgery
from leanify.lens.sites import locate
from leanify.profiling import counting
from leanify.search.amounts import amount
from leanify.search.plan import Plan
from leanify.shrinking.calibration import MAX_NUMBERS
from leanify.shrinking.calibration_batches import TOKENS
from leanify.shrinking.designs import Shape
from leanify.shrinking.time_plan import CALIBRATION_PASSES, STEP_PASSES, carrying_passes
from leanify.sources import find
from leanify.training import memory
from leanify.training.master_weights import to_master_weights, weights_dtype
from leanify.upstream.inputs import example_inputs

TEXT = (256, 8)  # default tokens per sample and samples per step
PICTURES = 64  # default samples per step
STEPS = 1_000  # default steps of healing
RUNS, CHECKPOINTS = 2, 2  # runs that heal, and checkpoints per run: the best and the newest
TIMED_ROWS = 256  # tokens on which the speed of a linear map is measured
HEALED = 0.8  # share of the memory that healing may use


def forecast_device(
    source: str, plan: Plan, shapes: Sequence[Shape], device_memory: str, settings: Sequence[str]
) -> dict[str, Any]:
    """Return memory, hours and disk of every step, and whether each fits into ``device_memory`` (80GB).

    Raises BudgetError for an invalid amount, UnsupportedModel for a model whose forward cannot be traced.
    """
    available = amount("--device-memory", device_memory)
    if available < 1:
        raise BudgetError(f"--device-memory {device_memory} is not an amount of memory; write 80GB")
    model = find.build_on_meta(find.find(source))
    dtype = weights_dtype(model)
    to_master_weights(model)
    architecture = surgery.read(model)
    length, batch, steps = _sizes(model, settings)

    # memory: float32 to measure, transfer and train, the checkpoint's type for the teacher
    params = counting.parameters(model)
    weights, stored = 4 * params, params * dtype.itemsize
    sizes = [shape.design.params if shape.design else shape.max_params for shape in shapes]
    smaller = max(sizes)

    # activations and multiplications of one sample, from models with one and two blocks
    designs = [shape.design for shape in shapes if shape.design is not None]
    student = max(designs, key=lambda design: design.params).architecture if designs else architecture
    passes, healing = _healing_memory(model, student, length, batch, HEALED * available - stored)
    macs = _extrapolate(model, architecture, lambda part: counting.count(part, length).macs)
    carrying = carrying_memory(model)

    # hours: forward passes per sample, at the speed of this machine
    seconds = macs / measure_block_speed(model)
    calibrated = TOKENS / (length or 50)
    trials = sum(carrying_passes(shape, architecture, calibrated, length) for shape in shapes)
    hours = {
        "measuring": 0.0,
        "carrying": (CALIBRATION_PASSES * calibrated + trials) * seconds / 3600,
        "healing": steps * batch * (STEP_PASSES + 1) * seconds / 3600,
    }
    needs = {
        "measuring": weights + batch * healing["sample"],
        "carrying": carrying,
        "healing": healing["step"] + stored,
    }
    rows = []
    for name, need in needs.items():
        rows.append({"name": name, "memory_bytes": int(need), "fits": need <= available, "hours": hours[name]})
    rows[-1] |= {"steps": steps, "batch_size": batch, "passes": passes}

    # disk: candidates in the checkpoint's type, and runs with weights and two moments in float32
    disk = len(shapes) * smaller * dtype.itemsize + RUNS * CHECKPOINTS * 3 * 4 * smaller
    return {
        "memory_bytes": int(available),
        "tokens": length,
        "steps": rows,
        "disk_bytes": int(disk),
        "fits": all(row["fits"] for row in rows),
    }


def _sizes(model: nn.Module, settings: Sequence[str]) -> tuple[int | None, int, int]:
    """Return tokens per sample, samples per step and steps from the settings. Raises LeanifyError."""
    values = {key: parse_value(text) for key, text in map(split_setting, settings) if text}
    takes_text = next(iter(example_inputs(model, 1, device="meta"))) == "input_ids"
    length = values.get("data.length", TEXT[0] if takes_text else None)
    batch = values.get("schedule.batch_size", TEXT[1] if takes_text else PICTURES)
    steps = values.get("schedule.steps", STEPS)
    for name, value in (("data.length", length), ("schedule.batch_size", batch), ("schedule.steps", steps)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise LeanifyError(f"--set {name}={value} must be a whole number above 0")
    return length, batch, steps


def _extrapolate(model: nn.Module, architecture: Architecture, measure: Callable[[nn.Module], float]) -> float:
    """Extrapolate a quantity from models with one and two blocks; measure a model with several lists directly."""
    [*stages] = architecture.stages
    depth = stages[0].depth
    if len(stages) > 1 or depth < 4 or len(set(stages[0].blocks)) > 1:
        return measure(model)
    parts = []
    for count in (1, 2):
        shape = replace(architecture, stages=(replace(stages[0], blocks=stages[0].blocks[:count]),))
        parts.append(measure(surgery.write(model, shape)))
    return parts[0] + (depth - 1) * (parts[1] - parts[0])


def _healing_memory(
    model: nn.Module, architecture: Architecture, length: int | None, batch: int, available: float
) -> tuple[int, Mapping[str, float]]:
    """Return the number of passes of a batch, and the bytes of a step and of one sample's activations.

    If not even one sample fits, a pass has one sample.
    """

    def need(samples: int) -> float:
        def of_part(part: nn.Module) -> float:
            step = memory.need(part, length, keeps_gradients=True)
            if step is None:
                raise LeanifyError(f"the memory of {type(model).__name__} cannot be predicted: it needs values to run")
            return float(step.of(samples))

        return _extrapolate(model, architecture, of_part)

    # memory is linear in the samples of a pass
    one, two = need(1), need(2)
    slope = max(1.0, two - one)
    largest = int(max(1.0, min(float(batch), 1 + (available - one) / slope)))
    return -(-batch // largest), {"step": one + (largest - 1) * slope, "sample": slope}


def carrying_memory(model: nn.Module) -> float:
    """Return the bytes used during transfer: original, narrowed copy and trial, calls of blocks, moments, outputs."""
    weights = 4 * counting.parameters(model)
    layers = list(locate(model).layers)
    width = max(layer.read().width for layer in layers)
    mlp = max(layer.read().mlp for layer in layers)
    calls = 4 / 3 * TOKENS * width * 4 * 2 * len(layers)  # each block's input and output, float32
    moments = 3 * (mlp + 1) ** 2 * 8  # two halves and their solution, float64
    return 3 * weights + calls + moments + 4 * MAX_NUMBERS


@torch.no_grad()
def measure_block_speed(model: nn.Module) -> float:
    """Measure the multiplications per second of the linear maps of a model's first block on this machine."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    block = locate(model).blocks[0]
    macs, seconds = 0.0, 0.0
    for shape in {tuple(module.weight.shape) for module in block.modules() if isinstance(module, nn.Linear)}:
        # limit the size of the largest maps: same speed, less memory
        rows, columns = (min(side, 4096) for side in shape)
        weight = torch.randn(rows, columns, device=device)
        inputs = torch.randn(TIMED_ROWS, columns, device=device)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            inputs @ weight.T
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        macs += TIMED_ROWS * rows * columns
        seconds += min(times)
    return macs / max(seconds, 1e-9) if macs else 1e10


def describe_device(forecast: Mapping[str, Any]) -> str:
    """Describe in one sentence which steps fit and which do not."""
    memory_text = format_bytes(forecast["memory_bytes"])
    missing = [row for row in forecast["steps"] if not row["fits"]]
    disk = f"{format_bytes(forecast['disk_bytes'])} of disk"
    if not missing:
        return f"every step fits into {memory_text}; {disk}"
    parts = ", ".join(f"{row['name']} needs {format_bytes(row['memory_bytes'])}" for row in missing)
    return f"{memory_text} are not enough: {parts}; {disk}"
