"""Do the surface's intervals hold the quality of designs that were not trained? One design left out at a time.

    python tests/benchmarks/surface_calibrated.py recipes/results/ranking.csv

For every task of the sweep and every design, the surface is fitted to the runs of the others; counted is how often its
95% interval, with the noise of a run added, holds the left-out design's runs, and Spearman's ρ of its predictions.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats

from leanify.study.surface import Surface, features


def main() -> None:
    with Path(sys.argv[1]).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    tasks = defaultdict(list)
    for row in rows:
        tasks[row["task"]].append(row)
    covered = total = 0
    for task, entries in tasks.items():
        shapes = [tuple(float(row[key]) for key in ("depth", "heads", "head_dim", "mlp")) for row in entries]
        points = np.concatenate([features(*shape) for shape in shapes])
        names = np.array([row["design"] for row in entries])
        losses = np.array([float(row["eval_loss"]) for row in entries])
        inside, guesses, truth = 0, [], []
        for name in dict.fromkeys(names):
            out = names == name
            surface = Surface(points[~out], losses[~out], -1)
            found = surface.of(*shapes[int(np.argmax(out))])
            hits = (losses[out] >= found.low) & (losses[out] <= found.high)
            inside += hits.sum()
            guesses.append(found.mean)
            truth.append(losses[out].mean())
        covered, total = covered + inside, total + len(entries)
        print(f"{task:16} covers {inside} of {len(entries)} runs, ρ {stats.spearmanr(guesses, truth).statistic:.2f}")
    print(f"all: {covered} of {total}, {covered / total:.0%}")


if __name__ == "__main__":
    main()
