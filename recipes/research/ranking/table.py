"""The table of `sweep.py`: tasks, their designs, and what a design's quality is.

A design's quality is minus its validation loss, the mean over its seeds (where designs have different seeds, by least
squares of loss = design + seed).
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

BASELINE = "baseline"
NUMBERS = ("depth", "heads", "head_dim", "inner", "mlp", "width", "tokens", "seed", "params", "params_body", "macs")


REFERENCES = "ranking-references.csv"  # beside the table; written by reference_table.py


@dataclass(frozen=True)
class Reference:
    """What a trivial model reaches on the samples that judge: a percentage, or nats for words and bytes."""

    name: str
    value: float
    samples: int


@dataclass(frozen=True)
class Task:
    """Designs of equal parameters in the table's order; ``rows`` holds a run's row by (design, seed)."""

    name: str
    kind: str
    designs: tuple[str, ...]
    rows: dict[tuple[str, int], dict[str, Any]]
    reference: Reference | None = None

    @property
    def is_of_classes(self) -> bool:
        return self.kind in ("vision", "long-range")

    @property
    def learnt(self) -> bool:
        """Whether the baseline beats the trivial model by more than twice the noise of its mean.

        The noise is that of runs and, for classes, that of the samples that judge.
        """
        if self.reference is None:
            return False
        rows = [row for (design, _), row in self.rows.items() if design == BASELINE]
        if not self.is_of_classes:
            lead = self.reference.value - float(np.mean([float(row["eval_loss"]) for row in rows]))
            return lead > 2 * self.noise / math.sqrt(len(rows))
        found = [float(row["metric"]) for row in rows]
        mean = float(np.mean(found))
        samples = mean * (100 - mean) / self.reference.samples
        runs = float(np.var(found, ddof=1)) / len(found) if len(found) > 1 else samples
        return mean - self.reference.value > 2 * math.sqrt(samples + runs)

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
        """A quantity of every design over the seeds that all have; κ as its logarithm, infinity as 10^12."""
        means = []
        for design in self.designs:
            found = np.array([float(self.rows[design, seed][name]) for seed in self.seeds])
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
    references = {}
    with path.with_name(REFERENCES).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            references[row["task"]] = Reference(row["reference"], float(row["value"]), int(row["samples"]))
    tasks = []
    for name in dict.fromkeys(row["task"] for row in rows):
        mine = {(row["design"], row["seed"]): row for row in rows if row["task"] == name}
        designs = tuple(dict.fromkeys(d for d, s in mine if d != BASELINE and s == 0))
        tasks.append(Task(name, next(iter(mine.values()))["kind"], designs, mine, references.get(name)))
    most = max(len(task.designs) for task in tasks)
    return [t for t in tasks if len(t.designs) == most], [t for t in tasks if len(t.designs) < most]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """0 where a rule says the same of all."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(stats.spearmanr(a, b).statistic)


def regret(task: Task, score: np.ndarray) -> float:
    """The loss of a rule's first choice: 0 is that of the best design, 1 that of a design drawn at random."""
    return behind(task, np.flatnonzero(score == score.max()))


def behind(task: Task, chosen: Any) -> float:
    best = task.quality.max()
    return float((best - task.quality[chosen].mean()) / (best - task.quality.mean()))


def line(*cells: Any) -> None:
    print("| " + " | ".join(cell if isinstance(cell, str) else number(cell) for cell in cells) + " |")


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def head(*cells: str) -> None:
    line(*cells)
    print("|" + "---|" * len(cells))
