"""Predict the time and memory of a study before it starts, and reduce the study to a limit in minutes.

The recipe determines the steps of a run, because models that have not learnt show nothing; the minutes of a study
follow from its steps, by timing a few of them. A limit below these minutes removes, one after the other until the study
fits: trials of learning rates, seeds down to three, designs down to baseline and lean. It never shortens a run.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch

from leanify.comparison.plan import BASELINE, TRIAL, Key, StudyPlan
from leanify.comparison.statistics import MIN_SEEDS
from leanify.core import machine
from leanify.core.errors import DataError, RecipeError
from leanify.core.units import format_bytes
from leanify.training import memory, start
from leanify.training.preparation import checkpoint_gradients, model_on_meta

JUDGES = 10  # minimum number of validation samples
FORWARD = 0.4  # time of a forward pass on a batch, as a share of a training step
PROCESS = 1.5  # seconds to start and end a run's process, in addition to reading data and building the model
PROCESS_BYTES = 700 << 20  # memory of a run's process before it has a model: Python, torch, timm or transformers
MEASURING = 12.0  # seconds to measure the costs of a design at the end
TENSORS = 3  # values stored per parameter in a checkpoint (weight and AdamW's two moments), 4 bytes each


@dataclass(frozen=True)
class Timing:
    """The seconds of a run of a design on this machine, with the facts from its rehearsal."""

    steps: int
    step: float
    evaluations: float
    startup: float
    facts: dict[str, Any]

    @property
    def run(self) -> float:
        return self.startup + self.steps * self.step + self.evaluations

    @property
    def trial(self) -> float:
        """The seconds of a trial of a learning rate, for a part of the schedule."""
        return self.startup + TRIAL * (self.steps * self.step + self.evaluations)


def time_designs(plan: StudyPlan, evaluations: int | None = None) -> dict[str, Timing]:
    """Time a few training steps of every design, with the threads of a run.

    ``evaluations`` is the number of evaluations per run, if the recipe does not define it yet. Raises DataError if
    there are too few data to judge designs.
    """
    rehearsals = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        with warnings.catch_warnings():
            if plan.weights is not None:  # weights are transferred when the study runs; here models are only timed
                warnings.filterwarnings("ignore", ".* has no weights", UserWarning)
            for design in plan.designs:
                begin = time.perf_counter()
                facts = start.rehearse(plan.run_recipe(Key(design.name, plan.seeds[0])))
                rehearsals[design.name] = facts, time.perf_counter() - begin
    finally:
        torch.set_num_threads(threads)
    facts, _ = rehearsals[plan.designs[0].name]
    if facts["validated"] < JUDGES:
        raise DataError(
            f"{facts['data']}: too few to compare designs. At least {JUDGES} samples must validate, and "
            f"{facts['validated']} do; hundreds are needed to tell designs apart"
        )

    # batches per evaluation, and evaluations per run
    schedule, run = plan.recipe.schedule, plan.recipe.run
    assert schedule is not None
    batches = math.ceil(facts["validated"] / schedule.batch_size)
    if run.eval_batches is not None:
        batches = min(batches, run.eval_batches)
    count: float = schedule.epochs or 1
    if run.eval_every:
        count = facts["steps"] / run.eval_every
    if evaluations is not None:
        count = evaluations

    # the rehearsal's time without its steps is the startup time of a run; the first one includes imports and caches
    # that the runs of all designs share
    timings = {}
    for name, (facts, seconds) in rehearsals.items():
        step = facts["seconds_a_step"]
        startup = PROCESS + max(seconds - min(start.MAX_TIMED_STEPS * step, start.MAX_SECONDS), 0.0)
        timings[name] = Timing(facts["steps"], step, FORWARD * step * batches * max(count, 1), startup, facts)
    startup = min(timing.startup for timing in timings.values())
    return {name: replace(timing, startup=startup) for name, timing in timings.items()}


# -- the full study ---------------------------------------------------------------------------------------------------


def study_seconds(plan: StudyPlan, timings: dict[str, Timing], jobs: int) -> float:
    """Return the seconds of a full study with ``jobs`` concurrent runs."""
    designs = [timings[design.name] for design in plan.designs]
    training = sum(timings[key.design].run for key in plan.runs())
    trials = sum(timings[key.design].trial for key in plan.trials())
    if trials and len(plan.rates) > 2 and not plan.more_rates:  # the range may move by one rate
        trials += sum(timing.trial for timing in designs)
    measuring = MEASURING * len(designs)
    return (training + trials) / min(jobs, len(designs) * len(plan.seeds)) + measuring


# -- a limit ----------------------------------------------------------------------------------------------------------


def fit_minutes(plan: StudyPlan, timings: dict[str, Timing], minutes: float, jobs: int) -> tuple[StudyPlan, list[str]]:
    """Return the plan that fits these minutes, and descriptions of the removed parts.

    Raises RecipeError if even baseline and lean, three seeds and one rate take longer.
    """
    if not 0 < minutes < math.inf:
        raise RecipeError(f"--minutes must be above 0, the length of the whole study; not {minutes:g}")
    cuts: list[str] = []

    def is_within(smaller: StudyPlan) -> bool:
        return study_seconds(smaller, timings, jobs) <= 60 * minutes

    if not is_within(plan) and len(plan.rates) > 1:
        cuts.append(f"the trials of {len(plan.rates)} learning rates")
        plan = replace(plan, rates=(1.0,))

    # seeds, the last ones first
    seeds = plan.seeds
    while not is_within(plan) and len(plan.seeds) > MIN_SEEDS:
        plan = replace(plan, seeds=plan.seeds[:-1])
    if len(plan.seeds) < len(seeds):
        cuts.append(f"{len(seeds) - len(plan.seeds)} of {len(seeds)} seeds")

    # designs, the last ones first
    names, droppable = [], [design for design in plan.designs if design.name not in (BASELINE, plan.focus)]
    while not is_within(plan) and droppable:
        dropped = droppable.pop()
        names.append(dropped.name)
        plan = replace(plan, designs=tuple(design for design in plan.designs if design is not dropped))
    if names:
        cuts.append(", ".join(names))

    if not is_within(plan):
        min_minutes = math.ceil(study_seconds(plan, timings, jobs) / 60)
        steps = max(timing.steps for timing in timings.values())
        raise RecipeError(
            f"--minutes {minutes:g} is too few: {' and '.join(design.name for design in plan.designs)} with "
            f"{len(plan.seeds)} seeds and the {steps:,} steps that the recipe takes to learn need about {min_minutes} "
            f"minute{'s' * (min_minutes != 1)} here. Give --minutes {min_minutes}, or fewer steps by --set "
            "schedule.steps=N, at the risk that the models have not learnt"
        )
    return plan, cuts


# -- a dry run --------------------------------------------------------------------------------------------------------


def forecast(plan: StudyPlan, timings: dict[str, Timing], jobs: int) -> dict[str, Any]:
    """Return the object that ``leanify compare --dry-run --json`` prints."""
    # checkpoints of all runs on disk, and memory of the runs at a time
    runs = len([*plan.runs(), *plan.trials()])
    checkpoint_count = plan.recipe.run.keep + 1  # plus the best one
    mean_params = sum(design.params for design in plan.designs) // len(plan.designs)
    disk = mean_params * 4 * TENSORS * checkpoint_count * runs
    needs = {name: timing.facts["memory_predicted_bytes"] for name, timing in timings.items()}
    largest_need = max(need or 0 for need in needs.values())
    designs = []
    for design in plan.designs:
        costs = {"hours_a_run": timings[design.name].run / 3600, "memory_predicted_bytes": needs[design.name]}
        designs.append(design.to_json() | costs)
    return {
        "study": None,
        "task": plan.recipe.data and plan.recipe.data.task,
        "data": timings[plan.designs[0].name].facts["data"],
        "budget": plan.budget,
        "seeds": list(plan.seeds),
        "runs": runs,
        "steps": max(timing.steps for timing in timings.values()),
        "jobs": jobs,
        "hours_predicted": study_seconds(plan, timings, jobs) / 3600,
        "bytes_predicted": disk,
        "memory_predicted_bytes": jobs * largest_need or None,
        "designs": designs,
    }


# -- memory -----------------------------------------------------------------------------------------------------------


def check_jobs(plan: StudyPlan, jobs: int) -> None:
    """Raise RecipeError, naming the number that fits, if ``jobs`` runs need more memory than is available."""
    available = machine.free_memory()
    if available is None:
        return
    # the run with the largest need must fit, then all jobs together
    job_bytes, design = max((PROCESS_BYTES + _needed_bytes(plan, design.name), design.name) for design in plan.designs)
    if job_bytes > available:
        raise RecipeError(
            f"a run of {design} needs about {format_bytes(job_bytes)} of memory, but only {format_bytes(available)} "
            "are available; it needs less with --set run.accumulate=N, the same batch in more passes, with --set "
            "run.gradient_checkpointing=true, or of a smaller model"
        )
    if jobs * job_bytes > available:
        raise RecipeError(
            f"--jobs {jobs} needs about {format_bytes(jobs * job_bytes)} of memory, {format_bytes(job_bytes)} per "
            f"run, but only {format_bytes(available)} are available: --jobs {available // job_bytes} fits"
        )


def _needed_bytes(plan: StudyPlan, design: str) -> int:
    """Predict the bytes that a run of a design needs in addition to its process; 0 if it does not run on meta.

    On a GPU this is GPU memory, and only the processes themselves use the machine's memory.
    """
    recipe = plan.run_recipe(Key(design, plan.seeds[0]))
    assert recipe.optim is not None
    assert recipe.schedule is not None
    model = model_on_meta(recipe.model)
    if recipe.run.gradient_checkpointing:
        checkpoint_gradients(model)
    need = memory.need(
        model,
        None if recipe.data is None else recipe.data.length,
        optimiser=recipe.optim.name,
        average=recipe.optim.ema is not None,
        keeps_gradients=recipe.run.accumulate > 1,
    )
    return 0 if need is None else need.of(-(-recipe.schedule.batch_size // recipe.run.accumulate))
