"""What predicts which of several designs of equal parameters trains best? Reads the table of `ranking_sweep.py`.

    python tests/benchmarks/ranking_rules.py recipes/results/ranking.csv rules        ρ of every rule, task by task
    python tests/benchmarks/ranking_rules.py recipes/results/ranking.csv early        when a run's own loss ranks them
    python tests/benchmarks/ranking_rules.py recipes/results/ranking.csv tournament   successive halving on the curves
    python tests/benchmarks/ranking_rules.py recipes/results/ranking.csv evidence     baseline, lean, control, …
    python tests/benchmarks/ranking_rules.py recipes/results/ranking.csv picture FILE.png

A design's quality is minus its validation loss, the mean over its seeds (where designs have different seeds, by least
squares of loss = design + seed). A rule gives a design a score; ρ is Spearman's between score and quality over the ten
designs of equal parameters (not the baseline). Only bootstrap and permutations draw numbers, by fixed seeds.
"""

from __future__ import annotations

import csv
import math
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

BASELINE = "baseline"
DEPTH, HEADS = 8, 4  # of the baseline
DRAWS = 4000
NUMBERS = ("depth", "heads", "head_dim", "inner", "mlp", "width", "tokens", "seed", "params", "params_body", "macs")


@dataclass(frozen=True)
class Task:
    """Designs of equal parameters in the table's order; ``rows`` holds a run's row by (design, seed)."""

    name: str
    kind: str
    designs: tuple[str, ...]
    rows: dict[tuple[str, int], dict[str, Any]]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Those that all designs have."""
        every = sorted({seed for _, seed in self.rows})
        return tuple(seed for seed in every if all((design, seed) in self.rows for design in self.designs))

    def loss(self, design: str, seed: int) -> float:
        return float(self.rows[design, seed]["eval_loss"])

    @cached_property
    def fit(self) -> tuple[np.ndarray, float, int, np.ndarray]:
        """Least squares of loss = design + seed over all runs: the losses of the designs and, last, of the baseline; a
        run's noise, its degrees of freedom, and the losses' covariance in units of the noise.
        """
        names = [*self.designs, BASELINE]
        keys, seeds = list(self.rows), sorted({seed for _, seed in self.rows})
        table = np.zeros((len(keys), len(names) + len(seeds)))
        for i, (design, seed) in enumerate(keys):
            table[i, names.index(design)] = table[i, len(names) + seeds.index(seed)] = 1
        table[:, len(names) :] -= table[:, len(names) :].mean(0)  # a design's loss is that over the seeds on average
        losses = np.array([self.loss(*key) for key in keys])
        found, _, rank, _ = np.linalg.lstsq(table, losses, rcond=None)
        free = len(keys) - int(rank)
        noise = math.sqrt(((losses - table @ found) ** 2).sum() / free) if free else math.nan
        spread = np.linalg.pinv(table.T @ table)
        return found[: len(names)], noise, free, spread[: len(names), : len(names)]

    @property
    def quality(self) -> np.ndarray:
        return -self.fit[0][:-1]

    @property
    def noise(self) -> float:
        """Standard deviation of one run's loss."""
        return self.fit[1]

    def column(self, name: str) -> np.ndarray:
        """A quantity of every design, the mean over its seeds; κ as its logarithm, where infinity counts as 10^12."""
        means = []
        for design in self.designs:
            found = np.array([float(row[name]) for (other, _), row in self.rows.items() if other == design])
            means.append((np.log(np.minimum(found, 1e12)) if name.startswith("kappa") else found).mean())
        return np.array(means)

    def again(self) -> float:
        """ρ between the losses of seeds 0 and 1, over the designs that have both."""
        both = [(self.loss(d, 0), self.loss(d, 1)) for d in self.designs if (d, 0) in self.rows and (d, 1) in self.rows]
        return spearman(*map(np.array, zip(*both, strict=True))) if len(both) > 2 else math.nan


def read(path: Path) -> tuple[list[Task], list[Task]]:
    """The tasks with all designs, and those that have a few: checks of what tells tasks apart."""
    with path.open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row |= {name: int(row[name]) for name in NUMBERS}
        row["curve"] = np.array(row["curve"].split(), dtype=float)
    tasks = []
    for name in dict.fromkeys(row["task"] for row in rows):
        mine = {(row["design"], row["seed"]): row for row in rows if row["task"] == name}
        designs = tuple(dict.fromkeys(d for d, s in mine if d != BASELINE and s == 0))
        tasks.append(Task(name, next(iter(mine.values()))["kind"], designs, mine))
    most = max(len(task.designs) for task in tasks)
    return [t for t in tasks if len(t.designs) == most], [t for t in tasks if len(t.designs) < most]


# -- rules: more is better --------------------------------------------------------------------------------------------

Rule = Callable[[dict[str, Any]], float]


def gaussian_kappa(d: dict[str, Any]) -> float:
    gap = abs(math.sqrt(d["inner"]) - math.sqrt(d["tokens"]))
    return (math.sqrt(d["inner"]) + math.sqrt(d["tokens"])) / gap if gap else 1e9


def current(d: dict[str, Any]) -> float:
    """As leanify ranked until now: first no MLP below twice the width, then the least κ/depth."""
    return -1e6 * max(0, 2 * d["width"] - d["mlp"]) - gaussian_kappa(d) / d["depth"]


def levine(d: dict[str, Any]) -> float:
    """Near the depth at which width and depth are in balance: ln width = 5.039 + 0.0555 depth (Levine et al. 2020)."""
    best = max(1.0, (math.log(d["width"]) - 5.039) / 0.0555)
    return -abs(math.log(d["depth"] / best))


def kaplan(d: dict[str, Any]) -> float:
    """Little matters; MLPs of four times the width and inner = width lie in the flat middle (Kaplan et al. 2020)."""
    return -abs(math.log(d["mlp"] / (4 * d["width"]))) - abs(math.log(d["inner"] / d["width"]))


def petty(d: dict[str, Any]) -> float:
    """Deeper, as long as the MLP is no narrower than the model; returns fall with depth (Petty et al. 2024)."""
    return math.log(d["depth"]) - 10 * max(0.0, math.log(d["width"] / d["mlp"]))


def brown(d: dict[str, Any]) -> float:
    """Wide attention: as many heads a layer, in as few layers (Brown et al. 2022)."""
    return math.log(d["heads"] / d["depth"])


def least_change(d: dict[str, Any]) -> float:
    return -sum(
        abs(math.log(ratio)) for ratio in (d["depth"] / DEPTH, d["inner"] / d["width"], d["mlp"] / (4 * d["width"]))
    )


RULES: dict[str, Rule] = {
    "κ/depth, MLP ≥ 2 width first (as it was)": current,
    "κ/depth": lambda d: -gaussian_kappa(d) / d["depth"],
    "κ predicted, least": lambda d: -gaussian_kappa(d),
    "depth": lambda d: d["depth"],
    "heads": lambda d: d["heads"],
    "inner": lambda d: d["inner"],
    "mlp": lambda d: d["mlp"],
    "mlp × depth (all hidden units)": lambda d: d["mlp"] * d["depth"],
    "inner × depth (all attention)": lambda d: d["inner"] * d["depth"],
    "mlp / inner": lambda d: d["mlp"] / d["inner"],
    "inner / depth": lambda d: d["inner"] / d["depth"],
    "mlp / depth": lambda d: d["mlp"] / d["depth"],
    "MACs": lambda d: d["macs"],
    "near 2 layers' depth (Levine 2020)": levine,
    "deep, MLP ≥ width (Petty 2024)": petty,
    "heads / depth (Brown 2022)": brown,
    "MLP near 4 width, inner near width (Kaplan 2020)": kaplan,
    "least change": least_change,
    "attention and MLP of equal size": lambda d: -abs(math.log(2 * d["inner"] / d["mlp"])),
}
MEASURED = {  # column → sign
    "κ at the beginning, least": ("kappa_init", -1),
    "κ after 50 steps, least": ("kappa_50", -1),
    "gradient's norm (first batch)": ("grad_norm", 1),
    "SNIP (first batch)": ("snip", 1),
    "Fisher (first batch)": ("fisher", 1),
    "training loss, 6–20 %": ("loss_6_20", -1),
    "training loss, 20–30 %": ("loss_20_30", -1),
    "training loss, 40–50 %": ("loss_40_50", -1),
}


def scores(task: Task) -> dict[str, np.ndarray]:
    found = {
        name: np.array([rule(task.rows[d, task.seeds[0]]) for d in task.designs], float) for name, rule in RULES.items()
    }
    return found | {name: sign * task.column(column) for name, (column, sign) in MEASURED.items()}


SHOWN = {
    "κ/depth behind an MLP floor, as leanify ranked": "κ/depth, MLP ≥ 2 width first (as it was)",
    "κ/depth": "κ/depth",
    "most heads": "heads",
    "most depth": "depth",
    "most attention (inner × depth)": "inner × depth (all attention)",
    "widest MLP": "mlp",
    "least change": "least change",
    "least κ measured at the beginning": "κ at the beginning, least",
    "least κ measured after 50 steps": "κ after 50 steps, least",
    "training loss at 20–30 %": "training loss, 20–30 %",
    "training loss at 40–50 %": "training loss, 40–50 %",
}
SHOWN_FITTED = {"fitted to the other tasks": "ridge", "most attention, its sign by direction": "by direction"}


# -- rules fitted to other tasks --------------------------------------------------------------------------------------


def features(task: Task) -> np.ndarray:
    rows = [task.rows[d, task.seeds[0]] for d in task.designs]
    return np.array(
        [[math.log(r["depth"]), math.log(r["inner"] / r["width"]), math.log(r["mlp"] / r["width"])] for r in rows]
    )


def standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def models() -> dict[str, Any]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    kernel = RBF([1.0, 1.0, 1.0], (0.3, 30)) + WhiteKernel(0.5, (0.05, 5))
    return {
        "ridge": make_pipeline(StandardScaler(), Ridge(3.0)),
        "quadratic ridge": make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False), Ridge(3.0)),
        "Gaussian process": make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True)),
    }


def fitted(task: Task, others: Iterable[Task]) -> dict[str, np.ndarray]:
    """Scores by what was fitted to other tasks; ``mean rank``: a design's mean standardised quality on them."""
    others = list(others)
    x = np.concatenate([features(t) for t in others])
    y = np.concatenate([standard(t.quality) for t in others])
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, model in models().items():
            found[name] = model.fit(x, y).predict(features(task))
    table = {t.name: dict(zip(t.designs, standard(t.quality), strict=True)) for t in others}
    found["the same design elsewhere"] = np.array(
        [np.mean([table[t.name].get(d, 0.0) for t in others]) for d in task.designs]
    )
    return found


# -- statistics -------------------------------------------------------------------------------------------------------


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """0 where a rule says the same of all."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(stats.spearmanr(a, b).statistic)


def rows_spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row."""
    ra, rb = (stats.rankdata(x, axis=1) for x in (a, b))
    ra, rb = (r - r.mean(1, keepdims=True) for r in (ra, rb))
    scale = np.sqrt((ra**2).sum(1) * (rb**2).sum(1))
    return np.divide((ra * rb).sum(1), scale, out=np.zeros(len(a)), where=scale > 0)


def interval(tasks: list[Task], scored: list[np.ndarray]) -> tuple[float, float]:
    """95 % of the mean ρ: designs drawn with replacement, the same ones for all tasks, and tasks drawn, too."""
    rng = np.random.default_rng(0)
    number = len(tasks[0].designs)
    drawn = rng.integers(0, number, (DRAWS, number))
    each = np.stack([rows_spearman(s[drawn], t.quality[drawn]) for t, s in zip(tasks, scored, strict=True)], 1)
    which = rng.integers(0, len(tasks), (DRAWS, len(tasks)))
    low, high = np.percentile(np.take_along_axis(each, which, 1).mean(1), [2.5, 97.5])
    return float(low), float(high)


def by_chance(tasks: list[Task], scored: list[np.ndarray]) -> float:
    """How often designs with their names shuffled, alike in all tasks, give a mean ρ at least as large."""
    rng = np.random.default_rng(1)
    number = len(tasks[0].designs)
    orders = np.array([rng.permutation(number) for _ in range(DRAWS)])
    found = np.mean([spearman(s, t.quality) for t, s in zip(tasks, scored, strict=True)])
    shuffled = np.mean(
        [rows_spearman(s[orders], np.tile(t.quality, (DRAWS, 1))) for t, s in zip(tasks, scored, strict=True)], 0
    )
    return float((1 + (shuffled >= found - 1e-12).sum()) / (1 + DRAWS))


def regret(task: Task, score: np.ndarray) -> float:
    """The loss of a rule's first choice: 0 is that of the best design, 1 that of a design drawn at random."""
    return behind(task, np.flatnonzero(score == score.max()))


def behind(task: Task, chosen: Any) -> float:
    best = task.quality.max()
    return float((best - task.quality[chosen].mean()) / (best - task.quality.mean()))


# -- the pages --------------------------------------------------------------------------------------------------------


def line(*cells: Any) -> None:
    print("| " + " | ".join(cell if isinstance(cell, str) else f"{cell:.2f}" for cell in cells) + " |")


def head(*cells: str) -> None:
    line(*cells)
    print("|" + "---|" * len(cells))


def print_rules(tasks: list[Task]) -> None:
    print("## Tasks\n")
    words = (
        "task",
        "kind",
        "runs a design",
        "baseline",
        "loss",
        "best design",
        "worst",
        "noise (degrees)",
        "spread of designs",
    )
    head(*words, "ρ, seeds 0 and 1")
    for t in tasks:
        base = [row for (design, _), row in t.rows.items() if design == BASELINE]
        order = np.argsort(-t.quality)
        runs = [sum(d == design for d, _ in t.rows) for design in t.designs]
        line(
            t.name,
            t.kind,
            f"{min(runs)}–{max(runs)}",
            f"{np.mean([float(row['metric']) for row in base]):.2f} {base[0]['metric_name']}",
            f"{np.mean([float(row['eval_loss']) for row in base]):.4f}",
            f"{t.designs[order[0]]} {-t.quality.max():.4f}",
            f"{t.designs[order[-1]]} {-t.quality.min():.4f}",
            f"{t.noise:.4f} ({t.fit[2]})",
            f"{t.quality.std(ddof=1):.4f}",
            t.again(),
        )
    print("\n## Losses, the best design first\n")
    for t in tasks:
        print(f"- {t.name}: " + ", ".join(f"{t.designs[i]} {-t.quality[i]:.4f}" for i in np.argsort(-t.quality)))
    print("\n## ρ between a rule and the measured quality\n")
    all_scores = [scores(t) for t in tasks]
    head("rule", *(t.name for t in tasks), "mean", "95 %", "p", "least", "regret")
    names = list(RULES) + list(MEASURED)
    means = {n: np.mean([spearman(s[n], t.quality) for t, s in zip(tasks, all_scores, strict=True)]) for n in names}
    for name in [*sorted(RULES, key=lambda n: -means[n]), *MEASURED]:
        print_rule(tasks, name, [s[name] for s in all_scores])
    print("\n## Fitted to the other tasks, held against the one left out\n")
    head("rule", *(t.name for t in tasks), "mean", "95 %", "p", "least", "regret")
    left_out = [fitted(t, [o for o in tasks if o is not t]) for t in tasks]
    for name in left_out[0]:
        print_rule(tasks, name, [s[name] for s in left_out])
    print_rule(tasks, "all attention, by direction", [s for _, s in by_direction(tasks)])
    print_picked(tasks, all_scores)
    print("\n## Fitted to the other tasks of the same kind\n")
    groups = [
        ("vision", [t for t in tasks if t.kind == "vision"]),
        ("text", [t for t in tasks if t.kind != "vision"]),
        ("bidirectional", [t for t in tasks if not is_causal(t)]),
        ("causal", [t for t in tasks if is_causal(t)]),
    ]
    for words, group in groups:
        if len(group) < 2:
            continue
        head(f"rule, {words}", *(t.name for t in group), "mean")
        own = [fitted(t, [o for o in group if o is not t]) for t in group]
        for name in own[0]:
            rho = [spearman(s[name], t.quality) for t, s in zip(group, own, strict=True)]
            line(name, *rho, float(np.mean(rho)))
        print()
    print("\n## Do tasks agree? ρ between the orders of two tasks\n")
    head("", *(t.name for t in tasks))
    for a in tasks:
        line(a.name, *(spearman(a.quality, b.quality) for b in tasks))
    print_weights(tasks)


def print_rule(tasks: list[Task], name: str, scored: list[np.ndarray]) -> None:
    rho = [spearman(s, t.quality) for t, s in zip(tasks, scored, strict=True)]
    low, high = interval(tasks, scored)
    behind = np.mean([regret(t, s) for t, s in zip(tasks, scored, strict=True)])
    line(
        name,
        *rho,
        f"**{np.mean(rho):.2f}**",
        f"{low:.2f} … {high:.2f}",
        f"{by_chance(tasks, scored):.3f}",
        min(rho),
        f"{behind:.1f}",
    )


def by_direction(tasks: list[Task]) -> list[tuple[int, np.ndarray]]:
    """All attention (inner × depth), with the sign that it has on the other tasks whose attention looks that way."""
    found = []
    for task in tasks:
        alike = [t for t in tasks if t is not task and is_causal(t) == is_causal(task)]
        rho = np.mean([spearman(attention_of(t), t.quality) for t in alike])
        sign = 1 if rho >= 0 else -1
        found.append((sign, sign * attention_of(task)))
    return found


def is_causal(task: Task) -> bool:
    return task.kind.startswith("causal")


def attention_of(task: Task) -> np.ndarray:
    return np.array(
        [float(task.rows[d, task.seeds[0]]["inner"] * task.rows[d, task.seeds[0]]["depth"]) for d in task.designs]
    )


def print_picked(tasks: list[Task], all_scores: list[dict[str, np.ndarray]]) -> None:
    """The fixed rule that is best on the other tasks, held against the one left out."""
    picked = []
    for i, task in enumerate(tasks):
        others = [j for j in range(len(tasks)) if j != i]
        best = max(RULES, key=lambda n: np.mean([spearman(all_scores[j][n], tasks[j].quality) for j in others]))
        picked.append((best, spearman(all_scores[i][best], task.quality)))
    line(
        "the fixed rule that is best on the others",
        *(rho for _, rho in picked),
        f"**{np.mean([r for _, r in picked]):.2f}**",
        "",
        "",
        min(r for _, r in picked),
        "",
    )
    print("\nPicked: " + "; ".join(f"{t.name}: {name}" for t, (name, _) in zip(tasks, picked, strict=True)))


def print_weights(tasks: list[Task]) -> None:
    print("\n## Ridge on standardised log depth, log inner/width, log mlp/width, all tasks and each kind\n")
    head("fitted to", "depth", "inner", "mlp")
    groups = {
        "all": tasks,
        "bidirectional": [t for t in tasks if not is_causal(t)],
        "causal": [t for t in tasks if is_causal(t)],
    }
    groups |= {t.name: [t] for t in tasks}
    for name, group in groups.items():
        if group:
            model = models()["ridge"].fit(
                np.concatenate([features(t) for t in group]), np.concatenate([standard(t.quality) for t in group])
            )
            line(name, *map(float, model[-1].coef_))


def print_checks(tasks: list[Task], checks: list[Task]) -> None:
    """Tasks of which only the length of samples was changed, beside those that they were made of."""
    if not checks:
        return
    print("\n## Is it the length of samples?\n")
    designs = [d for d in tasks[0].designs if all(d in c.designs for c in checks)]
    designs.sort(key=lambda d: tasks[0].rows[d, 0]["inner"] * tasks[0].rows[d, 0]["depth"])
    head("loss, seed 0", "tokens", BASELINE, *designs, "ρ of all attention")
    for task in sorted([t for t in [*tasks, *checks] if any(t.name in c.name for c in checks)], key=lambda t: t.name):
        losses = np.array([task.loss(d, 0) for d in designs])
        amount = np.array([float(task.rows[d, 0]["inner"] * task.rows[d, 0]["depth"]) for d in designs])
        base = f"{task.loss(BASELINE, 0):.4f}" if (BASELINE, 0) in task.rows else ""
        tokens = str(task.rows[designs[0], 0]["tokens"])
        line(task.name, tokens, base, *(f"{loss:.4f}" for loss in losses), spearman(amount, -losses))


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


def print_picture(tasks: list[Task], file: Path) -> None:
    from ranking_picture import draw

    all_scores = [scores(t) for t in tasks]
    left_out = [fitted(t, [o for o in tasks if o is not t]) for t in tasks]
    for found, (_, signed) in zip(left_out, by_direction(tasks), strict=True):
        found["by direction"] = signed
    rules = []
    for words, name, found in (
        *((words, name, all_scores) for words, name in SHOWN.items()),
        *((words, name, left_out) for words, name in SHOWN_FITTED.items()),
    ):
        scored = [s[name] for s in found]
        rho = [spearman(s, t.quality) for t, s in zip(tasks, scored, strict=True)]
        rules.append((words, rho, interval(tasks, scored)))
    draw(tasks, file, rules)


def main() -> None:
    tasks, checks = read(Path(sys.argv[1]))
    what = sys.argv[2] if len(sys.argv) > 2 else "rules"
    pages = {"rules": print_rules, "early": print_early, "tournament": print_tournament, "evidence": print_evidence}
    if what == "picture":
        print_picture(tasks, Path(sys.argv[3]))
    else:
        pages[what](tasks)
    if what == "rules":
        print_checks(tasks, checks)


if __name__ == "__main__":
    main()
