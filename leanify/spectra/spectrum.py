"""Fast singular values of many matrices, with a bound on the error of κ.

σ² are the eigenvalues of the smaller Gram matrix, AAᵀ or AᵀA, in float64. Squaring loses half the digits of
small singular values, so each result has its own error bound, and a matrix whose bound exceeds `TOLERANCE` is
recomputed by SVD.

There are two different sources of error:

    arithmetic   of computing the given matrix's singular values in float64: `Spectra.error`, below 1e-6 up to
                 κ ≈ 1e4 by the Gram matrix and up to κ ≈ 1e8 by the SVD
    entries      of the given matrix itself, whose entries were rounded to their own dtype. The κ of the exact matrix
                 is between `Spectra.low` and `Spectra.high`. Singular values below that noise do not count towards
                 `Spectra.rank`; if there is one, `high` is infinite. For float32 entries `high` is finite for every κ
                 below 1e6; how far above depends on how flat the spectrum is
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

TOLERANCE = 1e-6  # largest relative error of κ accepted from the Gram matrix
CHUNK = 2**18  # entries that a thread converts to float64 at a time: 2 MiB, which fit into its cache
ACCELERATOR_CHUNK = 2**26  # the same for an accelerator, which needs large batches: 512 MiB
_EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Spectra:
    """Singular values of B matrices of one size, on the CPU in float64."""

    values: Tensor  # (B, k) descending, k = min(rows, columns); NaN for a matrix with a value that is not finite
    error: Tensor  # (B,) bound on the relative error of κ; infinite if float64 does not resolve σ_k
    noise: Tensor  # (B,) the largest singular value that rounding of the entries can produce

    @property
    def rank(self) -> Tensor:
        """(B,) the number of singular values above the noise."""
        return (self.values > self.noise[:, None]).sum(-1)

    @property
    def kappa(self) -> Tensor:
        """(B,) σ_1/σ_k of the given matrix (Definition 3.1); infinite if float64 cannot tell σ_k from 0."""
        ratio: Tensor = self.values[:, 0] / self.values[:, -1]
        return torch.where(self.error.isinf(), torch.inf, ratio)

    @property
    def low(self) -> Tensor:
        """(B,) the smallest κ of any matrix within the noise: by Weyl, no σ moves by more than the noise."""
        error = self._error
        low: Tensor = (self.values[:, 0] - error) / (self.values[:, -1] + error)
        return torch.where(self.values[:, 0] > error, low.clamp_min(1), 1.0)

    @property
    def high(self) -> Tensor:
        """(B,) the largest κ of any matrix within the noise; infinite if one of them is singular."""
        error = self._error
        high: Tensor = (self.values[:, 0] + error) / (self.values[:, -1] - error)
        return torch.where(self.values[:, -1] > error, high, torch.inf)

    @property
    def _error(self) -> Tensor:
        """(B,) the possible error of σ_1 and σ_k: the entries' noise plus the arithmetic error of σ_k."""
        return self.noise + torch.where(self.error.isinf(), 0.0, self.error * self.values[:, -1])

    @property
    def stable_rank(self) -> Tensor:
        """(B,) ‖A‖_F²/‖A‖₂² (Rudelson and Vershynin 2007), between 1 and the rank; 0 for zeros."""
        return self.values.square().sum(-1) / self.values[:, 0].square().clamp_min(torch.finfo(torch.float64).tiny)

    @property
    def effective_rank(self) -> Tensor:
        """(B,) exp of the entropy of σ/Σσ (Roy and Vetterli 2007), between 1 and k; 0 for zeros."""
        total = self.values.sum(-1, keepdim=True)
        share = self.values / total.clamp_min(torch.finfo(torch.float64).tiny)
        entropy: Tensor = torch.special.entr(share).sum(-1)
        return torch.where(total[:, 0] > 0, entropy.exp(), 0.0)


def spectra(matrices: Tensor) -> Spectra:
    """The spectra of (B, rows, columns), in pieces: in parallel threads on the CPU, in sequence elsewhere."""
    on_cpu = matrices.device.type == "cpu"
    chunk = CHUNK if on_cpu else ACCELERATOR_CHUNK
    size = max(1, chunk // matrices[0].numel())
    count = -(-len(matrices) // size)
    pieces = _solve_threaded(matrices, count) if on_cpu else [_solve(piece) for piece in matrices.tensor_split(count)]
    values, error, noise = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return Spectra(values, error, noise)


def _solve_threaded(matrices: Tensor, count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """One thread per piece, because at these sizes the threads of LAPACK and BLAS gain nothing."""
    threads = torch.get_num_threads()
    pieces = matrices.tensor_split(min(len(matrices), -(-count // threads) * threads))
    torch.set_num_threads(1)
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            return list(_workers(threads).map(_solve, pieces)) if len(pieces) > 1 else [_solve(pieces[0])]
    finally:
        torch.set_num_threads(threads)


_libraries = lru_cache(maxsize=1)(ThreadpoolController)
_workers = lru_cache(maxsize=1)(ThreadPoolExecutor)


@torch.inference_mode()
def _solve(piece: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(values, error, noise) of one piece: by the Gram matrix, then by SVD where the bound is too large."""
    matrices = piece.double()
    values, error = _solve_gram(matrices)
    again = error > TOLERANCE
    if again.any():
        values[again], error[again] = _solve_svd(matrices[again])
    return values.cpu(), error.cpu(), _noise(values, piece).cpu()


def _solve_gram(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """(singular values, error of κ). Weyl: no eigenvalue moves by more than ‖δG‖₂ when G is rounded to G + δG.

    ‖δG‖₂ ≤ 2·√(rows + columns)·eps·λ_max is the statistical form of the rounding bounds of the product and of
    the eigensolver (Higham and Mary 2019): it holds with high probability, while the worst case would have
    rows + columns instead of the root. The tests check it against 40-digit arithmetic and against the SVD. κ
    = √(λ_1/λ_k) then moves by ‖δG‖₂/(2·λ_k).
    """
    rows, columns = matrices.shape[-2:]
    smaller = matrices if rows <= columns else matrices.mT
    squares = _squares(smaller)
    gram_error = 2 * (rows + columns) ** 0.5 * _EPS * squares[:, 0]
    error = gram_error / (2 * (squares[:, -1] - gram_error).clamp_min(0))
    return squares.clamp_min(0).sqrt(), error


def _squares(matrices: Tensor) -> Tensor:
    """(B, n) eigenvalues of M Mᵀ, descending; NaN for a matrix that contains NaN, for which LAPACK would raise."""
    on_cpu = matrices.device.type == "cpu"  # there NumPy computes only half of M Mᵀ (BLAS' syrk), and reduces it faster
    m: Any = matrices.numpy() if on_cpu else matrices
    gram = torch.as_tensor(m @ m.swapaxes(-1, -2))
    not_finite = ~gram.diagonal(dim1=-2, dim2=-1).isfinite().all(-1)
    gram[not_finite] = 0
    squares = torch.from_numpy(np.linalg.eigvalsh(gram.numpy())) if on_cpu else torch.linalg.eigvalsh(gram)
    squares = squares.flip(-1)
    squares[not_finite] = torch.nan
    return squares


def _solve_svd(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """(singular values, error of κ): here the singular values themselves move by ‖δA‖₂, not their squares."""
    values = torch.linalg.svdvals(matrices)
    error = 2 * sum(matrices.shape[-2:]) ** 0.5 * _EPS * values[:, 0]
    return values, error / (values[:, -1] - error).clamp_min(0)


def _noise(values: Tensor, batch: Tensor) -> Tensor:
    """(B,) the spectral norm of the rounding that the entries carry, eightfold for the products that made them.

    Entries rounded to u = eps/2 leave an error matrix of independent entries of size u·|a|, whose norm is
    about u·‖A‖_F·(1/√rows + 1/√columns). NumPy's max(rows, columns)·eps·σ_max is a worst case: with it every
    float32 layer of κ > 1e4 would count as rank-deficient, where its singular values are in truth still known
    to 1e-3.
    """
    rows, columns = batch.shape[-2:]
    unit = torch.finfo(batch.dtype).eps / 2
    noise: Tensor = 8 * unit * (rows**-0.5 + columns**-0.5) * values.square().sum(-1).sqrt()
    return noise
