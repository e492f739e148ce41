"""What the blocks of a stage are called with and give, so that nothing before a changed block runs again.

A `Tape` holds one call a batch and block. A block is run alone by calling it as it was called, with another
input (`replay`). A model whose first blocks are the recorded ones runs from the first other block on
(`resumed`): the blocks before it return what they gave then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanify.upstream.hooked import hooked
from leanify.warm.blocks import uncached
from leanify.warm.calibration import Batch, run


@dataclass(frozen=True)
class Call:
    """One call of a module: its arguments, and what it gave as upstream takes it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    raw: Any

    @property
    def tensors(self) -> list[Tensor]:
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

    @property
    def state(self) -> Tensor:
        """The hidden states that went in: the first tensor."""
        return self.tensors[0]

    @property
    def output(self) -> Tensor:
        return first_of(self.raw)


Tape = list[list[Call]]  # by batch and block


def first_of(output: Any) -> Tensor:
    """The first tensor that a module gives."""
    first: Tensor = output if isinstance(output, Tensor) else output[0]
    return first


@contextmanager
def recording(blocks: Sequence[nn.Module]) -> Iterator[Tape]:
    """Collect the calls of some blocks, a list for every forward pass of the model inside the context.

    A pass that calls a block more than once, as where layers are shared, gives a list of another length.
    """
    found: Tape = []

    def hook(index: int) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if index == 0:
                found.append([])
            found[-1].append(Call(args, dict(kwargs), output))

        return keep

    hooks = (block.register_forward_hook(hook(index), with_kwargs=True) for index, block in enumerate(blocks))
    with hooked(hooks):
        yield found


@torch.no_grad()
def record(model: nn.Module, blocks: Sequence[nn.Module], batches: Sequence[Batch]) -> Tape | None:
    """The calls of the blocks in forward passes; None where they are not called once each, in turn."""
    with recording(blocks) as found:
        for batch in batches:
            run(model, batch)
    in_turn = len(found) == len(batches) and all(len(calls) == len(blocks) for calls in found)
    return found if in_turn else None


@torch.no_grad()
def replay(block: nn.Module, call: Call, state: Tensor | None = None) -> Tensor:
    """What a block gives when it is called as in ``call``, with other hidden states where they are given."""
    args, kwargs = list(call.args), dict(call.kwargs)
    if state is not None:
        args = [state if value is call.state else value for value in args]
        kwargs = {name: state if value is call.state else value for name, value in kwargs.items()}
    with uncached(block):
        return first_of(block(*args, **kwargs))


@contextmanager
def resumed(blocks: Sequence[Any], calls: Sequence[Call]) -> Iterator[None]:
    """Blocks that return what was recorded, instead of computing."""
    before = [vars(block).get("forward") for block in blocks]
    for block, call in zip(blocks, calls, strict=True):
        block.forward = lambda *args, raw=call.raw, **kwargs: raw
    try:
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            if own is None:
                del block.forward
            else:
                block.forward = own
