"""A learning rate for each design: one rate for all decides their order, since flat and deep designs want others.

Before a study's runs, each design is trained once with each of some multiples of the recipe's rate, on the first seed
and over half of the schedule, with its warm-up and decay shortened alike. Its runs then take the best one. The trials
are judged on the validation split, as the runs are, which favours no design: all have the same number of tries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leanify.errors import RecipeError
from leanify.study import runner
from leanify.study.folder import StudyFolder
from leanify.study.plan import Key, PlannedDesign
from leanify.study.runner import Engine, OnEnd
from leanify.study.values import Trial

USUAL = (0.5, 1.0, 2.0)  # multiples of the recipe's rate


def parse(text: str) -> tuple[float, ...]:
    """Parse ``0.5,1,2``. Raises RecipeError."""
    try:
        found = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or not all(0 < factor < float("inf") for factor in found):
        raise RecipeError(f"--rates takes multiples of the recipe's learning rate, such as 0.5,1,2, not {text!r}")
    return found


def settle(folder: StudyFolder, engine: Engine, on_end: OnEnd) -> None:
    """Try the rates of the designs that have none yet, and write the best ones into the plan."""
    plan = folder.plan
    trials = list(plan.trials())
    if not trials:
        return
    runner.run_all(folder, trials, engine, on_end)
    designs = []
    for design in plan.designs:
        rate = best(folder, design) if design.rate is None else design.rate
        designs.append(replace(design, rate=rate))
    folder.replan(replace(plan, designs=tuple(designs)))


def best(folder: StudyFolder, design: PlannedDesign) -> float:
    """The factor of a design's best trial, the one nearest to 1 of several; 1 if all failed."""
    qualities: dict[float, float] = {}
    for factor in folder.plan.rates:
        found = folder.outcome(Key(design.name, folder.plan.seeds[0], factor))
        if found is not None and found.quality is not None:
            qualities[factor] = found.sign * found.quality
    return min(qualities, key=lambda factor: (-qualities[factor], abs(factor - 1)), default=1.0)


def trials_of(folder: StudyFolder, design: str) -> tuple[Trial, ...]:
    """A design's trials that have ended, by rate."""
    plan = folder.plan
    found = []
    for factor in plan.rates if len(plan.rates) > 1 else ():
        key = Key(design, plan.seeds[0], factor)
        outcome = folder.outcome(key)
        if outcome is not None:
            optim = plan.recipe_of(key).optim
            assert optim is not None
            found.append(Trial(factor, optim.lr, outcome.quality))
    return tuple(found)


def sensitivity(trials: Sequence[Trial]) -> float | None:
    """How much quality the worst rate costs beside the best; None for fewer than two."""
    qualities = [trial.quality for trial in trials if trial.quality is not None]
    return max(qualities) - min(qualities) if len(qualities) > 1 else None


def at_the_edge(factor: float | None, rates: Sequence[float]) -> bool:
    """Whether the best of several rates is the lowest or the highest, so that one beyond may be better."""
    return len(rates) > 1 and factor in (min(rates), max(rates))
