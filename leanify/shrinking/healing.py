"""Train carried weights within a time limit, with the original as teacher, and measure the result."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify.core.errors import DataError, TrainingError
from leanify.core.path_kinds import is_run
from leanify.core.recipe import TrainingRecipe
from leanify.core.terminal import note, progress
from leanify.core.units import format_metric as metric_words
from leanify.runs.checkpoints import WEIGHTS
from leanify.runs.run_directory import RunDirectory
from leanify.shrinking.carry import Carried
from leanify.shrinking.folder import ShrinkFolder
from leanify.shrinking.judging import Quality, judge
from leanify.shrinking.original import Original
from leanify.sources import lean_directory, weights
from leanify.sources.overrides import override_source
from leanify.sources.source import describe
from leanify.sources.tensors import load_into
from leanify.training import rates as range_tests
from leanify.training import start
from leanify.training.callbacks import Callback
from leanify.training.loop import Trainer
from leanify.training.master_weights import round_weights
from leanify.training.state import load_safetensors
from leanify.upstream.origin import set_origin

FIRST = 3  # candidates are compared after 1 / FIRST of the schedule
EVALUATIONS = (9, 6, 3)  # evaluations per run, including the one at a third; fewer if they would take too long
EVALUATION_SHARE = 0.15  # share of a run's time for evaluations
RATE_TEST_SHARE = 0.25  # maximum share of healing for a test of learning rates; otherwise the usual rate is used
MIN_STEPS = 60  # for which minutes are proposed if there are too few
MIN_STEPS_OF_TWO = 120  # with fewer steps in the schedule, only one candidate is healed
WARM_UP, SHORT_WARM_UP, SHORT_RUN = 0.05, 0.2, 100  # shares of a run: of long runs, and of runs below 100 steps
EPOCHS = 20.0  # maximum, even if there is more time
RESERVED_SHARE = 0.03  # share of the total time to write the result


@dataclass(frozen=True)
class HealingPlan:
    """How the remaining minutes are spent: steps of a whole run, its rate and its evaluations, and the candidates."""

    steps: int
    rate: float
    candidates: int
    evaluations: int = 3

    def recipe(self, original: Original, carried: Carried, seed: int = 0) -> TrainingRecipe:
        """Return the recipe that heals a candidate; ``seed`` is added to the original's."""
        recipe = original.recipe
        override = {**recipe.model.override, **original.no_dropout}
        warm_up = max(1.0, (WARM_UP if self.steps >= SHORT_RUN else SHORT_WARM_UP) * self.steps)
        interval = max(1, self.steps // self.evaluations)
        return replace(
            recipe,
            model=replace(recipe.model, source=str(carried.place), override=override),
            schedule=replace(recipe.schedule, epochs=None, tokens=None, steps=self.steps, warmup=warm_up),
            optim=replace(recipe.optim, lr=self.rate),
            run=replace(
                recipe.run, seed=recipe.run.seed + seed, eval_every=interval, checkpoint_every=interval, keep=1
            ),
        )


@dataclass(frozen=True)
class Healed:
    """A carried candidate after training: the best checkpoint of its run.

    stopped    whether another candidate was better after a third of the schedule
    qualities  of all seeds, if there are several
    """

    carried: Carried
    run: Path
    quality: Quality
    rate: float
    steps: int
    stopped: bool = False
    qualities: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return self.carried.name

    def load(self, original: Original) -> nn.Module:
        """Return the healed weights in the carried model, which has the checkpoint's own configuration."""
        model = self.carried.load()
        _load_best(model, self.run)
        round_weights(model, original.dtype)
        return model

    def to_finding(self) -> dict[str, Any]:
        return self.quality.to_finding() | {"run": str(self.run), "steps": self.steps, "rate": self.rate}

    @staticmethod
    def from_finding(carried: Carried, finding: Mapping[str, Any]) -> Healed:
        quality = Quality.from_finding(finding)
        return Healed(carried, Path(finding["run"]), quality, finding["rate"], finding["steps"])


def healing_copy(original: Original, carried: Carried) -> nn.Module:
    """Return a copy of a carried model to train, with the dropout of healing; the model keeps its own."""
    model = carried.load()
    source = override_source(describe(model), original.no_dropout, None)
    student = weights.shell(source)
    copies: dict[int, Tensor] = {}
    tensors = {}
    for name, tensor in model.state_dict().items():  # tied tensors stay tied
        tensors[name] = copies.setdefault(tensor.data_ptr(), tensor.clone())
    load_into(student, tensors, carried.place)
    set_origin(student, source.origin)
    return student


def heal(
    folder: ShrinkFolder, original: Original, finalists: Sequence[Carried], rates: Sequence[float], seeds: int = 1
) -> list[Healed]:
    """Heal some candidates, best first: all train for a third of the schedule, the best to the end.

    With several ``seeds`` the best is trained as often, each time on the samples in another order; the best run is the
    result, and the lowest and highest quality are what chance does. Candidates that no step improved are left out:
    their carried weights are the result. ``folder`` keeps every finding, for a start after a kill.
    """
    if not folder.clock.minutes or not finalists:
        return []
    sign, first = original.evaluator.task.sign, finalists[0]
    make_plan = partial(_plan_healing, folder, original, finalists, rates, seeds)
    plan = HealingPlan(**folder.once(f"plan {first.name}", lambda: vars(make_plan())))
    if plan.steps < FIRST:
        return []

    def train(carried: Carried, key: str, stop: int | None = None, seed: int = 0) -> Healed:
        train_one = partial(_train, folder, original, carried, plan, stop, seed)
        return Healed.from_finding(carried, folder.once(key, lambda: train_one().to_finding()))

    # with two candidates, first a third of the schedule
    healing = list(finalists[: plan.candidates])
    thirds = {}
    if len(healing) > 1:
        thirds = {one.name: train(one, f"third {one.name}", plan.steps // FIRST) for one in healing}
    leader = max(healing, key=lambda one: thirds[one.name].quality.score(sign) if thirds else 0.0)
    runs = [train(leader, f"healed {leader.name}")]
    for seed in range(1, seeds):
        runs.append(train(leader, f"healed {leader.name} seed {seed}", seed=seed))

    # candidates that healing improved
    best = max(runs, key=lambda run: run.quality.score(sign))
    if seeds > 1:
        best = replace(best, qualities=tuple(run.quality.quality for run in runs))
    results = [replace(third, stopped=True) for name, third in thirds.items() if name != leader.name]
    results = sorted([best, *results], key=lambda one: healing.index(one.carried))
    for one in results:
        if one.steps == 0:
            note(f"{one.name}: no healing step improved on the transferred weights, which are kept")
    return [one for one in results if one.steps]


def rehearse(original: Original) -> dict[str, Any]:
    """Time a few training steps of the original, and predict their memory."""
    with progress("timing a few steps", None):
        # with fewer tokens, the recipe's model is not the one that is trained; as a teacher it is frozen
        student = None if original.fewer is None else copy.deepcopy(original.module).requires_grad_(True)
        splits, teacher = original.healing_splits, original.teacher
        return start.rehearse(original.recipe, model=student, splits=splits, teacher=teacher)


def _plan_healing(
    folder: ShrinkFolder, original: Original, finalists: Sequence[Carried], rates: Sequence[float], seeds: int
) -> HealingPlan:
    """Plan the steps that fit into the remaining time, or the user's number; the candidates; and the learning rate."""
    recipe, schedule, clock, splits = original.recipe, original.recipe.schedule, folder.clock, original.healing_splits
    first, began = finalists[0], clock.seconds
    parts: dict[str, Any] = {"splits": splits, "teacher": original.teacher}
    with progress(f"timing steps of {first.name}", None):
        facts = start.rehearse(recipe, model=healing_copy(original, first), evaluates=True, **parts)
    seconds = max(facts["seconds_a_step"], 1e-6)
    # seconds before the first step of a run
    building = clock.seconds - began - facts["timed_steps"] * seconds - facts["evaluation_seconds"]

    # seconds of an evaluation for selection, and of the final one on both halves
    half = facts["evaluation_seconds"]
    max_steps = int(max(1.0, EPOCHS * len(splits.train) / schedule.batch_size))

    def affordable(candidates: int) -> int:
        """Return the number of steps of a schedule if all but one candidate train for a third of it."""
        runs = candidates + (candidates > 1) + seeds - 1  # the leader continues in a second run
        seconds_left = clock.left - runs * (building + 2 * half) - RESERVED_SHARE * 60 * clock.minutes
        seconds_left *= 1 - EVALUATION_SHARE
        return min(max_steps, max(0, int(seconds_left / seconds / (seeds + (candidates - 1) / FIRST))))

    candidates = min(len(finalists), 2)
    if schedule.steps is None and affordable(2) < MIN_STEPS_OF_TWO and candidates > 1:
        candidates = 1
        note(f"only {first.name} is healed: --minutes leave {affordable(1)} steps")
    steps = schedule.steps or affordable(candidates)
    if steps < FIRST:
        lacking = building + 3 * half + MIN_STEPS * seconds / (1 - EVALUATION_SHARE) - clock.left
        enough = math.ceil(clock.minutes + max(0.0, lacking) / 60 / (1 - RESERVED_SHARE))
        reason = f"--minutes {clock.minutes:g} leaves no time to heal (--minutes {enough} would do)"
        if schedule.steps is not None or max_steps < FIRST:
            few = f"{len(splits.train):,} samples" if schedule.steps is None else f"{steps} steps"
            reason = f"{few} are too few to heal, which takes {FIRST} steps of {schedule.batch_size} at least"
        note(f"{reason}: the result has the transferred weights")
        return HealingPlan(steps, recipe.optim.lr, candidates)

    # the rate: given, the best in a test, or the task's usual one if a test would take too long
    options = tuple(rates) or range_tests.default_rates(recipe.optim.lr)
    rate = rates[0] if rates else recipe.optim.lr
    test_steps = range_tests.steps_of_test(steps)
    test_seconds = len(options) * test_steps * seconds + (1 + len(options)) * half + building
    fits = test_seconds <= RATE_TEST_SHARE * (clock.left if schedule.steps is None else steps * seconds)
    if len(options) > 1 and fits:
        with progress(f"testing rates on {first.name}", None):
            test_recipe = HealingPlan(steps, rate, candidates).recipe(original, first)
            test = range_tests.range_test(test_recipe, options, model=healing_copy(original, first), **parts)
        if test is not None:
            note(f"{first.name}: {test.summary}")
            rate = test.best
    elif len(options) > 1:
        which = "the first one" if rates else "the usual one"
        note(f"{first.name}: {steps} steps are too few to test rates: {rate:.2g}, {which}, is taken")

    # the steps left after the test, in thirds, with as many evaluations as their share of time allows
    if schedule.steps is None:
        steps = affordable(candidates)
    per_run = next((count for count in EVALUATIONS if count * half <= EVALUATION_SHARE * steps * seconds), 3)
    if schedule.steps is None and steps >= per_run:
        steps -= steps % per_run
    note(f"healing {steps:,} steps of {schedule.batch_size} at {rate:.2g}, {steps * seconds / 60:.1f} minutes")
    return HealingPlan(steps, rate, candidates, per_run)


class Report(Callback):
    """Reports the progress of a candidate."""

    def __init__(self, name: str, metric: str, advance: Callable[[int], None]) -> None:
        self.name, self.metric, self.advance = name, metric, advance

    def on_step_end(self, step: int) -> None:
        self.advance(step)

    def on_log(self, row: Mapping[str, Any]) -> None:
        if row["split"] == "validation":
            note(f"{self.name}: step {row['step']}, {metric_words(self.metric, row[self.metric])}")

    def on_warning(self, message: str) -> None:
        if message.startswith("no step was better"):  # reported when the candidates are compared
            return
        note(f"{self.name}: {message}")


def _train(
    folder: ShrinkFolder, original: Original, carried: Carried, plan: HealingPlan, stop: int | None, seed: int
) -> Healed:
    """Train a candidate to a step or the end, continuing an earlier run; ``seed`` is added to the recipe's."""
    # continue an interrupted run; rename any other content at its path
    name = f"{carried.name}-run" if seed == 0 else f"{carried.name}-run-{seed}"
    place = folder.place(name)
    if place.exists() and not is_run(place):
        place = folder.fresh(name)
    student = healing_copy(original, carried)
    with progress(f"healing {carried.name}", stop or plan.steps) as advance:
        callback = Report(carried.name, original.evaluator.task.metric, advance)
        try:
            run = RunDirectory.open(place) if place.exists() else None
            recipe = plan.recipe(original, carried, seed) if run is None else start.recorded_recipe(run)
            trainer = Trainer(recipe, callback, model=student, splits=original.healing_splits, teacher=original.teacher)
            run = run or trainer.new_run(place)
            newest = max((checkpoint.step for checkpoint in run.checkpoints()), default=0)
            if stop is None or newest < stop:
                trainer.fit(run, until=stop)
        except TrainingError as error:  # the user did not start this inner run, so resuming is described differently
            words, resumable, _ = str(error).partition("; resume with:")
            raise TrainingError(words + "; the same command continues from there" * bool(resumable)) from error
        # judge the best checkpoint as it will be written, rounded to its type
        model = trainer.state.eval_model
        steps = _load_best(model, place)
        round_weights(model, original.dtype)
        return Healed(carried, place, judge(original, model), plan.rate, steps)


def _load_best(model: nn.Module, place: Path) -> int:
    """Load the weights of a run's best checkpoint in place, and return its step. Raises DataError."""
    best = RunDirectory.open(place).best()
    if best is None:
        raise DataError(f"{place} has no checkpoint")
    load_safetensors(model, best.path / WEIGHTS, list(lean_directory.untie_tensors(model)[0]))
    return best.step
