"""Time and memory of models with real tensors, on a CPU or a GPU.

Models are timed in turns, so that other programs disturb all of them alike. `Clock` times a model against its other
shapes: by the process's CPU time on one CPU thread, by the wall clock on several, and by events on the stream on CUDA.
Disturbances only add time, so the minimum over many rounds counts. `time_rounds` reports the quartiles of several
models.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from leanify.core import machine
from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError
from leanify.core.units import format_bytes
from leanify.profiling import training_memory
from leanify.profiling.counting import weights_bytes
from leanify.profiling.forward import call, zeros
from leanify.reshaping import surgery
from leanify.upstream.inputs import example_inputs

MIN_SECONDS = 0.01  # of one measurement by `Clock`: a short pass is repeated within it
MIN_TURNS, MAX_TURNS = 4, 10
QUIET = 0.02  # noise at which no more turns are needed
MIN_ROUNDS, MAX_ROUNDS = 3, 7
MAX_SECONDS = 30  # after which `MIN_ROUNDS` suffice
_ATTENTION = "_scaled_dot_product_"
Work = Callable[[], object]


def materialise(model: nn.Module, device: torch.device) -> nn.Module:
    """The meta model with real tensors on ``device``, its weights small and random.

    Time and memory do not depend on the values, as long as they are finite.
    """
    real = zeros(model, device)
    for parameter in real.parameters():
        parameter.data.uniform_(-0.02, 0.02)
    return real


@torch.no_grad()
def median_seconds(model: nn.Module, inputs: dict[str, Tensor], repeats: int) -> float:
    """The median time of one forward pass, after two passes to warm up."""
    device = next(model.parameters()).device
    times = []
    for i in range(repeats + 2):
        start = time.perf_counter()
        call(model, inputs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if i >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


# -- turns ------------------------------------------------------------------------------------------------------------


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
        size = 2 * weights_bytes(self.model)
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
        real = materialise(model, self.device)
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
        model = materialise(shell, device)
        return median_seconds(model, example_inputs(model, 1, tokens, device), 3)

    timings = time_rounds({name: [partial(time_one, shell)] for name, shell in shells.items()})
    return {name: timing for name, (timing,) in timings.items()}


# -- memory and kernels -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Bytes in memory. The predicted ones are the peak of a training step, with AdamW's two moments.

    On CUDA the peaks are torch's allocated bytes, together with its reserved bytes and NVML's device-wide
    figure; on a CPU they are the growth of the process's resident set, None if the system does not report it. A
    model that upstream trains only with labels has no figures of training.
    """

    train_predicted_bytes: int | None
    forward_peak_bytes: int | None = None
    train_peak_bytes: int | None = None
    forward_reserved_bytes: int | None = None
    train_reserved_bytes: int | None = None
    nvml_used_bytes: int | None = None


def training_steps(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Two AdamW steps on the mean squared outputs: in the second, moments and activations are both in memory."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    for _ in range(2):
        training_memory.squares(call(model, inputs)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()


def measure_memory(
    model: nn.Module, inputs: dict[str, Tensor], predicted_bytes: int | None, before: int = 0, trains: bool = True
) -> Memory:
    """Peaks of a forward pass, and of a training step if ``trains``; on a CPU the process's, less ``before``."""
    # the peak of a forward pass
    device = next(model.parameters()).device
    with torch.no_grad(), _peak(device, before) as forward:
        call(model, inputs)
    # the peak of a training step, if it was predicted to fit
    train: dict[str, int] = {}
    if predicted_bytes is not None and trains:
        model.train()
        with _peak(device, before) as train:
            training_steps(model, inputs)
        model.eval()
    return Memory(
        train_predicted_bytes=predicted_bytes,
        forward_peak_bytes=forward.get("peak"),
        train_peak_bytes=train.get("peak"),
        forward_reserved_bytes=forward.get("reserved"),
        train_reserved_bytes=train.get("reserved"),
        nvml_used_bytes=machine.nvml_used(device),
    )


@contextmanager
def _peak(device: torch.device, before: int) -> Iterator[dict[str, int]]:
    """The highest memory within the block: torch's on CUDA, the process's resident set on a CPU."""
    peak: dict[str, int] = {}
    # a GPU counts its own allocations
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        torch.cuda.synchronize(device)
        peak["peak"] = torch.cuda.max_memory_allocated(device)
        peak["reserved"] = torch.cuda.max_memory_reserved(device)
        return
    # on a CPU the kernel's high-water mark, above the resident set before the pass
    resets = machine.reset_resident_peak()
    yield peak
    highest = machine.status("VmHWM") if resets else None
    if highest:
        peak["peak"] = highest - before


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of fused attention by kernel, and of softmax outside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith(_ATTENTION):
            self.calls[name.removeprefix(_ATTENTION)] += 1
        elif name in ("_softmax", "_safe_softmax"):
            self.calls["softmax"] += 1
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def attention_kernels(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, int]:
    """Count the calls of attention kernels in a forward pass: ``flash_attention``, ``efficient_attention``, ….

    ``softmax`` counts calls outside fused kernels: attention in plain products, or a choice of experts.
    """
    with _Kernels() as kernels:
        call(model, inputs)
    return dict(kernels.calls)
