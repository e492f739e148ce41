"""How often are a study's answers wrong, and how often do its intervals cover the truth? Simulated studies.

    python -m recipes.research.statistics_simulated                  all tables of recipes/results/statistics.md
    python -m recipes.research.statistics_simulated --studies 500    quick ones

A simulated study has two designs and N validation samples. A sample is answered rightly with a probability that depends
on how hard it is, on how well the design does on samples of this kind, and on the run:

    logit = level + hardness[sample] + taste[design, sample] + luck[design] · noise[design, seed] + luck[seed]

An accuracy counts right answers; a loss is the log loss of this logit, without drawing an answer. The samples are drawn
anew for each study, so that the truth is the quality on all samples that there could be. Wrong answers are counted at
the border, where the claim is only just false ("shown") or only just true ("refuted"): the margin equals the true
difference. The question is about design 1 (lean) against design 0 (the baseline).

All studies of a cell are computed at once. Two rules decide each of them:

    before   the sum of both designs' variances (Welch), with seeds − 1 degrees of freedom
    after    the variance of the differences seed by seed, larger for skewed accuracies
             (`leanify.comparison.statistics`); a test holds this file against it
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from leanify.comparison import statistics
from leanify.comparison.learning import LOST

Array = NDArray[np.float64]
LOOKS = (3, 5, 8)
SAMPLES = (30, 120, 1000)
RULES = ("before", "after")
FALL = 2.4  # of a loss in training, in nats
LIMIT = 3.5  # per cent of wrong answers a side: 2.5 and a point
BATCH = 250  # studies that are drawn at once: 8 seeds and 1,000 samples take 16 MB an array


@dataclass(frozen=True)
class World:
    """What a study's outcomes are made of, as spreads of a logit; ``noise`` multiplies ``luck`` for each design.

    gain      how much better lean is, in the logit
    is_loss   whether the quality is minus a loss instead of an accuracy in per cent
    lost      how much a bad run of lean loses, as a share of the fall of its loss; such a run has probability ``bad``
    """

    noise: tuple[float, float] = (1.0, 1.0)
    luck: float = 0.2
    luck_of_seed: float = 0.1
    level: float = 2.0
    gain: float = 0.0
    hardness: float = 2.0
    taste: float = 0.7
    is_loss: bool = False
    lost: float = 0.0
    bad: float = 0.0

    def quality(self, logits: Array) -> Array:
        """The expected quality of samples with these logits."""
        return -np.logaddexp(0, -logits) if self.is_loss else 100 / (1 + np.exp(-logits))

    def truth(self) -> Array:
        """The qualities (2,): the mean over everything random, bad runs included unless they are named."""
        levels = np.array([self.level, self.level + self.gain])
        parts = self.hardness**2 + self.taste**2 + self.luck_of_seed**2
        spread = np.sqrt(parts + (self.luck * np.array(self.noise)) ** 2)
        points, weights = np.polynomial.hermite_e.hermegauss(80)
        values = self.quality(levels[:, None] + spread[:, None] * points) @ weights / weights.sum()
        values[1] -= 0.0 if self.names_bad_runs else self.bad * self.lost * FALL
        return np.asarray(values)

    @property
    def names_bad_runs(self) -> bool:
        """Whether a study names such a run, so that it answers nothing."""
        return self.lost > LOST

    def draw(self, rng: np.random.Generator, studies: int, samples: int, seeds: int) -> Outcomes:
        """Draw studies."""
        normal = rng.standard_normal
        hardness = self.hardness * normal((studies, 1, samples), dtype=np.float32)
        luck_of_seed = self.luck_of_seed * normal((studies, seeds, 1), dtype=np.float32)
        is_bad = rng.random((studies, seeds)) < self.bad
        values = np.empty((studies, 2, seeds, samples), np.float32)
        for design, noise in enumerate(self.noise):
            taste = self.taste * normal((studies, 1, samples), dtype=np.float32)
            luck = np.float32(noise * self.luck) * normal((studies, seeds, 1), dtype=np.float32)
            logit = np.float32(self.level + design * self.gain) + hardness + taste + luck + luck_of_seed
            quality = self.quality(logit)
            if not self.is_loss:
                quality = 100.0 * (rng.random(logit.shape, dtype=np.float32) < quality / 100)
            values[:, design] = quality
        values[:, 1] -= np.float32(self.lost * FALL) * is_bad[:, :, None]
        return Outcomes(values, is_bad)


@dataclass(frozen=True)
class Outcomes:
    """Studies: values of samples (studies, 2, seeds, samples), and which of lean's runs are bad (studies, seeds)."""

    values: NDArray[np.float32]
    is_bad: NDArray[np.bool_]

    def answered(self, world: World, seeds: int) -> NDArray[np.bool_]:
        """The studies that answer: those in which no bad run is named."""
        return np.logical_not(self.is_bad[:, :seeds].any(1) & world.names_bad_runs)


@dataclass
class Counts:
    """Of the studies of a cell: wrong answers over all looks, and of a single interval at the last look coverage and
    mean width.
    """

    studies: int = 0
    intervals: int = 0  # the studies that answer
    shown: int = 0
    refuted: int = 0
    covered: int = 0
    width: float = 0.0

    @property
    def worst(self) -> float:
        """Wrong answers of the worse side, in per cent."""
        return 100 * max(self.shown, self.refuted) / self.studies


# -- the rules, for all studies at once -------------------------------------------------------------------------------


def halves(
    outcomes: Outcomes, seeds: int, rule: str, alpha: float, border: float, is_loss: bool
) -> tuple[Array, Array]:
    """The difference of lean and the baseline (studies,), and how far from the border it may be."""
    values = outcomes.values[:, :, :seeds]
    quality = values.mean(3, dtype=float)  # (studies, 2, seeds)
    differences = quality[:, 1] - quality[:, 0]
    mean = differences.mean(1)

    # the runs' part of the variance
    variances = quality.var(2, ddof=1)  # (studies, 2)
    seed_variance = (variances.sum(1) if rule == "before" else differences.var(1, ddof=1)) / seeds
    if rule == "after" and not is_loss:
        seed_variance = seed_variance * growths(quality.mean(2), variances, mean - border)

    # the samples' part, and what belongs to one run and one sample: both from the differences (studies, seeds, samples)
    table = (values[:, 1] - values[:, 0]).astype(float)
    samples = table.shape[2]
    over_seeds_of_table, over_samples = table.mean(1), table.mean(2)
    squares = ((over_seeds_of_table - mean[:, None]) ** 2).sum(1)
    unit = 100.0 if not is_loss else np.ptp(values, axis=3).max((1, 2)).astype(float)
    sample_variance = np.maximum(squares, unit**2 / seeds) / (samples - 1) / samples
    rest_squares = (table**2).sum((1, 2)) - seeds * (over_seeds_of_table**2).sum(1)
    rest_squares += -samples * (over_samples**2).sum(1) + seeds * samples * mean**2
    both_freedom = (seeds - 1) * (samples - 1)
    both = np.maximum(rest_squares, 0) / both_freedom / samples / seeds

    # the runs' part is at least the noise of one run on one sample, which is subtracted once
    freedom = np.where(both > seed_variance, both_freedom, seeds - 1.0)
    half_squares = stats.t.isf(alpha, freedom) ** 2 * np.maximum(both, seed_variance)
    half_squares += stats.t.isf(alpha, samples - 1) ** 2 * np.maximum(sample_variance - both, 0)
    return mean, np.sqrt(half_squares)


def growths(accuracies: Array, variances: Array, distances: Array) -> Array:
    """`statistics.Shares.growth` of studies (studies,), from accuracies and variances (studies, 2)."""
    found = []
    for (first, second), (noise, other), distance in zip(
        accuracies[:, ::-1], variances[:, ::-1], distances, strict=True
    ):
        part = noise / (noise + other) if noise + other else 0.5
        found.append(statistics.Shares(first / 100, second / 100, part, 100.0).growth(distance))
    return np.array(found)


def simulate(
    world: World, samples: int, looks: Sequence[int], studies: int, margin: float | None = None, seed: int = 0
) -> dict[str, Counts]:
    """Count answers over all looks at studies that grow, by rule. Without ``margin`` it is at the border."""
    rng = np.random.default_rng([seed, samples, *looks])
    truth = world.truth()
    difference = truth[1] - truth[0]
    border = difference if margin is None else -margin
    found = {rule: Counts() for rule in RULES}
    for start in range(0, studies, BATCH):
        count = min(BATCH, studies - start)
        outcomes = world.draw(rng, count, samples, max(looks))
        for rule, counts in found.items():
            shown, refuted = np.zeros(count, bool), np.zeros(count, bool)
            for look, seeds in enumerate(looks, 1):
                mean, half = halves(outcomes, seeds, rule, statistics.alpha_of(look), border, world.is_loss)
                is_answered = outcomes.answered(world, seeds)
                shown |= is_answered & (mean - border > half)
                refuted |= is_answered & (border - mean > half)
            mean, half = halves(outcomes, max(looks), rule, statistics.ALPHA, difference, world.is_loss)
            has_interval = outcomes.answered(world, max(looks))
            counts.covered += int((has_interval & (np.abs(mean - difference) <= half)).sum())
            counts.width += 2 * float(half[has_interval].sum())
            counts.intervals += int(has_interval.sum())
            counts.shown += int(shown.sum())
            counts.refuted += int(refuted.sum())
            counts.studies += count
    return found


# -- tables -----------------------------------------------------------------------------------------------------------


def cells() -> Iterator[tuple[str, World, int]]:
    """Every cell of the table: its name, its world and its number of samples."""
    for luck in (0.2, 0.4):
        for luck_of_seed in (0.1, luck):
            shared = ", half of the luck shared" if luck_of_seed == luck else ""
            for noise in ((1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (1.0, 4.0), (4.0, 1.0), (2.0, 2.0), (4.0, 4.0)):
                world = World(noise, luck, luck_of_seed)
                name = f"accuracy, runs ± {spread(world):.1f} points{shared}, noise × {noise[0]:g} and × {noise[1]:g}"
                for samples in SAMPLES:
                    yield name, world, samples
    for noise in ((1.0, 1.0), (1.0, 4.0), (4.0, 1.0)):
        for samples in (120, 1000):
            yield f"accuracy of 97%, noise × {noise[0]:g} and × {noise[1]:g}", World(noise, level=5.0), samples
    for luck in (0.1, 0.3):
        for noise in ((1.0, 1.0), (1.0, 2.0), (1.0, 4.0), (4.0, 1.0)):
            world = World(noise, luck, level=-2.2, is_loss=True)
            yield f"loss, luck {luck:g}, noise × {noise[0]:g} and × {noise[1]:g}", world, 300


def spread(world: World) -> float:
    """How much the accuracy of a quiet design's run differs from seed to seed, in points."""
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    rest = np.sqrt(world.hardness**2 + world.taste**2)
    shifts = world.luck * points  # of the logit of a run
    accuracy = world.quality(world.level + shifts[:, None] + rest * points) @ weights / weights.sum()
    mean = accuracy @ weights / weights.sum()
    return float(np.sqrt((accuracy - mean) ** 2 @ weights / weights.sum()))


def columns(found: dict[str, Counts]) -> str:
    """Wrong answers, coverage and width, before and after."""
    makers: tuple[Callable[[Counts], str], ...] = (
        lambda counts: f"{100 * counts.shown / counts.studies:.1f}",
        lambda counts: f"{100 * counts.refuted / counts.studies:.1f}",
        lambda counts: f"{100 * counts.covered / max(1, counts.intervals):.1f}",
        lambda counts: f"{counts.width / max(1, counts.intervals):.3g}",
    )
    return " | ".join(" → ".join(make(found[rule]) for rule in RULES) for make in makers)


def error_table(studies: int) -> None:
    """Print wrong answers and coverage of every cell."""
    print("| world | samples | wrong *shown* % | wrong *refuted* % | coverage % | width |")
    print("|---|---|---|---|---|---|")
    worst: dict[str, list[float]] = {rule: [] for rule in RULES}
    for name, world, samples in cells():
        found = simulate(world, samples, LOOKS, studies)
        print(f"| {name} | {samples:,} | {columns(found)} |", flush=True)
        for rule in RULES:
            worst[rule].append(found[rule].worst)
    text = ", ".join(
        f"{rule} {max(of):.1f}% at worst, {sum(one > LIMIT for one in of)} above" for rule, of in worst.items()
    )
    print(f"\n{LIMIT}% and {len(worst['after'])} cells: {text}\n")


def bad_table(studies: int) -> None:
    """Print what bad runs do that lose a share of their fall, with probability 1/3."""
    print("| a third of lean's runs loses | named | wrong *shown* % | wrong *refuted* % | coverage % | width |")
    print("|---|---|---|---|---|---|")
    for lost in (0.4, 0.2, 0.12, 0.1, 0.05):
        world = World(level=-2.2, luck=0.1, is_loss=True, lost=lost, bad=1 / 3)
        named = "yes" if world.names_bad_runs else "no"
        found = simulate(world, 300, LOOKS, studies)
        print(f"| {100 * lost:g}% of its fall | {named} | {columns(found)} |", flush=True)


def power_table(studies: int) -> None:
    """Print how often a lean that is better is shown to be, at equal noise, in one look."""
    print("| quality | samples | lean better by | " + " | ".join(f"{seeds} seeds" for seeds in LOOKS) + " |")
    print("|---|---|---|---|---|---|")
    for name, world, samples in powers():
        truth = world.truth()
        unit = "nats" if world.is_loss else "points"
        cells = []
        for seeds in LOOKS:
            found = simulate(world, samples, (seeds,), studies, margin=0.0)
            cells.append(" → ".join(f"{100 * found[rule].shown / studies:.0f}%" for rule in RULES))
        print(f"| {name} | {samples:,} | {truth[1] - truth[0]:.2g} {unit} | {' | '.join(cells)} |", flush=True)


def powers() -> Iterator[tuple[str, World, int]]:
    """The worlds of the table of power."""
    for gain in (0.3, 0.43, 0.6):
        for samples in (120, 1000):
            yield "accuracy", World(gain=gain), samples
        yield "accuracy, half of the luck shared", World(gain=gain, luck_of_seed=0.2), 1000
    yield "loss of 2.5", World(gain=0.13, luck=0.06, luck_of_seed=0.02, level=-2.2, is_loss=True), 1000
    yield (
        "loss of 2.5, half of the luck shared",
        World(gain=0.13, luck=0.06, luck_of_seed=0.06, level=-2.2, is_loss=True),
        1000,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=3000)
    arguments = parser.parse_args()
    error_table(arguments.studies)
    bad_table(arguments.studies)
    print()
    power_table(arguments.studies)


if __name__ == "__main__":
    main()
