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

from leanify import machine
from leanify.design.prices import counting
from leanify.errors import LeanifyError, UnsupportedModel
from leanify.units import binary
from leanify.upstream.libraries import in_words

BATCHES = (2, 3)  # not 1: a batch norm over one number is refused
LOOKED_AT = np.unique(np.r_[1:257, 2 ** np.arange(8, 31)])  # batches at which the largest line is looked for
Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Need:
    """Bytes of a training step: ``fixed``, and the largest of ``lines`` (a constant, and so much a sample)."""

    fixed: int
    lines: tuple[tuple[int, int], ...]

    def of(self, samples: int) -> int:
        """A step in passes of ``samples`` samples."""
        return self.fixed + max(constant + slope * samples for constant, slope in self.lines)

    def largest(self, available: int) -> int:
        """The samples of a pass that fit, 0 where none does."""
        if self.of(0) > available:
            return 0
        most = ((available - self.fixed - constant) // slope for constant, slope in self.lines if slope > 0)
        return max(0, min(most, default=1 << 40))


def tensors_of(outputs: Any) -> tuple[Tensor, ...]:
    """The tensors that a forward gives, by itself, in a sequence or under names."""
    if isinstance(outputs, Tensor):
        return (outputs,)
    parts = outputs.values() if isinstance(outputs, Mapping) else outputs
    return tuple(part for part in parts if isinstance(part, Tensor))


def squares(outputs: Any) -> Tensor:
    """The mean of all outputs' squares: a loss that any model has."""
    return torch.stack([(output.float() ** 2).mean() for output in tensors_of(outputs)]).sum()


def cross_entropy(outputs: Any) -> Tensor:
    """The loss of classes and of tokens, over the first output; of what is no list of logits, `squares`."""
    logits = tensors_of(outputs)[0]
    if logits.ndim < 2 or logits.shape[-1] < 2 or logits.ndim > 3:
        return squares(outputs)
    rows = logits.float().flatten(0, -2)
    targets = torch.zeros(rows.shape[0], dtype=torch.long, device=rows.device)
    return nn.functional.cross_entropy(rows, targets, reduction="sum")


def lines_of(
    model: nn.Module,
    tokens: int | None = None,
    *,
    loss: Loss = squares,
    half: bool = False,
    fused: bool = False,
    again: bool = False,
    weights: torch.dtype | None = None,
) -> tuple[tuple[int, int], ...]:
    """The lines of a model's activations and gradients.

    ``tokens`` is the length of a text. ``half``: under autocast to bfloat16. ``fused``: attention with
    dropout is fused, too, as on a GPU. ``again``: for a second pass, whose gradients are added to those of
    the first. ``weights``: the type of weights and gradients, if not the model's own. If upstream's code
    needs values, it runs on zeros in memory. Raises UnsupportedModel if that fails too.
    """
    step = partial(_series, loss=loss, half=half, fused=fused, again=again)
    small, large = _of_sizes(model, tokens, step, weights) or _of_zeros(model, tokens, step)
    if len(small) != len(large):  # another way through the model: only the peaks are comparable
        small, large = small.max(keepdims=True), large.max(keepdims=True)
    slopes = (large - small) // (BATCHES[1] - BATCHES[0])
    constants = small - BATCHES[0] * slopes
    best = np.unique(np.argmax(constants[:, None] + slopes[:, None] * LOOKED_AT[None, :], axis=0))
    return tuple((int(constants[place]), int(slopes[place])) for place in best)


Step = Callable[[nn.Module, dict[str, Tensor]], np.ndarray]


def _of_sizes(model: nn.Module, tokens: int | None, step: Step, weights: torch.dtype | None) -> list[np.ndarray]:
    """A step of both batches without memory; [] where it does not run."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    found = []
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            for batch in BATCHES:
                inputs = counting.unmasked_inputs(model, tokens, "cpu", batch)
                if weights is not None:
                    inputs = {k: x.to(weights) if x.is_floating_point() else x for k, x in inputs.items()}
                found.append(step(_without_memory(model, weights), inputs))
    except LeanifyError:
        raise
    except Exception:  # whatever upstream's code raises where it was never tried
        return []
    return found


def _of_zeros(model: nn.Module, tokens: int | None, step: Step) -> list[np.ndarray]:
    """A step of both batches on zeros in memory, where weights and gradients fit there."""
    size = 2 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    free = machine.available(torch.device("cpu"))
    try:
        if free is not None and size > free:
            raise MemoryError(f"it takes {binary(size)} of memory, {binary(free)} are available")
        inputs = [counting.unmasked_inputs(model, tokens, "cpu", batch) for batch in BATCHES]
        return [step(counting.zeros(model), given) for given in inputs]
    except LeanifyError:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"the memory of training {type(model).__name__} cannot be predicted: a step on zeros failed with "
            + in_words(error)
        ) from error


def _series(
    model: nn.Module, inputs: dict[str, Tensor], loss: Loss, half: bool, fused: bool, again: bool
) -> np.ndarray:
    """Live bytes after each operation of a training step, without the weights."""
    from torch.autograd.graph import _engine_run_backward

    model.train()
    live = Live([*model.parameters(), *model.buffers(), *inputs.values()])
    for _ in range(2 if again else 1):
        live.seen.clear()
        with live, _Attention(fused), counting.Countable():
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                outputs = counting.call(model, inputs)
            value = loss(outputs)
            del outputs
            # `value.backward()`, past the modes: one is off while it handles a call, and blocks may be computed again
            ones = (torch.ones_like(value),)
            _engine_run_backward((value,), ones, False, False, (), allow_unreachable=True, accumulate_grad=True)
            del value
    return np.array(live.seen)


def _without_memory(model: nn.Module, weights: torch.dtype | None) -> nn.Module:
    """A copy on the CPU, under a mode in which tensors have no memory."""
    made: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty(p.shape, dtype=weights or p.dtype), p.requires_grad) for p in model.parameters()
    }
    made |= {id(tensor): torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in model.buffers()}
    return copy.deepcopy(model, made)


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages from when an operation makes them until they are freed."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.seen: list[int] = []
        self.held: dict[int, int] = {}  # bytes by a storage's address
        self.known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.add.Tensor and _in_backward():
            self._end(args[0].untyped_storage()._cdata)
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self._note(tensor.untyped_storage())
        self.seen.append(self.bytes)
        return made

    def _note(self, storage: Any) -> None:
        if storage._cdata not in self.known:
            self.known.add(storage._cdata)
            self.held[storage._cdata] = storage.nbytes()
            self.bytes += storage.nbytes()
            weakref.finalize(storage, self._gone, storage._cdata)

    def _end(self, address: int) -> None:
        self.bytes -= self.held.pop(address, 0)

    def _gone(self, address: int) -> None:
        self._end(address)
        self.known.discard(address)


def _in_backward() -> bool:
    """Whether gradients are computed, and not blocks again: there a sum is that of a tensor's gradients by two ways.

    Autograd adds the second to the first in place; under a mode, where it is cautious, to a new one.
    """
    return torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()


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

    def __init__(self, fused: bool) -> None:
        self.fused = fused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention and self.fused:
            names = ("query", "key", "value")
            query, key, value = (*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs))[:3]
            return _Fused.apply(query, key, value)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)
