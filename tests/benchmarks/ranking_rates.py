"""What a learning rate for each design changes: the analysis, written before its runs.

    python tests/benchmarks/ranking_rates.py recipes/results/ranking-rates.csv

The table is that of ``ranking_sweep.py … --rates 0.5,1,2``: ten designs of half of the baseline's block parameters, and
the baseline, on six tasks. Fixed before the runs:

1. A design's best rate is the one with the lowest mean validation loss over the seeds that have all rates. Best rates
   are chosen on the split that judges, for every design alike.
2. The rule that is judged is the default one of `redesign`: most attention for encoders; for decoders no more attention
   than MLP, then most layers. It is judged by Spearman's ρ with the order of losses over the ten designs, and by
   regret: the loss of the design that it puts first, 0 being the best design's and 1 the mean of all. Both at the
   recipe's rate and at each design's best.
3. A cheaper way to a rate is taken if the mean loss that it costs, over designs and tasks, is less than a fifth of the
   noise of a run (pooled, a fit of design + seed at best rates): the recipe's rate for all; the baseline's best rate
   for all; a rate that grows with the square root of the baseline's depth over the design's.

Tasks and designs with fewer rates or seeds than planned are left out and named.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats

from leanify.design.search.ranking import score_of
from leanify.study.statistics import Noise, Run

Losses = dict[str, dict[float, float]]  # design → rate → mean loss


def main() -> None:
    with Path(sys.argv[1]).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for task in dict.fromkeys(row["task"] for row in rows):
        report(task, [row for row in rows if row["task"] == task])


def report(task: str, rows: list[dict[str, str]]) -> None:
    rates = sorted({float(row["rate"]) for row in rows})
    runs: dict[str, dict[int, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    shapes = {row["design"]: row for row in rows}
    for row in rows:
        runs[row["design"]][int(row["seed"])][float(row["rate"])] = float(row["eval_loss"])
    losses: Losses = {}
    for design, seeds in runs.items():
        whole = [found for found in seeds.values() if len(found) == len(rates)]
        if whole and len(rates) > 1:
            losses[design] = {rate: float(np.mean([found[rate] for found in whole])) for rate in rates}
    missing = [design for design in runs if design not in losses]
    print(
        f"\n{task}: {len(losses)} designs at {len(rates)} rates"
        + (f"; incomplete: {', '.join(missing)}" * bool(missing))
    )
    if not losses:
        return
    best = {design: min(found, key=found.__getitem__) for design, found in losses.items()}
    for design, found in losses.items():
        listed = "  ".join(f"{rate:g}: {loss:.4f}" for rate, loss in found.items())
        print(f"  {design:12} {listed}   best {best[design]:g}")
    noise = noise_of(runs, best)
    field = [design for design in losses if design != "baseline"]
    for name, chosen in ways(losses, best, shapes).items():
        cost = float(np.mean([losses[d][chosen[d]] - losses[d][best[d]] for d in losses]))
        share = "" if noise is None else f", {cost / noise:.2f} of the noise of a run"
        print(f"  {name}: costs {cost:+.4f}{share}{judged(field, losses, chosen, shapes)}")


def ways(losses: Losses, best: dict[str, float], shapes: dict[str, dict[str, str]]) -> dict[str, dict[str, float]]:
    """Each way to a rate: design → rate."""
    rates = sorted(next(iter(losses.values())))
    found = {"each design's best": dict(best)}
    if 1.0 in rates:
        found["the recipe's rate"] = dict.fromkeys(losses, 1.0)
    if "baseline" in best:
        shared = best["baseline"]
        found["the baseline's best rate"] = dict.fromkeys(losses, shared)
        depth = float(shapes["baseline"]["depth"])
        wanted = {design: shared * math.sqrt(depth / float(shapes[design]["depth"])) for design in losses}
        nearest = {d: min(rates, key=lambda rate: abs(math.log(rate / wanted[d]))) for d in losses}
        found["with the square root of depth"] = nearest
    return found


def judged(field: list[str], losses: Losses, chosen: dict[str, float], shapes: dict[str, dict[str, str]]) -> str:
    """ρ and regret of the default rule at these rates."""
    if len(field) < 4:
        return ""
    causal = "causal" in shapes[field[0]]["kind"]
    found = [losses[design][chosen[design]] for design in field]
    order = sorted(field, key=lambda design: score(shapes[design], causal))
    rho = stats.spearmanr([order.index(design) for design in field], found).statistic
    proposed = losses[order[0]][chosen[order[0]]]
    regret = (proposed - min(found)) / (float(np.mean(found)) - min(found))
    return f"; the rule has ρ {rho:.2f}, regret {regret:.2f}"


def score(row: dict[str, str], causal: bool) -> tuple[float, float]:
    """The rule's preference of a design, lowest first: `redesign`'s score, then for decoders the number of layers."""
    inner, mlp = float(row["inner"]), float(row["mlp"])
    attention = 4 * inner / (4 * inner + 2 * mlp)
    return float(score_of(attention, causal)), -float(row["depth"]) if causal else 0.0


def noise_of(runs: dict[str, dict[int, dict[float, float]]], best: dict[str, float]) -> float | None:
    some = [
        Run(design, seed, runs[design][seed][rate])
        for design, rate in best.items()
        for seed in runs[design]
        if rate in runs[design][seed]
    ]
    noise = Noise(some).between
    return None if noise is None else math.sqrt(noise.variance)


if __name__ == "__main__":
    main()
