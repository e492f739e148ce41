"""Weights of 16 bits are trained in 32.

AdamW adds to a bfloat16 weight what its 8 bits round away: at a rate of 1e-5 only 15% of the weights of an encoder
changed in 24 steps, and float16 weights overflow. So a checkpoint in 16 bits is trained, and measured, as float32
(Micikevicius et al. 2018, arXiv 1710.03740, section 3.1), and its result is written in the checkpoint's type again.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from leanify.upstream.on_disk import place

HALF_TYPES = (torch.float16, torch.bfloat16)


def weights_dtype(model: nn.Module) -> torch.dtype:
    """The floating-point type that most of a model's weights have."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else torch.float32


def to_master_weights(model: nn.Module) -> torch.dtype:
    """Convert weights and buffers of 16 bits to float32, in place; returns the type that most weights had."""
    dtype = weights_dtype(model)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype in HALF_TYPES:
            tensor.data = place(tensor.data, torch.float32)
    return dtype


@torch.no_grad()
def round_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Round weights to a 16-bit type and keep them as stored, so that the measured weights can be written."""
    if dtype in HALF_TYPES:
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.copy_(parameter.to(dtype))


def to_stored_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of a model to the type of 16 bits that its checkpoint had, in place; buffers stay."""
    if dtype in HALF_TYPES:
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = place(parameter.data, dtype)
