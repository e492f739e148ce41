"""Load the data of a recipe's [data] section: by its task's reader, or by code that the section names."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.recipe import DataSection
from leanify.core.recipe_code import is_code
from leanify.core.task_names import TASKS
from leanify.data.common import refuse_keys, subset
from leanify.data.samples import DatasetSamples, Selection, Splits
from leanify.upstream import user_modules
from leanify.upstream.libraries import reraise_as

BUILT_IN = {"digits": "data.images.digits"}  # modules by data set name; modules of the user's own data are in `TASKS`


def load_splits(data: DataSection, model: nn.Module) -> Splits:
    """Load a recipe's data in the form that the model takes. Raises DataError and RecipeError."""
    if not 0 <= data.holdout < 1:
        raise RecipeError(f"data.holdout is {data.holdout:g}; it must be a share of train, at least 0 and below 1")
    if data.options and not is_code(data.name):
        raise RecipeError(f"data.options are for the function of data.name = file.py:function, not for {data.name}")
    with reraise_as(f"the data {data.name!r} cannot be read", DataError):
        if is_code(data.name):
            splits = _call_code(data, model)
        else:
            # the reader of a built-in data set, or of the user's own data for this task
            file = BUILT_IN.get(data.name) or TASKS[data.task].data
            if file is None:
                raise RecipeError(
                    f"{data.name} is not a data set for {data.task}; name the function that reads it: "
                    "--set data.name=file.py:function"
                )
            splits = importlib.import_module(f"leanify.{file}").splits(data, model)

    # every other validation sample judges, and the rest choose
    if data.judge and splits.test is None:
        count = len(splits.validation)
        if count < 2:
            raise DataError(f"{splits.description}: one validation sample cannot both choose and judge; two are needed")
        choosing = Selection(splits.validation, np.arange(0, count, 2))
        splits = replace(splits, validation=choosing, test=Selection(splits.validation, np.arange(1, count, 2)))
    if data.test is not None and splits.test is None:
        raise RecipeError(f"data.test is {data.test}, but there is no such split of {splits.description}; remove it")
    return splits


def _call_code(data: DataSection, model: nn.Module) -> Splits:
    """The splits that a function of the user's returns: `Splits`, or two torch data sets and the number of classes."""
    function = user_modules.load_function(user_modules.origin_of_code(data.name), user_modules.DATA)
    result: Any = function(data, model)
    if isinstance(result, Splits):
        return result
    if not (isinstance(result, tuple) and len(result) in (2, 3)):
        raise DataError(
            f"{data.name} returned a {type(result).__name__}; it must return two torch data sets, to train and to "
            "validate, whose items are (inputs, target), then for classes their number; or leanify.data.samples.Splits"
        )
    train, validation, *number = result
    if not number and data.task.endswith("classification"):
        raise DataError(
            f"{data.name} returned two data sets; for {data.task} return the number of classes as a third item"
        )
    refuse_keys(data, "holdout")
    learnt = subset(DatasetSamples(train), data)
    description = f"{data.name}, {len(learnt):,} samples to train and {len(validation):,} to validate"
    return Splits(learnt, DatasetSamples(validation), description, classes=next(iter(number), None))
