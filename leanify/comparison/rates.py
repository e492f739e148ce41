"""Select a learning rate for each design, because flat and deep designs prefer different rates.

Before a study's runs, each design is trained once with each multiple of the recipe's rate, with the first seed and for
half of the schedule, with warm-up and decay shortened in proportion. Its runs then use the best rate. Trials are judged
on the validation split, like the runs. Where the best rate of a design is the lowest or the highest, the range moves
once, for all designs alike. This favours no design, because all have the same trials.
"""

from __future__ import annotations

from dataclasses import replace

from leanify.comparison import runner
from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import Key, PlannedDesign
from leanify.comparison.runner import Engine, OnEnd
from leanify.comparison.values import Trial
from leanify.core.errors import RecipeError

USUAL = (0.5, 1.0, 2.0)  # multiples of the recipe's rate


def parse(text: str) -> tuple[float, ...]:
    """Parse ``0.5,1,2``. Raises RecipeError."""
    try:
        factors = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        factors = ()
    if not factors or not all(0 < factor < float("inf") for factor in factors):
        raise RecipeError(f"--rates takes multiples of the recipe's learning rate, such as 0.5,1,2, not {text!r}")
    return factors


def select_rates(folder: StudyFolder, engine: Engine, on_end: OnEnd) -> None:
    """Try the rates of designs that have none yet, and store the best ones in the plan."""
    plan = folder.plan
    trials = list(plan.trials())
    if not trials:
        return
    runner.run_all(folder, trials, engine, on_end)
    if more_rates := rates_beyond(folder):
        plan = replace(plan, more_rates=more_rates)
        folder.replan(plan)
        runner.run_all(folder, plan.trials(), engine, on_end)
    designs = []
    for design in plan.designs:
        rate = best(folder, design) if design.rate is None else design.rate
        designs.append(replace(design, rate=rate))
    folder.replan(replace(plan, designs=tuple(designs)))


def rates_beyond(folder: StudyFolder) -> tuple[float, ...]:
    """The rates one step beyond the range where a design's best is at its edge; () once the range has moved, if a
    design has a rate, and for two rates, which are both edges.
    """
    plan = folder.plan
    tried_rates = plan.tried_rates
    if plan.more_rates or len(tried_rates) < 3 or any(design.rate is not None for design in plan.designs):
        return ()
    best_rates = {best(folder, design) for design in plan.designs}
    (lowest, second, *_), (*_, last_but_one, highest) = tried_rates, tried_rates
    beyond = {lowest: lowest**2 / second, highest: highest**2 / last_but_one}
    return tuple(rate for edge, rate in beyond.items() if edge in best_rates)


def best(folder: StudyFolder, design: PlannedDesign) -> float:
    """Return the factor of a design's best trial, the nearest to 1 among equals; 1 if all failed."""
    qualities: dict[float, float] = {}
    for factor in folder.plan.tried_rates:
        outcome = folder.outcome(Key(design.name, folder.plan.seeds[0], factor))
        if outcome is not None and outcome.quality is not None:
            qualities[factor] = outcome.sign * outcome.quality
    return min(qualities, key=lambda factor: (-qualities[factor], abs(factor - 1)), default=1.0)


def rate_trials(folder: StudyFolder, design: str) -> tuple[Trial, ...]:
    """A design's trials that have ended, by rate."""
    plan = folder.plan
    trials: list[Trial] = []
    for factor in plan.tried_rates:
        key = Key(design, plan.seeds[0], factor)
        outcome = folder.outcome(key)
        if outcome is not None:
            optim = plan.run_recipe(key).optim
            assert optim is not None
            trials.append(Trial(factor, optim.lr, outcome.quality))
    return tuple(trials)
