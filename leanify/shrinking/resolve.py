"""Find the checkpoint that is shrunk, the recipe and the data that judge and heal it; refuse what cannot be shrunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from leanify.core.errors import DataError, LeanifyError
from leanify.core.path_kinds import is_run
from leanify.core.recipe import ModelSection, TrainingRecipe
from leanify.core.recipe_code import is_code
from leanify.core.terminal import note
from leanify.data.common import vocabulary_size
from leanify.data.data_checks import inspect_tokens
from leanify.data.samples import Splits
from leanify.data.splits import load_splits
from leanify.data.texts import own_texts
from leanify.profiling.cost_model import ModelCosts, price_file
from leanify.profiling.live_model import LiveModel
from leanify.reshaping import surgery
from leanify.reshaping.sites import locate
from leanify.runs.run_directory import RunDirectory
from leanify.shrinking.original import Original
from leanify.sources import find, heads, side_files, weights
from leanify.sources.source import build_on_meta
from leanify.training import start
from leanify.training.master_weights import to_master_weights
from leanify.training.preparation import data_section, trainable
from leanify.upstream.origin import in_mode, is_hf

TOKEN_WEIGHT = 10.0  # of the states of an encoder's tokens in healing, where its embedding has 1
LENGTH, BATCH = 256, 8  # for a language model: tokens per sample, and samples per step


def resolve(checkpoint: str | Path, data: str | Path | None, settings: Sequence[str]) -> Original:
    """Return the checkpoint with its usual recipe on this data, the checkpoint itself as teacher.

    Without data, it is the run's own recipe. Raises LeanifyError for what cannot be shrunk, before any work.
    """
    name = str(checkpoint)
    source = find.find(name)
    # what shrink needs: weights and data
    if source.weights is None:
        raise LeanifyError(f"{name} has no weights: shrink keeps what a trained model knows; name a checkpoint")
    if data is None and not is_run(name):
        raise LeanifyError(f"--data is missing: a run knows its data, and {name} is no run; name a folder of yours")
    if data is not None and not Path(data).expanduser().exists():
        raise LeanifyError(f"--data {data} does not exist")

    head = heads.OTHER_HEADS.search(source.origin.cls)
    if head is not None:
        _refuse_head(name, f"is a {source.origin.cls}", head[0])

    # the recipe; the model keeps its own dropout, only the copy that heals has another
    recipe = _usual_recipe(name, data, settings)
    section, setting_keys = recipe.model, {setting.partition("=")[0].strip() for setting in settings}
    options, no_dropout = source.origin.options, {}
    for key, rate in section.override.items():
        if "drop" in key and f"model.override.{key}" not in setting_keys and options.get(key, rate) != rate:
            no_dropout[key] = rate
    override = {key: value for key, value in section.override.items() if key not in no_dropout}
    if override or section.cls is not None:
        source = find.section_source(replace(section, override=override))
    shell = build_on_meta(source)
    if getattr(getattr(shell, "config", None), "problem_type", None) == "multi_label_classification":
        _refuse_head(name, "gives each label a probability of its own (problem_type)", "ForSequenceClassification")
    recipe = _short(recipe, shell, settings)
    recipe = replace(recipe, data=replace(recipe.data, judge=True))

    # the checkpoint's own vocabulary
    section_data = data_section(recipe)
    tokenizer = section_data.tokenizer
    if recipe.data.task != "classification" and (tokenizer is None or tokenizer.startswith("wordpiece-")):
        raise DataError(
            f"{name} has no tokenizer next to its weights, so its token ids are unknown; put the "
            "tokenizer's files there, or name another folder, --set data.tokenizer=DIR"
        )
    if is_hf(shell) and Path(name).is_dir():
        side_files.check_vocabulary(shell, Path(name))  # else refused when the first candidate is written

    splits = load_splits(section_data, shell)
    for warning in inspect_tokens(splits):
        note(f"warning: {warning}")
    if splits.decoding:  # a run keeps how its pictures were decoded
        recipe = replace(recipe, data=replace(recipe.data, **splits.decoding))
    _check_outputs(name, recipe, shell, splits)
    file = price_file(name, {**override, "class": section.cls}, recipe.data.length)
    costs = ModelCosts(lambda: (LiveModel(shell, recipe.data.length), not isinstance(source.weights, str)), file)

    def load() -> tuple[nn.Module, torch.dtype]:
        """Moments and least squares need more precision than 16-bit activations."""
        model = weights.load_complete(source, name)
        return in_mode(model), to_master_weights(model)

    reshape = cache(partial(surgery.write, shell))
    return Original(name, source, locate(shell), costs, recipe, splits, no_dropout, cache(load), reshape)


def _refuse_head(name: str, what: str, auto: str) -> NoReturn:
    raise LeanifyError(
        f"{name} {what}, and no data here judge its head. A smaller model with its weights is written with leanify "
        f"redesign {name} --weights {name} --target-params 0.6 --choose narrow -o DIR, and healed by transformers' "
        f"Trainer, as AutoModel{auto}"
    )


def _usual_recipe(name: str, data: str | Path | None, settings: Sequence[str]) -> TrainingRecipe:
    """Return the usual recipe of the checkpoint on this data; without data, the run's own."""
    path = [] if data is None else [f"data.path={data}"]
    recipe = trainable(start.resolve(name, (*path, *settings), name))
    if is_run(name):  # a run's recipe names the initial model, without the trained weights
        changes = [setting for setting in settings if setting.startswith("model.")]
        if changes:
            raise LeanifyError(
                f"--set {changes[0]} changes the model of {name}, which its checkpoint fixes; leave it out"
            )
        recipe = replace(recipe, model=ModelSection(name))
        run_data = start.recorded_recipe(RunDirectory.open(Path(name))).data
        if run_data is not None and not any(setting.startswith("data.tokenizer=") for setting in settings):
            recipe = replace(recipe, data=replace(recipe.data, tokenizer=run_data.tokenizer))
    # an encoder learns each token's state, too: embeddings alone teach the user's domain and forget the others
    distill = recipe.distill
    is_usual = not any(setting.startswith("distill.") for setting in settings)
    if recipe.data.task == "sentence-embedding" and distill is not None and is_usual and not distill.hidden_weight:
        recipe = replace(recipe, distill=replace(distill, hidden_weight=TOKEN_WEIGHT, layers="output"))
    if not any(setting.startswith("schedule.steps=") for setting in settings):  # the minutes limit the healing
        schedule = replace(recipe.schedule, epochs=1.0, steps=None, tokens=None, warmup=0.0, cooldown=0.0)
        recipe = replace(recipe, schedule=schedule)
    return recipe


def _short(recipe: TrainingRecipe, shell: nn.Module, settings: Sequence[str]) -> TrainingRecipe:
    """Return a language model's recipe with samples and batches small enough for one core, unless the user set them."""
    data, schedule = recipe.data, recipe.schedule
    if data.task not in ("causal-lm", "masked-lm"):
        return recipe
    if data.length is None:
        _, positions = vocabulary_size(shell, data.task)
        data = replace(data, length=min(LENGTH, positions or LENGTH))
    if not any(setting.startswith("schedule.batch_size=") for setting in settings):
        schedule = replace(schedule, batch_size=min(BATCH, schedule.batch_size))
    return replace(recipe, data=data, schedule=schedule)


def _check_outputs(name: str, recipe: TrainingRecipe, shell: nn.Module, splits: Splits) -> None:
    """Raise LeanifyError for a classifier of other classes than the data's: its score would be chance."""
    data, classes, config = recipe.data, splits.classes, getattr(shell, "config", None)
    outputs: Any = getattr(config, "num_labels", None) if is_hf(shell) else getattr(shell, "num_classes", None)
    if data.task in own_texts.TASKS and not is_code(data.name):
        classes = classes or 1
    if data.task in ("classification", *own_texts.TASKS) and outputs and classes and outputs != classes:
        raise LeanifyError(
            f"{name} tells {outputs:,} classes apart and {data.path} has {classes:,}, so its score would be chance; "
            f"{remedy(name, recipe)}"
        )
    if splits.labels.kind == "other":
        raise LeanifyError(
            f"the labels are not those of {name}: {splits.labels.lists}. Name them alike, or {remedy(name, recipe)}"
        )


def remedy(name: str, recipe: TrainingRecipe) -> str:
    """The line that trains a head for the data."""
    return f"train it first, leanify train {name} --set data.path={recipe.data.path}, and shrink that run"
