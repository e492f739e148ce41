"""Plots of a probe as PNG or SVG: κ per layer, spectra per layer, κ against heads, κ during training.

Models differ in colour (Okabe and Ito's colour-blind-safe palette), marker and line style, so that they can
also be distinguished in black and white. Layers go from light to dark on one colour map.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.core.errors import DirectoryError, SourceError
from leanify.core.files import writing
from leanify.core.files.reading import open_file
from leanify.core.plotting import plot_settings, show_texts_literally
from leanify.spectra.results import LayerProbe, Point, Probe, gaussian_kappa

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
MARKERS = "os^Dv*Px"
STROKES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito 2008, readable on both
MADE_BY = "leanify"  # written into every file, so that only leanify's own files are overwritten

STYLE: dict[Any, Any] = {  # matplotlib's settings for every figure
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.titlesize": 11,
    "grid.color": "#e0e0e0",
    "legend.edgecolor": "none",
    "legend.fontsize": 9,
    "legend.framealpha": 1,  # no line of the grid crosses a label
    "lines.markersize": 4,
    "savefig.dpi": 160,
}


def check_plot(path: Path | None) -> None:
    """Raise DirectoryError early if a plot cannot be written or would overwrite a user's file."""
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise DirectoryError(f"{path} is not a format that leanify writes: --plot takes {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise DirectoryError(f"{path.absolute().parent} does not exist, so {path.name} cannot be written there")
    if path.exists() and not _is_ours(path):
        raise DirectoryError(f"{path} exists and was not written by leanify: name another file, or remove it first")


def _is_ours(path: Path) -> bool:
    """Whether leanify wrote this file, judged by the metadata at its beginning."""
    try:
        with open_file(path) as file:
            return MADE_BY.encode() in file.read(4096)
    except (SourceError, OSError):  # no file, or a pipe, or one that cannot be read
        return False


def _shade(index: int, count: int) -> Any:
    """The colour of layer ``index`` of ``count``, light to dark, readable on white."""
    from matplotlib import colormaps

    return colormaps["plasma"](0.64 - 0.24 * index / max(1, count - 1))


def make_figure(columns: int, title: str) -> tuple[Figure, Sequence[Axes]]:
    """A figure with ``columns`` panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 5.2 * columns, 4.6), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    figure.suptitle(title)
    return figure, axes


def layers_figure(probes: Mapping[str, Probe], data: str, theory: bool) -> Figure:
    """κ per layer (median, bars between quartiles) and the spectra of every layer, one panel per model."""
    figure, (kappa_panel, *panels) = make_figure(1 + len(probes), f"Concatenated heads A = [A_1 … A_h] · {data}")
    for index, (name, probe) in enumerate(probes.items()):
        _kappa_per_layer(kappa_panel, index, name, probe.layers, theory)
        _spectra(panels[index], name, probe.matrices)
    kappa_panel.set(
        xlabel="layer, counted from 0",
        ylabel="κ = σ_max / σ_min, median; bars 25–75%",
        yscale="log",
        title="condition number",
    )
    kappa_panel.locator_params(axis="x", integer=True)
    kappa_panel.legend()
    return figure


def _kappa_per_layer(ax: Axes, index: int, name: str, layers: Sequence[LayerProbe], theory: bool) -> None:
    """Draw one model's κ over its layers, numbered as in the table.

    A layer whose κ rounding leaves unbounded above is a triangle at its lower bound, as the table's ``> 4.4e5``;
    a layer without κ (a single token) is a gap marked with a dash.
    """
    colour, marker, stroke = COLOURS[index % len(COLOURS)], MARKERS[index % 8], STROKES[index % 4]
    # medians over samples with their quartiles, NaN for a layer without one
    xs = list(range(len(layers)))
    quartiles = []
    for layer in layers:
        is_shown = not layer.is_vector and math.isfinite(layer.bounds[1])
        quartiles.append(layer.quartiles if is_shown else (math.nan, math.nan, math.nan))
    lows, medians, highs = map(_finite_values, zip(*quartiles, strict=True))
    ax.plot(xs, medians, color=colour, marker=marker, linestyle=stroke, markersize=5, label=name)
    ax.vlines(xs, lows, highs, color=colour, linewidth=2.5, alpha=0.35)
    # lower bounds of the layers that are rank-deficient, or nearly
    bounds = [(x, layer.bounds[0]) for x, layer in enumerate(layers) if math.isinf(layer.bounds[1])]
    if bounds:
        above_xs, lower_bounds = zip(*bounds, strict=True)
        label = f"{name}: κ is above"
        ax.plot(above_xs, lower_bounds, color=colour, marker="^", linestyle="", fillstyle="none", label=label)
    # layers that have no κ, for which the axis makes room, too
    ax.set_xlim(right=max(ax.get_xlim()[1], len(layers) - 0.5))
    for x, layer in enumerate(layers):
        if layer.is_vector:
            ax.annotate("–", (x, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=12)
    # the theory's curve, if it exists
    theory_kappas = [layer.kappa_theory for layer in layers]
    if theory and any(theory_kappas):
        label = f"{name}: Gaussian theory"
        ax.plot(xs, _finite_values(theory_kappas), color=colour, linestyle=":", marker="_", label=label)


def _spectra(ax: Axes, name: str, layers: Sequence[LayerProbe]) -> None:
    # spectra divided by their largest value; first, middle and last layer stand out
    for index, layer in enumerate(layers):
        largest = layer.spectrum[0] or math.nan
        values = _finite_values(value / largest for value in layer.spectrum)
        ends = index in (0, len(layers) // 2, len(layers) - 1)
        ax.plot(
            range(1, len(values) + 1),
            values,
            color=_shade(index, len(layers)),
            linestyle=STROKES[index % 4],
            linewidth=1.8 if ends else 1.0,
            marker=MARKERS[index % 8] if ends or len(values) == 1 else None,
            markevery=max(1, len(values) // 8),
            label=layer.name if ends else None,
        )
    ax.set(xlabel="index i", ylabel="σ_i / σ_1, mean over samples", yscale="log", title=f"spectra · {name}")
    ax.legend(title="light to dark: first to last", title_fontsize=8)


def heads_figure(source: str, points: Sequence[Point], data: str, theory: bool) -> Figure:
    """Median κ against heads with quartiles, for grow and split, optionally with theory."""
    figure, (ax,) = make_figure(1, f"κ of A at initialisation · {source}\n{data}")
    figure.set_size_inches(7.2, 5.0)
    # a curve for each way to have more heads, with quartiles
    for mode, marker, stroke, colour in (("grow", "o", "-", COLOURS[0]), ("split", "s", "--", COLOURS[1])):
        mode_points = [point for point in points if point.mode == mode]
        if not mode_points:
            continue
        heads = [point.heads for point in mode_points]
        what = f"head_dim {mode_points[0].head_dim}" if mode == "grow" else f"inner {mode_points[0].inner}"
        low, medians, high = map(_finite_values, zip(*(point.quartiles for point in mode_points), strict=True))
        ax.plot(heads, medians, color=colour, marker=marker, linestyle=stroke, label=f"{mode}: {what} kept, median")
        ax.fill_between(heads, low, high, color=colour, alpha=0.18, linewidth=0)
        if theory:
            # inner grows with the heads, or stays
            first, last = mode_points[0], mode_points[-1]
            steps = [first.heads * (last.heads / first.heads) ** (i / 200) for i in range(201)]
            widths = [round(step * first.head_dim) if mode == "grow" else first.inner for step in steps]
            kappas = [min(gaussian_kappa(width, first.tokens), 1e4) for width in widths]
            stroke = ":" if mode == "grow" else "-."
            ax.plot(steps, kappas, color=colour, linestyle=stroke, linewidth=1.3, label=f"{mode}: theory")
    # where A is square, named above the axes so that the note hides no line
    grown = [point for point in points if point.mode == "grow"]
    at = grown[0].tokens / grown[0].head_dim if grown else 0
    if grown and grown[0].heads <= at <= grown[-1].heads:
        ax.axvline(at, color="black", alpha=0.5, linewidth=1, linestyle=(0, (1, 2)))
        note = f"inner = {grown[0].tokens} tokens"
        ax.annotate(note, (at, 1.01), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8)
    # the axes
    counts = sorted({point.heads for point in points})
    ax.set(xlabel="heads", ylabel="κ = σ_max / σ_min", xscale="log", yscale="log")
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.minorticks_off()
    ax.legend()
    return figure


def training_figure(source: str, steps: Sequence[tuple[int, Probe]], data: str) -> Figure:
    """κ during training: every layer from light to dark, and their mean."""
    figure, (ax,) = make_figure(1, f"κ of A over training · {source}\n{data}")
    figure.set_size_inches(7.2, 5.0)
    xs = [step for step, _ in steps]
    names = [layer.name for layer in steps[0][1].matrices]
    # a curve for each layer, of which first and last are named
    for index, name in enumerate(names):
        layers = chain.from_iterable(probe.layers for _, probe in steps)
        kappas = _finite_values(layer.kappa for layer in layers if layer.name == name)
        colour = _shade(index, len(names))
        label = name if index in (0, len(names) - 1) else None
        ax.plot(xs, kappas, color=colour, linestyle=STROKES[index % 4], marker=MARKERS[index % 8], label=label)
    means = _finite_values(probe.kappa for _, probe in steps)
    ax.plot(xs, means, color="black", linewidth=2.5, marker="o", label="mean over layers")
    ax.set(xlabel="step", ylabel="κ = σ_max / σ_min, mean over samples", yscale="log")
    ax.legend()
    return figure


def _finite_values(values: Iterable[float | None]) -> list[float]:
    """The values, with NaN, which leaves a gap, for those that a logarithmic axis cannot show."""
    return [value if value is not None and 0 < value < math.inf else math.nan for value in values]


def write(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a figure in leanify's style and write it as PNG or SVG. Raises DirectoryError."""
    kind, image = path.suffix[1:].lower(), io.BytesIO()
    with plot_settings(STYLE):
        figure = draw()
        show_texts_literally(figure)
        about = {"Title": MADE_BY, "Date": None} if kind == "svg" else {"Software": MADE_BY}
        figure.savefig(image, format=kind, metadata=about)
    try:
        writing.write(path, image.getvalue())
    except OSError as error:
        raise DirectoryError(f"{path} cannot be written: {error.strerror or error}") from error
