"""Train what carried weights left, with the original as teacher, within a time; and measure what comes out."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from leanify.errors import DataError
from leanify.runs.checkpoints import WEIGHTS
from leanify.runs.places import is_run
from leanify.runs.recipe import Recipe
from leanify.runs.run_directory import RunDirectory
from leanify.study.reference import computed
from leanify.study.shrink_folder import ShrinkFolder
from leanify.terminal import note
from leanify.training import rates as range_tests
from leanify.training import start
from leanify.training.loop import Trainer
from leanify.training.state import put_file
from leanify.training.watcher import Silent
from leanify.units import metric as metric_words

FIRST = 3  # the share of the schedule after which the two are compared: one third
EVALUATIONS = 9  # of a run
EPOCHS = 20.0  # at most, however much time there is


@dataclass(frozen=True)
class Judge:
    """A task's name and metric, and whether more of it is better."""

    name: str
    metric: str
    sign: int
    judged_on: str

    def score(self, metrics: Mapping[str, float] | float | None) -> float:
        value = metrics if isinstance(metrics, int | float) else None
        return -float("inf") if value is None else self.sign * value

    def words(self, found: Mapping[str, Any]) -> str:
        if "refused" in found:
            return f"refused: {found['refused']}"
        return metric_words(self.metric, found["quality"])


def judge_of(recipe: Recipe) -> Judge:
    """What a recipe's models are judged by."""
    trainer = Trainer(_alone(recipe))
    test, data = trainer.splits.test, recipe.data
    assert test is not None
    assert data is not None
    words = f"{len(trainer.splits.validation):,} validation samples choose, {len(test):,} others judge"
    return Judge(data.task, trainer.task.metric, trainer.task.sign, words)


def _alone(recipe: Recipe) -> Recipe:
    """The recipe without its teacher, where the targets do not come from it: measuring needs none."""
    assert recipe.data is not None
    return recipe if recipe.data.task == "sentence-embedding" else replace(recipe, distill=None)


def at(recipe: Recipe, source: str) -> Recipe:
    """The recipe of another model."""
    return replace(recipe, model=replace(recipe.model, source=source))


def measured(recipe: Recipe, source: str) -> dict[str, float]:
    """The metric of a model on the samples that choose, ``chosen_on``, and on those that judge, ``quality``."""
    trainer = Trainer(_alone(at(recipe, source)))
    return _both(trainer)


def _both(trainer: Trainer) -> dict[str, float]:
    name = trainer.task.metric
    assert trainer.splits.test is not None
    chosen_on = trainer.evaluate(trainer.splits.validation)[name]
    return {"chosen_on": chosen_on, "quality": trainer.evaluate(trainer.splits.test)[name]}


def reference(recipe: Recipe) -> dict[str, Any] | None:
    """A trivial model's metric on the samples that judge; None where the task has none."""
    trainer = Trainer(_alone(recipe))
    return computed(trainer.recipe, recipe.run.seed, trainer.splits).to_json()


def steps_in(recipe: Recipe, minutes: float, seconds: float, count: int) -> int:
    """The length of a schedule of which all but one candidate do the first third, within a time."""
    assert recipe.schedule is not None
    whole = 60 * minutes / max(seconds, 1e-6) / (1 + (count - 1) / FIRST)
    return max(0, int(whole))


def healed(
    folder: ShrinkFolder, recipe: Recipe, names: Sequence[str], minutes: float, rates: Sequence[float], judge: Judge
) -> dict[str, dict[str, Any]]:
    """What healing makes of some candidates: all do a third of the schedule, the best one does the rest."""
    names = [name for name in names if "refused" not in folder.found[f"carried {name}"]]
    if not minutes or not names:
        return {}
    plans = {}
    for name in names:
        make = partial(_planned, folder, recipe, name, minutes, rates, len(names))
        plans[name] = folder.once(f"plan {name}", make)
    plans = {name: plan for name, plan in plans.items() if plan["steps"] >= FIRST}
    if not plans:
        note("--minutes is too short for a step of healing: the carried weights are the result")
        return {}
    for name, plan in plans.items() if len(plans) > 1 else ():
        part = plan["steps"] // FIRST
        folder.once(f"third {name}", partial(_trained, folder, recipe, name, plan, part, judge))
    ahead = max(plans, key=lambda name: judge.score(folder.found.get(f"third {name}", {"chosen_on": 0})["chosen_on"]))
    folder.once(f"healed {ahead}", lambda: _trained(folder, recipe, ahead, plans[ahead], None, judge))
    found = {name: folder.found[f"third {name}"] | {"stopped": True} for name in plans if name != ahead}
    return found | {ahead: folder.found[f"healed {ahead}"] | {"stopped": False}}


def _planned(
    folder: ShrinkFolder, recipe: Recipe, name: str, minutes: float, rates: Sequence[float], count: int
) -> dict[str, Any]:
    """The steps that fit into the time, and the rate."""
    own = at(recipe, str(folder.place(name)))
    assert own.optim is not None
    assert own.schedule is not None
    steps = steps_in(own, minutes, start.rehearse(own)["seconds_a_step"], count)
    most = Trainer(own).order.steps_per_epoch * EPOCHS
    steps = int(min(steps, most))
    if steps < FIRST:
        return {"steps": steps, "rate": own.optim.lr}
    found = range_tests.range_test(_scheduled(own, steps, own.optim.lr), tuple(rates))
    if found is not None:
        note(f"{name}: {found.words}")
    return {"steps": steps, "rate": own.optim.lr if found is None else found.best}


def _scheduled(recipe: Recipe, steps: int, rate: float) -> Recipe:
    assert recipe.optim is not None
    assert recipe.schedule is not None
    schedule = replace(recipe.schedule, epochs=None, tokens=None, steps=steps, warmup=max(1.0, steps / 20))
    every = max(1, steps // EVALUATIONS)
    run = replace(recipe.run, eval_every=every, checkpoint_every=every, keep=1)
    return replace(recipe, schedule=schedule, optim=replace(recipe.optim, lr=rate), run=run)


class _Until(Silent):
    """Ends a run at a step, as Ctrl-C would, and says how it goes."""

    def __init__(self, name: str, stop: int | None, metric: str) -> None:
        self.name, self.stop, self.metric = name, stop, metric
        self.reached = False

    def stepped(self, step: int) -> None:
        if step == self.stop:
            self.reached = True
            signal.raise_signal(signal.SIGINT)

    def logged(self, row: Mapping[str, Any]) -> None:
        if row["split"] == "validation":
            note(f"{self.name}: step {row['step']}, {metric_words(self.metric, row[self.metric])}")

    def warned(self, words: str) -> None:
        note(f"{self.name}: {words}")


def _trained(
    folder: ShrinkFolder, recipe: Recipe, name: str, plan: Mapping[str, Any], stop: int | None, judge: Judge
) -> dict[str, Any]:
    """Train a candidate up to a step or to the end, from where it was left; the best checkpoint is measured."""
    place = folder.place(f"{name}-run")
    watcher = _Until(name, stop, judge.metric)
    if place.exists() and not is_run(place):
        discard(place)
    try:
        if place.exists():
            trainer = Trainer(start.with_tokenizer_of(RunDirectory.open(place)), watcher)
            run = RunDirectory.open(place)
        else:
            own = _scheduled(at(recipe, str(folder.place(name))), plan["steps"], plan["rate"])
            trainer = Trainer(own, watcher)
            run = trainer.new_run(place)
        newest = max((found.step for found in run.checkpoints()), default=0)
        if stop is None or newest < stop:
            trainer.fit(run)
    except KeyboardInterrupt:
        if not watcher.reached:
            raise
    best = RunDirectory.open(place).best()
    if best is None:
        raise DataError(f"{place} has no checkpoint")
    put_file(trainer.state.evaluated, best.path / WEIGHTS, trainer.state.names)
    found = _both(trainer)
    return found | {"run": str(place), "steps": best.step, "of": plan["steps"], "rate": plan["rate"]}


def discard(place: Path) -> None:
    """Remove what an interrupted attempt left in the work folder."""
    shutil.rmtree(place)
