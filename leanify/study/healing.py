"""Train what carried weights left, with the original as teacher, within a time; and measure what comes out."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from leanify.data.common import chosen
from leanify.data.samples import Selection, Splits
from leanify.data.splits import splits_of
from leanify.design.prices import counting
from leanify.errors import DataError, TrainingError
from leanify.runs.checkpoints import WEIGHTS
from leanify.runs.places import is_run
from leanify.runs.recipe import TrainingRecipe
from leanify.runs.run_directory import RunDirectory
from leanify.study.measure import on_meta
from leanify.study.reference import computed
from leanify.study.shrink_folder import ShrinkFolder
from leanify.terminal import note, progress
from leanify.training import rates as range_tests
from leanify.training import start
from leanify.training.loop import Trainer
from leanify.training.preparation import data_of
from leanify.training.state import put_file
from leanify.training.watcher import Silent
from leanify.units import metric as metric_words

FIRST = 3  # the share of the schedule after which the two are compared: one third
EVALUATIONS = 9  # of a run
EPOCHS = 20.0  # at most, however much time there is
MEASURED = (64, 2_000)  # samples that choose, and as many that judge: at least, and at most
SPEED = {"cpu": 2e10, "cuda": 1e13}  # multiplications a second, about: a core of a server, a GPU of a server


@dataclass(frozen=True)
class Bench:
    """A recipe and its data, read once for all candidates; the metric of its task, and whether more of it is better."""

    recipe: TrainingRecipe
    splits: Splits
    metric: str
    sign: int

    @staticmethod
    def of(given: TrainingRecipe, minutes: float) -> Bench:
        """Of a size that suits the time. Raises LeanifyError for what cannot be trained."""
        splits = sized(splits_of(data_of(given), on_meta(given.model)), given, minutes)
        trainer = Trainer(_alone(given), splits=splits, trains=minutes > 0)
        return Bench(given, trainer.splits, trainer.task.metric, trainer.task.sign)

    @property
    def judged_on(self) -> str:
        assert self.splits.test is not None
        return f"{len(self.splits.validation):,} validation samples choose, {len(self.splits.test):,} others judge"

    def at(self, source: str) -> Bench:
        """The same for another model."""
        return replace(self, recipe=replace(self.recipe, model=replace(self.recipe.model, source=source)))

    def measured(self) -> dict[str, float]:
        """The metric on the samples that choose, ``chosen_on``, and on those that judge, ``quality``."""
        return self.both(Trainer(_alone(self.recipe), splits=self.splits, trains=False))

    def both(self, trainer: Trainer) -> dict[str, float]:
        assert self.splits.test is not None
        chosen_on, quality = (
            trainer.evaluate(split)[self.metric] for split in (self.splits.validation, self.splits.test)
        )
        return {"chosen_on": chosen_on, "quality": quality}

    def reference(self) -> dict[str, Any] | None:
        """A trivial model's metric on the samples that judge; None where the task has none."""
        return computed(_alone(self.recipe), self.recipe.run.seed, self.splits).to_json()

    def score(self, value: float | None) -> float:
        """More is better."""
        return -float("inf") if value is None else self.sign * value

    def words(self, found: Mapping[str, Any]) -> str:
        return metric_words(self.metric, found["quality"])


def _alone(recipe: TrainingRecipe) -> TrainingRecipe:
    """The recipe without its teacher, where the targets do not come from it: measuring needs none."""
    return recipe if recipe.data.task == "sentence-embedding" else replace(recipe, distill=None)


def sized(splits: Splits, recipe: TrainingRecipe, minutes: float) -> Splits:
    """As many samples as can be measured in a twentieth of the time; a teacher embeds for a third of it.

    The time of a sample follows from its multiplications alone, so that every start takes the same ones.
    """
    lengths = getattr(splits.validation, "lengths", None)
    tokens = recipe.data.length if lengths is None else max(2, round(float(lengths.mean())))
    macs = counting.count(on_meta(recipe.model), tokens).macs
    seconds = macs / SPEED["cuda" if torch.cuda.is_available() else "cpu"]
    time = 60 * max(minutes, 10.0)
    most = min(MEASURED[1], max(MEASURED[0], int(time / 20 / seconds)))
    parts: dict[str, Any] = {}
    for name in ("validation", "test"):
        parts[name] = _some(getattr(splits, name), most, recipe)
    if recipe.data.task == "sentence-embedding" and recipe.data.samples is None:
        parts["train"] = _some(splits.train, max(MEASURED[1], int(time / 3 / seconds)), recipe)
        if len(parts["train"]) < len(splits.train):
            seen = f"{len(parts['train']):,} of {len(splits.train):,} samples"
            note(f"{seen}, as --minutes allow; --set data.samples=N asks for more")
    return replace(splits, **parts)


def _some(samples: Any, most: int, recipe: TrainingRecipe) -> Any:
    return samples if most >= len(samples) else Selection(samples, chosen(samples, most, recipe.data.subset))


def steps_in(minutes: float, seconds: float, count: int) -> int:
    """The length of a schedule of which all but one candidate do the first third, and all test rates, within a time."""
    schedules = 1 + (count - 1) / FIRST + count * range_tests.COST
    return max(0, int(60 * minutes / max(seconds, 1e-6) / schedules))


def healed(
    folder: ShrinkFolder, bench: Bench, names: Sequence[str], minutes: float, rates: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """What healing makes of some candidates: all do a third of the schedule, the best one does the rest."""
    if not minutes or not names:
        return {}
    plans = {}
    for name in names:
        make = partial(_planned, bench.at(str(folder.place(name))), name, minutes, rates, len(names))
        plans[name] = folder.once(f"plan {name}", make)
    plans = {name: plan for name, plan in plans.items() if plan["steps"] >= FIRST}
    if not plans:
        note("--minutes is too short for a step of healing: the carried weights are the result")
        return {}
    if len(plans) > 1:
        for name, plan in plans.items():
            folder.once(f"third {name}", partial(_trained, folder, bench, name, plan, plan["steps"] // FIRST))
    ahead = max(plans, key=lambda name: bench.score(folder.found.get(f"third {name}", {}).get("chosen_on")))
    folder.once(f"healed {ahead}", lambda: _trained(folder, bench, ahead, plans[ahead], None))
    found = {name: folder.found[f"third {name}"] | {"stopped": True} for name in plans if name != ahead}
    return found | {ahead: folder.found[f"healed {ahead}"] | {"stopped": False}}


def _planned(bench: Bench, name: str, minutes: float, rates: Sequence[float], count: int) -> dict[str, Any]:
    """The steps that fit into the time, or those that the user asked for, and the rate."""
    schedule, rate = bench.recipe.schedule, bench.recipe.optim.lr
    steps = schedule.steps
    if steps is None:
        seconds = start.rehearse(bench.recipe, splits=bench.splits)["seconds_a_step"]
        most = EPOCHS * len(bench.splits.train) / schedule.batch_size
        steps = int(min(steps_in(minutes, seconds, count), max(1.0, most)))
    if steps < FIRST:
        return {"steps": steps, "rate": rate}
    found = range_tests.range_test(_scheduled(bench.recipe, steps, rate), tuple(rates), bench.splits)
    note(f"{name}: {found.words}" if found is not None else f"{name}: {steps} steps, too few to test rates")
    return {"steps": steps, "rate": rate if found is None else found.best}


def _scheduled(recipe: TrainingRecipe, steps: int, rate: float) -> TrainingRecipe:
    schedule = replace(recipe.schedule, epochs=None, tokens=None, steps=steps, warmup=max(1.0, steps / 20))
    every = max(1, steps // EVALUATIONS)
    run = replace(recipe.run, eval_every=every, checkpoint_every=every, keep=1)
    return replace(recipe, schedule=schedule, optim=replace(recipe.optim, lr=rate), run=run)


class _Until(Silent):
    """Ends a run at a step, as Ctrl-C would, and says how it goes."""

    def __init__(self, name: str, stop: int | None, metric: str, advance: Callable[[int], None]) -> None:
        self.name, self.stop, self.metric, self.advance = name, stop, metric, advance
        self.reached = False

    def stepped(self, step: int) -> None:
        self.advance(step)
        if step == self.stop:
            self.reached = True
            signal.raise_signal(signal.SIGINT)

    def logged(self, row: Mapping[str, Any]) -> None:
        if row["split"] == "validation":
            note(f"{self.name}: step {row['step']}, {metric_words(self.metric, row[self.metric])}")

    def warned(self, words: str) -> None:
        note(f"{self.name}: {words}")


@contextmanager
def interruptible() -> Iterator[None]:
    """A run ends at its step also where the shell that began the process has Ctrl-C ignored (scripts, with ``&``)."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _trained(
    folder: ShrinkFolder, bench: Bench, name: str, plan: Mapping[str, Any], stop: int | None
) -> dict[str, Any]:
    """Train a candidate up to a step or to the end, from where it was left; the best checkpoint is measured."""
    place = folder.place(f"{name}-run")
    if place.exists() and not is_run(place):
        place = folder.fresh(f"{name}-run")
    with progress(f"healing {name}", stop or plan["steps"]) as advance:
        watcher = _Until(name, stop, bench.metric, advance)
        try:
            if place.exists():
                run = RunDirectory.open(place)
                trainer = Trainer(start.with_tokenizer_of(run), watcher, bench.splits)
            else:
                own = _scheduled(bench.at(str(folder.place(name))).recipe, plan["steps"], plan["rate"])
                trainer = Trainer(own, watcher, bench.splits)
                run = trainer.new_run(place)
            newest = max((found.step for found in run.checkpoints()), default=0)
            if stop is None or newest < stop:
                with interruptible():
                    trainer.fit(run)
        except KeyboardInterrupt:
            if not watcher.reached:
                raise
        except TrainingError as error:  # the run inside is no run of the user's
            words, resumable, _ = str(error).partition("; resume with:")
            raise TrainingError(words + "; the same command goes on from there" * bool(resumable)) from error
        best = RunDirectory.open(place).best()
        if best is None:
            raise DataError(f"{place} has no checkpoint")
        put_file(trainer.state.evaluated, best.path / WEIGHTS, trainer.state.names)
        measured = bench.both(trainer)
    return measured | {"run": str(place), "steps": best.step, "of": plan["steps"], "rate": plan["rate"]}
