"""The picture of the ranking study: designs beside their baseline, task by task, and what each rule's ranking is worth.

    python -m recipes.research.ranking.pages recipes/results

Okabe and Ito's colours; what a colour says, a mark's shape or place says, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

Rule = tuple[str, list[float], tuple[float, float]]

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6b6b6b"
MARKS = {"lean": (ORANGE, "D"), "control": (GREEN, "s"), "depth-only": (GREEN, "^"), "wide-heads": (ORANGE, "o")}
TITLES = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "enwik8": "enwik8, bytes",
    "tinystories": "TinyStories, bytes",
    "tinystories-masked": "TinyStories, masked",
    "listops": "ListOps",
}


def draw(tasks: list[Any], file: Path, rules: list[Rule]) -> None:
    """``rules``: words, ρ of each task in the order of ``tasks``, and the interval of their mean."""
    plt.rcParams.update(
        {"font.size": 9, "font.family": "DejaVu Sans", "axes.spines.top": False, "axes.spines.right": False}
    )
    figure = plt.figure(figsize=(11, 9), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[1.25, 1])
    panels = above.subplots(1, len(tasks), sharey=True)
    tasks_in_order = sorted(tasks, key=lambda t: list(TITLES).index(t.name))
    for panel, task in zip(panels, tasks_in_order, strict=True):
        draw_task(panel, task)
    panels[0].set_yticks(range(len(tasks[0].designs)), [label(tasks[0], d) for d in by_shape(tasks[0])])
    above.suptitle(
        "Ten designs with half of the baseline's parameters: validation loss minus the baseline's (left is better)",
        fontsize=10.5,
    )
    draw_rules(below.subplots(1, 1), tasks, rules)
    below.suptitle("What a ranking rule is worth: Spearman's ρ with the measured quality", fontsize=10.5)
    figure.savefig(file, dpi=130)


def draw_rates(tasks: list[Any], file: Path) -> None:
    """Tasks of rates.py: every design at its best rate and at the recipe's, less the baseline at its best."""
    plt.rcParams.update(
        {"font.size": 8, "font.family": "DejaVu Sans", "axes.spines.top": False, "axes.spines.right": False}
    )
    tasks = sorted((task for task in tasks if "baseline" in task.means), key=lambda t: list(TITLES).index(t.name))
    figure, panels = plt.subplots(1, len(tasks), figsize=(9.4, 3.3), sharey=True, layout="constrained")
    shapes = {design: row for design, row in tasks[0].shapes.items() if design != "baseline"}
    order = sorted(shapes, key=lambda design: float(shapes[design]["mlp"]) / float(shapes[design]["inner"]))
    for panel, task in zip(panels, tasks, strict=True):
        zero = min(task.means["baseline"].values())
        for place, design in enumerate(order):
            if design in task.means:
                colour, mark = MARKS.get(design, (BLUE, "o"))
                losses = task.means[design]
                best = min(losses.values()) - zero
                panel.plot([best, losses[1.0] - zero], [place, place], color=colour, linewidth=1, alpha=0.5)
                panel.plot(losses[1.0] - zero, place, mark, color=colour, markersize=3.5, markerfacecolor="white")
                panel.plot(best, place, mark, color=colour, markersize=5.5)
        panel.axvspan(-task.noise, task.noise, color=GREY, alpha=0.15, linewidth=0)
        panel.axvline(0, color=GREY, linewidth=1)
        panel.set_title(TITLES[task.name], fontsize=8)
        panel.grid(axis="y", color="#e6e6e6", linewidth=0.7)
        panel.tick_params(axis="y", length=0)
        panel.set_ylim(len(order) - 0.5, -0.5)
        panel.locator_params(axis="x", nbins=3)
    names = {"depth-only": "half the layers"}
    labels = []
    for design in order:
        row = shapes[design]
        called = f"  {names.get(design, design)}" if design in MARKS else ""
        labels.append(f"{row['depth']} × {row['heads']}, MLP {float(row['mlp']) / float(row['width']):.1f} ×{called}")
    panels[0].set_yticks(range(len(order)), labels)
    panels[0].set_ylabel("layers × heads, most attention first")
    words = "Ten designs of half of the baseline's parameters: loss minus the baseline's at its best rate, in nats"
    marks = "filled: at its best of three rates · hollow: at the recipe's · grey: noise of a run · left is better"
    seeds = sorted({task.seeds for task in tasks})
    marks += f" · seeds: {', '.join(seeds)}"
    figure.suptitle(f"{words}\n{marks}", fontsize=8.5)
    figure.savefig(file, dpi=160)


def by_shape(task: Any) -> list[str]:
    rows = {d: task.rows[d, 0] for d in task.designs}
    return sorted(task.designs, key=lambda d: (-rows[d]["depth"], -rows[d]["inner"], d))


def label(task: Any, design: str) -> str:
    row = task.rows[design, 0]
    words = f"{row['depth']} layers × {row['heads']} heads, MLP {row['mlp'] / row['width']:.1f} ×"
    if design == "wide-heads":
        words = f"{row['depth']} × {row['heads']} wide heads, MLP {row['mlp'] / row['width']:.1f} ×"
    return words + (f"  {design}" if design in MARKS else "")


def draw_task(panel: Any, task: Any) -> None:
    base = {s: float(r["eval_loss"]) for (d, s), r in task.rows.items() if d == "baseline"}
    for place, design in enumerate(by_shape(task)):
        losses = {s: float(r["eval_loss"]) for (d, s), r in task.rows.items() if d == design}
        apart = np.array([losses[s] - base[s] for s in losses if s in base])
        colour, mark = MARKS.get(design, (BLUE, "o"))
        panel.plot(apart, np.full(len(apart), place), ".", color=colour, alpha=0.45, markersize=4)
        hollow = {"markerfacecolor": "white"} if design == "wide-heads" else {}
        panel.plot(apart.mean(), place, mark, color=colour, markersize=6.5, **hollow)
    panel.axvline(0, color=GREY, linewidth=1)
    panel.set_title(TITLES[task.name], fontsize=9.5)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    panel.tick_params(axis="y", length=0)
    panel.set_ylim(len(task.designs) - 0.5, -0.5)
    panel.locator_params(axis="x", nbins=3)
    panel.set_xlabel("nats")


def draw_rules(panel: Any, tasks: list[Any], rules: list[Rule]) -> None:
    causal = np.array([task.kind.startswith("causal") for task in tasks])
    for place, (_, rho, (low, high)) in enumerate(rules):
        values = np.array(rho)
        panel.plot([low, high], [place, place], color=GREY, linewidth=6, alpha=0.25, solid_capstyle="butt")
        panel.plot(values[~causal], np.full((~causal).sum(), place), "o", color=BLUE, markersize=5)
        panel.plot(values[causal], np.full(causal.sum(), place), "^", color=ORANGE, markersize=5.5)
        panel.plot(values.mean(), place, "D", color="black", markersize=6.5)
    panel.plot([], [], "o", color=BLUE, label="a task with bidirectional attention")
    panel.plot([], [], "^", color=ORANGE, label="a causal task")
    panel.plot([], [], "D", color="black", label="mean, and its 95% interval")
    panel.legend(loc="upper center", bbox_to_anchor=(0.4, -0.15), ncols=3, frameon=False, fontsize=8.5)
    panel.axvline(0, color=GREY, linewidth=1)
    panel.set_yticks(range(len(rules)), [words for words, *_ in rules])
    panel.set_ylim(len(rules) - 0.5, -0.5)
    panel.set_xlim(-1.05, 1.05)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("ρ:  1 ranks as measured,  0 is chance,  −1 is the wrong way round")
