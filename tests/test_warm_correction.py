"""The corrected output projection against NumPy's least squares, and how much of it other data confirms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from test_warm_shrink import built
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from leanify.carrying.calibration import Moments
from leanify.carrying.choose import (
    OUTPUTS,
    RIDGE,
    RIDGES,
    correct_output,
    least_squares,
    output_projection,
    set_matrix,
    weight_matrix,
)
from leanify.lens.located import Site
from leanify.reshaping.sites import locate


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def fitted(w: np.ndarray, a: np.ndarray, kept: np.ndarray, ridge: float) -> np.ndarray:
    """W' that minimises |W a − W' a_S|² + λ|W' − W_S|²; λ is a share, ``ridge``, of the mean power of a_S."""
    strength = np.sqrt(ridge * (a[:, kept] ** 2).sum(0).mean())
    inputs = np.concatenate([a[:, kept], strength * np.eye(len(kept))])
    wanted = np.concatenate([a @ w.T, strength * w[:, kept].T])
    solved: np.ndarray = np.linalg.lstsq(inputs, wanted, rcond=None)[0].T
    return solved


def error(w: np.ndarray, a: np.ndarray, kept: np.ndarray, solved: np.ndarray) -> float:
    return float(((a @ w.T - a[:, kept] @ solved.T) ** 2).sum())


def oracle(w: np.ndarray, halves: list[np.ndarray], kept: np.ndarray) -> np.ndarray:
    """At the strength that the first half finds best for the second, on some outputs; W_S where none helps."""
    whole = np.concatenate(halves)
    if len(halves) == 1:
        return fitted(w, whole, kept, RIDGE)
    some = w[:: max(1, len(w) // OUTPUTS)]
    errors = [error(some, halves[1], kept, fitted(some, halves[0], kept, ridge)) for ridge in RIDGES]
    if min(errors) >= error(some, halves[1], kept, some[:, kept]):
        return w[:, kept]
    return fitted(w, whole, kept, RIDGES[int(np.argmin(errors))])


def with_ones(halves: list[np.ndarray]) -> list[np.ndarray]:
    """The inputs beside the constant one of a bias."""
    return [np.concatenate([half, np.ones((len(half), 1))], 1) for half in halves]


def moments_of(halves: list[np.ndarray]) -> Moments:
    return Moments(tuple(torch.from_numpy(half.T @ half) for half in with_ones(halves)))


def site_of(name: str, width: int = 0) -> tuple[Site, nn.Module]:
    """The MLP of a tiny model's first layer; ``width`` makes its output wider."""
    site = next(iter(locate(built(name)[0]).layers)).mlp
    _, module = output_projection(site, "m")
    if width:
        weight: Any = torch.randn(width, weight_matrix(module).shape[1], dtype=torch.float64)
        module.weight, module.bias = nn.Parameter(weight), nn.Parameter(torch.randn(width, dtype=torch.float64))
        module.out_features = width  # type: ignore[assignment]
    return site, module


def inputs(rng: np.random.Generator, tokens: int, width: int, alike: float) -> np.ndarray:
    """Hidden units that say much of each other the smaller ``alike`` is, above a common level."""
    few = rng.normal(size=(tokens, 3)) @ np.random.default_rng(7).normal(size=(3, width))
    return few + alike * rng.normal(size=(tokens, width)) + 0.5


@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("factor", [None, 0, 2])
def test_least_squares_matches_numpy(ridge: float, factor: int | None) -> None:
    """Also where an input is dead, or is another one's multiple."""
    rng = np.random.default_rng(0)
    w, a, kept = rng.normal(size=(5, 12)), inputs(rng, 30, 12, 0.3), np.array([0, 2, 3, 7, 11])
    if factor is not None:
        a[:, 3] = factor * a[:, 2]
    found = least_squares(torch.from_numpy(w), torch.from_numpy(a.T @ a), torch.from_numpy(kept), ridge)
    np.testing.assert_allclose(found.numpy(), fitted(w, a, kept, ridge), rtol=1e-6, atol=1e-8)
    default = least_squares(torch.from_numpy(w), torch.from_numpy(a.T @ a), torch.from_numpy(kept))
    np.testing.assert_allclose(default.numpy(), fitted(w, a, kept, RIDGE), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["timm/vit_base_patch16_224", "hf/llama", "hf/gpt2"])  # a bias, none, transposed
@pytest.mark.parametrize("alike", [0.01, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("tokens", [(400, 400), (12, 9), (60,)])
def test_correction_strength_is_cross_validated(name: str, alike: float, tokens: tuple[int, ...]) -> None:
    site, module = site_of(name)
    weight = weight_matrix(module).double().numpy()
    width = weight.shape[1]
    rng = np.random.default_rng(3)
    halves = [inputs(rng, count, width, alike) for count in tokens]
    kept = np.arange(0, width, 2)
    moments = {output_projection(site, "m")[0]: moments_of(halves)}
    new, bias = correct_output(site, "m", {"m": torch.from_numpy(kept)}, moments)
    if isinstance(module.bias, Tensor):
        whole = np.concatenate([weight, module.bias.detach().double().numpy()[:, None]], 1)
        solved = np.concatenate([new.double().numpy(), bias.double().numpy()[:, None]], 1)
        wanted = oracle(whole, with_ones(halves), np.append(kept, width))
    else:
        assert bias is None
        solved, wanted = new.double().numpy(), oracle(weight, halves, kept)
    assert new.dtype == module.weight.dtype
    np.testing.assert_allclose(solved, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [63, 130])
def test_some_outputs_suffice_to_compare(width: int) -> None:
    site, module = site_of("timm/vit_base_patch16_224", width)
    weight = torch.cat([weight_matrix(module), module.bias.detach()[:, None]], 1).numpy()  # type: ignore[operator]
    rng = np.random.default_rng(5)
    halves = [inputs(rng, count, weight.shape[1] - 1, 0.5) for count in (50, 40)]
    kept = np.arange(0, weight.shape[1] - 1, 3)
    moments = {output_projection(site, "m")[0]: moments_of(halves)}
    new, bias = correct_output(site, "m", {"m": torch.from_numpy(kept)}, moments)
    wanted = oracle(weight, with_ones(halves), np.append(kept, weight.shape[1] - 1))
    np.testing.assert_allclose(torch.cat([new, bias[:, None]], 1).numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_no_data_means_no_correction() -> None:
    site, _ = site_of("hf/llama")
    assert correct_output(site, "m", {"m": torch.arange(2)}, {}) is None
    assert correct_output(site, "x", {"m": torch.arange(2)}, {}) is None


@pytest.mark.parametrize("module", [nn.Linear(5, 3), Conv1D(3, 5), nn.Conv2d(5, 3, 1), nn.Linear(5, 3, bias=False)])
def test_set_matrix_reads_back(module: nn.Module) -> None:
    matrix, bias, before = torch.randn(3, 5), torch.randn(3), module.bias
    kept = before.detach().clone() if isinstance(before, Tensor) else None
    with torch.no_grad():
        set_matrix(module, matrix, None)
        assert torch.equal(weight_matrix(module), matrix)
        assert kept is None or torch.equal(module.bias, kept)  # type: ignore[arg-type]
        set_matrix(module, 2 * matrix, bias)
    assert torch.equal(weight_matrix(module), 2 * matrix)
    assert (module.bias is None) if kept is None else torch.equal(module.bias, bias)  # type: ignore[arg-type]
