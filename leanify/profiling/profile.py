"""Costs of a model: counted on ``meta``, cross-checked, and measured on the device.

MACs come from torch's FLOP counter on ``meta``, which is exact there (on a CPU it misses fused kernels). fvcore,
given a handle for every fused attention, counts the same model from its traced graph; matrix products must
agree, and what neither counts (activations, softmax, additions) is named.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanify.core import machine
from leanify.core.errors import LeanifyError, ShapeError, UnsupportedModel
from leanify.core.tabular import Tabular
from leanify.core.units import format_bytes, format_count, format_operations, format_seconds
from leanify.profiling import counting
from leanify.profiling.counting import weights_bytes
from leanify.profiling.forward import Positional, disable_gradients, zeros
from leanify.profiling.measuring import Memory, attention_kernels, materialise, measure_memory, median_seconds
from leanify.profiling.training_memory import flatten_tensors, predict_training_bytes
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
COUNTERS_AGREE = "torch's counter and fvcore agree"  # `Profile.cross_check`
TRACEABLE_BYTES = 8 << 30  # a model whose graph needs real tensors is traced up to this size


@dataclass(frozen=True, repr=False)
class Profile(Tabular):
    """One model's costs; shown as a table.

    params_body        parameters in the blocks; None for a module that cannot be read
    params_embeddings  parameters of tables with a row for each token, a tied one once; None without a vocabulary
    macs               multiply-adds of one sample; ``flops`` are twice as many
    attention_kernels  calls of each attention kernel in a forward pass, by name; None if unmeasured
    not_measured       the measurement that was skipped because it does not fit into memory
    as_given           whether ``macs`` and ``latency_s`` refer to the user's whole example
    """

    source: str
    architecture: str
    params: int
    params_body: int | None
    macs: int
    flops: int
    fvcore_macs: int | None
    cross_check: str
    uncounted: list[str]
    weights_bytes: int
    batch_size: int
    dtype: str
    device: str
    latency_s: float | None
    throughput_per_s: float | None
    memory: Memory
    attention_kernels: dict[str, int] | None = None
    not_measured: str | None = None
    as_given: bool = False
    params_embeddings: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def headline(self) -> str:
        return f"{self.source} · {self.architecture} · {self.dtype}, {self.device}"

    def rows(self) -> list[dict[str, Any]]:
        plain = {name: value for name, value in self.to_json().items() if name != "memory"}
        return [{**plain, **asdict(self.memory)}]

    def cells(self) -> list[dict[str, str]]:
        return [{"cost": label, self.source: unit(value)} for label, unit, value in self.costs() if value is not None]

    def costs(self) -> list[tuple[str, Callable[[Any], str], Any]]:
        """Every cost with its label, its unit as a function, and its value: None if it is unknown."""
        memory = self.memory
        return [
            ("parameters", format_count, self.params),
            ("  in the blocks", format_count, self.params_body),
            ("  in embeddings", _count, self.params_embeddings),
            ("MACs of the example" if self.as_given else "MACs a sample", format_operations, self.macs),
            ("FLOPs (2 × MACs)", format_operations, self.flops),
            ("weights", format_bytes, self.weights_bytes),
            ("latency of the example" if self.as_given else "latency, batch 1", format_seconds, self.latency_s),
            ("throughput", _rate, self.throughput_per_s),
            ("attention kernels", _kernels, self.attention_kernels),
            ("forward peak", format_bytes, memory.forward_peak_bytes),
            ("  reserved", format_bytes, memory.forward_reserved_bytes),
            ("training peak", format_bytes, memory.train_peak_bytes),
            ("  reserved", format_bytes, memory.train_reserved_bytes),
            ("training, predicted", format_bytes, memory.train_predicted_bytes),
            ("device used (NVML)", format_bytes, memory.nvml_used_bytes),
        ]


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


# -- units ------------------------------------------------------------------------------------------------------------


def _count(value: int | None) -> str:
    return "–" if value is None else format_count(value)


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} /s"


def _kernels(calls: Mapping[str, int] | None) -> str:
    if calls is None:
        return "–"
    return ", ".join(f"{times} × {name.removesuffix('_attention')}" for name, times in calls.items()) or "none seen"
