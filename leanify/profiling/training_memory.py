"""Predict the memory of a training step: upstream's own code on tensors that have sizes and no memory.

A forward and a backward pass run under torch's `FakeTensorMode`; each storage counts from its allocation to
its last reference: saved activations, gradients, temporaries. Two batches give a constant and a slope for
each operation; the largest of these lines is the peak at any batch size. Memory inside a kernel (scratch
space, packed weights) is unseen.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from leanify.core import machine
from leanify.core.errors import LeanifyError, UnsupportedModel
from leanify.core.units import format_bytes
from leanify.discovery.flow import iterate_tensors
from leanify.profiling.forward import Countable, call, unmasked_inputs, zeros
from leanify.upstream.libraries import format_error

BATCHES = (2, 3)  # not 1: a batch norm over one number is refused
SEARCHED_BATCHES = np.unique(np.r_[1:257, 2 ** np.arange(8, 31)])  # batches whose largest lines are kept
Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of a training step: ``fixed_bytes``, and the largest of ``lines`` (a constant, and bytes per sample)."""

    fixed_bytes: int
    lines: tuple[tuple[int, int], ...]

    def of(self, samples: int) -> int:
        """The bytes of a step in passes of ``samples`` samples."""
        return self.fixed_bytes + max(constant + slope * samples for constant, slope in self.lines)

    def largest(self, available: int) -> int:
        """The number of samples of a pass that fit."""
        if self.of(0) > available:
            return 0
        rest = available - self.fixed_bytes
        batch_limits = ((rest - constant) // slope for constant, slope in self.lines if slope > 0)
        return max(0, min(batch_limits, default=1 << 40))


def flatten_tensors(outputs: Any) -> tuple[Tensor, ...]:
    """The tensors in the output of a forward: a tensor, a sequence or a mapping."""
    if isinstance(outputs, Tensor):
        return (outputs,)
    parts = outputs.values() if isinstance(outputs, Mapping) else outputs
    return tuple(part for part in parts if isinstance(part, Tensor))


def squares(outputs: Any) -> Tensor:
    """The mean of all outputs' squares: a loss that any model has."""
    tensors = flatten_tensors(outputs)
    if not tensors:
        raise UnsupportedModel("its forward returns no tensor, so it cannot be trained on its outputs")
    return torch.stack([(output.float() ** 2).mean() for output in tensors]).sum()


def cross_entropy(outputs: Any) -> Tensor:
    """The loss of classes and of tokens, over the first output; of other outputs, `squares`."""
    logits = flatten_tensors(outputs)[0]
    if logits.ndim < 2 or logits.shape[-1] < 2 or logits.ndim > 3:
        return squares(outputs)
    rows = logits.float().flatten(0, -2)
    targets = torch.zeros(rows.shape[0], dtype=torch.long, device=rows.device)
    return nn.functional.cross_entropy(rows, targets, reduction="sum")


def fit_lines(
    model: nn.Module,
    tokens: int | None = None,
    *,
    loss: Loss = squares,
    half: bool = False,
    is_fused: bool = False,
    again: bool = False,
    weights: torch.dtype | None = None,
) -> tuple[tuple[int, int], ...]:
    """The lines of a model's activations and gradients.

    ``tokens`` is the length of a text. ``half``: under autocast to bfloat16. ``is_fused``: attention with dropout is
    fused too, as on a GPU. ``again``: for a second pass, whose gradients are added to the first ones.
    ``weights``: the type of weights and gradients, if not the model's own. If upstream's code needs values, it runs
    on zeros in memory. Raises UnsupportedModel if that fails too.
    """
    # bytes after each operation, of both batches
    step = partial(_series, loss=loss, half=half, is_fused=is_fused, again=again)
    small, large = _trace_sizes(model, tokens, step, weights, BATCHES) or _trace_zeros(model, tokens, step)
    if len(small) != len(large):  # another way through the model: only the peaks are comparable
        small, large = small.max(keepdims=True), large.max(keepdims=True)
    slopes = (large - small) // (BATCHES[1] - BATCHES[0])
    constants = small - BATCHES[0] * slopes

    # the lines that are the largest one at some batch
    best = np.unique(np.argmax(constants[:, None] + slopes[:, None] * SEARCHED_BATCHES[None, :], axis=0))
    return tuple((int(constants[place]), int(slopes[place])) for place in best)


def trace_peak(model: nn.Module, batch: int, tokens: int | None = None, *, is_fused: bool = False) -> int:
    """The most bytes of activations and gradients in a step of one batch, as `fit_lines` predicts them for any."""
    step = partial(_series, loss=squares, half=False, is_fused=is_fused, again=False)
    series = _trace_sizes(model, tokens, step, None, (batch,))
    return int(series[0].max()) if series else MemoryNeed(0, fit_lines(model, tokens, is_fused=is_fused)).of(batch)


def predict_training_bytes(model: nn.Module, batch: int, tokens: int | None = None, is_fused: bool = True) -> int:
    """The peak of an AdamW step: weights, two moments, and the largest sum of activations and gradients.

    ``is_fused``: attention with dropout is fused too, as on a GPU. Raises UnsupportedModel if the model cannot
    be trained on its example inputs.
    """
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return 3 * weights + trace_peak(model, batch, tokens, is_fused=is_fused)


Step = Callable[[nn.Module, dict[str, Tensor]], np.ndarray]


def _trace_sizes(
    model: nn.Module, tokens: int | None, step: Step, weights: torch.dtype | None, batches: tuple[int, ...]
) -> list[np.ndarray]:
    """Trace a step of each batch without memory; [] if the model does not run so."""
    # tensors of torch's fake mode have sizes and no memory
    from torch._subclasses.fake_tensor import FakeTensorMode

    series = []
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            for batch in batches:
                inputs = unmasked_inputs(model, tokens, "cpu", batch)
                if weights is not None:
                    floating = {k: x for k, x in inputs.items() if isinstance(x, Tensor) and x.is_floating_point()}
                    inputs = inputs | {k: x.to(weights) for k, x in floating.items()}
                series.append(step(_replace_storage(model, weights), inputs))
    except LeanifyError:
        raise
    except Exception:  # upstream's code may raise anything on fake tensors
        return []
    return series


def _trace_zeros(model: nn.Module, tokens: int | None, step: Step) -> list[np.ndarray]:
    """Trace a step of both batches on zeros in memory, if weights and gradients fit there."""
    size = 2 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    free = machine.available_memory(torch.device("cpu"))
    try:
        if free is not None and size > free:
            raise MemoryError(f"it takes {format_bytes(size)} of memory, {format_bytes(free)} are available")
        inputs = [unmasked_inputs(model, tokens, "cpu", batch) for batch in BATCHES]
        return [step(zeros(model), example) for example in inputs]
    except LeanifyError:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"the memory of training {type(model).__name__} cannot be predicted: a step on zeros failed with "
            + format_error(error)
        ) from error


def _series(
    model: nn.Module, inputs: dict[str, Tensor], loss: Loss, half: bool, is_fused: bool, again: bool
) -> np.ndarray:
    """Live bytes after each operation of a training step, without the weights."""
    from torch.autograd.graph import _engine_run_backward

    # bytes that live after each operation of forward, loss and backward
    model.train()
    live = LiveBytes([*model.parameters(), *model.buffers(), *iterate_tensors(list(inputs.values()))])
    for _ in range(2 if again else 1):
        live.byte_series.clear()
        with live, _Attention(is_fused), Countable():
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                outputs = call(model, inputs)
            value = loss(outputs)
            del outputs
            # like `value.backward()`, with modes on: they would be off inside it, where blocks may be computed again
            ones = (torch.ones_like(value),)
            _engine_run_backward((value,), ones, False, False, (), allow_unreachable=True, accumulate_grad=True)
            del value
    return np.array(live.byte_series)


def _replace_storage(model: nn.Module, weights: torch.dtype | None) -> nn.Module:
    """A copy of the model with new tensors on the CPU, which have no memory in torch's fake mode."""
    tensors: dict[int, Any] = {}
    for p in model.parameters():
        tensors[id(p)] = nn.Parameter(torch.empty(p.shape, dtype=weights or p.dtype), p.requires_grad)
    tensors |= {id(tensor): torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in model.buffers()}
    return copy.deepcopy(model, tensors)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages from when an operation makes them until they are freed."""

    def __init__(self, known_tensors: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.byte_series: list[int] = []
        self.storage_bytes: dict[int, int] = {}  # bytes by a storage's address
        self.known_storages = {tensor.untyped_storage()._cdata for tensor in known_tensors}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # autograd adds a tensor's second gradient to the first in place; under a mode it copies to be safe. Outside
        # recomputed blocks, where gradients are on, a sum in the backward pass is such a copy
        is_backward = torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()
        if func is torch.ops.aten.add.Tensor and is_backward:
            self._end(args[0].untyped_storage()._cdata)
        for tensor in iterate_tensors(result):
            storage = tensor.untyped_storage()
            address, size = storage._cdata, storage.nbytes()
            if address not in self.known_storages:
                self.known_storages.add(address)
                self.storage_bytes[address] = size
                self.bytes += size
                weakref.finalize(storage, self._forget, address)
        self.byte_series.append(self.bytes)
        return result

    def _end(self, address: int) -> None:
        self.bytes -= self.storage_bytes.pop(address, 0)

    def _forget(self, address: int) -> None:
        self._end(address)
        self.known_storages.discard(address)


class _Fused(torch.autograd.Function):
    """A fused attention's memory: inputs, output and one log-sum-exp a query are saved, the N × N map is not."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class _Attention(TorchFunctionMode):
    """Attention as the device's fused kernel saves it; a CPU's kernel takes no dropout."""

    def __init__(self, is_fused: bool) -> None:
        self.is_fused = is_fused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention and self.is_fused:
            names = ("query", "key", "value")
            query, key, value = (*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs))[:3]
            return _Fused.apply(query, key, value)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)
