"""Correct an output projection for removed inputs by least squares on data.

The new projection W' of the kept inputs minimises E|W a − W' a_S|² + λ|W' − W_S|², with a the projection's input
(Frantar & Alistarh 2023, SparseGPT, solve the same problem entry by entry). W' = W_S is one of the candidates, so the
error on the data never rises. With few tokens the error on other data could rise: λ is the one whose W' from half
of the batches is best on the other half, and W_S is kept if it is better than all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from leanify.carrying.calibration import Moments
from leanify.carrying.choose import RIDGE, input_positions, output_projection, weight_matrix
from leanify.lens.axes import Picks
from leanify.lens.located import Site
from leanify.lens.resize import linear_features

RIDGES = (RIDGE, 1e-2, 1.0)  # candidates for λ, relative to the mean power of an input
OUTPUTS = 64  # number of outputs on which they are compared
Weights = tuple[Tensor, Tensor | None]  # a weight, outputs × inputs, and a bias


def correct_output(site: Site, symbol: str, picks: Picks, moments: Mapping[str, Moments]) -> Weights | None:
    """Return the least-squares output projection of the kept inputs, and its bias; None without data."""
    path, module = output_projection(site, symbol)
    if module is None or path not in moments:
        return None
    kept_inputs = input_positions(site, path, picks)
    matrix = weight_matrix(module).double()
    bias = module.bias
    halves = [part.to(matrix.device) for part in moments[path].sums]
    if isinstance(bias, Tensor):
        matrix = torch.cat([matrix, bias.double()[:, None]], 1)
        kept_inputs = torch.cat([kept_inputs, torch.tensor([matrix.shape[1] - 1])])
    else:
        halves = [part[:-1, :-1] for part in halves]
    solution = _cross_validate(matrix, halves, kept_inputs).to(weight_matrix(module).dtype)
    return (solution[:, :-1], solution[:, -1].clone()) if isinstance(bias, Tensor) else (solution, None)


def _cross_validate(matrix: Tensor, halves: list[Tensor], kept_inputs: Tensor) -> Tensor:
    """Return the least-squares map with the λ from one half of the data that is best on the other half."""
    if len(halves) < 2:
        return least_squares(matrix, halves[0], kept_inputs)
    first, second = halves
    some = matrix[:: max(1, len(matrix) // OUTPUTS)]
    errors = {}
    for ridge in RIDGES:
        errors[ridge] = _error(some, second, kept_inputs, least_squares(some, first, kept_inputs, ridge))
    best = min(errors, key=errors.__getitem__)
    if errors[best] >= _error(some, second, kept_inputs, some[:, kept_inputs]):
        return matrix[:, kept_inputs]
    return least_squares(matrix, first + second, kept_inputs, best)


def _error(matrix: Tensor, second: Tensor, kept_inputs: Tensor, solution: Tensor) -> float:
    """Return Σ|W a − W' a_S|² from Σ a aᵀ."""
    residual = matrix.clone()
    residual[:, kept_inputs] -= solution
    return float(((residual @ second) * residual).sum())


def least_squares(matrix: Tensor, second: Tensor, kept_inputs: Tensor, ridge: float = RIDGE) -> Tensor:
    """Return the W' that minimises E|W a − W' a_S|² + λ|W' − W_S|², given E[a aᵀ] or any multiple of it.

    W' = W_S + (W G_S − W_S G_SS) (G_SS + λ)⁻¹, with G_S the kept columns of E[a aᵀ].
    """
    start = matrix[:, kept_inputs]
    columns = second[:, kept_inputs]
    inner = columns[kept_inputs]
    target = matrix @ columns - start @ inner
    inner.diagonal().add_(ridge * float(inner.diagonal().mean().clamp(min=1e-30)))
    change: Tensor = torch.cholesky_solve(target.T, torch.linalg.cholesky(inner))
    return start + change.T


def set_matrix(module: nn.Module, matrix: Tensor, bias: Tensor | None) -> None:
    """Set a linear map's weight from outputs × inputs (see `weight_matrix`), in place. None keeps the bias."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    weight.copy_(matrix.movedim(0, linear_features(module).output_axis).reshape(weight.shape))
    if bias is not None and isinstance(module.bias, Tensor):
        module.bias.copy_(bias)
