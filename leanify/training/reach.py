"""Parameters without a gradient: DDP waits for the gradient of each one that it is not told about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from accelerate import Accelerator


def settle(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], engine: Accelerator) -> None:
    """Prepare a model for DDP, after its optimiser was made: freeze what only an unused output depends on.

    A pooler beside a loss of hidden states never has a gradient, and one process leaves it as it is; DDP would take it
    as used. What no output depends on may have one for other samples, like an expert: DDP then looks in every step.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outputs: list[Any] = []
    with model.register_forward_hook(lambda *call: outputs.append(call[-1])):
        loss = loss_of(model)
    by_loss = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    unreached = [weight for weight, gradient in zip(weights, by_loss, strict=True) if gradient is None]
    parts = [part.float().sum() for part in tree_leaves(outputs) if isinstance(part, Tensor) and part.requires_grad]
    if unreached and parts:
        by_output = torch.autograd.grad(torch.stack(parts).sum(), unreached, allow_unused=True)
        for weight, gradient in zip(unreached, by_output, strict=True):
            weight.requires_grad_(gradient is None)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])  # the sums of batch norms
    if engine.ddp_handler is not None and any(weight.requires_grad for weight in unreached):
        engine.ddp_handler.find_unused_parameters = not engine.ddp_handler.static_graph
