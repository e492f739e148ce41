"""How long a study's runs are, from the minutes that the whole study may take on this machine."""

from __future__ import annotations

import math
from dataclasses import replace

from leanify.errors import DataError, RecipeError
from leanify.runs import recipe as recipes
from leanify.study.plan import TRIAL, Key, StudyPlan
from leanify.training import start

USUAL = 15.0  # minutes of a whole study on own data
SPARE = 0.85  # the rest is for evaluations, checkpoints and costs
FEWEST = 100  # steps of a run
JUDGES = 10  # validation samples, at least
MOST = 200  # epochs of a run


def fitted(plan: StudyPlan, minutes: float, jobs: int) -> StudyPlan:
    """The plan with a schedule that takes about these minutes here, by timing a few steps of each design.

    Raises RecipeError if they are too few for a run, and DataError if the data are too few to judge designs.
    """
    if not 0 < minutes < math.inf:
        raise RecipeError(f"--minutes must be above 0, the length of the whole study; not {minutes:g}")
    facts = [start.rehearse(plan.recipe_of(Key(design.name, plan.seeds[0]))) for design in plan.designs]
    validated = facts[0]["validated"]
    if validated < JUDGES:
        raise DataError(
            f"{facts[0]['data']}: too few to compare designs. At least {JUDGES} samples must validate, and "
            f"{validated} do; hundreds are needed to tell designs apart"
        )
    runs = len(plan.seeds) + (TRIAL * len(plan.rates) if len(plan.rates) > 1 else 0)
    a_step = sum(fact["seconds_a_step"] for fact in facts) * runs / jobs
    steps = int(60 * minutes * SPARE / a_step)
    if steps < FEWEST:
        least = math.ceil(FEWEST * a_step / 60 / SPARE)
        words = f"about {least} minute{'s' * (least != 1)}"
        raise RecipeError(
            f"--minutes {minutes:g} is too few: {len(plan.designs)} designs with {len(plan.seeds)} seeds and at least "
            f"{FEWEST} steps each take {words} here. --minutes {least}, fewer --seeds, or --rates 1"
        )
    schedule = plan.recipe.schedule
    assert schedule is not None
    if schedule.epochs is not None:
        steps = min(steps, math.ceil(MOST * facts[0]["steps"] / schedule.epochs))
    often = [f"run.eval_every={max(1, steps // 10)}", f"run.log_every={max(1, steps // 40)}"]
    return replace(plan, recipe=recipes.with_settings(plan.recipe, [f"schedule.steps={steps}", *often]))
