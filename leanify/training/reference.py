"""The trivial reference: the score of a linear model, counts or the mean on the samples that judge a recipe's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

from leanify.core.errors import LeanifyError
from leanify.core.recipe import Recipe
from leanify.core.recipe_code import is_code
from leanify.core.units import format_metric, format_metric_value
from leanify.data.common import choose_indices
from leanify.data.samples import Reader, Splits
from leanify.data.sampling import evaluation_batches
from leanify.data.splits import load_splits
from leanify.runs.run_directory import RunDirectory
from leanify.sources import find
from leanify.tasks import make_task, merge_tallies, outcomes
from leanify.tasks.references import trivial
from leanify.training.default_recipe import further_settings
from leanify.training.preparation import data_section, has_trained_weights, model_on_meta, trainable
from leanify.training.start import recorded_recipe

MAX_SAMPLES = 10_000  # training samples that a reference is fitted to
MAX_NUMBERS = 50_000_000  # numbers in their inputs
BATCH_SIZE = 16


@dataclass(frozen=True)
class ReferenceScore:
    """A trivial model's ``value`` in the task's metric, None if no model fits; ``outcomes`` has a value a sample."""

    name: str
    value: float | None
    outcomes: tuple[float, ...] = ()
    metric: str = ""  # the task's
    sign: int = 1  # of the metric: 1 if higher is better, −1 if lower is

    def to_json(self) -> dict[str, Any] | None:
        return None if self.value is None else {"name": self.name, "value": self.value}


@dataclass(frozen=True)
class Judgement:
    """Compare a run's best checkpoint with the trivial model, on the same samples."""

    reference: ReferenceScore
    value: float
    advice: str  # what learns more from the data, and the line that does

    @property
    def has_learnt(self) -> bool:
        return self.reference.sign * self.value > self.reference.sign * float(self.reference.value or 0)

    @property
    def message(self) -> str:
        """One sentence: whether the model is better than the trivial one, and what would be."""
        metric, trivial_value = self.reference.metric, float(self.reference.value or 0)
        model = format_metric(metric, self.value)
        trivial = f"{format_metric_value(metric, trivial_value)} of {self.reference.name}"
        if self.has_learnt:
            return f"learnt: {model} against {trivial}"
        return f"not learnt: {model} is no better than {trivial}. What helps are {self.advice}"

    def to_json(self) -> dict[str, Any]:
        return {"reference": self.reference.to_json(), "learnt": self.has_learnt}


PRETRAINED = {  # models of the hub by task, small and common ones
    "classification": "facebook/deit-tiny-patch16-224",
    "text-classification": "google-bert/bert-base-uncased",
    "text-regression": "google-bert/bert-base-uncased",
    "causal-lm": "openai-community/gpt2",
    "masked-lm": "google-bert/bert-base-uncased",
}


def judge_run(run: RunDirectory) -> Judgement | None:
    """Hold a run on the user's own data against the trivial model; None where no trivial model fits the task."""
    recipe, best = recorded_recipe(run), run.best()
    data = recipe.data
    if data is None or data.path is None or is_code(data.name) or recipe.distill is not None or best is None:
        return None
    # at most MAX_SAMPLES validation samples judge
    complete = recipe.to_train()
    max_batches = max(1, MAX_SAMPLES // complete.schedule.batch_size)
    eval_batches = min(complete.run.eval_batches or max_batches, max_batches)
    short_recipe = replace(recipe, run=replace(complete.run, eval_batches=eval_batches))
    try:
        reference = score_reference(short_recipe, complete.run.seed)
    except LeanifyError:  # the run has succeeded; only the reference is missing
        return None
    value = run.summary().get(f"test_{reference.metric}", best.metrics.get(reference.metric))
    if reference.value is None or value is None:
        return None

    # more of the data; a model that did not begin from trained weights may begin from them
    words = f"--set data.path={quote(data.path)}{further_settings(data)}"
    source, schedule = complete.model.source, complete.schedule
    length = f"steps={3 * schedule.steps}" if schedule.steps else f"epochs={3 * (schedule.epochs or 1):g}"
    is_trained = has_trained_weights(find.find(source))
    again = quote(source) if is_trained else quote(str(run.path))  # a run has the model's size, too
    advice = f"more steps: leanify train {again} {words} --set schedule.{length}"
    if not is_trained:
        advice += f"; or pretrained weights, which are downloaded: leanify train {PRETRAINED[data.task]} {words}"
    return Judgement(reference, float(value), advice)


def score_reference(incomplete: Recipe, seed: int, splits: Splits | None = None) -> ReferenceScore:
    """Fit the task's trivial models to the training split, and score the best one on the samples that judge."""
    recipe = trainable(incomplete)
    splits = splits or load_splits(data_section(recipe), model_on_meta(recipe.model))
    task = make_task(recipe, splits)
    if task.reference is None:
        return ReferenceScore("", None)

    def read_batches(samples: Any, indices: Any) -> list[Any]:
        keys = evaluation_batches(indices, BATCH_SIZE, rank=0, world=1)
        return [(splits.scale_inputs(inputs), targets) for inputs, targets in Reader(samples, keys, seed, 0)]

    # the samples that judge: the test split if it exists, otherwise as many validation samples as an evaluation uses
    judging = splits.validation if splits.test is None else splits.test
    limit = None if splits.test is not None else recipe.run.eval_batches
    count = min(len(judging), recipe.schedule.batch_size * (limit or len(judging)))
    judging_batches = read_batches(judging, choose_indices(judging, count, recipe.data.subset))

    # training samples without augmentation, as many as fit into MAX_NUMBERS
    [first] = read_batches(judging, [0])
    inputs = first[0].values() if isinstance(first[0], dict) else first[:1]
    sample_size = sum(part.numel() for part in inputs)
    plain = splits.unchanged or splits.train
    fitting = choose_indices(plain, min(MAX_SAMPLES, MAX_NUMBERS // sample_size), "random")
    fitting_batches = read_batches(plain, fitting)

    # fit each trivial model and score it as the task scores a trained one
    scores = []
    for model in trivial(task.reference):
        model.fit(fitting_batches)
        tallies: list[Mapping[str, Any]] = []
        for batch in judging_batches:
            tally = task.tally_batch(model, *batch)  # type: ignore[arg-type]
            tallies.append({name: value.double() for name, value in tally.items()})
        total = merge_tallies(tallies)
        values = tuple(float(value) for value in outcomes(task, total))
        scores.append(ReferenceScore(model.name, task.metrics(total)[task.metric], values, task.metric, task.sign))
    return max(scores, key=lambda score: task.sign * float(score.value or 0))
