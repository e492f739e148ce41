"""Theorem 3.2 and Lemma 3.3 of the paper, by numbers: i.i.d. Gaussian heads over a grid of N, head_dim and heads."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch

from leanify.spectra import plots
from leanify.spectra.results import LayerProbe, Probe, Sample, quartiles
from leanify.spectra.spectrum import spectra
from leanify.spectra.theory import gaussian_kappa


def gaussian_heads(tokens: int, head_dim: int, heads: int, samples: int = 6) -> torch.Tensor:
    g = torch.Generator().manual_seed(tokens + 7 * head_dim + 31 * heads)
    return torch.cat([torch.randn(samples, tokens, head_dim, generator=g) for _ in range(heads)], dim=-1)


GRID = [(n, d, h) for n in (32, 64, 197) for d in (8, 32, 64) for h in (1, 2, 4, 8, 16, 32)]


@pytest.mark.parametrize(("tokens", "head_dim", "heads"), GRID)
def test_theorem_3_2_holds(tokens, head_dim, heads):
    """Equation 3 with its second σ_m read as σ_1: σ_1 ≈ √inner + √N and σ_k ≈ |√inner − √N|, so κ is their ratio.

    The edges fluctuate by about k^{-2/3} of themselves (Tracy and Widom 1996), and near the square much more: there
    only the order of magnitude is held.
    """
    inner = heads * head_dim
    found = spectra(gaussian_heads(tokens, head_dim, heads))
    measured = found.kappa.median().item()
    predicted = gaussian_kappa(inner, tokens)
    if 0.7 < inner / tokens < 1.4:
        assert measured > 10
    else:
        assert measured == pytest.approx(predicted, rel=3 * min(tokens, inner) ** (-2 / 3))
        edge = math.sqrt(inner) + math.sqrt(tokens)
        assert found.values[:, 0].mean().item() == pytest.approx(edge, rel=2 * min(tokens, inner) ** (-2 / 3))


@pytest.mark.parametrize(("tokens", "head_dim", "heads"), GRID)
def test_lemma_3_3_holds(tokens, head_dim, heads):
    """A Gaussian matrix has full rank with probability 1 — square ones too, where κ is large but finite."""
    found = spectra(gaussian_heads(tokens, head_dim, heads))
    assert found.rank.tolist() == [min(tokens, heads * head_dim)] * len(found.rank)
    assert found.kappa.isfinite().all()


def test_kappa_falls_past_its_peak():
    """Equation 2 needs inner > N: before that, more heads make κ worse."""
    heads = (1, 2, 3, 4, 6, 8, 12, 16, 24, 30)
    measured = [spectra(gaussian_heads(197, 64, h)).kappa.median().item() for h in heads]
    assert heads[measured.index(max(measured))] == 3
    assert measured[:3] == sorted(measured[:3])
    assert measured[2:] == sorted(measured[2:], reverse=True)
    assert gaussian_kappa(64 * 10**6, 197) == pytest.approx(1, abs=1e-2)


def test_splitting_heads_changes_nothing():
    """At constant inner width A has the same shape whatever the number of heads: the theorem predicts a flat line."""
    kappas = [spectra(gaussian_heads(64, 256 // h, h)).kappa.mean().item() for h in (1, 2, 4, 8, 16)]
    assert max(kappas) / min(kappas) < 1.1
    assert statistics.fmean(kappas) == pytest.approx(gaussian_kappa(256, 64), rel=0.1)


def softmax_heads(heads: int, head_dim: int, samples: int = 3) -> torch.Tensor:
    """A of one attention at initialisation: 197 normalised Gaussian tokens of width 768, W of variance 1/768."""
    torch.manual_seed(heads)
    x = torch.nn.functional.layer_norm(torch.randn(samples, 197, 768), (768,))
    drawn = (x @ torch.randn(768, heads * head_dim) / math.sqrt(768) for _ in range(3))
    q, k, v = (p.view(samples, 197, heads, head_dim).transpose(1, 2) for p in drawn)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def test_softmax_growth_peaks_at_square():
    """Real heads share a large σ_1, so κ is some ten times the Gaussian one; its peak and its fall are the same."""
    heads = (1, 2, 3, 4, 6, 8, 12, 16, 24)
    measured = [spectra(softmax_heads(h, 64)).kappa.median().item() for h in heads]
    assert heads[measured.index(max(measured))] == 3
    assert measured[:3] == sorted(measured[:3])
    assert measured[2:] == sorted(measured[2:], reverse=True)
    quiet = [measured[i] for i, h in enumerate(heads) if h != 3]
    assert quiet == pytest.approx([28, 78, 126, 52, 39, 29, 25, 21], rel=0.25)


def test_softmax_splits_level_off():
    """At inner 768 the shape of A never changes. A single map of 197 × 197 is square all the same, and κ is its own."""
    measured = {h: spectra(softmax_heads(h, 768 // h)).kappa.median().item() for h in (1, 2, 4, 8, 12, 16, 24)}
    few, many = measured[4], measured[24]
    assert measured[1] > 100 * few
    assert measured[2] > 1.4 * few
    assert few / many < 1.6
    assert measured[12] / many < 1.15


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 97])
def test_quartiles_match_numpy(count: int) -> None:
    values = np.random.default_rng(count).lognormal(size=count)
    assert quartiles(values.tolist()) == pytest.approx(np.quantile(values, [0.25, 0.5, 0.75]), rel=1e-12)


def test_infinite_values_reach_their_quartiles() -> None:
    """An infinite value reaches only the quartiles that it takes part in."""
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
