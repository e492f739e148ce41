"""[data] of a recipe → training and validation samples, by the one file that knows the data set."""

from __future__ import annotations

import importlib

from torch import nn

from leanify.data.samples import Splits
from leanify.errors import DataError, RecipeError
from leanify.sources.recipe import DataSection
from leanify.upstream.wall import wall

# A file of this folder by the name of the data set, else by the task: each has splits(data, model) → Splits.
NAMED = {
    "digits": "digits",
    "farthest-point": "farthest_point",
    "lra-image": "lra_image",
    "lra-listops": "listops",
    "lra-pathfinder": "pathfinder",
    "lra-retrieval": "aan",
    "lra-text": "imdb",
}
OF_TASK = {
    "classification": "image_folder",
    "text-classification": "own_texts",
    "text-regression": "own_texts",
    "multi-label-classification": "own_texts",
    "token-classification": "own_texts",
    "causal-lm": "corpus",
    "masked-lm": "masked",
    "glue": "glue",
    "sentence-embedding": "sentences",
}
DRAWN = ("lra-listops", "lra-pathfinder")  # those that [data.options] means something to


def splits_of(data: DataSection, model: nn.Module) -> Splits:
    """The samples that a recipe names, in the shape that the model takes. Raises DataError and RecipeError."""
    if not 0 <= data.holdout < 1:
        raise RecipeError(f"data.holdout is {data.holdout:g}; it is a share of the training samples, 0 … 1")
    if data.options and data.name not in DRAWN:
        raise RecipeError(f"data.options are for what is drawn, {' and '.join(DRAWN)}, not for {data.name}")
    file = NAMED.get(data.name) or OF_TASK.get(data.task)
    if file is None:
        raise RecipeError(f"{data.name} is not a data set for {data.task}; known by name: {', '.join(NAMED)}")
    with wall(f"the data {data.name!r} cannot be read", DataError):
        found: Splits = importlib.import_module(f"leanify.data.{file}").splits(data, model)
    if data.test is not None and found.test is None:
        raise RecipeError(f"data.test is {data.test}, and {found.words} have no such split: leave it out")
    return found
