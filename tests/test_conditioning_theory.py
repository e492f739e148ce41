"""Theorem 3.2 and Lemma 3.3 of the paper, by numbers: i.i.d. Gaussian heads over a grid of N, head_dim and heads."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from leanify.spectra import plots
from leanify.spectra.results import LayerProbe, Probe, Sample, gaussian_kappa, quartiles
from leanify.spectra.spectrum import spectra


def gaussian_heads(tokens: int, head_dim: int, heads: int, samples: int = 6) -> torch.Tensor:
    g = torch.Generator().manual_seed(tokens + 7 * head_dim + 31 * heads)
    return torch.cat([torch.randn(samples, tokens, head_dim, generator=g) for _ in range(heads)], dim=-1)


GRID = [(n, d, h) for n in (32, 64, 197) for d in (8, 32, 64) for h in (1, 2, 4, 8, 16, 32)]


@pytest.mark.parametrize(("tokens", "head_dim", "heads"), GRID)
def test_theorem_3_2_holds(tokens, head_dim, heads):
    """Equation 3 with its second σ_m read as σ_1: σ_1 ≈ √inner + √N and σ_k ≈ |√inner − √N|, so κ is their ratio.

    The edges fluctuate by about k^{-2/3} of themselves (Tracy and Widom 1996), and near the square much more: there
    only the order of magnitude is held. By Lemma 3.3 the rank is full all the same.
    """
    inner = heads * head_dim
    found = spectra(gaussian_heads(tokens, head_dim, heads))
    assert found.rank.tolist() == [min(tokens, inner)] * len(found.rank)
    assert found.kappa.isfinite().all()
    measured = found.kappa.median().item()
    predicted = gaussian_kappa(inner, tokens)
    if 0.7 < inner / tokens < 1.4:
        assert measured > 10
    else:
        assert measured == pytest.approx(predicted, rel=3 * min(tokens, inner) ** (-2 / 3))
        edge = math.sqrt(inner) + math.sqrt(tokens)
        assert found.values[:, 0].mean().item() == pytest.approx(edge, rel=2 * min(tokens, inner) ** (-2 / 3))


def test_quartiles_match_numpy() -> None:
    """But for infinite values, which reach their own quartiles only."""
    for count in (1, 2, 3, 4, 5, 8, 97):
        values = np.random.default_rng(count).lognormal(size=count)
        assert quartiles(values.tolist()) == pytest.approx(np.quantile(values, [0.25, 0.5, 0.75]), rel=1e-12)
    assert quartiles([1.0, 2.0, 3.0, 4.0, math.inf]) == (2.0, 3.0, 4.0)
    assert quartiles([1.0, math.inf, math.inf]) == (math.inf, math.inf, math.inf)


def test_plot_agrees_with_table() -> None:
    """Layers count from 0; medians lie on their bars; a κ without upper bound is a triangle at its lower one."""
    sample = Sample(8, 10.0, 8, 2.0, 3.0, 5.0, 0.5, 1e-12, 9.9, 10.1)
    skewed = [replace(sample, kappa=kappa) for kappa in (1.0, 2.0, 90.0)]
    unbounded = [replace(sample, kappa=9e5, low=4e5, high=math.inf)]
    layers = []
    for name, samples in (("a", skewed), ("b", unbounded), ("c", [replace(sample, tokens=1)]), ("d", skewed)):
        layers.append(LayerProbe(name, 16, 2, 8, "tokens × inner", True, tuple(samples), (1.0,)))
    figure = plots.layers_figure({"model": Probe(tuple(layers))}, "data", theory=False)
    medians, triangles = figure.axes[0].lines
    assert list(medians.get_xdata()) == [0, 1, 2, 3]
    assert [y for y in medians.get_ydata() if not math.isnan(y)] == [2.0, 2.0]
    assert list(zip(triangles.get_xdata(), triangles.get_ydata(), strict=True)) == [(1, 4e5)]
    assert [text.xy[0] for text in figure.axes[0].texts] == [2]  # a single token has no κ
