"""Fold the gain and the bias of a norm into the projections that read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens.resize import features_of


@dataclass(frozen=True)
class Affine:
    """A norm as z · gain + bias, z being the normalised input."""

    gain: Tensor
    bias: Tensor
    centred: bool  # z sums to zero (LayerNorm)
    offset: float  # what the module adds to its weight: 1 in Gemma's, which keep the gain less one


@torch.no_grad()
def affine_of(norm: nn.Module, path: str) -> Affine:
    """Read a norm by applying it to noise. Raises UnsupportedModel for anything but LayerNorm and RMSNorm."""
    weight, bias = norm.weight, getattr(norm, "bias", None)
    assert isinstance(weight, Tensor)
    generator = torch.Generator().manual_seed(0)
    large = 1e8 if weight.dtype in (torch.float32, torch.float64) else 1e3  # next to it, the norm's eps vanishes
    noise = large * torch.randn(1, 4, weight.shape[0], generator=generator, dtype=torch.float64)
    x = noise.to(weight.device, weight.dtype)
    given = norm(x).double()
    added = bias.double() if isinstance(bias, Tensor) else torch.zeros_like(weight, dtype=torch.float64)
    bound = 64 * precision(weight) * float(given.norm())
    for centred in (True, False):
        middle = x.double() - x.double().mean(-1, keepdim=True) if centred else x.double()
        z = middle * middle.square().mean(-1, keepdim=True).rsqrt()
        for offset in (0.0, 1.0):
            gain = weight.double() + offset
            if float((z * gain + added - given).norm()) <= bound:
                return Affine(gain, added, centred, offset)
    raise UnsupportedModel(f"{path} ({type(norm).__name__}) is neither LayerNorm nor RMSNorm with a gain a channel")


def precision(tensor: Tensor) -> float:
    """The rounding of a tensor's type; float32's at best, which upstream's norms compute in."""
    return max(torch.finfo(tensor.dtype).eps, torch.finfo(torch.float32).eps)


def bias_after(norms: Sequence[Affine], projections: Sequence[nn.Module]) -> float:
    """The constant bias that the norm keeps when its gain and bias are folded into these projections.

    0, unless a norm has a bias and a projection has none to take it up: then 1, which `fold` uses to carry
    it. Raises UnsupportedModel where that is impossible.
    """
    take_it_up = all(isinstance(getattr(module, "bias", None), Tensor) for module in projections)
    if take_it_up or not any(bool(norm.bias.any()) for norm in norms):
        return 0.0
    if not all(norm.centred for norm in norms):
        raise UnsupportedModel("a norm that does not centre has a bias, and a projection that reads it has none")
    return 1.0


@torch.no_grad()
def fold(norm: Affine, module: nn.Module, after: float) -> None:
    """Make a projection of z · gain + bias one of z + ``after``, in place.

    W (z · g + b) + c = W' (z + a) + c'. With a bias c, W' = W diag(g) and c' = c + W b − a W' 1. Without one,
    W' = W diag(g) + u 1ᵀ: as z sums to zero the second term adds a · width · u alone, so u = (W b − a W g) /
    (a width).
    """
    features = features_of(module)
    weight = module.weight
    assert isinstance(weight, Tensor)
    matrix = weight.double().movedim(features.output_axis, 0)  # outputs, inputs
    new = matrix * norm.gain
    constant = matrix @ norm.bias - after * new.sum(1)
    bias = module.bias
    if isinstance(bias, Tensor):
        bias.copy_(bias.double() + constant)
    elif after:
        new = new + constant[:, None] / (after * norm.gain.numel())
    weight.copy_(new.movedim(0, features.output_axis))


@torch.no_grad()
def neutralise(norm: nn.Module, affine: Affine, after: float) -> None:
    """Make a norm give z + ``after``, in place."""
    weight, bias = norm.weight, getattr(norm, "bias", None)
    assert isinstance(weight, Tensor)
    weight.fill_(1.0 - affine.offset)
    if isinstance(bias, Tensor):
        bias.fill_(after)
