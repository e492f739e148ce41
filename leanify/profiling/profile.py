"""Costs of a model: counted on ``meta``, cross-checked, and measured on the device.

MACs come from torch's FLOP counter on ``meta``, which is exact there (on a CPU it misses fused kernels). fvcore,
given a handle for every fused attention, counts the same model from its traced graph; matrix products must
agree, and what neither counts (activations, softmax, additions) is named.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from leanify.core import machine
from leanify.core.errors import LeanifyError, ShapeError, UnsupportedModel
from leanify.core.units import format_bytes
from leanify.profiling import counting
from leanify.profiling import training_memory as peak
from leanify.profiling.forward import Positional, call, disable_gradients, zeros
from leanify.profiling.profile_result import COUNTERS_AGREE, Memory, Profile
from leanify.profiling.training_memory import flatten_tensors
from leanify.reshaping import surgery
from leanify.sources import find
from leanify.upstream.example_inputs import infer_batch_size
from leanify.upstream.inputs import check_tokens, example_inputs
from leanify.upstream.libraries import first_line, reraise_as
from leanify.upstream.origin import get_example

FUSED_KERNELS = (
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
)
NOT_PRODUCTS = ("layer_norm", "batch_norm", "group_norm", "upsample_bilinear2d", "adaptive_avg_pool2d", "grid_sampler")
_ATTENTION = "_scaled_dot_product_"
TRACEABLE_BYTES = 8 << 30  # a model whose graph needs real tensors is traced up to this size


def profile(
    source: str | Path | find.ModelSource | nn.Module,
    *,
    inputs: Any = None,
    rows: Any = None,
    batch_size: int = 8,
    device: str | None = None,
    dtype: str = "float32",
    tokens: int | None = None,
    repeats: int = 10,
    measure: bool = True,
    overrides: Mapping[str, Any] | None = None,
    cls: str | None = None,
) -> Profile:
    """The costs of the model that SOURCE names.

    ``tokens`` is the length of a text input; an image's size is an override of the source (``img_size``).
    Latency is the median of ``repeats`` forward passes at batch 1, in seconds; throughput is measured at
    ``batch_size``, in samples per second. A module of the user's own is counted and measured on ``inputs``, an
    example of its forward's arguments.

    >>> import leanify
    >>> leanify.profile("vit_tiny", measure=False).params
    5717416
    """
    # bad arguments, before anything is built
    for name, number in (("--batch-size", batch_size), ("repeats", repeats)):
        if number < 1:
            raise LeanifyError(f"{name} {number} is below 1")
    precision = getattr(torch, dtype, None)
    if not isinstance(precision, torch.dtype) or not precision.is_floating_point:
        raise LeanifyError(f"--dtype {dtype!r} is not a floating-point type of torch; try float32, bfloat16 or float16")
    place = machine.parse_device(device)

    # the model on meta and its inputs; a module's own example sets the batch size
    if isinstance(source, nn.Module):
        _read(source, inputs, rows)
    model_source = source if isinstance(source, find.ModelSource) else find.find(source, overrides=overrides, cls=cls)
    model = find.build_on_meta(model_source, must_be_read=False)
    example = get_example(model)
    batch_size = infer_batch_size(example) or batch_size
    model = model.to(precision)
    check_tokens(model, tokens)

    # counted twice, by torch's counter and by fvcore
    counts = counting.count(model, tokens)
    products, others, cross_check = fvcore_macs(model, tokens)
    if products is not None:
        cross_check = COUNTERS_AGREE
        if products != counts.macs:
            share = products / max(counts.macs, 1) - 1
            cross_check = f"torch's counter says {counts.macs:,} MACs, fvcore {products:,} ({share:+.2%})"
    predicted_bytes = None
    with suppress(UnsupportedModel, ShapeError):  # it runs as it was counted, but in no other mode or batch
        predicted_bytes = predict_training_bytes(model, batch_size, tokens, is_fused=place.type == "cuda")

    # measured if memory allows: a forward pass needs the weights, a training step the predicted bytes
    size = weights_bytes(model)
    free = machine.available_memory(place) if measure else None
    runs = free is None or size <= free
    trains = free is None or (predicted_bytes or 0) <= free
    latency = throughput = kernels = None
    memory = Memory(predicted_bytes)
    if measure and runs:
        before = machine.settled_resident_set()
        name = type(source).__name__ if isinstance(source, nn.Module) else str(source)
        with reraise_as(f"{name} does not run here in {dtype}, {batch_size} samples at a time", LeanifyError):
            real = materialise(model, place)
            sample_inputs = example_inputs(real, None, tokens, place)
            batch_inputs = sample_inputs if example is not None else example_inputs(real, batch_size, tokens, place)
            kernels = attention_kernels(real, sample_inputs)
            latency = median_seconds(real, sample_inputs, repeats)
            throughput = batch_size / median_seconds(real, batch_inputs, max(3, repeats // 3))
            memory = measure_memory(real, batch_inputs, predicted_bytes, before, trains)
    not_measured = None
    if not (runs and trains):
        part = "training" if runs else "the model"
        not_measured = (
            f"{part} was not measured: it takes more than the {format_bytes(free or 0)} that are free on {place}"
        )
    return Profile(
        source=str(source if isinstance(source, (str, Path)) else model_source.origin),
        architecture=_read(model),
        params=counts.params,
        params_body=counts.params_body or None,
        macs=counts.macs,
        flops=2 * counts.macs,
        fvcore_macs=products,
        cross_check=cross_check,
        uncounted=others,
        weights_bytes=size,
        batch_size=batch_size,
        dtype=dtype,
        device=machine.device_name(place) if measure and runs else "not measured",
        latency_s=latency,
        throughput_per_s=throughput,
        memory=memory,
        attention_kernels=kernels,
        not_measured=not_measured,
        as_given=example is not None,
        params_embeddings=counting.embedding_parameters(model),
    )


def _read(model: nn.Module, inputs: Any = None, rows: Any = None) -> str:
    """The shape of a model as text; "not read" for a module of the user's own without layers that leanify knows."""
    try:
        return str(surgery.read(model, inputs, rows))
    except UnsupportedModel:
        if get_example(model) is None:
            raise
        return "not read"


def weights_bytes(model: nn.Module) -> int:
    """The size of the parameters and saved buffers, shared ones once."""
    tensors = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


# -- counting by a second opinion -------------------------------------------------------------------------------------


def fvcore_macs(model: nn.Module, tokens: int | None = None) -> tuple[int | None, list[str], str]:
    """fvcore's count of matrix products, with handles for fused attention; omitted operations; why it failed or ""."""
    # fvcore traces the model on meta, or in memory if that fails
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import calls what torch now deprecates
        from fvcore.nn import FlopCountAnalysis
    reason = ""
    for device in ("meta", "cpu"):
        if device == "cpu" and weights_bytes(model) > TRACEABLE_BYTES:
            return None, [], "fvcore did not run: tracing this model needs its weights in memory"
        plain_model = model if device == "meta" else zeros(model)
        # the tracer needs positional arguments
        inputs = example_inputs(plain_model, None, tokens, device)
        inputs.pop("attention_mask", None)
        positional = Positional(plain_model, list(inputs), flatten_tensors)
        analysis = FlopCountAnalysis(positional, tuple(inputs.values()))
        analysis.set_op_handle(**dict.fromkeys(FUSED_KERNELS, attention_macs))
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
        try:
            with disable_gradients(plain_model), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                by_operator = analysis.by_operator()
                uncounted_ops = sorted(name.removeprefix("aten::") for name in analysis.unsupported_ops())
        except Exception as error:  # upstream's code under a tracer that it was not written for
            reason = first_line(error)
            continue
        # matrix products alone, which is what both counters count
        return int(sum(n for op, n in by_operator.items() if op not in NOT_PRODUCTS)), uncounted_ops, ""
    return None, [], f"fvcore could not trace the model: {reason}"


def attention_macs(inputs: list[Any], outputs: list[Any]) -> int:
    """MACs of softmax(q kᵀ) v: every query meets every key (q·k, d each) and every value (d_v each)."""
    query, key, value = (x.type().sizes() for x in inputs[:3])
    return int(math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))


# -- measuring --------------------------------------------------------------------------------------------------------


def materialise(model: nn.Module, device: torch.device) -> nn.Module:
    """The meta model with real tensors on ``device``, its weights small and random.

    Time and memory do not depend on the values, as long as they are finite.
    """
    real = zeros(model, device)
    for parameter in real.parameters():
        parameter.data.uniform_(-0.02, 0.02)
    return real


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


def training_steps(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Two AdamW steps on the mean squared outputs: in the second, moments and activations are both in memory."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    for _ in range(2):
        peak.squares(call(model, inputs)).backward()  # type: ignore[no-untyped-call]
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


# -- training memory, predicted ---------------------------------------------------------------------------------------


def predict_training_bytes(model: nn.Module, batch: int, tokens: int | None = None, is_fused: bool = True) -> int:
    """The peak of an AdamW step: weights, two moments, and the largest sum of activations and gradients (see `peak`).

    ``is_fused``: attention with dropout is fused too, as on a GPU. Raises UnsupportedModel if the model cannot
    be trained on its example inputs.
    """
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return 3 * weights + peak.trace_peak(model, batch, tokens, is_fused=is_fused)
