"""What the runs of the sweep say by themselves: early ranking, a tournament on their curves, the evidence designs."""

from __future__ import annotations

import math

import numpy as np
from ranking_scores import scores
from ranking_table import BASELINE, Task, behind, head, line, regret, spearman
from scipy import stats


def window(curve: np.ndarray, low: float, high: float) -> float:
    at = (np.arange(len(curve)) + 1) / len(curve)
    return float(curve[(low < at) & (at <= high)].mean())


def print_early(tasks: list[Task]) -> None:
    windows = [(0.02, 0.06), (0.06, 0.2), (0.2, 0.3), (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (0.7, 0.8), (0.9, 1.0)]
    print("## ρ between the training loss in a part of the schedule and the final quality\n")
    for words, single in (("mean over seeds", False), ("one run a design, the mean over seeds of ρ", True)):
        head(words, *(f"{100 * a:.0f}–{100 * b:.0f} %" for a, b in windows))
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


# -- a tournament -----------------------------------------------------------------------------------------------------

PLANS = {  # (share of the schedule, designs that go on)
    "20 % → 5, 50 % → 2": ((0.2, 5), (0.5, 2)),
    "30 % → 4, 60 % → 2": ((0.3, 4), (0.6, 2)),
    "10 % → 5, 30 % → 2": ((0.1, 5), (0.3, 2)),
    "30 % → 3": ((0.3, 3),),
    "50 % → 2": ((0.5, 2),),
    "20 % → 1": ((0.2, 1),),
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
    print("## Successive halving on the sweep's own curves\n")

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
        line(name, f"{cost:.1f}", *cells, f"{np.mean(above):.1f}", f"{100 * np.mean(top):.0f} %")
    share = f"{100 * 3 / len(tasks[0].designs):.0f} %"
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
    line("the best design", "10.0", *(t.designs[int(t.quality.argmax())] for t in tasks), "0.0", "100 %")


# -- evidence ---------------------------------------------------------------------------------------------------------

PAIRS = (
    ("lean", BASELINE),
    ("lean", "control"),
    ("lean", "wide-heads"),
    ("lean", "depth-only"),
    ("control", "depth-only"),
    ("control", BASELINE),
    ("depth-only", BASELINE),
)


NAMES = (BASELINE, "lean", "control", "wide-heads", "depth-only")


def print_evidence(tasks: list[Task]) -> None:
    for t in tasks:
        print_designs(t)
        print_pairs(t)


def print_designs(t: Task) -> None:
    metric = t.rows[BASELINE, 0]["metric_name"]
    print(f"\n## {t.name}\n\nNoise of a run {t.noise:.4f} nats, {t.fit[2]} degrees of freedom.\n")
    head("design", "layers × heads × dim, mlp", "parameters (blocks)", "MMACs", "seeds", "loss", "95 %", metric)
    places = [*t.designs, BASELINE]
    for name in NAMES:
        rows = [row for (design, _), row in t.rows.items() if design == name]
        r, i = rows[0], places.index(name)
        half = stats.t.ppf(0.975, t.fit[2]) * t.noise / math.sqrt(len(rows))
        line(
            name,
            f"{r['depth']} × {r['heads']} × {r['head_dim']}, {r['mlp']}",
            f"{r['params']:,} ({r['params_body']:,})",
            f"{r['macs'] / 1e6:.1f}",
            str(len(rows)),
            f"{t.fit[0][i]:.4f}",
            f"± {half:.4f}",
            f"{np.mean([float(row['metric']) for row in rows]):.2f}",
        )


def holm(p: list[float]) -> list[float]:
    order, found, worst = np.argsort(p), [0.0] * len(p), 0.0
    for place, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - place) * p[i]))
        found[i] = worst
    return found


def print_pairs(t: Task) -> None:
    """Differences by the fit over all runs of the task, and seed by seed where both designs have the seed."""
    losses, noise, free, spread = t.fit
    places = [*t.designs, BASELINE]
    found = []
    for a, b in PAIRS:
        i, j = places.index(a), places.index(b)
        error = noise * math.sqrt(spread[i, i] + spread[j, j] - 2 * spread[i, j])
        found.append((losses[i] - losses[j], error))
    corrected = holm([float(2 * stats.t.sf(abs(apart) / error, free)) for apart, error in found])
    print()
    head("difference of losses", "mean", "95 %", "p, Holm", "in noise of a run", "seed by seed")
    for (a, b), (apart, error), p in zip(PAIRS, found, corrected, strict=True):
        half = stats.t.ppf(0.975, free) * error
        both = [s for s in sorted({s for _, s in t.rows}) if (a, s) in t.rows and (b, s) in t.rows]
        each = ", ".join(f"{t.loss(a, s) - t.loss(b, s):+.4f}" for s in both)
        line(
            f"{a} − {b}",
            f"{apart:+.4f}",
            f"{apart - half:+.4f} … {apart + half:+.4f}",
            f"{p:.3f}",
            f"{apart / noise:+.1f}",
            each,
        )
