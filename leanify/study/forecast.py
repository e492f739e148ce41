"""Predict a study's time, memory and disk space before it runs, from two training steps of each design."""

from __future__ import annotations

import warnings
from typing import Any

from leanify.study import tournament
from leanify.study.plan import ALWAYS, BASELINE, TRIAL, Key, StudyPlan
from leanify.training import start

TENSORS = 3  # values stored per parameter in a checkpoint (weight and AdamW's two moments), 4 bytes each


def forecast(plan: StudyPlan, jobs: int = 1) -> dict[str, Any]:
    """Return the object that ``leanify compare --dry-run --json`` prints. Reads the data but writes nothing."""
    seed, count = plan.seeds[0], len(plan.designs)
    with warnings.catch_warnings():
        if plan.weights is not None:  # they are carried over when the study is run; here models are only timed
            warnings.filterwarnings("ignore", ".* has no weights", UserWarning)
        facts = {design.name: start.rehearse(plan.recipe_of(Key(design.name, seed))) for design in plan.designs}
    each = sum(fact["training_hours_predicted"] for fact in facts.values()) / count
    cost = tournament.cost(plan) if tournament.is_open(plan) else None
    trials, runs = len(list(plan.trials())), len(list(plan.runs()))
    hours = each * (runs + TRIAL * trials)
    if cost is not None:  # the winner, baseline, lean and control are judged by the other seeds
        judged = (len(ALWAYS) + 1) * len(plan.judging)
        hours = facts[BASELINE]["training_hours_predicted"] * cost[1] + each * judged
        runs += judged
    runs += trials
    kept = plan.recipe.run.keep + 1  # plus the best one
    disk = sum(design.params for design in plan.designs) // count * 4 * TENSORS * kept * runs
    needs = [fact["memory_predicted_bytes"] for fact in facts.values() if fact["memory_predicted_bytes"]]
    designs = []
    for design in plan.designs:
        fact = facts[design.name]
        predicted = {"hours_a_run": fact["training_hours_predicted"]}
        predicted["memory_predicted_bytes"] = fact["memory_predicted_bytes"]
        designs.append(design.to_json() | predicted)
    return {
        "study": None,
        "task": plan.recipe.data and plan.recipe.data.task,
        "data": next(iter(facts.values()))["data"],
        "budget": plan.budget,
        "seeds": list(plan.seeds),
        "runs": runs,
        "baseline_trainings": None if cost is None else list(cost),
        "jobs": jobs,
        "hours_predicted": hours / jobs,
        "bytes_predicted": disk,
        "memory_predicted_bytes": jobs * max(needs) if needs else None,
        "designs": designs,
    }
