"""How often are a study's answers wrong, and how often do its intervals cover the truth? Simulated studies.

    python -m recipes.research.statistics_simulated                  all tables of recipes/results/statistics.md
    python -m recipes.research.statistics_simulated --studies 500    quick ones

A simulated study has 2 to 10 designs and accuracy on N validation samples. A sample is answered rightly with a
probability that depends on how hard it is, on how well the design does on samples of this kind, and on the run:

    logit = level + hardness[sample] + taste[design, sample] + luck[design] · noise[design, seed] + luck[seed]

The samples are drawn anew for each study, so that the truth is the accuracy on all samples that there could be.
Wrong answers are counted at the border, where the claim is only just false ("shown") or only just true ("refuted"):
the margin equals the true difference. The question is about design 1 (lean) against design 0 (the baseline).

All studies of a cell are computed at once. Two rules decide each of them:

    before   the noise of a run is pooled over designs, by least squares of design + seed
    after    each design has its own variance (`leanify.comparison.statistics`); a test holds this file against it
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from leanify.comparison import statistics

Array = NDArray[np.float64]
LOOKS = (3, 5, 8)
SAMPLES = (30, 120, 1000)
CHANCE = 10.0  # per cent: the accuracy of a run that diverged
RULES = ("before", "after")
LIMIT = 3.5  # per cent of wrong answers a side: 2.5 and a point
BATCH = 500  # studies that are drawn at once: 10 designs, 8 seeds and 1,000 samples take 160 MB


@dataclass(frozen=True)
class World:
    """What a study's outcomes are made of, as spreads of a logit; ``noise`` multiplies ``luck`` for each design.

    gain       how much better lean is, in the logit
    diverges   how probable it is that a run of lean ends at chance
    added      designs that join after the first look
    """

    designs: int = 3
    noise: tuple[float, ...] = ()  # of the first designs; 1 for the others
    luck: float = 0.2
    luck_of_seed: float = 0.1
    level: float = 2.0
    gain: float = 0.0
    hardness: float = 2.0
    taste: float = 0.7
    diverges: float = 0.0
    added: int = 0

    @property
    def spreads(self) -> Array:
        """The spread of a run's logit of each design (designs,)."""
        factors = np.ones(self.designs)
        factors[: len(self.noise)] = self.noise
        return self.luck * factors

    @property
    def levels(self) -> Array:
        levels = np.full(self.designs, self.level)
        levels[1] += self.gain
        return levels

    def truth(self) -> Array:
        """The accuracies (designs,) of runs that did not diverge, in per cent: the mean over everything random."""
        parts = self.hardness**2 + self.taste**2 + self.luck_of_seed**2
        spread = np.sqrt(parts + self.spreads**2)
        points, weights = np.polynomial.hermite_e.hermegauss(80)
        values = 1 / (1 + np.exp(-(self.levels[:, None] + spread[:, None] * points)))
        return np.asarray(100 * values @ weights / weights.sum())

    def draw(self, rng: np.random.Generator, studies: int, samples: int, seeds: int) -> Outcomes:
        """Draw studies."""
        normal = rng.standard_normal
        hardness = self.hardness * normal((studies, 1, samples), dtype=np.float32)
        luck_of_seed = self.luck_of_seed * normal((studies, seeds, 1), dtype=np.float32)
        diverged = rng.random((studies, seeds)) < self.diverges
        quality = np.empty((studies, self.designs, seeds))
        pair = np.empty((studies, 2, seeds, samples), np.float32)
        for design, (level, spread) in enumerate(zip(self.levels, self.spreads, strict=True)):
            taste = self.taste * normal((studies, 1, samples), dtype=np.float32)
            luck = np.float32(spread) * normal((studies, seeds, 1), dtype=np.float32)
            logit = np.float32(level) + hardness + taste + luck + luck_of_seed
            share = 1 / (1 + np.exp(-logit))
            if design == 1:
                share[diverged] = CHANCE / 100
            right = rng.random(share.shape, dtype=np.float32) < share  # (studies, seeds, samples)
            quality[:, design] = 100 * right.mean(-1)
            if design < 2:
                pair[:, design] = 100 * right
        return Outcomes(quality, pair, diverged)


@dataclass(frozen=True)
class Outcomes:
    """Studies: qualities (studies, designs, seeds), outcomes of the pair (studies, 2, seeds, samples), and which of
    lean's runs diverged (studies, seeds).
    """

    quality: Array
    pair: NDArray[np.float32]
    diverged: NDArray[np.bool_]

    def complete(self, seeds: int) -> NDArray[np.bool_]:
        """The studies in which none of lean's first runs diverged."""
        return np.logical_not(self.diverged[:, :seeds].any(1))


@dataclass
class Counts:
    """Of the studies of a cell: wrong answers over all looks, and of a single interval at the last look coverage and
    mean width.
    """

    studies: int = 0
    intervals: int = 0  # the studies in which no run of the pair is missing
    shown: int = 0
    refuted: int = 0
    covered: int = 0
    width: float = 0.0
    widths: dict[int, float] = field(default_factory=dict)  # by seeds, at the error rate of their look

    @property
    def worst(self) -> float:
        """Wrong answers of the worse side, in per cent."""
        return 100 * max(self.shown, self.refuted) / self.studies


# -- the rules, for all studies at once -------------------------------------------------------------------------------


def halves(outcomes: Outcomes, seeds: int, rule: str, alpha: float, designs: int) -> tuple[Array, Array]:
    """The difference of lean and the baseline (studies,), and half of its interval, over the first seeds."""
    quality = outcomes.quality[:, :designs, :seeds]
    mean = (quality[:, 1] - quality[:, 0]).mean(1)

    # the runs' part of the variance, and its degrees of freedom
    if rule == "before":
        over_seeds, over_designs = quality.mean(2, keepdims=True), quality.mean(1, keepdims=True)
        rest = quality - over_seeds - over_designs + quality.mean((1, 2), keepdims=True)
        freedom: Array = np.full(len(mean), (designs - 1.0) * (seeds - 1))
        seed_variance = 2 * (rest**2).sum((1, 2)) / freedom / seeds
    else:
        freedom = np.full(len(mean), seeds - 1.0)
        seed_variance = quality[:, :2].var(2, ddof=1).sum(1) / seeds

    # the samples' part, and what belongs to one run and one sample: both from the differences (studies, seeds, samples)
    table = (outcomes.pair[:, 1, :seeds] - outcomes.pair[:, 0, :seeds]).astype(float)
    samples = table.shape[2]
    over_seeds_of_table, over_samples = table.mean(1), table.mean(2)
    squares = ((over_seeds_of_table - mean[:, None]) ** 2).sum(1)
    sample_variance = np.maximum(squares, 100.0**2 / seeds) / (samples - 1) / samples
    rest_squares = (table**2).sum((1, 2)) - seeds * (over_seeds_of_table**2).sum(1)
    rest_squares += -samples * (over_samples**2).sum(1) + seeds * samples * mean**2
    both_freedom = (seeds - 1) * (samples - 1)
    both = np.maximum(rest_squares, 0) / both_freedom / samples / seeds

    # the runs' part is at least the noise of one run on one sample, which is subtracted once
    is_less = both > seed_variance
    freedom = np.asarray(np.where(is_less, both_freedom, freedom))
    seed_variance = np.where(is_less, both, seed_variance)
    sample_variance = np.maximum(sample_variance - np.minimum(both, seed_variance), 0)
    half_squares = stats.t.isf(alpha, freedom) ** 2 * seed_variance
    half_squares += stats.t.isf(alpha, samples - 1) ** 2 * sample_variance
    return mean, np.sqrt(half_squares)


def simulate(
    world: World, samples: int, looks: Sequence[int], studies: int, margin: float | None = None, seed: int = 0
) -> dict[str, Counts]:
    """Count answers over all looks at studies that grow, by rule. Without ``margin`` it is at the border.

    The rule after says of a run that it diverged, and answers nothing; the rule before averages it.
    """
    rng = np.random.default_rng([seed, samples, world.designs, *looks])
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
                for designs in designs_at(world, look):
                    mean, half = halves(outcomes, seeds, rule, statistics.alpha_of(look), designs)
                    is_answered = outcomes.complete(seeds) if rule == "after" else np.ones(count, bool)
                    shown |= is_answered & (mean - half > border)
                    refuted |= is_answered & (mean + half < border)
                counts.widths[seeds] = counts.widths.get(seeds, 0.0) + 2 * float(half.sum())
            mean, half = halves(outcomes, max(looks), rule, statistics.ALPHA, world.designs)
            has_interval = outcomes.complete(max(looks)) if rule == "after" else np.ones(count, bool)
            counts.covered += int((has_interval & (np.abs(mean - difference) <= half)).sum())
            counts.width += 2 * float(half[has_interval].sum())
            counts.intervals += int(has_interval.sum())
            counts.shown += int(shown.sum())
            counts.refuted += int(refuted.sum())
            counts.studies += count
    return found


def designs_at(world: World, look: int) -> tuple[int, ...]:
    """With how many designs a study is looked at; twice at the first look where designs are added after it."""
    if world.added and look == 1:
        return world.designs - world.added, world.designs
    return (world.designs,)


# -- tables -----------------------------------------------------------------------------------------------------------


def cells() -> Iterator[tuple[str, World]]:
    """Every cell of the table, with its name."""
    for designs in (2, 3, 4, 10):
        for luck in (0.2, 0.4):
            world = World(designs, luck=luck)
            name = f"{designs} designs, runs ± {spread(world):.1f} points"
            yield f"{name}, equal noise", world
            for factor in (2.0, 3.0, 4.0):
                yield f"{name}, lean × {factor:g}", replace(world, noise=(1.0, factor))
                yield f"{name}, both × {factor:g}", replace(world, noise=(factor, factor))
            yield f"{name}, another × 4", replace(world, noise=(1.0, 1.0, 4.0)[:designs])
    for designs in (3, 10):
        yield f"{designs} designs, a third of lean's runs diverges", World(designs, diverges=1 / 3)
        yield f"{designs} designs, a tenth of lean's runs diverges", World(designs, diverges=0.1)
    for designs, added in ((4, 1), (10, 7)):
        world = World(designs, added=added)
        yield f"{added} of {designs} designs added after a look", world
        yield f"{added} of {designs} designs added after a look, lean × 3", replace(world, noise=(1.0, 3.0))
    yield "97%", World(level=5.0)
    yield "a worse lean", World(gain=-0.4)


def spread(world: World) -> float:
    """How much the accuracy of a quiet design's run differs from seed to seed, in points."""
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    rest = np.sqrt(world.hardness**2 + world.taste**2)
    shifts = world.luck * points  # of the logit of a run
    shares = 1 / (1 + np.exp(-(world.level + shifts[:, None] + rest * points)))
    accuracy = 100 * shares @ weights / weights.sum()
    mean = accuracy @ weights / weights.sum()
    return float(np.sqrt((accuracy - mean) ** 2 @ weights / weights.sum()))


def table(studies: int) -> None:
    """Print wrong answers and coverage of every cell."""
    print("| world | samples | wrong *shown* % | wrong *refuted* % | coverage % | width |")
    print("|---|---|---|---|---|---|")
    worst = dict.fromkeys(RULES, 0.0)
    above = dict.fromkeys(RULES, 0)
    count = 0
    for name, world in cells():
        for samples in SAMPLES:
            found = simulate(world, samples, LOOKS, studies)
            columns = []
            for make in (
                lambda counts: f"{100 * counts.shown / counts.studies:.1f}",
                lambda counts: f"{100 * counts.refuted / counts.studies:.1f}",
                lambda counts: f"{100 * counts.covered / max(1, counts.intervals):.1f}",
                lambda counts: f"{counts.width / max(1, counts.intervals):.1f}",
            ):
                columns.append(" → ".join(make(found[rule]) for rule in RULES))
            print(f"| {name} | {samples:,} | {' | '.join(columns)} |", flush=True)
            count += 1
            for rule in RULES:
                worst[rule] = max(worst[rule], found[rule].worst)
                above[rule] += found[rule].worst > LIMIT
    text = ", ".join(f"{rule} {worst[rule]:.1f}% at worst, {above[rule]} of {count} cells above" for rule in RULES)
    print(f"\n{LIMIT}%: {text}\n")


def power_table(studies: int) -> None:
    """Print how often a lean that is better is shown to be, at equal noise, and how wide intervals are."""
    print("| designs | samples | lean better by | " + " | ".join(f"{seeds} seeds" for seeds in LOOKS) + " | wider by |")
    print("|---|---|---|---|---|---|---|")
    for designs in (2, 3, 4, 10):
        for samples in (120, 1000):
            for gain in (0.3, 0.6):
                world = World(designs, gain=gain)
                truth = world.truth()
                columns = []
                found: dict[str, Counts] = {}
                for seeds in LOOKS:
                    found = simulate(world, samples, (seeds,), studies, margin=0.0)
                    columns.append(" → ".join(f"{100 * found[rule].shown / studies:.0f}%" for rule in RULES))
                growing = simulate(world, samples, LOOKS, studies)
                ratios = [growing["after"].widths[seeds] / growing["before"].widths[seeds] - 1 for seeds in LOOKS]
                wider = " · ".join(f"{100 * ratio:.0f}%" for ratio in ratios)
                gain_text = f"{truth[1] - truth[0]:.1f} points"
                print(f"| {designs} | {samples:,} | {gain_text} | {' | '.join(columns)} | {wider} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=3000)
    arguments = parser.parse_args()
    table(arguments.studies)
    power_table(arguments.studies)


if __name__ == "__main__":
    main()
