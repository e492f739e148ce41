"""What the runs of the sweep say by themselves: early ranking, and a tournament on their curves."""

from __future__ import annotations

import numpy as np
from scipy import stats

from .scores import scores
from .table import Task, behind, head, line, regret, spearman


def window(curve: np.ndarray, low: float, high: float) -> float:
    at = (np.arange(len(curve)) + 1) / len(curve)
    inside = (low + 1e-9 < at) & (at <= high + 1e-9)
    return float(curve[inside].mean() if inside.any() else curve[at <= high + 1e-9][-1])


def print_early(tasks: list[Task]) -> None:
    windows = [(0.02, 0.06), (0.06, 0.2), (0.2, 0.3), (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (0.7, 0.8), (0.9, 1.0)]
    """ρ between the training loss in a part of the schedule and the final quality."""
    for words, single in (("mean over seeds", False), ("one run a design, the mean over seeds of ρ", True)):
        head(words, *(f"{100 * a:.0f}–{100 * b:.0f}%" for a, b in windows))
        for t in tasks:
            cells = []
            for low, high in windows:
                losses = np.array([[window(t.rows[d, s]["curve"], low, high) for s in t.seeds] for d in t.designs])
                cells.append(
                    np.mean([spearman(-column, t.quality) for column in losses.T])
                    if single
                    else spearman(-losses.mean(1), t.quality)
                )
            line(t.name, *map(float, cells))
        print()


def trusted_from(task: Task) -> str:
    """The share of the schedule from which the loss in a tenth of it ranks designs with ρ ≥ 0.5 ever after."""
    tenths = [round(0.1 * i, 1) for i in range(10)]
    losses = [[np.mean([window(task.rows[d, s]["curve"], low, low + 0.1) for s in task.seeds]) for d in task.designs]
              for low in tenths]  # fmt: skip
    rho = [spearman(-np.array(column), task.quality) for column in losses]
    held = next((i for i in range(len(rho)) if min(rho[i:]) >= 0.5), None)
    return "never" if held is None else f"from {100 * (tenths[held] + 0.1):.0f}%"


# -- a tournament -----------------------------------------------------------------------------------------------------

PLANS = {  # (share of the schedule, designs that go on)
    "13% → 5, 39% → 3, as leanify": ((0.13, 5), (0.39, 3)),
    "20% → 5, 50% → 2": ((0.2, 5), (0.5, 2)),
    "30% → 4, 60% → 2": ((0.3, 4), (0.6, 2)),
    "10% → 5, 30% → 2": ((0.1, 5), (0.3, 2)),
    "30% → 3": ((0.3, 3),),
    "50% → 2": ((0.5, 2),),
    "20% → 1": ((0.2, 1),),
}


def halve(task: Task, seed: int, plan: tuple[tuple[float, int], ...]) -> tuple[int, float]:
    """The winner, and the cost in whole trainings of one design. A rung looks at the last tenth of the schedule."""
    alive, cost, done = list(range(len(task.designs))), 0.0, 0.0
    curves = [task.rows[d, seed]["curve"] for d in task.designs]
    for share, keep in plan:
        cost += len(alive) * (share - done)
        done = share
        alive = sorted(alive, key=lambda i: window(curves[i], max(0.0, share - 0.1), share))[:keep]
    cost += len(alive) * (1 - done)
    return min(alive, key=lambda i: task.loss(task.designs[i], seed)), cost


def print_tournament(tasks: list[Task]) -> None:
    """Successive halving on the sweep's own curves."""
    head("plan", "cost", *(t.name for t in tasks), "behind the best", "winner in the best 3")
    picks: dict[str, list[tuple[Task, list[int]]]] = {}
    for name, plan in PLANS.items():
        won = [(t, [halve(t, s, plan) for s in t.seeds]) for t in tasks]
        picks[name] = [(t, [i for i, _ in found]) for t, found in won]
        cost = won[0][1][0][1]
        cells, top, above = [], [], []
        for t, found in picks[name]:
            place = stats.rankdata(-t.quality)
            above += [behind(t, [i]) for i in found]
            top += [place[i] <= 3 for i in found]
            cells.append(", ".join(t.designs[i] for i in found))
        line(name, f"{cost:.1f}", *cells, f"{np.mean(above):.1f}", f"{100 * np.mean(top):.0f}%")
    share = f"{100 * 3 / len(tasks[0].designs):.0f}%"
    line("any design, at random", "1.0", *("" for _ in tasks), "1.0", share)
    for name in ("κ/depth, MLP ≥ 2 width first (as it was)", "κ/depth", "least change"):
        first = [regret(t, scores(t)[name]) for t in tasks]
        line(
            f"first by {name}",
            "1.0",
            *(t.designs[int(scores(t)[name].argmax())] for t in tasks),
            f"{np.mean(first):.1f}",
            "",
        )
    line("the best design", "10.0", *(t.designs[int(t.quality.argmax())] for t in tasks), "0.0", "100%")
