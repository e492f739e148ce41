"""Pictures of a probe: κ per layer, spectra per layer, κ against heads, κ over training. PNG, SVG, or one HTML page.

Lines differ in marker and stroke as well as in grey, so that a black-and-white print tells them apart.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.errors import DirectoryError
from leanify.spectra.results import LayerProbe, Point, Probe
from leanify.spectra.theory import gaussian_kappa

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
MARKERS = "os^Dv*Px"
STROKES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))


def check_plot(path: Path | None) -> None:
    """Refuse a picture that could not be written, before anything is computed."""
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise DirectoryError(f"{path} is no picture that leanify writes: --plot takes {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise DirectoryError(f"{path.absolute().parent} does not exist, so {path.name} cannot be written there")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DirectoryError("--plot needs matplotlib: pip install 'leanify[plot]'") from error


def _figure(columns: int, title: str) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 5.2 * columns, 4.6), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    figure.suptitle(title, fontsize=11)
    for ax in axes:
        ax.grid(True, which="major", color="0.9", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def layers_figure(probes: Mapping[str, Probe], data: str, theory: bool) -> Figure:
    """κ per layer (mean; bars from quartile to quartile) beside the spectra of every layer, one panel a model."""
    figure, (left, *panels) = _figure(1 + len(probes), f"Concatenated heads A = [A_1 … A_h] · {data}")
    for index, (name, probe) in enumerate(probes.items()):
        _kappa_per_layer(left, index, name, [layer for layer in probe.layers if not layer.is_vector], theory)
        _spectra(panels[index], name, [layer for layer in probe.layers if not layer.is_vector])
    left.set(
        xlabel="layer, in order", ylabel="κ = σ_max / σ_min, mean; bars 25–75 %", yscale="log", title="condition number"
    )
    left.locator_params(axis="x", integer=True)
    left.legend(frameon=False, fontsize=9)
    return figure


def _kappa_per_layer(ax: Axes, index: int, name: str, layers: Sequence[LayerProbe], theory: bool) -> None:
    xs = list(range(1, len(layers) + 1))
    kappas = [_shown(layer.kappa) for layer in layers]
    low = [_shown(layer.quartiles[0]) for layer in layers]
    high = [_shown(layer.quartiles[2]) for layer in layers]
    grey = str(0.55 * (index % 3) / 3)
    ax.plot(xs, kappas, color=grey, marker=MARKERS[index % 8], linestyle=STROKES[index % 4], markersize=5, label=name)
    ax.vlines(xs, low, high, color=grey, linewidth=2.5, alpha=0.35)
    broken = [x for x, kappa in zip(xs, kappas, strict=True) if math.isnan(kappa)]
    for x in broken:
        ax.annotate("∞", (x, 0.98), xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=12)
    if theory and any(layer.kappa_theory for layer in layers):
        predicted = [_shown(layer.kappa_theory) for layer in layers]
        ax.plot(xs, predicted, color=grey, linestyle=":", marker="_", label=f"{name}: Gaussian theory")


def _spectra(ax: Axes, name: str, layers: Sequence[LayerProbe]) -> None:
    for index, layer in enumerate(layers):
        share = index / max(1, len(layers) - 1)
        values = [_shown(value / layer.spectrum[0]) if layer.spectrum[0] else math.nan for value in layer.spectrum]
        ends = index in (0, len(layers) // 2, len(layers) - 1)
        ax.plot(
            range(1, len(values) + 1),
            values,
            color=str(0.75 * (1 - share)),
            linestyle=STROKES[index % 4],
            linewidth=1.8 if ends else 1.0,
            marker=MARKERS[index % 8] if ends else None,
            markevery=max(1, len(values) // 8),
            markersize=4,
            label=layer.name if ends else None,
        )
    ax.set(xlabel="index i", ylabel="σ_i / σ_1, mean over samples", yscale="log", title=f"spectra · {name}")
    ax.legend(frameon=False, fontsize=9, title="light to dark: first to last", title_fontsize=8)


def heads_figure(source: str, points: Sequence[Point], data: str, theory: bool) -> Figure:
    """Median κ against heads, with quartiles; grow and split, and theory through them."""
    figure, (ax,) = _figure(1, f"κ of A at initialisation · {source}\n{data}")
    figure.set_size_inches(7.2, 5.0)
    for mode, marker, stroke, grey in (("grow", "o", "-", "0"), ("split", "s", "--", "0.45")):
        found = [point for point in points if point.mode == mode]
        if not found:
            continue
        heads = [point.heads for point in found]
        what = f"head_dim {found[0].head_dim}" if mode == "grow" else f"inner {found[0].inner}"
        medians = [_shown(point.quartiles[1]) for point in found]
        ax.plot(heads, medians, color=grey, marker=marker, linestyle=stroke, label=f"{mode}: {what} kept, median")
        low, high = ([_shown(point.quartiles[end]) for point in found] for end in (0, 2))
        ax.fill_between(heads, low, high, color=grey, alpha=0.12, linewidth=0)
        if theory:
            _theory(ax, mode, found, grey)
    _square(ax, points)
    counts = sorted({point.heads for point in points})
    ax.set(xlabel="heads", ylabel="κ = σ_max / σ_min", xscale="log", yscale="log")
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=9)
    return figure


def _theory(ax: Axes, mode: str, found: Sequence[Point], grey: str) -> None:
    first, last = found[0], found[-1]
    steps = [first.heads * (last.heads / first.heads) ** (i / 200) for i in range(201)]
    inner = [h * first.head_dim if mode == "grow" else first.inner for h in steps]
    kappas = [min(gaussian_kappa(round(width), first.tokens), 1e4) for width in inner]
    ax.plot(
        steps, kappas, color=grey, linestyle=":" if mode == "grow" else "-.", linewidth=1.3, label=f"{mode}: theory"
    )


def _square(ax: Axes, points: Sequence[Point]) -> None:
    grown = [point for point in points if point.mode == "grow"]
    if not grown or not grown[0].heads <= (at := grown[0].tokens / grown[0].head_dim) <= grown[-1].heads:
        return
    ax.axvline(at, color="0.6", linewidth=1, linestyle=(0, (1, 2)))
    note = f" inner = {grown[0].tokens} tokens"
    ax.annotate(note, (at, 0.98), xycoords=("data", "axes fraction"), rotation=90, va="top", fontsize=8, color="0.35")


def training_figure(source: str, steps: Sequence[tuple[int, Probe]], data: str) -> Figure:
    """κ over training: every layer, light to dark, and their mean."""
    figure, (ax,) = _figure(1, f"κ of A over training · {source}\n{data}")
    figure.set_size_inches(7.2, 5.0)
    xs = [step for step, _ in steps]
    names = [layer.name for layer in steps[0][1].layers if not layer.is_vector]
    for index, name in enumerate(names):
        kappas = [_shown(layer.kappa) for _, probe in steps for layer in probe.layers if layer.name == name]
        grey = str(0.8 - 0.5 * index / max(1, len(names) - 1))
        label = name if index in (0, len(names) - 1) else None
        ax.plot(
            xs, kappas, color=grey, linestyle=STROKES[index % 4], marker=MARKERS[index % 8], markersize=4, label=label
        )
    means = [_shown(probe.kappa) for _, probe in steps]
    ax.plot(xs, means, color="0", linewidth=2.5, marker="o", label="mean over layers")
    ax.set(xlabel="step", ylabel="κ = σ_max / σ_min, mean over samples", yscale="log")
    ax.legend(frameon=False, fontsize=9)
    return figure


def _shown(value: float | None) -> float:
    """What a logarithmic axis can show; the rest leaves a gap."""
    return value if value is not None and math.isfinite(value) and value > 0 else math.nan


# -- files ----------------------------------------------------------------------------------------------------------


def write(figure: Figure, path: Path, title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> None:
    """Write a picture; as .html one self-contained page with the picture, the notes and the numbers as a table."""
    try:
        if path.suffix.lower() == ".html":
            path.write_text(page(figure, title, rows, notes), encoding="utf-8")
        else:
            figure.savefig(path, dpi=160, format=path.suffix[1:].lower())
    except OSError as error:
        raise DirectoryError(f"{path} cannot be written: {error}") from error


def page(figure: Figure, title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> str:
    """One HTML page that needs nothing beside it: the picture as inline SVG."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    svg = drawn.getvalue()
    paragraphs = "".join(f"<p>{html.escape(note)}</p>\n" for note in notes)
    return _PAGE.format(
        title=html.escape(title), notes=paragraphs, svg=svg[svg.index("<svg") :], table=_html_table(rows)
    )


def _html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(str(key))}</th>" for key in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in row.values()) + "</tr>\n" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #111; }}
h1 {{ font-size: 1.4rem; }}
p {{ max-width: 46rem; }}
svg {{ width: 100%; height: auto; max-height: 36rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }}
th, td {{ padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; white-space: nowrap; }}
div.wide {{ overflow-x: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
{svg}
{notes}
<div class="wide">{table}</div>
</body>
</html>
"""
