"""Record the calls of a stage's blocks, so that blocks before a changed block need not run again.

A `CallTrace` has one call per batch and block. A block runs alone when it is called with the recorded arguments and
another input (`replay`). A model whose first blocks are the recorded ones runs from the first other block on
(`replay_recorded`): the blocks before it return their recorded outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanify.carrying.blocks import disable_cache
from leanify.carrying.calibration import Batch, run
from leanify.upstream.on_disk import place_output
from leanify.upstream.origin import remove_on_exit


@dataclass(frozen=True)
class Call:
    """One call of a module: its arguments, and its output in upstream's form."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    raw: Any

    @property
    def tensors(self) -> list[Tensor]:
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

    @property
    def state(self) -> Tensor:
        """The input hidden states: the first tensor."""
        return self.tensors[0]

    @property
    def output(self) -> Tensor:
        return first_tensor(self.raw)


CallTrace = list[list[Call]]  # by batch and block


def first_tensor(output: Any) -> Tensor:
    """Return the first tensor of a module's output."""
    first: Tensor = output if isinstance(output, Tensor) else output[0]
    return first


@contextmanager
def record_trace(blocks: Sequence[nn.Module]) -> Iterator[CallTrace]:
    """Record the calls of some blocks, one list per forward pass of the model inside the context.

    If a pass calls a block more than once, as with shared layers, its list has another length.
    """
    trace: CallTrace = []

    def hook(index: int) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if index == 0:
                trace.append([])
            output = place_output(output)  # the next block's input is the same tensor
            trace[-1].append(Call(args, dict(kwargs), output))
            return output

        return keep

    hooks = (block.register_forward_hook(hook(index), with_kwargs=True) for index, block in enumerate(blocks))
    with remove_on_exit(hooks):
        yield trace


@torch.no_grad()
def record(model: nn.Module, blocks: Sequence[nn.Module], batches: Sequence[Batch]) -> CallTrace | None:
    """Return the calls of the blocks in forward passes; None if they are not called once each, in order."""
    with record_trace(blocks) as trace:
        for batch in batches:
            run(model, batch)
    in_turn = len(trace) == len(batches) and all(len(calls) == len(blocks) for calls in trace)
    return trace if in_turn else None


@torch.no_grad()
def replay(block: nn.Module, call: Call, state: Tensor | None = None) -> Tensor:
    """Return the output of a block called as in ``call``, optionally with other hidden states."""
    args, kwargs = list(call.args), dict(call.kwargs)
    if state is not None:
        args = [state if value is call.state else value for value in args]
        kwargs = {name: state if value is call.state else value for name, value in kwargs.items()}
    with disable_cache(block):
        return first_tensor(block(*args, **kwargs))


@contextmanager
def replay_recorded(blocks: Sequence[Any], calls: Sequence[Call]) -> Iterator[None]:
    """Make blocks return the recorded outputs instead of computing."""
    before = [vars(block).get("forward") for block in blocks]
    for block, call in zip(blocks, calls, strict=True):
        block.forward = lambda *args, raw=call.raw, **kwargs: raw
    try:
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward
