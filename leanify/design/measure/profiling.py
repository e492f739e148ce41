"""What a model costs: counted on ``meta``, cross-checked, and measured on the device.

MACs come from torch's FLOP counter on ``meta``, where it is exact (on a CPU it misses fused kernels). fvcore,
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

from leanify import machine
from leanify.design.measure import peak
from leanify.design.measure.counted import AGREED, CountKey, Memory, Profile
from leanify.design.measure.peak import tensors_of as tensors_of
from leanify.design.prices import cache, counting
from leanify.errors import LeanifyError, ShapeError, UnsupportedModel
from leanify.lens import surgery
from leanify.sources import find
from leanify.units import binary
from leanify.upstream.given import given_to, samples_in
from leanify.upstream.inputs import check_tokens, example_inputs
from leanify.upstream.libraries import first_line
from leanify.upstream.wall import wall

FUSED = (
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
    Latency is the median of ``repeats`` forward passes at batch 1, throughput that of ``batch_size``, in
    seconds and per second. A module of the user's own is counted and measured on ``inputs``, an example of
    what its forward takes, as it is.

    >>> import leanify
    >>> leanify.profile("vit_tiny", measure=False).params
    5717416
    """
    if isinstance(source, nn.Module):
        surgery.read(source, inputs, rows)
    if measure or not isinstance(source, (str, Path)):
        return _profile(source, batch_size, device, dtype, tokens, repeats, measure, overrides, cls)
    asked = CountKey(source, batch_size, device, dtype, tokens, overrides, cls)
    facts, warned = cache.heard(
        lambda: _profile(source, batch_size, device, dtype, tokens, repeats, measure, overrides, cls)
    )
    if not warned:
        cache.keep(asked.file, facts.to_json())
    return facts


def _profile(
    source: str | Path | find.ModelSource | nn.Module,
    batch_size: int,
    device: str | None,
    dtype: str,
    tokens: int | None,
    repeats: int,
    measure: bool,
    overrides: Mapping[str, Any] | None,
    cls: str | None,
) -> Profile:
    for name, number in (("--batch-size", batch_size), ("repeats", repeats)):
        if number < 1:
            raise LeanifyError(f"{name} {number} is below 1")
    found = source if isinstance(source, find.ModelSource) else find.find(source, overrides=overrides, cls=cls)
    model = find.build_on_meta(found)
    given = given_to(model)
    batch_size = samples_in(given) or batch_size
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise LeanifyError(f"--dtype {dtype!r} is not a floating-point type of torch; try float32, bfloat16 or float16")
    model = model.to(kind)
    place = machine.device_of(device)
    check_tokens(model, tokens)
    counted = counting.count(model, tokens)
    products, others, note = fvcore_macs(model, tokens)

    predicted = None
    with suppress(UnsupportedModel, ShapeError):  # it runs as it was counted, but in no other mode or batch
        predicted = predicted_training_bytes(model, batch_size, tokens, fused=place.type == "cuda")
    latency = throughput = kernels = None
    memory = Memory(predicted)
    size = weights_bytes(model)
    free = machine.available(place) if measure else None
    runs, trains = (free is None or (need or 0) <= free for need in (size, predicted))
    if measure and runs:
        before = machine.settled_resident_set()
        with wall(f"{source} does not run here in {dtype}, {batch_size} samples at a time", LeanifyError):
            real = fresh(model, place)
            one = example_inputs(real, None, tokens, place)
            many = one if given is not None else example_inputs(real, batch_size, tokens, place)
            kernels = kernels_of(real, one)
            latency = seconds(real, one, repeats)
            throughput = batch_size / seconds(real, many, max(3, repeats // 3))
            memory = measured_memory(real, many, predicted, before, trains)
    not_measured = None
    if not (runs and trains):
        what = "training" if runs else "the model"
        not_measured = f"{what} was not measured: it takes more than the {binary(free or 0)} that are free on {place}"
    return Profile(
        source=str(source if isinstance(source, (str, Path)) else found.origin),
        architecture=str(surgery.read(model)),
        params=counted.params,
        params_body=counted.params_body,
        macs=counted.macs,
        flops=2 * counted.macs,
        fvcore_macs=products,
        cross_check=note or _agreement(counted.macs, products),
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
        as_given=given is not None,
    )


def weights_bytes(model: nn.Module) -> int:
    """The size of the parameters and saved buffers, shared ones once."""
    tensors = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


# -- counting by a second opinion -------------


def fvcore_macs(model: nn.Module, tokens: int | None = None) -> tuple[int | None, list[str], str | None]:
    """fvcore's count of matrix products, with handles for fused attention; what it left out; why it failed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import calls what torch now deprecates
        from fvcore.nn import FlopCountAnalysis
    reason = ""
    for device in ("meta", "cpu"):
        if device == "cpu" and weights_bytes(model) > TRACEABLE_BYTES:
            return None, [], "fvcore did not run: tracing this model needs its weights in memory"
        here = model if device == "meta" else fresh(model, torch.device("cpu"), drawn=False)
        inputs = example_inputs(here, None, tokens, device)
        inputs.pop("attention_mask", None)
        wrapped = counting.Positional(here, list(inputs), tensors_of)
        analysis = FlopCountAnalysis(wrapped, tuple(inputs.values()))
        analysis.set_op_handle(**dict.fromkeys(FUSED, attention_macs))
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
        try:
            with counting.plain(here), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                by_operator = analysis.by_operator()
                left = sorted(name.removeprefix("aten::") for name in analysis.unsupported_ops())
        except Exception as error:  # upstream's code under a tracer that it was not written for
            reason = first_line(error)
            continue
        return int(sum(n for op, n in by_operator.items() if op not in NOT_PRODUCTS)), left, None
    return None, [], f"fvcore could not trace the model: {reason}"


def attention_macs(inputs: list[Any], outputs: list[Any]) -> int:
    """MACs of softmax(q kᵀ) v: every query meets every key (q·k, d each) and every value (d_v each)."""
    query, key, value = (x.type().sizes() for x in inputs[:3])
    return int(math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))


def _agreement(counted: int, products: int | None) -> str:
    if products is None:
        return "no second count"
    if products == counted:
        return AGREED
    return f"torch's counter says {counted:,} MACs, fvcore {products:,} ({products / max(counted, 1) - 1:+.2%})"


# -- measuring -------------


def fresh(model: nn.Module, device: torch.device, drawn: bool = True) -> nn.Module:
    """The meta model with real tensors on ``device``: small random weights, or zeros.

    Time and memory do not depend on the values, as long as they are finite.
    """
    real = counting.zeros(model, device)
    with torch.no_grad():
        for parameter in real.parameters() if drawn else ():
            parameter.uniform_(-0.02, 0.02)
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
def kernels_of(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, int]:
    """Which kernels attend in a forward pass, and how often: ``flash_attention``, ``efficient_attention``, ….

    ``softmax`` is one outside a fused kernel: attention in plain products, or a choice of experts.
    """
    with _Kernels() as seen:
        counting.call(model, inputs)
    return dict(seen.calls)


@torch.no_grad()
def seconds(model: nn.Module, inputs: dict[str, Tensor], repeats: int) -> float:
    """The median time of one forward pass, after two passes to warm up."""
    device = next(iter(inputs.values())).device
    times = []
    for i in range(repeats + 2):
        start = time.perf_counter()
        counting.call(model, inputs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if i >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def training_steps(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Two AdamW steps on the mean squared outputs: in the second, moments and activations are both in memory."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    for _ in range(2):
        peak.squares(counting.call(model, inputs)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()


def measured_memory(
    model: nn.Module, inputs: dict[str, Tensor], predicted: int | None, before: int = 0, trains: bool = True
) -> Memory:
    """Peaks of a forward pass, and of a training step if ``trains``; on a CPU the process's, less ``before``."""
    device = next(iter(inputs.values())).device
    with torch.no_grad(), _peak(device, before) as forward:
        counting.call(model, inputs)
    train: dict[str, int] = {}
    if predicted is not None and trains:
        model.train()
        with _peak(device, before) as train:
            training_steps(model, inputs)
        model.eval()
    return Memory(
        train_predicted_bytes=predicted,
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
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        torch.cuda.synchronize(device)
        peak["peak"] = torch.cuda.max_memory_allocated(device)
        peak["reserved"] = torch.cuda.max_memory_reserved(device)
        return
    resets = machine.reset_resident_peak()
    yield peak
    highest = machine.status("VmHWM") if resets else None
    if highest:
        peak["peak"] = highest - before


# -- training memory, predicted -------------


def predicted_training_bytes(model: nn.Module, batch: int, tokens: int | None = None, fused: bool = True) -> int:
    """The peak of an AdamW step: weights, two moments, and the largest sum of activations and gradients (see `peak`).

    ``fused``: attention with dropout is fused, too, as on a GPU. Raises UnsupportedModel where the model
    cannot be trained on its example inputs.
    """
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    lines = peak.lines_of(model, tokens, fused=fused)
    return peak.Need(3 * weights, lines).of(batch)
