"""The trivial reference beside a study, on the same samples, and whether the study's models have learnt at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from leanify.runs import writing
from leanify.study.folder import StudyFolder, content_of
from leanify.study.statistics import Estimate
from leanify.study.values import Reference

if TYPE_CHECKING:
    from leanify.data.samples import Splits
    from leanify.runs.recipe import Recipe

FILE = "reference.json"
MOST, NUMBERS = 10_000, 50_000_000  # training samples that it is fitted to, and numbers in their inputs
BATCH = 16
UNSURE = 0.1  # the error rate at which a reference counts as beaten
LAST, STEEP = 0.2, 0.1  # over the last fifth of the steps, the loss may fall by at most a tenth of its whole fall


def known(folder: StudyFolder) -> Reference | None:
    """A study's reference; None if it has not been computed. Raises DirectoryError if its file is damaged."""

    def made(found: Mapping[str, Any]) -> Reference:
        value = found["value"]
        outcomes = tuple(float(one) for one in found["outcomes"])
        return Reference(str(found["name"]), None if value is None else float(value), outcomes)

    return content_of(folder.path / FILE, made, None, "it will be computed again")


def prepare(folder: StudyFolder) -> None:
    """Compute a study's reference, unless it is there."""
    if known(folder) is not None:
        return
    found = computed(folder.plan.recipe, folder.plan.seeds[0])
    writing.write(folder.path / FILE, json.dumps(asdict(found)) + "\n")


def computed(given: Recipe, seed: int, splits: Splits | None = None) -> Reference:
    """Fit the task's trivial models to the training split; the best one on the samples that judge the designs.

    ``splits`` are the recipe's, where they are loaded already.
    """
    from leanify.data.common import chosen
    from leanify.data.samples import Reader
    from leanify.data.splits import splits_of
    from leanify.study.measure import on_meta
    from leanify.tasks import merged, task_of
    from leanify.tasks.outcomes import outcomes
    from leanify.tasks.references import trivial
    from leanify.training.preparation import data_of, trainable

    recipe = trainable(given)
    splits = splits or splits_of(data_of(recipe), on_meta(recipe.model))
    task = task_of(recipe, splits)
    if task.reference is None:
        return Reference("", None)
    plain = splits.unchanged or splits.train
    limit = None if splits.test is not None else recipe.run.eval_batches
    judged = splits.validation if splits.test is None else splits.test
    number = min(len(judged), recipe.schedule.batch_size * (limit or len(judged)))

    def batches(samples: Any, indices: Any) -> list[Any]:
        keys = [[(0, int(one)) for one in indices[i : i + BATCH]] for i in range(0, len(indices), BATCH)]
        return [(splits.scaled(inputs), targets) for inputs, targets in Reader(samples, keys, seed, 0)]

    [one] = batches(judged, [0])
    size = sum(part.numel() for part in (one[0].values() if isinstance(one[0], dict) else one[:1]))
    seen = batches(plain, chosen(plain, min(MOST, NUMBERS // size), "random"))
    asked = batches(judged, chosen(judged, number, recipe.data.subset))
    found = []
    for model in trivial(task.reference):
        model.fit(seen)
        parts: list[Mapping[str, Any]] = []
        for inputs, targets in asked:
            tally = task.found(model, inputs, targets)  # type: ignore[arg-type]
            parts.append({name: value.double() for name, value in tally.items()})
        tally = merged(parts)
        values = tuple(float(one) for one in outcomes(task, tally))
        found.append(Reference(model.name, task.metrics(tally)[task.metric], values))
    return max(found, key=lambda one: task.sign * float(one.value or 0))


# -- has it learnt? ---------------------------------------------------------------------------------------------------


def still_falls(rows: Sequence[Mapping[str, Any]], steps: int) -> bool:
    """Whether a run's validation loss still fell steeply over the last fifth of its steps."""
    losses = {row["step"]: row["loss"] for row in rows if row["split"] == "validation" and "loss" in row}
    early = [step for step in losses if step <= (1 - LAST) * steps]
    if len(losses) < 3 or not early or max(losses) < steps:
        return False
    whole = max(row["loss"] for row in rows if "loss" in row) - losses[steps]
    fall = losses[max(early)] - losses[steps]
    return bool(fall > STEEP * whole * (steps - max(early)) / (LAST * steps))


def beaten(found: Estimate) -> bool:
    """Whether a difference from the reference is above 0 by more than the noise, with a certainty of 90%.

    Less than what an answer takes: this warns of models that have not learnt, and claims nothing.
    """
    bounds = found.interval(UNSURE)
    return bool(found.mean > 0 if bounds is None else bounds[0] > 0)
