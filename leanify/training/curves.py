"""Training curves of a run, from the rows of its log, for the terminal and for figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from leanify.spectra.plots import COLOURS, figure_of
from leanify.units import PERCENT, heading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = list[tuple[int, float]]  # (step, value)
SIDE_BY_SIDE = 76  # columns that two plots need
DOT = "●"
NEAR_FULL = (98, 100)  # the axis of a metric that is 100% all along, which would else go above


@dataclass(frozen=True)
class Curves:
    """The losses of both splits, and the metric that names the best checkpoint, if it is not the loss."""

    train: Curve
    validation: Curve
    metric: str
    quality: Curve


def curves_of(rows: Iterable[Mapping[str, Any]], metric: str) -> Curves:
    """The curves in the rows of metrics.jsonl."""
    train: Curve = []
    validation: Curve = []
    quality: Curve = []
    for row in rows:
        if row["split"] == "train":
            train.append((row["step"], row["loss"]))
        elif row["split"] == "validation":
            validation.append((row["step"], row["loss"]))
            if metric != "loss" and metric in row:
                quality.append((row["step"], row[metric]))
    return Curves(train, validation, metric, quality)


def in_text(curves: Curves, width: int, height: int) -> str:
    """The curves as characters: the losses and the metric, side by side where there is room."""
    single = len(curves.train) == 1
    plots = (
        (f"loss  {DOT if single else '⡠'} training  o validation", [curves.train, curves.validation], False),
        (f"validation {heading(curves.metric)}", [curves.quality], curves.metric in PERCENT),
    )
    shown = [plot for plot in plots if any(plot[1])]
    beside = len(shown) > 1 and width >= SIDE_BY_SIDE
    each = (width - 2) // 2 if beside else width
    drawn = [[title, *_plot(some, each, height, are_percent)] for title, some, are_percent in shown]
    if beside:
        return "\n".join(f"{left:{each}}  {right}".rstrip() for left, right in zip_longest(*drawn, fillvalue=""))
    return "\n".join(line for lines in drawn for line in lines)


def _plot(curves: Sequence[Curve], width: int, height: int, are_percent: bool) -> list[str]:
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, height)
    for curve, marker in zip(curves, ("braille", "o"), strict=False):
        if len(curve) == 1:  # a line of one point is invisible
            figure.draw(figure.signal(*map(list, zip(*curve, strict=True)), marker=DOT if marker != "o" else "o"))
        elif curve:
            figure.draw(figure.signal(*map(list, zip(*curve, strict=True)), marker=marker).lines())
    places = ticks(
        min(curve[0][0] for curve in curves if curve), max(curve[-1][0] for curve in curves if curve), width // 11
    )
    figure.ruler("x").ticks(places, [f"{place:,}" for place in places])
    figure.label("step", 0)
    if are_percent and all(value == 100 for curve in curves for _, value in curve):
        figure.ruler("y").lim(*NEAR_FULL)
    text = re.sub("\x1b\\[[0-9;]*m", "", str(figure.build()))
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def ticks(first: int, last: int, most: int = 7) -> list[int]:
    """At most ``most`` round steps between the first and the last."""
    gaps = (round(front * 10**power) for power in range(12) for front in (1, 2, 2.5, 5) if front * 10**power % 1 == 0)
    gap = next(gap for gap in gaps if last // gap - -(-first // gap) < most)
    return list(range(-(-first // gap) * gap, last + 1, gap))


def figure(curves: Curves, title: str) -> Figure:
    """The curves as a figure for a page or a paper: a colour-blind-safe palette, and markers for print."""
    drawn, axes = figure_of(2 if curves.quality else 1, title)
    for curve, name, colour, marker in (
        (curves.train, "training", COLOURS[0], "s" if len(curves.train) == 1 else ""),
        (curves.validation, "validation", COLOURS[1], "o"),
    ):
        if curve:
            axes[0].plot(*zip(*curve, strict=True), label=name, color=colour, marker=marker, markersize=4)
    axes[0].set(xlabel="step", ylabel="loss", title="loss")
    axes[0].legend(fontsize=9) if curves.train or curves.validation else None
    if curves.quality:
        axes[1].plot(*zip(*curves.quality, strict=True), color=COLOURS[1], marker="o", markersize=4)
        axes[1].set(xlabel="step", ylabel=heading(curves.metric), title=f"validation {curves.metric}")
        if curves.metric in PERCENT and all(value == 100 for _, value in curves.quality):
            axes[1].set_ylim(*NEAR_FULL)
    for panel in axes:
        panel.locator_params(axis="x", integer=True)
    return drawn
