"""How often are a study's answers wrong, and how often do its intervals cover the truth? Simulated studies.

    python -m tests.benchmarks.statistics_simulated              the whole table
    python -m tests.benchmarks.statistics_simulated --studies 300    a quick one

A simulated study has three designs and accuracy on N validation samples. A sample is answered rightly with a
probability that depends on how hard it is, on how well the design does on samples of this kind, and on the run:

    logit = level + hardness[sample] + taste[design, sample] + luck[design, seed] + luck[seed]

The samples are drawn anew for each study, so that the truth is the accuracy on all samples that there could be.
Wrong answers are counted at the border, where the claim is only just false ("shown") or only just true ("refuted"):
two equal designs, asked whether one beats the other, and a margin that equals the true loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leanify.study import statistics
from leanify.study.statistics import Noise, Run

HERE = Path(__file__).resolve().parents[2]
PAGE = HERE / "recipes" / "results" / "statistics.md"
LOOKS = (3, 5, 8)


@dataclass(frozen=True)
class World:
    """The spread of the parts of a logit, and the designs' levels."""

    name: str
    levels: tuple[float, float, float]
    hardness: float
    taste: float
    luck: float
    of_seed: float = 0.0

    def study(self, rng: np.random.Generator, samples: int, seeds: int) -> np.ndarray:
        """Outcomes (designs, seeds, samples) of 0 and 100."""
        logits = np.array(self.levels)[:, None, None] + self.hardness * rng.normal(size=samples)
        logits = logits + self.taste * rng.normal(size=(3, 1, samples))
        logits = logits + self.luck * rng.normal(size=(3, seeds, 1)) + self.of_seed * rng.normal(size=(seeds, 1))
        return 100.0 * (rng.random(logits.shape) < 1 / (1 + np.exp(-logits)))

    def truth(self) -> np.ndarray:
        """The designs' accuracies (3,), in per cent: the mean over everything random."""
        spread = np.sqrt(self.hardness**2 + self.taste**2 + self.luck**2 + self.of_seed**2)
        points, weights = np.polynomial.hermite_e.hermegauss(80)
        values = 1 / (1 + np.exp(-(np.array(self.levels)[:, None] + spread * points)))
        return 100 * values @ weights / weights.sum()


WORLDS = (
    World("samples alone", (2.0, 2.0, 2.0), 2.0, 0.7, 0.0),
    World("runs alone", (2.0, 2.0, 2.0), 2.0, 0.0, 0.5),
    World("both", (2.0, 2.0, 2.0), 2.0, 0.7, 0.4, 0.3),
    World("both, 97%", (5.0, 5.0, 5.0), 2.0, 0.7, 0.4, 0.3),
    World("a worse design", (2.0, 1.6, 2.0), 2.0, 0.7, 0.4, 0.3),
)


@dataclass
class Counts:
    shown: int = 0
    refuted: int = 0
    covered: int = 0
    mean_covered: int = 0
    studies: int = 0
    widths: float = 0.0  # of the intervals that there are: 30 samples that all models answer rightly give none
    intervals: int = 0


def runs_of(table: np.ndarray, seeds: int) -> list[Run]:
    """The first ``seeds`` runs of each design of a table (designs, seeds, samples)."""
    return [
        Run(f"d{design}", seed, float(table[design, seed].mean()), table[design, seed])
        for design in range(len(table))
        for seed in range(seeds)
    ]


def simulate(world: World, samples: int, looks: Sequence[int], studies: int, seed: int = 0) -> Counts:
    """Count wrong answers over all looks at studies that grow, and the coverage of a single interval at the last."""
    rng, counts, truth = np.random.default_rng([seed, samples, *looks]), Counts(), world.truth()
    margin = truth[0] - truth[1]  # of d1 against d0: 0 for equal designs, else the true loss
    for _ in range(studies):
        table = world.study(rng, samples, max(looks))
        answers = set()
        for look, seeds in enumerate(looks, 1):
            found = Noise(runs_of(table, seeds)).difference("d1", "d0")
            answers.add(statistics.answer_of(found, margin, look))
        low, high = found.interval() or (np.inf, -np.inf)
        one_low, one_high = Noise(runs_of(table, seeds)).mean("d0").interval() or (np.inf, -np.inf)
        counts.shown += "shown" in answers
        counts.refuted += "refuted" in answers
        counts.covered += low <= -margin <= high
        counts.mean_covered += one_low <= truth[0] <= one_high
        if low < high:
            counts.widths += high - low
            counts.intervals += 1
        counts.studies += 1
    return counts


def table(studies: int, worlds: Sequence[World] = WORLDS) -> list[str]:
    lines = [
        "| world | samples | seeds | wrong *shown* % | wrong *refuted* % | interval % | a mean's % | width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for world in worlds:
        for samples in (30, 120, 1000):
            for looks in ((2,), (3,), (5,), (8,), LOOKS):
                found = simulate(world, samples, looks, studies)
                counts = (found.shown, found.refuted, found.covered, found.mean_covered)
                share = [100 * n / found.studies for n in counts]
                seeds = "looks at 3, 5, 8" if len(looks) > 1 else str(looks[0])
                cells = " | ".join(f"{value:.1f}" for value in share)
                lines.append(
                    f"| {world.name} | {samples:,} | {seeds} | {cells} | {found.widths / found.intervals:.1f} |"
                )
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=4000)
    asked = parser.parse_args()
    table(asked.studies)


if __name__ == "__main__":
    main()
