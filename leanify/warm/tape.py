"""What the blocks of a stage are called with and give, kept so that nothing before a changed block runs again.

A `Tape` holds one call a block and batch. A block is run alone by calling it as it was called, with another input
(`replay`). A model whose first blocks are the recorded ones runs from the first other block on (`resumed`): the blocks
before it return what they gave then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanify.upstream.hooked import hooked
from leanify.warm.blocks import uncached
from leanify.warm.calibration import Batch, run


@dataclass(frozen=True)
class Played:
    """One call of a block: its arguments, and what it gave as upstream takes it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    raw: Any

    @property
    def state(self) -> Tensor:
        """The hidden states that went in: the first tensor."""
        return next(value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor))

    @property
    def output(self) -> Tensor:
        output: Tensor = self.raw if isinstance(self.raw, Tensor) else self.raw[0]
        return output


@dataclass
class Tape:
    """The calls of the blocks of a stage: ``calls[batch][block]``."""

    calls: list[list[Played]]

    def masks(self, batches: Sequence[Batch]) -> list[Tensor | None]:
        return [batch.get("attention_mask") for batch in batches]


@contextmanager
def recording(blocks: Sequence[nn.Module]) -> Iterator[list[list[Played]]]:
    """Collect the calls of some blocks, a list for every forward pass of the model inside the context.

    A pass in which a block is called more than once, as where layers are shared, gives a list of another length.
    """
    found: list[list[Played]] = []

    def hook(index: int) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if index == 0:
                found.append([])
            found[-1].append(Played(args, dict(kwargs), output))

        return keep

    with hooked(block.register_forward_hook(hook(index), with_kwargs=True) for index, block in enumerate(blocks)):
        yield found


@torch.no_grad()
def record(model: nn.Module, blocks: Sequence[nn.Module], batches: Sequence[Batch]) -> Tape | None:
    """The calls of the blocks in forward passes of the model; None where they are not called once each, in turn."""
    with recording(blocks) as found:
        for batch in batches:
            run(model, batch)
    in_turn = len(found) == len(batches) and all(len(calls) == len(blocks) for calls in found)
    return Tape(found) if in_turn else None


@torch.no_grad()
def replay(block: nn.Module, call: Played, state: Tensor | None = None) -> Tensor:
    """What a block gives when it is called as in ``call``, with other hidden states in where they are given."""

    def put(value: Any) -> Any:
        return state if state is not None and value is call.state else value

    with uncached(block):
        raw = block(*(put(value) for value in call.args), **{name: put(value) for name, value in call.kwargs.items()})
    output: Tensor = raw if isinstance(raw, Tensor) else raw[0]
    return output


@contextmanager
def resumed(blocks: Sequence[nn.Module], calls: Sequence[Played]) -> Iterator[None]:
    """Blocks that return what was recorded, instead of computing."""
    with ExitStack() as stack:
        for block, call in zip(blocks, calls, strict=True):
            stack.enter_context(_returning(block, call.raw))
        yield


@contextmanager
def _returning(block: Any, raw: Any) -> Iterator[None]:
    own = vars(block).get("forward")
    block.forward = lambda *args, **kwargs: raw
    try:
        yield
    finally:
        if own is None:
            del block.forward
        else:
            block.forward = own
