"""Singular values: held against the SVD, and against matrices whose spectrum is known."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import Tensor

from leanify.spectra.measure import condition
from leanify.spectra.spectrum import TOLERANCE, _solve_gram, _solve_svd, spectra
from leanify.upstream.build import build_model
from leanify.upstream.origin import Origin

SIZES = [(1, 8), (16, 16), (64, 48), (48, 64), (100, 96), (40, 300), (200, 24)]
SHAPES = {
    "log": lambda t, kappa: kappa**-t,
    "flat": lambda t, kappa: torch.where(t == 1, 1 / kappa, 1.0),
    "one large": lambda t, kappa: torch.where(t == 0, 1.0, 1 / kappa),
    "cliff": lambda t, kappa: torch.where(t < 0.5, 1.0, 1 / kappa),
}


def matrix(rows: int, columns: int, values: Tensor, seed: int = 0) -> Tensor:
    """A float64 matrix of given singular values, drawn between Haar-distributed bases."""
    g = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(n, len(values), dtype=torch.float64, generator=g)).Q for n in (rows, columns))
    return (u * values) @ v.mT


def with_kappa(rows: int, columns: int, shape: str, kappa: float, seed: int = 0) -> Tensor:
    t = torch.linspace(0, 1, min(rows, columns), dtype=torch.float64)
    return matrix(rows, columns, SHAPES[shape](t, kappa).double(), seed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_gram_kappa_equals_svd(rows, columns, shape):
    """The two agree up to a κ of a million."""
    for kappa in (1.0, 30.0, 1e3, 9e3, 3e4, 1e5, 9e5):
        a = with_kappa(rows, columns, shape, kappa).float()[None]
        reference = torch.linalg.svdvals(a[0].double())
        found = spectra(a)
        assert found.kappa.item() == pytest.approx((reference[0] / reference[-1]).item(), rel=1e-6)
        assert found.error.item() <= TOLERANCE
        assert found.rank.item() == min(rows, columns)
        torch.testing.assert_close(found.values[0], reference, rtol=2e-6, atol=0)


def test_float64_reaches_kappa_1e8():
    """Beyond, the answer says where double precision ends."""
    a = torch.stack([with_kappa(40, 60, "log", kappa) for kappa in (1e4, 1e8, 1e12)])
    found = spectra(a)
    assert found.kappa[:2].tolist() == pytest.approx([1e4, 1e8], rel=1e-6)
    assert (found.error <= TOLERANCE).tolist() == [True, True, False]


@pytest.mark.parametrize("shape", SHAPES)
def test_bounds_hold_at_40_digits(shape):
    for seed, kappa in enumerate((3.0, 1e2, 1e3, 1e4, 1e5, 1e6)):
        a = with_kappa(9, 14, shape, kappa, seed)
        with mpmath.workdps(40):
            exact = mpmath.svd_r(mpmath.matrix(a.tolist()), compute_uv=False)
            true = exact[0] / exact[8]
            for values, error in (_solve_gram(a[None]), _solve_svd(a[None])):
                found = mpmath.mpf(values[0, 0].item()) / mpmath.mpf(values[0, -1].item())
                assert abs(found / true - 1) <= error.item() + 2**-51


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (48, 64), (200, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bounds_contain_unrounded_kappa(rows, columns, shape, dtype):
    unit = torch.finfo(dtype).eps / 2
    for seed, share in enumerate((1e-6, 1e-3, 0.1, 1.0, 10.0)):  # κ·unit: from harmless to unknowable
        a = with_kappa(rows, columns, shape, max(1.0, share / unit), seed)
        meant = torch.linalg.svdvals(a)
        found = spectra(a.to(dtype)[None])
        assert found.low.item() <= meant[0] / meant[-1] <= found.high.item()
        assert found.low.item() <= found.kappa.item() <= found.high.item()


@pytest.mark.parametrize("rank", [0, 1, 7, 31])
@pytest.mark.parametrize(("rows", "columns"), [(32, 80), (80, 32), (32, 32)])
def test_rank_deficiency_has_no_upper_bound(rows, columns, rank):
    g = torch.Generator().manual_seed(rank)
    left, right = torch.randn(rows, rank, generator=g), torch.randn(rank, columns, generator=g)
    found = spectra((left @ right)[None])
    assert found.rank.item() == rank
    assert found.high.item() == math.inf
    assert found.low.item() == 1 if rank == 0 else found.low.item() > 1e5
    assert found.stable_rank.item() <= rank + 1e-9
    assert found.effective_rank.item() <= rank + 1e-3


def test_ranks_of_known_spectra():
    values = torch.stack([torch.ones(6), torch.tensor([1.0, 0, 0, 0, 0, 0]), torch.tensor([2.0, 1, 1, 1, 1, 1])])
    found = spectra(torch.stack([matrix(6, 9, row.double()) for row in values]))
    assert found.rank.tolist() == [6, 1, 6]
    assert found.stable_rank.tolist() == pytest.approx([6, 1, 9 / 4])
    shares = [2 / 7] + [1 / 7] * 5
    assert found.effective_rank.tolist() == pytest.approx([6, 1, math.exp(-sum(p * math.log(p) for p in shares))])


def test_batch_and_scale_change_nothing(monkeypatch):
    a = torch.randn(37, 20, 30)
    alone = [spectra(one[None]).kappa.item() for one in a]
    for scale in (1e-18, 1e18):
        assert spectra(a * scale).kappa.tolist() == pytest.approx(alone, rel=1e-5)
    monkeypatch.setattr("leanify.spectra.spectrum.CHUNK", 5 * 600)
    assert spectra(a).kappa.tolist() == pytest.approx(alone, rel=1e-12)


def test_thread_count_is_restored():
    before = torch.get_num_threads(), threadpool_info()
    spectra(torch.randn(64, 197, 64))
    assert (torch.get_num_threads(), threadpool_info()) == before


def test_odd_matrices_change_no_other():
    """Values that are not finite make their own matrix NaN; two equal rows have an infinite κ."""
    a = torch.randn(4, 6, 9)
    a[0, 2, 3], a[1, 2, 3], a[2, 3] = math.nan, math.inf, a[2, 2]
    found = spectra(a)
    assert found.values.isnan().any(-1).tolist() == [True, True, False, False]
    assert found.kappa[2:].isinf().tolist() == [True, False]


def test_low_rank_survives_rounding():
    """W_v of rank r in each of 3 heads leaves A the rank 3 r, and float32 noise where zeros were meant."""
    torch.manual_seed(0)
    model = build_model(Origin("timm", "vit_tiny_patch16_224", {"depth": 2}))
    with torch.no_grad():
        for block in model.blocks:
            value = block.attn.qkv.weight[2 * 192 :]
            basis = torch.linalg.qr(torch.randn(192, 40)).Q
            value.copy_(value @ basis @ basis.T)
    for layer in condition(model, torch.randn(2, 3, 224, 224)).layers:
        assert (layer.rank, layer.full_rank, layer.bounds[1]) == (120, 192, math.inf)
        assert layer.bounds[0] > 1e5
        assert layer.spectrum[120] > 0
