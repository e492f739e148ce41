"""An output projection that makes up for the inputs that are gone, as far as the data can say how.

The new projection W' of the kept inputs minimises E|W a − W' a_S|² + λ|W' − W_S|², a being the projection's
input (Frantar & Alistarh 2023, SparseGPT, solve the same problem entry by entry). As W' = W_S is one of the
candidates, the error on the data never rises. With few tokens the error on other data may: λ is the one whose
W' from half of the batches does best on the other half, and where W_S does better than all of them, W_S it
is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from leanify.lens import notation
from leanify.lens.located import Site
from leanify.lens.resize import features_of
from leanify.warm.axes import Picks
from leanify.warm.calibration import Moments
from leanify.warm.choose import RIDGE, matrix_of, output_of

RIDGES = (RIDGE, 1e-2, 1.0)  # strengths that are tried, in units of the mean power of an input
OUTPUTS = 64  # by which they are compared
Weights = tuple[Tensor, Tensor | None]  # a weight, outputs × inputs, and a bias


def corrected(site: Site, symbol: str, picks: Picks, found: Mapping[str, Moments]) -> Weights | None:
    """The output projection of the kept inputs, and its bias, by least squares; None if nothing is known."""
    path, module = output_of(site, symbol)
    if module is None or path not in found:
        return None
    layout = site.reading.columns[path.removeprefix(f"{site.path}.")]
    kept = notation.picked(layout, site.sizes, picks)
    matrix = matrix_of(module).double()
    bias = module.bias
    halves = [part.to(matrix.device) for part in found[path].sums]
    if isinstance(bias, Tensor):
        matrix = torch.cat([matrix, bias.double()[:, None]], 1)
        kept = torch.cat([kept, torch.tensor([matrix.shape[1] - 1])])
    else:
        halves = [part[:-1, :-1] for part in halves]
    solved = _checked(matrix, halves, kept).to(matrix_of(module).dtype)
    return (solved[:, :-1], solved[:, -1]) if isinstance(bias, Tensor) else (solved, None)


def _checked(matrix: Tensor, halves: list[Tensor], kept: Tensor) -> Tensor:
    """The least-squares map at the strength that one half of the data finds best for the other."""
    if len(halves) < 2:
        return least_squares(matrix, halves[0], kept)
    first, second = halves
    some = matrix[:: max(1, len(matrix) // OUTPUTS)]
    errors = {ridge: _error(some, second, kept, least_squares(some, first, kept, ridge)) for ridge in RIDGES}
    best = min(errors, key=errors.__getitem__)
    if errors[best] >= _error(some, second, kept, some[:, kept]):
        return matrix[:, kept]
    return least_squares(matrix, first + second, kept, best)


def _error(matrix: Tensor, second: Tensor, kept: Tensor, solved: Tensor) -> float:
    """Σ|W a − W' a_S|² from Σ a aᵀ."""
    missed = matrix.clone()
    missed[:, kept] -= solved
    return float(((missed @ second) * missed).sum())


def least_squares(matrix: Tensor, second: Tensor, kept: Tensor, ridge: float = RIDGE) -> Tensor:
    """W' that minimises E|W a − W' a_S|² + λ|W' − W_S|², given E[a aᵀ] or any multiple of it.

    W' = W_S + (W G_S − W_S G_SS) (G_SS + λ)⁻¹ with G_S the columns of E[a aᵀ] that are kept.
    """
    start = matrix[:, kept]
    columns = second[:, kept]
    inner = columns[kept]
    wanted = matrix @ columns - start @ inner
    inner.diagonal().add_(ridge * float(inner.diagonal().mean().clamp(min=1e-30)))
    change: Tensor = torch.cholesky_solve(wanted.T, torch.linalg.cholesky(inner))
    return start + change.T


def set_matrix(module: nn.Module, matrix: Tensor, bias: Tensor | None) -> None:
    """The inverse of `matrix_of`, in place; None leaves the bias."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    weight.copy_(matrix.movedim(0, features_of(module).output_axis).reshape(weight.shape))
    if bias is not None and isinstance(module.bias, Tensor):
        module.bias.copy_(bias)
