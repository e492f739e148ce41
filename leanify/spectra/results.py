"""The results of a probe as values, and the theory's prediction of them. Imports no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from leanify.core.tabular import Tabular
from leanify.core.units import format_digits

Mode = Literal["grow", "split"]


def gaussian_kappa(inner: int, tokens: int) -> float:
    """κ of an i.i.d. Gaussian A of ``tokens`` × ``inner`` (Theorem 3.2, eq. 5; the edges of Marchenko and Pastur 1967).

        κ ≈ (√inner + √tokens) / |√inner − √tokens|

    It is symmetric in its arguments, 1 in the limit of many heads, and infinite at its peak, inner = tokens. The paper
    (arXiv 2505.20802) models heads so; attention is not Gaussian: it gives the position of the peak, not the value.
    """
    gap = abs(math.sqrt(inner) - math.sqrt(tokens))
    return (math.sqrt(inner) + math.sqrt(tokens)) / gap if gap else math.inf


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The 25, 50 and 75% quantiles, linearly interpolated; infinite only where an infinite value counts."""
    sorted_values = sorted(values)
    result = []
    for share in (0.25, 0.5, 0.75):
        place = share * (len(sorted_values) - 1)
        lower_index = math.floor(place)
        value, rest = sorted_values[lower_index], place - lower_index
        if rest and value != sorted_values[lower_index + 1]:  # inf − inf would be NaN
            value += rest * (sorted_values[lower_index + 1] - value)
        result.append(value)
    return result[0], result[1], result[2]


@dataclass(frozen=True)
class Sample:
    """One sample in one layer; means over windows if the layer uses window attention."""

    tokens: int
    kappa: float
    rank: float  # singular values above the rounding noise of A's own dtype
    stable_rank: float  # ‖A‖_F²/‖A‖₂²
    effective_rank: float  # exp of the entropy of σ/Σσ
    largest: float  # σ_max
    smallest: float  # σ_min
    error: float  # bound on the relative error of κ as computed
    low: float  # bound of κ under the rounding of the entries of A
    high: float  # the same; infinite where the rank is below k


@dataclass(frozen=True)
class LayerProbe:
    """One layer's A = [A_1 … A_h], tokens × inner, over all samples."""

    name: str
    inner: int
    heads: int
    head_dim: int
    object: str  # the kind of matrix that A is
    mixes_tokens: bool
    samples: tuple[Sample, ...]
    spectrum: tuple[float, ...]  # singular values, descending: means over samples long enough to have them
    per_head: tuple[float, ...] = ()  # κ of each A_i (tokens × head_dim), means over samples; if asked for
    weights: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # κ of W_q … W_o of each head, by "q" …

    @property
    def tokens(self) -> int:
        """Rows of A, of the longest sample if lengths differ."""
        return max(sample.tokens for sample in self.samples)

    @property
    def kappas(self) -> tuple[float, ...]:
        """κ = σ_max/σ_min over min(tokens, inner) singular values, one per sample; infinite if σ_min is 0."""
        return tuple(sample.kappa for sample in self.samples)

    @property
    def kappa(self) -> float:
        """The mean over samples."""
        return self.mean("kappa")

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the mean κ under rounding of A's entries; the upper may be infinite."""
        return self.mean("low"), self.mean("high")

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """κ at 25, 50 and 75% of the samples, linearly interpolated."""
        return quartiles(self.kappas)

    @property
    def rank(self) -> int:
        """The rank of the worst sample: ``full_rank`` minus the largest deficiency of any sample."""
        missing = max(min(sample.tokens, self.inner) - sample.rank for sample in self.samples)
        return self.full_rank - math.ceil(missing)

    @property
    def full_rank(self) -> int:
        """min(tokens, inner)"""
        return min(self.tokens, self.inner)

    @property
    def is_vector(self) -> bool:
        """Whether A has a single token, as in class attention; κ is then 1 and meaningless."""
        return self.tokens == 1

    @property
    def kappa_theory(self) -> float | None:
        """The Gaussian prediction for this shape; None for a vector, or no softmax over tokens."""
        if self.is_vector or not self.mixes_tokens:
            return None
        return statistics.fmean(gaussian_kappa(self.inner, sample.tokens) for sample in self.samples)

    def mean(self, what: str) -> float:
        """The mean over samples of a field of `Sample`."""
        return statistics.fmean(getattr(sample, what) for sample in self.samples)


@dataclass(frozen=True, repr=False)
class Probe(Tabular):
    """The layers of a model in model order, probed on the same samples.

    unseen   names of layers whose output projection was never called (an unused head)
    """

    layers: tuple[LayerProbe, ...]
    unseen: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        return len(self.layers[0].samples)

    def headline(self) -> str:
        return f"{len(self.layers)} layers · {self.samples} samples · mean κ {format_digits(self.kappa)}"

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for layer in self.layers:
            names = ("name", "tokens", "heads", "head_dim", "inner", "rank", "kappa")
            row = {name: getattr(layer, name) for name in names}
            row["kappa_low"], row["kappa_high"] = layer.bounds
            rows.append({**row, "kappa_theory": layer.kappa_theory})
        return rows

    def cells(self) -> list[dict[str, str]]:
        rows = []
        for layer in self.layers:
            row = {"layer": layer.name, "heads": f"{layer.heads} × {layer.head_dim}", "tokens": str(layer.tokens)}
            row["rank"] = f"{layer.rank} of {layer.full_rank}"
            row["κ"] = "–" if layer.is_vector else format_digits(layer.kappa)
            row["κ random"] = "–" if layer.kappa_theory is None else format_digits(layer.kappa_theory)
            rows.append(row)
        return rows

    @property
    def matrices(self) -> list[LayerProbe]:
        """The layers except vectors, which have no κ."""
        return [layer for layer in self.layers if not layer.is_vector]

    @property
    def kappa(self) -> float:
        """The mean over layers except vectors, as in the paper's Figure 2; NaN if there are only vectors."""
        return statistics.fmean(layer.kappa for layer in self.matrices) if self.matrices else math.nan

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of ``kappa``; NaN if there are only vectors."""
        if not self.matrices:
            return math.nan, math.nan
        lows, highs = zip(*(layer.bounds for layer in self.matrices), strict=True)
        return statistics.fmean(lows), statistics.fmean(highs)


@dataclass(frozen=True)
class Point:
    """A model re-initialised with ``heads`` heads: κ over layers, samples and seeds."""

    mode: Mode
    heads: int
    head_dim: int
    tokens: int
    kappa: float  # mean, as in the paper's Figure 2; its expectation is infinite where A is square
    quartiles: tuple[float, float, float]  # at 25, 50 and 75%
    layers: tuple[float, ...]  # means over samples and seeds
    seeds: int

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def median(self) -> float:
        return self.quartiles[1]

    @property
    def theory(self) -> float:
        return gaussian_kappa(self.inner, self.tokens)
