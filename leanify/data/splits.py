"""Load the data of a recipe's [data] section, through the one module that knows the data set."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
from torch import nn

from leanify.data.samples import Selection, Splits
from leanify.errors import DataError, RecipeError
from leanify.runs.recipe import DataSection
from leanify.runs.task_names import TASKS
from leanify.upstream.wall import wall

# Modules by data set name, each with splits(data, model) → Splits; those of other data are in `TASKS`.
NAMED = {
    "digits": "data.images.digits",
    "farthest-point": "paper.farthest_point",
    "lra-image": "paper.lra_image",
    "lra-listops": "paper.listops",
    "lra-pathfinder": "paper.pathfinder",
    "lra-retrieval": "paper.aan",
    "lra-text": "paper.imdb",
}
DRAWN = ("lra-listops", "lra-pathfinder")  # generated data sets, which have [data.options]


def splits_of(data: DataSection, model: nn.Module) -> Splits:
    """Load a recipe's data in the form that the model takes. Raises DataError and RecipeError."""
    if not 0 <= data.holdout < 1:
        raise RecipeError(f"data.holdout is {data.holdout:g}; it must be a share of train, at least 0 and below 1")
    if data.options and data.name not in DRAWN:
        raise RecipeError(f"data.options apply only to {' and '.join(DRAWN)}, not to {data.name}")
    file = NAMED.get(data.name) or TASKS[data.task].data
    if file is None:
        raise RecipeError(f"{data.name} is not a data set for {data.task}; built in: {', '.join(NAMED)}")
    with wall(f"the data {data.name!r} cannot be read", DataError):
        found: Splits = importlib.import_module(f"leanify.{file}").splits(data, model)
    if data.judge and found.test is None:  # every other validation sample then chooses nothing
        count = len(found.validation)
        if count < 2:
            raise DataError(f"{found.description}: one validation sample cannot both choose and judge; two are needed")
        choosing = Selection(found.validation, np.arange(0, count, 2))
        found = replace(found, validation=choosing, test=Selection(found.validation, np.arange(1, count, 2)))
    if data.test is not None and found.test is None:
        raise RecipeError(f"data.test is {data.test}, but there is no such split of {found.description}; remove it")
    return found
