"""Parameters without a gradient: DDP waits for the gradient of each one that it is not told about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from accelerate import Accelerator


def settle(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], engine: Accelerator) -> None:
    """Prepare a model for DDP, after its optimiser was made: freeze what only an unused output depends on.

    A pooler beside a loss of hidden states never has a gradient, and one process leaves it as it is; DDP would take it
    as used. What no output depends on may have one for other samples, like an expert: DDP then looks in every step.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outputs: list[Tensor] = []
    with model.register_forward_hook(lambda *call: outputs.extend(_tensors(call[-1]))):
        loss = loss_of(model)
    by_loss = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    whole = torch.stack([output.float().sum() for output in outputs if output.requires_grad]).sum()
    by_output = torch.autograd.grad(whole, weights, allow_unused=True)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])  # the sums of batch norms
    for weight, here, there in zip(weights, by_loss, by_output, strict=True):
        if here is None and there is not None:
            weight.requires_grad_(False)
        elif here is None and engine.ddp_handler is not None:
            engine.ddp_handler.find_unused_parameters = not engine.ddp_handler.static_graph


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from _tensors(one)
