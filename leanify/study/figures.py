"""The figures of a study's page: matplotlib SVGs that use the page's text colour, so they suit light and dark themes.

A design has the same colour and marker in all figures; the colours are Okabe and Ito's colour-blind-safe palette.
"""

from __future__ import annotations

import io
import math
import re
import statistics as plain
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leanify.spectra.theory import gaussian_kappa
from leanify.study.plan import Key

if TYPE_CHECKING:
    from typing import TypeAlias

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from leanify.study.folder import StudyFolder
    from leanify.study.values import DesignResult, Findings

    Draw: TypeAlias = Callable[[Axes, Findings, StudyFolder], bool]  # False where there are no data for the figure

HINT = "hint: "  # the id of a group in a figure that has a text for the mouse
INK = "#010203"  # a placeholder, replaced by currentColor: the page's text colour
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7f00", "#7f7f7f")
MARKERS = "os^Dv*PX"
MARKED = 20  # markers on a curve at most
WIDTH, HEIGHT = 6.4, 3.8  # inches


def figures(study: Findings, folder: StudyFolder) -> list[tuple[str, str, str]]:
    """Return (title, caption, SVG) of every figure with data."""
    import matplotlib
    from matplotlib.figure import Figure

    look: dict[Any, Any] = {f"{name}color": INK for name in ("text.", "axes.label", "axes.edge", "xtick.", "ytick.")}
    look |= {"svg.fonttype": "none", "svg.hashsalt": "leanify", "font.size": 9.5}
    look |= {"axes.spines.top": False, "axes.spines.right": False}
    towards = "Up" if study.higher_is_better else "Down"
    drawn = []
    with matplotlib.rc_context(look):
        for title, caption, draw in _FIGURES:
            figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
            axes = figure.subplots()
            axes.grid(True, color=INK, alpha=0.12, linewidth=0.7)
            axes.set_axisbelow(True)
            if draw(axes, study, folder):
                drawn.append((title, caption.format(towards=towards), _svg(figure)))
    return drawn


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = re.sub(f'<g id="{HINT}([^"]*)">', r"<g><title>\1</title>", out.getvalue())
    return text[text.index("<svg") :].replace(INK, "currentColor")


def _hint(words: str, *artists: Any) -> None:
    """What browsers show while the mouse is over these parts of a figure."""
    for artist in artists:
        artist.set_gid(HINT + words)


def _style(study: Findings, name: str) -> dict[str, Any]:
    place = [result.name for result in study.results].index(name)
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def _legend(axes: Axes) -> None:
    """Put the legend above the axes, where it hides no data."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.2,
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        ncols=4,
    )


# -- quality against a cost -------------------------------------------------------------------------------------------


def _against(label: str, cost: Callable[[DesignResult], float | None], front: bool = True) -> Draw:
    """Quality with its interval against a cost, one point per design."""

    def draw(axes: Axes, study: Findings, folder: StudyFolder) -> bool:
        from matplotlib.ticker import EngFormatter

        points: list[tuple[float, float]] = []
        for result in study.results:
            price, mean = cost(result), result.quality.mean
            if price is None or mean is None:
                continue
            low = mean if result.quality.low is None else result.quality.low
            high = mean if result.quality.high is None else result.quality.high
            style = _style(study, result.name) | {"capsize": 3, "linestyle": "none", "label": result.name}
            drawn = axes.errorbar(price, mean, yerr=[[mean - low], [high - mean]], **style)
            words = f"{result.name}: {price:,.6g} {label}, {study.metric} {mean:.4g} ({low:.4g} to {high:.4g})"
            _hint(words, drawn[0], *drawn[2])
            points.append((price, mean))
        if front:
            _front(axes, points, study.higher_is_better)
        axes.set(xlabel=label, ylabel=f"{study.metric}, mean and 95% interval")
        axes.xaxis.set_major_formatter("{x:,.4g}" if axes.get_xlim()[1] < 1e4 else EngFormatter(sep=" "))
        if points:
            _legend(axes)
        return bool(points)

    return draw


def _front(axes: Axes, points: Sequence[tuple[float, float]], higher: bool) -> None:
    """A step line through the points that no other beats in both cost and quality."""
    best: list[tuple[float, float]] = []
    for price, quality in sorted(points, key=lambda point: (point[0], -point[1] if higher else point[1])):
        if not best or (quality > best[-1][1] if higher else quality < best[-1][1]):
            best.append((price, quality))
    if len(best) > 1:
        axes.plot(*zip(*best, strict=True), color=INK, linewidth=0.8, linestyle="--", drawstyle="steps-post", zorder=0)


def _training_time(result: DesignResult) -> float | None:
    return None if result.costs is None else 1e3 / result.costs.train_per_s


def _swept(axis: str) -> Draw:
    """Quality against one size of the shape, if the study has at least three values of it."""
    against = _against(axis, lambda result: float(getattr(result.plan, axis)), front=False)

    def draw(axes: Axes, study: Findings, folder: StudyFolder) -> bool:
        values = {getattr(result.plan, axis) for result in study.results}
        numbers = all(isinstance(value, int) for value in values)
        return len(values) >= 3 and numbers and against(axes, study, folder)

    return draw


# -- seeds and time ---------------------------------------------------------------------------------------------------


def differences(axes: Axes, study: Findings, folder: StudyFolder) -> bool:
    """Paired differences: one dot per seed, the mean with its interval, and the margin."""
    for place, pair in enumerate(reversed(study.pairs)):
        style = _style(study, pair.design)
        values = [value for _, value in pair.seeds]
        [dots] = axes.plot(values, [place] * len(values), linestyle="none", alpha=0.45, **style)
        _hint(", ".join(f"seed {seed}: {value:+.3g}" for seed, value in pair.seeds), dots)
        half = 0.0 if pair.low is None else pair.difference - pair.low
        bar = axes.errorbar(
            pair.difference, place + 0.22, xerr=half, fmt="|", capsize=4, color=style["color"], markersize=12
        )
        _hint(f"{pair.design} − {pair.against}: {pair.difference:+.3g} ± {half:.3g}", bar[0], *bar[2])
    axes.axvline(0, color=INK, linewidth=1)
    if study.margin is not None:
        axes.axvline(-study.margin, color=INK, linewidth=1, linestyle=":")
    axes.set_ylim(-0.5, max(len(study.pairs), 1) - 0.5)  # else one pair's dots and bar lie on the edges
    axes.set_yticks(range(len(study.pairs)), [f"{p.design} − {p.against}" for p in reversed(study.pairs)])
    better = "more" if study.higher_is_better else "less"
    axes.set(xlabel=f"difference in {study.metric}; right is better ({better} {study.metric})")
    return bool(study.pairs)


def learning(axes: Axes, study: Findings, folder: StudyFolder) -> bool:
    """The metric on the validation split during training; nothing if it was evaluated once."""

    def rows(key: Key) -> Mapping[int, float]:
        metric = str(study.metric)
        found = [row for row in folder.rows(key) if row["split"] == "validation" and metric in row]
        return {row["step"]: row[metric] for row in found} if len(found) > 1 else {}

    return _over_training(axes, study, rows, f"{study.metric} of the validation split")


def training_loss(axes: Axes, study: Findings, folder: StudyFolder) -> bool:
    """The training loss, as it was logged."""

    def rows(key: Key) -> Mapping[int, float]:
        return {row["step"]: row["loss"] for row in folder.rows(key) if row["split"] == "train" and "loss" in row}

    return _over_training(axes, study, rows, "training loss")


def kappa_training(axes: Axes, study: Findings, folder: StudyFolder) -> bool:
    """κ during training."""
    known = {outcome.key: dict(outcome.kappas) for outcome in folder.outcomes()}
    axes.set(yscale="log")
    return _over_training(axes, study, lambda key: known.get(key, {}), "κ, median over layers and samples")


def _over_training(axes: Axes, study: Findings, points: Callable[[Key], Mapping[int, float]], label: str) -> bool:
    """Draw the mean over seeds, with their range as a band."""
    axes.set(xlabel="step", ylabel=label)
    drawn = False
    for result in study.results:
        curves = [points(Key(result.name, run.seed)) for run in result.runs if run.status == "finished"]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        if not steps:
            continue
        drawn = True
        table = np.array([[curve[step] for step in steps] for curve in curves])
        style = _style(study, result.name)
        axes.plot(
            steps,
            table.mean(0),
            label=result.name,
            markersize=3.5,
            markevery=math.ceil(len(steps) / MARKED),
            linewidth=1.4,
            **style,
        )
        if len(curves) > 1:
            axes.fill_between(steps, table.min(0), table.max(0), color=style["color"], alpha=0.12, linewidth=0)
    if drawn:
        _legend(axes)
    return drawn


def kappa_heads(axes: Axes, study: Findings, folder: StudyFolder) -> bool:
    """κ at the start and the end of training against heads, with the Gaussian prediction."""
    shown = [result for result in study.results if result.kappa is not None and isinstance(result.plan.inner, int)]
    for result in shown:
        style, heads = _style(study, result.name), _number(result.plan.heads)
        begin, end = result.kappa_begin or float("nan"), result.kappa or float("nan")
        axes.plot([heads, heads], [begin, end], color=style["color"], alpha=0.4)
        axes.plot([heads], [begin], markerfacecolor="none", linestyle="none", **style)
        axes.plot([heads], [end], linestyle="none", label=result.name, **style)
    if shown and study.plan.tokens:
        theory = {_number(r.plan.heads): gaussian_kappa(_number(r.plan.inner), study.plan.tokens) for r in shown}
        axes.plot(sorted(theory), [theory[h] for h in sorted(theory)], ":", color=INK, label="Gaussian theory")
    axes.set(xlabel="heads", ylabel="κ: hollow at the start, filled at the end", yscale="log")
    axes.locator_params(axis="x", integer=True)
    if shown:
        _legend(axes)
    return bool(shown)


def _number(size: Any) -> int:
    return int(size) if isinstance(size, int) else round(plain.fmean(size))


# -- costs ------------------------------------------------------------------------------------------------------------


def costs(axes: Axes, study: Findings, folder: StudyFolder) -> bool:
    """Each cost relative to that of the first design."""
    shown = [result for result in study.results if result.costs is not None]
    if not shown:
        return False
    rows: Sequence[tuple[str, Callable[[Any], float | None]]] = (
        ("parameters", lambda r: r.plan.params),
        ("multiply-adds", lambda r: r.plan.macs),
        ("latency", lambda r: r.costs.latency_s),
        ("training time", lambda r: 1 / r.costs.train_per_s),
        ("training memory", lambda r: r.costs.train_peak_bytes),
    )
    names, base = [name for name, _ in rows], shown[0]
    for place, result in enumerate(shown):
        ratios = [(get(result) or 0) / (get(base) or 1) for _, get in rows]
        height = 0.8 / len(shown)
        style = _style(study, result.name)
        ys = [i + (place - (len(shown) - 1) / 2) * height for i in range(len(rows))]
        axes.barh(ys, ratios, height * 0.9, color=style["color"], label=result.name)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set(xlabel=f"relative to {base.name}; lower is better")
    _legend(axes)
    return True


_FIGURES: Sequence[tuple[str, str, Draw]] = (
    ("Paired differences", "A dot is a seed, the bar the mean with its 95% interval, the dotted line the margin.",
     differences),
    ("Quality against parameters", "{towards} and left is better; the dashed line joins what no other beats in both.",
     _against("parameters", lambda result: float(result.plan.params))),
    ("Quality against multiply-adds", "",
     _against("multiply-adds of one sample", lambda result: float(result.plan.macs))),
    ("Quality against training time", "Measured in turn on one machine.",
     _against("training time per sample, ms", _training_time)),
    ("Training loss", "Mean over seeds; the band is their range.", training_loss),
    ("Learning curves", "Mean over seeds; the band is their range.", learning),
    ("Costs of the designs", "Latency, training time and memory are measured in turn on one machine.", costs),
    ("κ over training", "Of the concatenated heads, on the same validation samples.", kappa_training),
    ("κ against heads", "From the start of training to its end.", kappa_heads),
    ("Quality against heads", "", _swept("heads")),
    ("Quality against depth", "", _swept("depth")),
    ("Quality against the MLP's width", "", _swept("mlp")),
)  # fmt: skip
