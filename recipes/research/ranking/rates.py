"""What a learning rate for each design changes: the analysis, written before its runs.

    python -m recipes.research.ranking.rates recipes/results/ranking-rates.csv -o recipes/results/ranking-rates.md

The table is that of ``sweep.py … --rates 0.5,1,2``: ten designs of half of the baseline's block parameters, and
the baseline, on six tasks. Fixed before the runs:

1. A design's best rate is the one with the lowest mean validation loss over the seeds that have all rates. Best rates
   are chosen on the split that judges, for every design alike.
2. The rule that is judged is the default one of `redesign`: most attention for encoders, among MLPs of two widths and
   more; for decoders no more attention than MLP, then most layers. It is judged by Spearman's ρ with the order of
   losses over the ten designs, and by regret: the loss of the design that it puts first, 0 being the best design's and
   1 the mean of all. Both at the recipe's rate and at each design's best.
3. A cheaper way to a rate is taken if the mean loss that it costs, over designs and tasks, is less than a fifth of the
   noise of a run (pooled, a fit of design + seed at best rates): the recipe's rate for all; the baseline's best rate
   for all; a rate that grows with the square root of the baseline's depth over the design's.

Tasks and designs with fewer rates or seeds than planned are left out and named.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from .picture import draw_rates

RESULTS = Path(__file__).parents[2] / "results"
BASELINE, LEAN, CONTROL = "baseline", "lean", "control"
BEST = "each design's best"
FEWEST = 5  # designs with all rates, for what is said of the designs of a task
Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Task:
    """The runs of one task: losses[design][seed][rate], and a row of the table for each design's shape."""

    name: str
    losses: dict[str, dict[int, dict[float, float]]]
    shapes: dict[str, dict[str, str]]
    noise: float  # standard deviation of a run at the recipe's rate

    @property
    def rates(self) -> list[float]:
        return sorted({rate for seeds in self.losses.values() for found in seeds.values() for rate in found})

    @property
    def means(self) -> dict[str, dict[float, float]]:
        """design → rate → loss, a mean over seeds that have every rate; designs without such a seed are not in it."""
        found = {}
        for design, seeds in self.losses.items():
            whole = [seed for seed in seeds.values() if len(seed) == len(self.rates)]
            if whole and len(self.rates) > 1:
                found[design] = {rate: float(np.mean([seed[rate] for seed in whole])) for rate in self.rates}
        return found

    @property
    def seeds(self) -> str:
        """How many seeds of a design have every rate."""
        counts = set()
        for seeds in self.losses.values():
            counts.add(sum(len(seed) == len(self.rates) for seed in seeds.values()))
        return "–".join(str(count) for count in sorted({min(counts), max(counts)}))


def tasks_of(rows: Rows, one_rate: Rows) -> list[Task]:
    found = []
    for name in dict.fromkeys(row["task"] for row in rows):
        losses: dict[str, dict[int, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
        shapes = {}
        for row in rows:
            if row["task"] == name:
                shapes[row["design"]] = row
                losses[row["design"]][int(row["seed"])][float(row["rate"])] = float(row["eval_loss"])
        found.append(Task(name, losses, shapes, noise_of(name, one_rate)))
    return found


def noise_of(task: str, one_rate: Rows) -> float:
    """The noise of a run of a task at the recipe's rate."""
    runs = {}
    for row in one_rate:
        if row["task"] == task:
            runs[row["design"], row["seed"]] = float(row["eval_loss"])

    # least squares of design + seed: one column of 0 and 1 for each design and each seed
    keys = list(runs)
    labels = [[design for design, _ in keys], [seed for _, seed in keys]]
    columns = [[value == one for value in names] for names in labels for one in dict.fromkeys(names)]
    matrix, losses = np.array(columns, float).T, np.array(list(runs.values()))
    fitted, _, rank, _ = np.linalg.lstsq(matrix, losses, rcond=None)
    rest = losses - matrix @ fitted
    return math.sqrt(float(rest @ rest) / (len(runs) - int(rank)))


# -- ways to a rate ---------------------------------------------------------------------------------------------------


def ways(task: Task) -> dict[str, dict[str, float]]:
    """Each way to a rate: design → rate."""
    losses, rates = task.means, task.rates
    best = {design: min(found, key=found.__getitem__) for design, found in losses.items()}
    found = {BEST: best, "the recipe's rate": dict.fromkeys(losses, 1.0)}
    if BASELINE in best:
        shared = best[BASELINE]
        found["the baseline's best rate"] = dict.fromkeys(losses, shared)
        depth = float(task.shapes[BASELINE]["depth"])
        nearest = {}
        for design in losses:
            wanted = shared * math.sqrt(depth / float(task.shapes[design]["depth"]))
            nearest[design] = min(rates, key=lambda rate: abs(math.log(rate / wanted)))
        found["with the square root of depth"] = nearest
    return found


def cost_of(task: Task, chosen: dict[str, float]) -> float:
    """The mean loss that a way to a rate costs, beside each design's best."""
    return float(np.mean([found[chosen[design]] - min(found.values()) for design, found in task.means.items()]))


# -- the rule ---------------------------------------------------------------------------------------------------------


def judged(task: Task, chosen: dict[str, float]) -> tuple[float, float]:
    """ρ and regret of the default rule at these rates, over the designs within the budget."""
    field = [design for design in task.means if design != BASELINE]
    found = [task.means[design][chosen[design]] for design in field]
    order = sorted(field, key=lambda design: score(task.shapes[design]))
    rho = float(stats.spearmanr([order.index(design) for design in field], found).statistic)
    proposed = task.means[order[0]][chosen[order[0]]]
    return rho, (proposed - min(found)) / (float(np.mean(found)) - min(found))


def score(row: dict[str, str]) -> tuple[float, float]:
    """The rule's preference of a design, lowest first, as ``DEFAULT`` in scores.py has it."""
    inner, mlp, width = float(row["inner"]), float(row["mlp"]), float(row["width"])
    maps = 3 if row["kind"].startswith("masked") else 2  # crammed BERT's MLPs are gated
    attention = 4 * inner / (4 * inner + maps * mlp)
    if row["kind"].startswith("causal"):
        return round(max(attention, 0.5) / 0.02), -float(row["depth"])
    return maps * mlp < 0.99 * 4 * width, -attention


# -- the page ---------------------------------------------------------------------------------------------------------

HEAD = """# A learning rate for each design

    python -m recipes.research.ranking.sweep RUNS --rates 0.5,1,2 --fashion-mnist DIR --cifar10 DIR --enwik8 DIR \\
        --tinystories DIR --kept recipes/results/ranking-rates.csv
    python -m recipes.research.ranking.rates recipes/results/ranking-rates.csv -o recipes/results/ranking-rates.md

The designs and recipes of [ranking.md](ranking.md) at half, one and two times the recipe's learning rate, on the tasks
whose baseline has learnt there. What is asked was written before the runs (the docstring of `rates.py`); then
it was two seeds of six tasks. The runs resume from the table: the first command trains what is missing. On
Fashion-MNIST and ListOps the rows at the recipe's rate are those of ranking.md; the text tasks were trained anew, since
what is read of their files changed. The noise of a run is that of ranking.md: of all its runs of a task at the
recipe's rate.

![ten designs and three rates beside the baseline](ranking-rates.png)
"""


def page(rows: Rows, one_rate: Rows) -> str:
    found = tasks_of(rows, one_rate)
    tasks = [task for task in found if len(task.means) > 1]
    left = [task.name for task in found if len(task.means) < 2]
    lines = [
        HEAD,
        f"{len(rows)} runs. {planned(tasks, left)}",
        "",
        "## Which rate is best?",
        "",
        *table_of_rates(tasks),
    ]
    lines += ["", "## Do best rates change the order?", "", *table_of_orders(tasks)]
    lines += ["", "## A cheaper way to a rate", "", *table_of_ways(tasks)]
    lines += ["", "## The default ranking at best rates", "", *table_of_rule(tasks)]
    return "\n".join(lines) + "\n"


def planned(tasks: list[Task], left: list[str]) -> str:
    """What is there of the plan: eleven designs, two seeds."""
    words = []
    for task in tasks:
        some = f", {len(task.means)} of 11 designs" if len(task.means) < 11 else ""
        words.append(f"{task.name} {task.seeds} seed{'s' * (task.seeds != '1')}{some}")
    more = f" Not begun, or without three rates of two designs: {', '.join(left)}." if left else ""
    done = f"Seeds with all three rates: {'; '.join(words)}."
    return f"{done} Planned: two seeds of eleven designs.{more}"


def table_of_rates(tasks: list[Task]) -> list[str]:
    lines = ["| task | design | " + " | ".join(f"loss at {rate:g}" for rate in tasks[0].rates) + " | best |"]
    lines.append("|---|---|" + "---|" * (len(tasks[0].rates) + 1))
    for task in tasks:
        for design, found in task.means.items():
            best = min(found, key=found.__getitem__)
            cells = [f"**{loss:.4f}**" if rate == best else f"{loss:.4f}" for rate, loss in found.items()]
            lines.append(f"| {task.name} | {design} | {' | '.join(cells)} | {best:g} |")
    return lines


def table_of_orders(tasks: list[Task]) -> list[str]:
    lines = [
        "Losses in nats; a minus is a gain of *lean*. ρ is Spearman's between the order of the ten designs at the",
        "recipe's rate and at best rates. The noise of a difference is about 1.4 times that of a run with one seed,",
        "1.0 times with two.",
        "",
        "| task | lean − baseline, recipe's rate | at best rates | lean − control, recipe's rate | at best rates "
        "| noise of a run | ρ of the orders |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in tasks:
        chosen, losses = ways(task), task.means
        cells = []
        for against in (BASELINE, CONTROL):
            for way in ("the recipe's rate", BEST):
                known = LEAN in losses and against in losses
                cells.append(
                    f"{losses[LEAN][chosen[way][LEAN]] - losses[against][chosen[way][against]]:+.4f}" if known else "–"
                )
        field = [design for design in losses if design != BASELINE]
        orders = [[losses[design][chosen[way][design]] for design in field] for way in ("the recipe's rate", BEST)]
        rho = f"{stats.spearmanr(*orders).statistic:.2f}" if len(field) > 3 else "–"
        lines.append(f"| {task.name} | {' | '.join(cells)} | {task.noise:.4f} | {rho} |")
    return lines


def table_of_ways(tasks: list[Task]) -> list[str]:
    tasks = [task for task in tasks if len(task.means) >= FEWEST]
    names = list(ways(tasks[0]))[1:]
    lines = [
        "Mean loss beside each design's best rate, and its share of the noise of a run. A way is taken if its mean",
        "share is below 0.2.",
        "",
        "| task | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    shares: dict[str, list[float]] = defaultdict(list)
    for task in tasks:
        cells = []
        for name in names:
            chosen = ways(task).get(name)
            if chosen is None:
                cells.append("–")
                continue
            cost = cost_of(task, chosen)
            shares[name].append(cost / task.noise)
            cells.append(f"{cost:+.4f} ({cost / task.noise:.2f})")
        lines.append(f"| {task.name} | {' | '.join(cells)} |")
    means = [f"**{np.nanmean(shares[name]):.2f}**" for name in names]
    lines += [f"| mean share | {' | '.join(means)} |"]
    taken = [name for name in names if np.nanmean(shares[name]) < 0.2]
    answer = ", ".join(taken) if taken else "none: `compare` goes on trying three rates a design"
    return [*lines, "", f"Taken: {answer}."]


def table_of_rule(tasks: list[Task]) -> list[str]:
    lines = [
        "Regret: the loss of the design that the rule puts first, 0 being the best design's and 1 the mean of all.",
        "",
        "| task | ρ at the recipe's rate | regret | ρ at best rates | regret |",
        "|---|---|---|---|---|",
    ]
    rows = []
    for task in tasks:
        if len(task.means) < FEWEST:
            continue
        chosen = ways(task)
        rows.append([*judged(task, chosen["the recipe's rate"]), *judged(task, chosen[BEST])])
        lines.append(f"| {task.name} | " + " | ".join(f"{value:.2f}" for value in rows[-1]) + " |")
    if rows:
        lines.append("| **mean** | " + " | ".join(f"{value:.2f}" for value in np.mean(rows, 0)) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="FILE.csv")
    parser.add_argument("--one-rate", type=Path, default=RESULTS / "ranking.csv", metavar="FILE.csv")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.md")
    told = parser.parse_args()
    rows, one_rate = (list(csv.DictReader(path.open(encoding="utf-8"))) for path in (told.table, told.one_rate))
    text = page(rows, one_rate)
    if told.output is None:
        print(text)
    else:
        told.output.write_text(text, encoding="utf-8")
        many = [task for task in tasks_of(rows, one_rate) if len(task.means) >= FEWEST]
        draw_rates(many, told.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
