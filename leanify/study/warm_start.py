"""Warm starts: all designs of a study start from one trained model, carried into each design's shape.

What each design keeps is chosen on batches of the recipe's training split (`leanify.warm.carry`); the baseline takes
the weights unchanged. A start is a lean directory in the study's folder, written once. All seeds start from it and
differ in the order of samples and in augmentation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from leanify.data.samples import Reader, Splits
from leanify.data.splits import splits_of
from leanify.design.prices.counting import token_counts
from leanify.lens import surgery
from leanify.lens.sites import locate
from leanify.runs.recipe import TrainingRecipe
from leanify.sources import find, lean_directory
from leanify.sources.weights import is_headless
from leanify.study.folder import StudyFolder
from leanify.study.measure import on_meta
from leanify.terminal import note, progress
from leanify.training.preparation import data_of, trainable
from leanify.units import damage as damage_words
from leanify.upstream.inputs import example_inputs
from leanify.warm.carry import Step, carry
from leanify.warm.donor import Donor

MOST = 512  # samples, however short they are
BATCHES, SIZE = 8, 8  # 64 samples: even batches choose what to keep, odd batches measure the damage


def prepare(folder: StudyFolder) -> None:
    """Write the missing starts of a study with ``weights``. Raises LeanifyError if weights cannot be carried over."""
    plan = folder.plan
    todo = [design for design in plan.designs if plan.weights and not folder.start(design.name).exists()]
    if not todo:
        return
    model = plan.recipe.model
    whole = find.with_weights(find.find(model.source, overrides=model.override, cls=model.cls), plan.weights)
    splits = splits_of(data_of(trainable(plan.recipe)), whole)
    batches = _batches(splits, whole, BATCHES * SIZE, plan.seeds[0])
    shape = surgery.read(whole)
    donor = Donor(whole, batches[::2], batches[1::2], is_headless(whole))
    for design in todo:
        wanted = design.model.shape(shape)
        made = whole
        if wanted != shape:
            torch.manual_seed(plan.seeds[0])
            with progress(f"carrying weights over to {design.name}", None):
                made = carry(donor, wanted, partial(_heard, design.name)).model
        lean_directory.save(made, folder.start(design.name), title=f"The design {design.name} of a study")


def _heard(name: str, step: Step) -> None:
    note(f"{name}: {step.words}, damage {damage_words(step.damage)}")


def batches_of(recipe: TrainingRecipe, splits: Splits, model: nn.Module, tokens: int) -> list[dict[str, Any]]:
    """Batches from the training split, so many that they hold some tokens; four batches at least, if there are."""
    lengths = getattr(splits.train, "lengths", None)
    if lengths is not None:
        length = max(1, int(lengths.mean()))
    elif recipe.data.task == "classification":
        length = min(token_counts(locate(on_meta(recipe.model))))
    else:
        length = next(iter(example_inputs(model, 1, recipe.data.length, device="meta").values())).shape[-1]
    return _batches(splits, model, max(4 * SIZE, min(MOST, -(-tokens // length))), recipe.run.seed)


def _batches(splits: Splits, model: nn.Module, most: int, seed: int) -> list[dict[str, Any]]:
    """Batches of model inputs from the training split, chosen by the seed."""
    most = min(most, len(splits.train))
    drawn = np.random.default_rng(seed).choice(len(splits.train), most, replace=False)
    keys = [[(0, int(index)) for index in part] for part in np.array_split(drawn, max(2, most // SIZE))]
    main = next(iter(example_inputs(model, 1, device="meta")))
    inputs = [splits.scaled(inputs) for inputs, _ in Reader(splits.train, keys, seed, 0)]
    return [dict(found) if isinstance(found, dict) else {main: found} for found in inputs]
