"""Fold the gain and the bias of a norm into the projections that read it, and a LayerScale into those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanify.core.errors import UnsupportedModel
from leanify.lens.resize import linear_features


@dataclass(frozen=True)
class Affine:
    """A norm as z · gain + bias, with z the normalised input."""

    gain: Tensor
    bias: Tensor
    is_centred: bool  # z sums to zero (LayerNorm)
    offset: float  # added to the weight by the module: 1 in Gemma, which stores the gain minus one


@torch.no_grad()
def read_affine(norm: nn.Module, path: str) -> Affine:
    """Read gain and bias of a LayerNorm or RMSNorm by applying it to noise. Raises UnsupportedModel for other norms."""
    weight, bias = norm.weight, getattr(norm, "bias", None)
    assert isinstance(weight, Tensor)
    generator = torch.Generator().manual_seed(0)
    large = 1e8 if weight.dtype in (torch.float32, torch.float64) else 1e3  # makes the norm's eps negligible
    noise = large * torch.randn(1, 4, weight.shape[0], generator=generator, dtype=torch.float64)
    x = noise.to(weight.device, weight.dtype)
    output = norm(x).double()
    bias_term = bias.double() if isinstance(bias, Tensor) else torch.zeros_like(weight, dtype=torch.float64)
    bound = 64 * precision(weight) * float(output.norm())
    for is_centred in (True, False):
        middle = x.double() - x.double().mean(-1, keepdim=True) if is_centred else x.double()
        z = middle * middle.square().mean(-1, keepdim=True).rsqrt()
        for offset in (0.0, 1.0):
            gain = weight.double() + offset
            if float((z * gain + bias_term - output).norm()) <= bound:
                return Affine(gain, bias_term, is_centred, offset)
    raise UnsupportedModel(f"{path} ({type(norm).__name__}) is neither LayerNorm nor RMSNorm with a gain a channel")


def precision(tensor: Tensor) -> float:
    """Return the rounding error of a tensor's type, at best float32's, in which upstream's norms compute."""
    return max(torch.finfo(tensor.dtype).eps, torch.finfo(torch.float32).eps)


def common_bias(norms: Sequence[Affine], projections: Sequence[nn.Module]) -> float:
    """Return the constant bias that remains in the norm when its gain and bias are folded into these projections.

    It is 0, unless a norm has a bias and a projection has none to absorb it: then it is 1, which `fold` uses to carry
    the bias. Raises UnsupportedModel if that is impossible.
    """
    take_it_up = all(isinstance(getattr(module, "bias", None), Tensor) for module in projections)
    if take_it_up or not any(bool(norm.bias.any()) for norm in norms):
        return 0.0
    if not all(norm.is_centred for norm in norms):
        raise UnsupportedModel("a norm that does not centre has a bias, and a projection that reads it has none")
    return 1.0


@torch.no_grad()
def fold(norm: Affine, module: nn.Module, after: float) -> None:
    """Convert a projection of z · gain + bias into one of z + ``after``, in place.

    W (z · g + b) + c = W' (z + a) + c'. With a bias c, W' = W diag(g) and c' = c + W b − a W' 1. Without one,
    W' = W diag(g) + u 1ᵀ: as z sums to zero, the second term adds only a · width · u, so u = (W b − a W g) /
    (a width).
    """
    features = linear_features(module)
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
def fold_scale(module: nn.Module, scale: Tensor) -> None:
    """Multiply the outputs of a projection by a LayerScale, in place."""
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    axis = linear_features(module).output_axis
    weight.copy_((weight.movedim(axis, -1) * scale).movedim(-1, axis))
    if isinstance(bias, Tensor):
        bias.mul_(scale)


@torch.no_grad()
def neutralise(norm: nn.Module, affine: Affine, after: float) -> None:
    """Set a norm to return z + ``after``, in place."""
    weight, bias = norm.weight, getattr(norm, "bias", None)
    assert isinstance(weight, Tensor)
    weight.fill_(1.0 - affine.offset)
    if isinstance(bias, Tensor):
        bias.fill_(after)
