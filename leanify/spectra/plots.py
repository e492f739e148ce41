"""Plots of a probe as PNG, SVG or HTML: κ per layer, spectra per layer, κ against heads, κ during training.

Models differ in colour (Okabe and Ito's colour-blind-safe palette), marker and line style, so that they can
also be distinguished in black and white. Layers go from light to dark on one colour map.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.errors import DirectoryError, SourceError
from leanify.runs import writing
from leanify.runs.files import opened
from leanify.spectra.results import LayerProbe, Point, Probe
from leanify.spectra.theory import gaussian_kappa
from leanify.units import digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
MARKERS = "os^Dv*Px"
STROKES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito 2008, readable on both
MADE_BY = "leanify"  # written into every file, so that only leanify's own files are overwritten

Draw = Callable[[], "Figure"]


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
        with opened(path) as file:
            return MADE_BY.encode() in file.read(4096)
    except (SourceError, OSError):  # no file, or a pipe, or one that cannot be read
        return False


@contextmanager
def _style(dark: bool) -> Iterator[None]:
    """Set the colours of text, lines and background for a light or a dark page."""
    import matplotlib

    ink, faint, paper = ("#e6e6e6", "#4a4a4a", "#16181d") if dark else ("#1a1a1a", "#e0e0e0", "white")
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor")
    colours: Any = dict.fromkeys(names, ink) | {"grid.color": faint}
    colours |= {"legend.framealpha": 1, "legend.edgecolor": "none"}  # no line of the grid crosses a label
    with matplotlib.rc_context({**colours, "figure.facecolor": paper, "axes.facecolor": paper}):
        yield


def _ink() -> str:
    """The text colour of the current style."""
    import matplotlib

    return str(matplotlib.rcParams["text.color"])


def _shade(index: int, count: int) -> Any:
    """The colour of layer ``index`` of ``count``, light to dark, readable on white and on the dark page."""
    from matplotlib import colormaps

    return colormaps["plasma"](0.64 - 0.24 * index / max(1, count - 1))


def figure_of(columns: int, title: str) -> tuple[Figure, Sequence[Axes]]:
    """A figure with ``columns`` panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 5.2 * columns, 4.6), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    figure.suptitle(title, fontsize=11)
    for ax in axes:
        ax.grid(True, which="major", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def layers_figure(probes: Mapping[str, Probe], data: str, theory: bool) -> Figure:
    """κ per layer (mean, bars between quartiles) and the spectra of every layer, one panel per model."""
    figure, (left, *panels) = figure_of(1 + len(probes), f"Concatenated heads A = [A_1 … A_h] · {data}")
    for index, (name, probe) in enumerate(probes.items()):
        _kappa_per_layer(left, index, name, probe.matrices, theory)
        _spectra(panels[index], name, probe.matrices)
    left.set(
        xlabel="layer, in order", ylabel="κ = σ_max / σ_min, mean; bars 25–75%", yscale="log", title="condition number"
    )
    left.locator_params(axis="x", integer=True)
    left.legend(fontsize=9)
    return figure


def _kappa_per_layer(ax: Axes, index: int, name: str, layers: Sequence[LayerProbe], theory: bool) -> None:
    xs = list(range(1, len(layers) + 1))
    kappas = _shown(layer.kappa for layer in layers)
    low, _, high = map(_shown, zip(*(layer.quartiles for layer in layers), strict=True))
    colour, marker, stroke = COLOURS[index % len(COLOURS)], MARKERS[index % 8], STROKES[index % 4]
    ax.plot(xs, kappas, color=colour, marker=marker, linestyle=stroke, markersize=5, label=name)
    ax.vlines(xs, low, high, color=colour, linewidth=2.5, alpha=0.35)
    for x, kappa in zip(xs, kappas, strict=True):
        if math.isnan(kappa):
            ax.annotate("∞", (x, 0.98), xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=12)
    predicted = [layer.kappa_theory for layer in layers]
    if theory and any(predicted):
        label = f"{name}: Gaussian theory"
        ax.plot(xs, _shown(predicted), color=colour, linestyle=":", marker="_", label=label)


def _spectra(ax: Axes, name: str, layers: Sequence[LayerProbe]) -> None:
    for index, layer in enumerate(layers):
        values = _shown(value / layer.spectrum[0] if layer.spectrum[0] else None for value in layer.spectrum)
        ends = index in (0, len(layers) // 2, len(layers) - 1)
        ax.plot(
            range(1, len(values) + 1),
            values,
            color=_shade(index, len(layers)),
            linestyle=STROKES[index % 4],
            linewidth=1.8 if ends else 1.0,
            marker=MARKERS[index % 8] if ends or len(values) == 1 else None,
            markevery=max(1, len(values) // 8),
            markersize=4,
            label=layer.name if ends else None,
        )
    ax.set(xlabel="index i", ylabel="σ_i / σ_1, mean over samples", yscale="log", title=f"spectra · {name}")
    ax.legend(fontsize=9, title="light to dark: first to last", title_fontsize=8)


def heads_figure(source: str, points: Sequence[Point], data: str, theory: bool) -> Figure:
    """Median κ against heads with quartiles, for grow and split, optionally with theory."""
    figure, (ax,) = figure_of(1, f"κ of A at initialisation · {source}\n{data}")
    figure.set_size_inches(7.2, 5.0)
    for mode, marker, stroke, colour in (("grow", "o", "-", COLOURS[0]), ("split", "s", "--", COLOURS[1])):
        found = [point for point in points if point.mode == mode]
        if not found:
            continue
        heads = [point.heads for point in found]
        what = f"head_dim {found[0].head_dim}" if mode == "grow" else f"inner {found[0].inner}"
        low, medians, high = map(_shown, zip(*(point.quartiles for point in found), strict=True))
        ax.plot(heads, medians, color=colour, marker=marker, linestyle=stroke, label=f"{mode}: {what} kept, median")
        ax.fill_between(heads, low, high, color=colour, alpha=0.18, linewidth=0)
        if theory:
            _theory(ax, mode, found, colour)
    _square(ax, points)
    counts = sorted({point.heads for point in points})
    ax.set(xlabel="heads", ylabel="κ = σ_max / σ_min", xscale="log", yscale="log")
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.minorticks_off()
    ax.legend(fontsize=9)
    return figure


def _theory(ax: Axes, mode: str, found: Sequence[Point], colour: str) -> None:
    first, last = found[0], found[-1]
    steps = [first.heads * (last.heads / first.heads) ** (i / 200) for i in range(201)]
    inner = [h * first.head_dim if mode == "grow" else first.inner for h in steps]
    kappas = [min(gaussian_kappa(round(width), first.tokens), 1e4) for width in inner]
    ax.plot(
        steps, kappas, color=colour, linestyle=":" if mode == "grow" else "-.", linewidth=1.3, label=f"{mode}: theory"
    )


def _square(ax: Axes, points: Sequence[Point]) -> None:
    grown = [point for point in points if point.mode == "grow"]
    if not grown or not grown[0].heads <= (at := grown[0].tokens / grown[0].head_dim) <= grown[-1].heads:
        return
    ax.axvline(at, color=_ink(), alpha=0.5, linewidth=1, linestyle=(0, (1, 2)))
    note = f"inner = {grown[0].tokens} tokens"  # above the axes, where it hides no line
    ax.annotate(note, (at, 1.01), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8)


def training_figure(source: str, steps: Sequence[tuple[int, Probe]], data: str) -> Figure:
    """κ during training: every layer from light to dark, and their mean."""
    figure, (ax,) = figure_of(1, f"κ of A over training · {source}\n{data}")
    figure.set_size_inches(7.2, 5.0)
    xs = [step for step, _ in steps]
    names = [layer.name for layer in steps[0][1].matrices]
    for index, name in enumerate(names):
        kappas = _shown(layer.kappa for _, probe in steps for layer in probe.layers if layer.name == name)
        colour = _shade(index, len(names))
        label = name if index in (0, len(names) - 1) else None
        ax.plot(
            xs, kappas, color=colour, linestyle=STROKES[index % 4], marker=MARKERS[index % 8], markersize=4, label=label
        )
    means = _shown(probe.kappa for _, probe in steps)
    ax.plot(xs, means, color=_ink(), linewidth=2.5, marker="o", label="mean over layers")
    ax.set(xlabel="step", ylabel="κ = σ_max / σ_min, mean over samples", yscale="log")
    ax.legend(fontsize=9)
    return figure


def _shown(values: Iterable[float | None]) -> list[float]:
    """The values, with NaN, which leaves a gap, for those that a logarithmic axis cannot show."""
    found = []
    for value in values:
        visible = value is not None and math.isfinite(value) and value > 0
        found.append(value if visible and value is not None else math.nan)
    return found


# -- files ----------


def write(draw: Draw, path: Path, title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> None:
    """Write a plot; ``.html`` is a self-contained page with notes and numbers. Raises DirectoryError."""
    kind = path.suffix[1:].lower()
    try:
        writing.write(path, page(draw, title, rows, notes) if kind == "html" else _drawn(draw, kind))
    except OSError as error:
        raise DirectoryError(f"{path} cannot be written: {error.strerror or error}") from error


def _drawn(draw: Draw, kind: str, dark: bool = False) -> bytes:
    """Render the plot in one of matplotlib's formats, with leanify's metadata."""
    out = io.BytesIO()
    with _style(dark):
        draw().savefig(out, dpi=160, format=kind, metadata={"Title" if kind == "svg" else "Software": MADE_BY})
    return out.getvalue()


def page(draw: Draw, title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> str:
    """A self-contained HTML page with the plot as inline SVG, in a light and a dark version."""
    light, dark = (_drawn(draw, "svg", dark).decode() for dark in (False, True))
    paragraphs = "".join(f"<p>{html.escape(note)}</p>\n" for note in notes)
    return _PAGE.format(
        made_by=MADE_BY,
        title=html.escape(title),
        notes=paragraphs,
        light=light[light.index("<svg") :],
        dark=dark[dark.index("<svg") :],
        table=_html_table(rows),
    )


def _html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))  # rows may lack some
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = ""
    for row in rows:
        cells = "".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in names)
        lines += f"<tr>{cells}</tr>\n"
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return digits(value) if isinstance(value, float) else str(value)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{made_by}">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #111; background: white; }}
h1 {{ font-size: 1.4rem; }}
p {{ max-width: 46rem; }}
svg {{ width: 100%; min-width: 40rem; height: auto; max-height: 36rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }}
th, td {{ padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; white-space: nowrap; }}
div.wide, .light, .dark {{ overflow-x: auto; }}
.dark {{ display: none; }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #e6e6e6; background: #16181d; }}
  th, td {{ border-color: #444; }}
  .light {{ display: none; }}
  .dark {{ display: block; }}
}}
@media print {{ .light {{ display: block; }} .dark {{ display: none; }} }}
</style>
</head>
<body>
<h1>{title}</h1>
<div class="light">{light}</div>
<div class="dark">{dark}</div>
{notes}
<div class="wide">{table}</div>
</body>
</html>
"""
