"""Training curves of a run, from the rows of its log, as a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leanify.core.units import PERCENT, metric_heading
from leanify.spectra.plots import COLOURS, make_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = list[tuple[float, float]]  # (step, value)
MAX_VALUE = 1e100  # matplotlib's margins around a larger one overflow
NEAR_FULL = (98, 100)  # the axis of a metric that is 100% all along, which would else go above


@dataclass(frozen=True)
class Curves:
    """The losses of both splits, and the metric that names the best checkpoint, if it is not the loss."""

    train: Curve
    validation: Curve
    metric: str
    quality: Curve


def read_curves(rows: Sequence[Mapping[str, Any]], metric: str) -> Curves:
    """The curves in the rows of metrics.jsonl."""
    quality = [] if metric == "loss" else _curve(rows, "validation", metric)
    return Curves(_curve(rows, "train", "loss"), _curve(rows, "validation", "loss"), metric, quality)


def _curve(rows: Sequence[Mapping[str, Any]], split: str, name: str) -> Curve:
    """The steps and values of a split; NaN, which leaves a gap, for a value that no axis can show."""
    curve = []
    for row in rows:
        if row["split"] == split and name in row:
            step, value = (float(x) if abs(x) < MAX_VALUE else math.nan for x in (row["step"], row[name]))
            curve.append((step, value))
    return curve


def curves_figure(curves: Curves, title: str) -> Figure:
    """The curves as a figure for a page or a paper: a colour-blind-safe palette, and markers for print."""
    figure, axes = make_figure(2 if curves.quality else 1, title)

    # the losses; a single training row is a point, which a line would not show
    for curve, name, colour, marker in (
        (curves.train, "training", COLOURS[0], "s" if len(curves.train) == 1 else ""),
        (curves.validation, "validation", COLOURS[1], "o"),
    ):
        if curve:
            axes[0].plot(*zip(*curve, strict=True), label=name, color=colour, marker=marker)
    axes[0].set(xlabel="step", ylabel="loss", title="loss")
    if curves.train or curves.validation:
        axes[0].legend()

    # the metric that names the best checkpoint
    if curves.quality:
        axes[1].plot(*zip(*curves.quality, strict=True), color=COLOURS[1], marker="o")
        axes[1].set(xlabel="step", ylabel=metric_heading(curves.metric), title=f"validation {curves.metric}")
        if curves.metric in PERCENT and all(value == 100 for _, value in curves.quality):
            axes[1].set_ylim(*NEAR_FULL)
    for panel in axes:
        panel.locator_params(axis="x", integer=True)
    return figure
