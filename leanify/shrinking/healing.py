"""Train transferred weights within a time limit, with the original as teacher, and measure the result."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from leanify.core.errors import DataError, LeanifyError, TrainingError
from leanify.core.path_kinds import is_run
from leanify.core.recipe import TrainingRecipe
from leanify.core.terminal import note, progress
from leanify.core.units import format_metric as metric_words
from leanify.core.units import format_share
from leanify.data.common import choose_indices
from leanify.data.samples import Selection, Splits
from leanify.data.splits import load_splits
from leanify.runs.checkpoints import WEIGHTS
from leanify.runs.run_directory import RunDirectory
from leanify.shrinking.calibration_batches import MAX_SAMPLES
from leanify.shrinking.folder import ShrinkFolder
from leanify.shrinking.neighbours import compare_embeddings
from leanify.shrinking.time_plan import EMBEDDED_SHARE, EVALUATED_SHARE, sample_macs
from leanify.sources.weights import is_headless
from leanify.training import rates as range_tests
from leanify.training import start
from leanify.training.callbacks import Callback
from leanify.training.loop import Trainer
from leanify.training.master_weights import round_weights
from leanify.training.preparation import data_section, model_on_meta
from leanify.training.reference import score_reference
from leanify.training.state import load_safetensors
from leanify.upstream.origin import is_hf

FIRST = 3  # candidates are compared after 1 / FIRST of the schedule
EVALUATIONS = (9, 6, 3)  # evaluations per run, including the one at a third; fewer if they would take too long
EVALUATION_SHARE = 0.15  # share of a run's time for evaluations
RATE_TEST_SHARE = 0.25  # maximum share of healing for a test of learning rates; otherwise the lowest rate is used
MIN_STEPS_OF_TWO = 120  # with fewer steps in the schedule, only one candidate is healed
WARM_UP, SHORT_WARM_UP, SHORT_RUN = 0.05, 0.2, 100  # shares of a run: of long runs, and of runs below 100 steps
EPOCHS = 20.0  # maximum, even if there is more time
DEFAULT_MINUTES = 10.0  # time for which samples are counted without healing
RESERVED_SHARE = 0.03  # share of the total time to write the result
LABEL_SAMPLES = 128  # that show whether the original's outputs mean the data's labels
SAMPLE_LIMITS = (64, 2_000)  # minimum and maximum number of samples for selection, and for the final measurement


@dataclass(frozen=True)
class Evaluator:
    """A recipe and its data, read once for all candidates; the task's metric, and whether higher is better."""

    recipe: TrainingRecipe
    splits: Splits
    metric: str
    sign: int
    dtype: torch.dtype  # type of the checkpoint's weights and of the result

    @staticmethod
    def create(recipe: TrainingRecipe, minutes: float, splits: Splits | None = None) -> Evaluator:
        """Build the original's trainer on the splits, which are read here by default. Raises LeanifyError."""
        if splits is None:
            splits = load_splits(data_section(recipe), model_on_meta(recipe.model))
        trainer = Trainer(_without_teacher(recipe), splits=splits, check_memory=minutes > 0)
        _check_head(recipe, trainer)
        return Evaluator(recipe, trainer.splits, trainer.task.metric, trainer.task.sign, trainer.stored_dtype)

    @property
    def judged_on(self) -> str:
        assert self.splits.test is not None
        return f"{len(self.splits.validation):,} validation samples choose, {len(self.splits.test):,} others judge"

    def with_model(self, source: str) -> Evaluator:
        """Return the same evaluator for another model."""
        return replace(self, recipe=replace(self.recipe, model=replace(self.recipe.model, source=source)))

    def evaluate(self) -> dict[str, float]:
        """Return the metric on the samples for selection, ``chosen_on``, and on the final samples, ``quality``."""
        return self.evaluate_splits(Trainer(_without_teacher(self.recipe), splits=self.splits, check_memory=False))

    def evaluate_splits(self, trainer: Trainer) -> dict[str, float]:
        assert self.splits.test is not None
        parts = {"chosen_on": self.splits.validation, "quality": self.splits.test}
        if self.recipe.data.task != "sentence-embedding":
            return {key: trainer.evaluate(split)[self.metric] for key, split in parts.items()}
        # a sentence encoder's embeddings give the cosine and the neighbours
        values: dict[str, float] = {}
        for key, split in parts.items():
            cosine, share = compare_embeddings(trainer.state.eval_model, split, self.splits.pooling)
            name = "neighbours" if key == "quality" else "neighbours_chosen"
            values |= {key: cosine} if share is None else {key: cosine, name: share}
        return values

    def reference(self) -> dict[str, Any] | None:
        """Return a trivial model's metric on the final samples; None if the task has none."""
        return score_reference(_without_teacher(self.recipe), self.recipe.run.seed, self.splits).to_json()

    def score(self, finding: Mapping[str, Any]) -> float:
        """Return the score on the samples for selection by which candidates are compared; higher is better.

        The score is the metric, or for a sentence encoder the mean of its cosine and the share of neighbours it keeps.
        """
        value = finding.get("chosen_on")
        if value is None:
            return -float("inf")
        if "neighbours_chosen" in finding:
            value = (value + finding["neighbours_chosen"]) / 2
        return self.sign * float(value)

    def format_quality(self, finding: Mapping[str, Any]) -> str:
        text = metric_words(self.metric, finding["quality"])
        if "neighbours" in finding:
            text += f", {format_share(finding['neighbours'])} of the neighbours stay"
        return text


def _check_head(recipe: TrainingRecipe, trainer: Trainer) -> None:
    """Raise LeanifyError for a head that was not trained for this data: its score would be chance."""
    source, data, model = recipe.model.source, recipe.data, trainer.state.eval_model
    remedy = f"train it first, leanify train {source} --set data.path={data.path}, and shrink that run"
    if data.task != "sentence-embedding" and is_headless(model):
        raise LeanifyError(
            f"{source} has no trained head for {data.path} ({data.task}), so there is no quality to keep; {remedy}"
        )
    config = getattr(model, "config", None)
    outputs = getattr(config, "num_labels", None) if is_hf(model) else getattr(model, "num_classes", None)
    classes = trainer.splits.classes
    if data.task == "classification" and outputs and classes and outputs != classes:
        raise LeanifyError(
            f"{source} tells {outputs:,} classes apart and {data.path} has {classes:,}, so its score would be chance; "
            f"{remedy}"
        )
    # what the outputs mean: by name, and where names say nothing by a score
    if data.task in ("classification", "text-classification") and classes:
        labels, validation = trainer.splits.labels, trainer.splits.validation
        if labels.kind == "other":
            raise LeanifyError(f"the labels are not those of {source}: {labels.lists}. Name them alike, or {remedy}")
        few = Selection(validation, choose_indices(validation, LABEL_SAMPLES, "random"))
        labels.check_score(trainer.evaluate(few)["top1"] / 100, len(few))


def _without_teacher(recipe: TrainingRecipe) -> TrainingRecipe:
    """Return the recipe without a teacher that evaluation does not need, because the targets come from the data."""
    return recipe if recipe.data.task == "sentence-embedding" else replace(recipe, distill=None)


def limit_samples(splits: Splits, recipe: TrainingRecipe, minutes: float, macs_per_second: float) -> Splits:
    """Return as many samples as can be evaluated, and embedded by a teacher, in their shares of the time."""
    forward = sample_macs(recipe, splits) / macs_per_second
    seconds = 60 * (minutes or DEFAULT_MINUTES)
    max_samples = min(SAMPLE_LIMITS[1], max(SAMPLE_LIMITS[0], int(EVALUATED_SHARE * seconds / forward)))
    parts: dict[str, Any] = {}
    for name in ("validation", "test"):
        parts[name] = _select_samples(getattr(splits, name), max_samples, recipe)
    if recipe.data.task == "sentence-embedding" and recipe.data.samples is None:
        # weights are transferred by `MAX_SAMPLES`; healing takes more
        max_embedded = max(MAX_SAMPLES, int(EMBEDDED_SHARE * seconds / forward)) if minutes else MAX_SAMPLES
        parts["train"] = _select_samples(splits.train, max_embedded, recipe)
        if minutes and len(parts["train"]) < len(splits.train):
            sample_text = f"{len(parts['train']):,} of {len(splits.train):,} samples"
            note(f"{sample_text}, to fit --minutes; --set data.samples=N uses more")
    return replace(splits, **parts)


def _select_samples(samples: Any, max_samples: int, recipe: TrainingRecipe) -> Any:
    return (
        samples
        if max_samples >= len(samples)
        else Selection(samples, choose_indices(samples, max_samples, recipe.data.subset))
    )


def heal_candidates(
    folder: ShrinkFolder, bench: Evaluator, names: Sequence[str], rates: Sequence[float], seeds: int = 1
) -> dict[str, dict[str, Any]]:
    """Heal some candidates and return the results, best first: all train for a third of the schedule, the best to the
    end.

    With several ``seeds`` the best is trained as often, each time on the samples in another order; the best run is the
    result, and the lowest and highest quality are what chance does. Candidates that no step improved are left out:
    their transferred weights are the result.
    """
    if not folder.clock.minutes or not names:
        return {}
    plan = folder.once(f"plan {names[0]}", partial(_plan_healing, folder, bench, names, rates, seeds))
    if plan["steps"] < FIRST:
        note("--minutes leave no time to heal: the result has the transferred weights")
        return {}

    # with two candidates, first a third of the schedule
    healed = list(names[: plan["candidates"]])
    if len(healed) > 1:
        for name in healed:
            folder.once(f"third {name}", partial(_train_candidate, folder, bench, name, plan, plan["steps"] // FIRST))
    leader = max(healed, key=lambda name: bench.score(folder.findings.get(f"third {name}", {})))
    runs = []
    for seed in range(seeds):
        name = f"healed {leader}" if seed == 0 else f"healed {leader} seed {seed}"
        runs.append(folder.once(name, partial(_train_candidate, folder, bench, leader, plan, None, seed)))

    # candidates that healing improved
    results = {name: folder.findings[f"third {name}"] | {"stopped": True} for name in healed if name != leader}
    results[leader] = max(runs, key=bench.score) | {"stopped": False}
    if seeds > 1:
        qualities = [run["quality"] for run in runs]
        results[leader] |= {"seeds": seeds, "low": min(qualities), "high": max(qualities)}
    for name in healed:
        if results[name]["steps"] == 0:
            note(f"{name}: no healing step improved on the transferred weights, which are kept")
            del results[name]
    return results


def _plan_healing(
    folder: ShrinkFolder, bench: Evaluator, names: Sequence[str], rates: Sequence[float], seeds: int
) -> dict[str, Any]:
    """Plan the steps that fit into the remaining time, or the user's number; the candidates; and the learning rate."""
    schedule, clock = bench.recipe.schedule, folder.clock
    first_candidate = bench.with_model(str(folder.place(names[0])))
    began = clock.seconds
    facts = start.rehearse(first_candidate.recipe, splits=bench.splits, evaluates=True)
    seconds = max(facts["seconds_a_step"], 1e-6)
    # seconds before the first step of a run
    building = clock.seconds - began - facts["timed_steps"] * seconds - facts["evaluation_seconds"]

    # seconds of an evaluation for selection, and of the final one on both halves
    half = facts["evaluation_seconds"]
    max_steps = int(max(1.0, EPOCHS * len(bench.splits.train) / schedule.batch_size))

    def affordable(candidates: int) -> int:
        """Return the number of steps of a schedule if all but one candidate train for a third of it."""
        runs = candidates + (candidates > 1) + seeds - 1  # the leader continues in a second run
        left = clock.left - runs * (building + 2 * half) - RESERVED_SHARE * 60 * clock.minutes
        left *= 1 - EVALUATION_SHARE
        return min(max_steps, max(0, int(left / seconds / (seeds + (candidates - 1) / FIRST))))

    candidates = min(len(names), 2)
    if schedule.steps is None and affordable(2) < MIN_STEPS_OF_TWO and candidates > 1:
        candidates = 1
        note(f"only {names[0]} is healed: --minutes leave {affordable(1)} steps")
    steps = schedule.steps or affordable(candidates)
    if steps < FIRST:
        return {"steps": steps, "rate": bench.recipe.optim.lr, "candidates": candidates, "evaluations": 3}

    # the rate: given, the best in a test, or the lowest if a test would take too long
    options = tuple(rates) or range_tests.default_rates(bench.recipe.optim.lr)
    test_steps = range_tests.steps_of_test(steps)
    test_seconds = len(options) * test_steps * seconds + (1 + len(options)) * half + building
    fits = test_seconds <= RATE_TEST_SHARE * (clock.left if schedule.steps is None else steps * seconds)
    rate = min(options)
    if len(options) > 1 and fits:
        test_recipe = _schedule_recipe(first_candidate.recipe, steps, rate, 3)
        rate_test = range_tests.range_test(test_recipe, options, bench.splits)
        if rate_test is not None:
            rate = rate_test.best
            note(f"{names[0]}: {rate_test.summary}")
    elif len(options) > 1:
        note(f"{names[0]}: {steps} steps are too few to test rates, so the lowest is taken, {rate:.2g}")

    # the steps left after the test, in thirds, with as many evaluations as their share of time allows
    if schedule.steps is None:
        steps = affordable(candidates)
    per_run = next((count for count in EVALUATIONS if count * half <= EVALUATION_SHARE * steps * seconds), 3)
    if schedule.steps is None and steps >= per_run:
        steps -= steps % per_run
    note(f"healing {steps:,} steps of {schedule.batch_size} at {rate:.2g}, {steps * seconds / 60:.1f} minutes")
    return {"steps": steps, "rate": rate, "candidates": candidates, "evaluations": per_run}


def _schedule_recipe(recipe: TrainingRecipe, steps: int, rate: float, evaluations: int) -> TrainingRecipe:
    warm_up = WARM_UP if steps >= SHORT_RUN else SHORT_WARM_UP
    schedule = replace(recipe.schedule, epochs=None, tokens=None, steps=steps, warmup=max(1.0, warm_up * steps))
    eval_interval = max(1, steps // evaluations)
    run = replace(recipe.run, eval_every=eval_interval, checkpoint_every=eval_interval, keep=1)
    return replace(recipe, schedule=schedule, optim=replace(recipe.optim, lr=rate), run=run)


class StopAtStep(Callback):
    """Ends a run at a step, like Ctrl-C, and reports its progress."""

    def __init__(self, name: str, stop: int | None, metric: str, advance: Callable[[int], None]) -> None:
        self.name, self.stop, self.metric, self.advance = name, stop, metric, advance
        self.has_reached = False

    def on_step_end(self, step: int) -> None:
        self.advance(step)
        if step == self.stop:
            self.has_reached = True
            signal.raise_signal(signal.SIGINT)

    def on_log(self, row: Mapping[str, Any]) -> None:
        if row["split"] == "validation":
            note(f"{self.name}: step {row['step']}, {metric_words(self.metric, row[self.metric])}")

    def on_warning(self, message: str) -> None:
        if message.startswith("no step was better"):  # reported when the candidates are compared
            return
        note(f"{self.name}: {message}")


@contextmanager
def interruptible() -> Iterator[None]:
    """End a run at its step even if the shell started the process with Ctrl-C ignored (scripts, with ``&``)."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _train_candidate(
    folder: ShrinkFolder, bench: Evaluator, name: str, plan: Mapping[str, Any], stop: int | None, seed: int = 0
) -> dict[str, Any]:
    """Train a candidate up to a step or to the end, continuing an earlier run; measure the best checkpoint.

    ``seed`` is added to the recipe's: it draws the order of the samples.
    """
    # continue an interrupted run; rename any other content at its path
    run_name = f"{name}-run" if seed == 0 else f"{name}-run-{seed}"
    place = folder.place(run_name)
    if place.exists() and not is_run(place):
        place = folder.fresh(run_name)
    with progress(f"healing {name}", stop or plan["steps"]) as advance:
        callback = StopAtStep(name, stop, bench.metric, advance)
        try:
            if place.exists():
                run = RunDirectory.open(place)
                trainer = Trainer(start.recorded_recipe(run), callback, bench.splits)
            else:
                candidate = bench.with_model(str(folder.place(name))).recipe
                recipe = _schedule_recipe(candidate, plan["steps"], plan["rate"], plan.get("evaluations", 3))
                recipe = replace(recipe, run=replace(recipe.run, seed=recipe.run.seed + seed))
                trainer = Trainer(recipe, callback, bench.splits)
                run = trainer.new_run(place)
            newest = max((checkpoint.step for checkpoint in run.checkpoints()), default=0)
            if stop is None or newest < stop:
                with interruptible():
                    trainer.fit(run)
        except KeyboardInterrupt:
            if not callback.has_reached:
                raise
        except TrainingError as error:  # the user did not start this inner run, so resuming is described differently
            words, resumable, _ = str(error).partition("; resume with:")
            raise TrainingError(words + "; the same command continues from there" * bool(resumable)) from error
        # measure the best checkpoint, rounded to its output type, on both halves of the validation samples
        best = RunDirectory.open(place).best()
        if best is None:
            raise DataError(f"{place} has no checkpoint")
        load_safetensors(trainer.state.eval_model, best.path / WEIGHTS, trainer.state.names)
        round_weights(trainer.state.eval_model, bench.dtype)  # measure the weights as they will be written
        qualities = bench.evaluate_splits(trainer)
    return qualities | {"run": str(place), "steps": best.step, "of": plan["steps"], "rate": plan["rate"]}
