"""What loaders of data sets share: parts of a whole, the location of files, and the inputs that a model takes."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from leanify.data.samples import Part
from leanify.data.sampling import HOLDOUT, permutation
from leanify.errors import DataError, RecipeError
from leanify.sources.recipe import DataSection
from leanify.upstream.inputs import example_inputs
from leanify.upstream.origin import is_hf, is_own, origin_of


def subset(whole: Any, data: DataSection) -> Any:
    """The samples that ``data.samples`` asks for, all where it does not."""
    if data.samples is None or data.samples >= len(whole):
        return whole
    return Part(whole, chosen(whole, data.samples, data.subset))


def chosen(whole: Any, samples: int, how: str) -> np.ndarray:
    """Sorted indices of ``samples`` samples: the first ones, or a random subset that is the same for every seed.

    Where the samples have classes, a random subset has them in the whole's proportions: data sets often lie class by
    class, and the first samples would be of one.
    """
    samples = min(samples, len(whole))
    if how == "first" or samples == len(whole):
        return np.arange(samples)
    order = permutation(HOLDOUT, 0, 1, len(whole))
    labels = getattr(whole, "labels", None)
    if labels is None or np.asarray(labels).dtype.kind == "f":
        return np.sort(order[:samples])
    drawn = np.asarray(labels)[order]
    classes, counts = np.unique(drawn, return_counts=True)
    places = [order[drawn == kind][:share] for kind, share in zip(classes, shares(counts, samples), strict=True)]
    return np.sort(np.concatenate(places))


def shares(counts: np.ndarray, samples: int) -> np.ndarray:
    """How many of ``samples`` each class gets, in proportion to ``counts``; the largest remainders are rounded up."""
    exact = counts * (samples / counts.sum())
    whole = np.floor(exact).astype(int)
    most = np.argsort(whole - exact, kind="stable")[: samples - whole.sum()]
    whole[most] += 1
    rounded: np.ndarray = whole
    return rounded


def held_out(whole: Any, share: float, unchanged: Any = None) -> tuple[Any, Any]:
    """A fixed random share held out, the same whatever the run's seed: runs are compared on the same samples.

    ``unchanged`` has the same samples as they are evaluated, where training changes them.
    """
    order = permutation(HOLDOUT, 0, 0, len(whole))
    cut = math.ceil(share * len(whole))
    if not 0 < cut < len(whole):
        raise DataError(f"{len(whole)} samples cannot be split {1 - share:g} to {share:g}: a part would be empty")
    return Part(whole, np.sort(order[cut:])), Part(unchanged or whole, np.sort(order[:cut]))


def check_shape(model: nn.Module, shape: tuple[int, ...], what: str, overrides: str) -> None:
    """Raise unless the model takes samples of this shape."""
    wanted = tuple(next(iter(example_inputs(model, 1, device="cpu").values())).shape[1:])
    if wanted != shape:
        have, takes = (" × ".join(map(str, sizes)) for sizes in (shape, wanted))
        raise DataError(f"{what} are {have}, and the model takes {takes}; in [model.override] say {overrides}")


def folder_of(data: DataSection) -> Path:
    """Where the recipe's files lie."""
    if data.path is None:
        raise DataError(f"the recipe does not say where {data.name} is on this machine: --set data.path=PATH")
    path = Path(data.path).expanduser()
    if not path.exists():
        raise DataError(f"data.path {data.path} does not exist")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"data.path {data.path} is a pipe or a device; it must be a file or a folder")
    return path


def refuse(data: DataSection, *keys: str) -> None:
    """Raise RecipeError for a key that is set and means nothing to this data set."""
    plain = {entry.name: entry.default for entry in fields(DataSection)}
    for key in keys:
        if getattr(data, key) != plain[key]:
            raise RecipeError(f"data.{key} means nothing to {data.name}: leave it out")


def vocabulary_of(model: nn.Module, task: str) -> tuple[int, int | None]:
    """How many tokens a model of text knows, and how many positions it has, None for any number. Raises DataError."""
    any_model: Any = model
    if is_hf(model) and hasattr(any_model.config.get_text_config(), "vocab_size"):
        config = any_model.config.get_text_config()
        longest = getattr(config, "max_position_embeddings", None)
        return config.vocab_size, None if longest is None else longest - _first_position(model)
    if is_own(model) and hasattr(any_model, "vocab"):
        return any_model.vocab, any_model.length
    raise DataError(f"{task} needs a model of text, and {origin_of(model)} takes images")


def _first_position(model: nn.Module) -> int:
    """Where positions begin: RoBERTa and its kin count them from behind the one that padding has."""
    tables = (part for name, part in model.named_modules() if name.endswith("position_embeddings"))
    first = next((getattr(table, "padding_idx", None) for table in tables), None)
    return 0 if first is None else first + 1


def length_of(data: DataSection, model: nn.Module) -> int | None:
    """How many tokens a sample may have: data.length, else the model's positions; None for any number."""
    _, positions = vocabulary_of(model, data.task)
    if positions is not None and data.length is not None and data.length > positions:
        raise DataError(f"data.length is {data.length} tokens, and the model has {positions} positions")
    return data.length or positions


def length_of_text(data: DataSection, model: nn.Module) -> int:
    """How many tokens a piece of a text has, which must have an end. Raises RecipeError and DataError."""
    for key, value in (("img_size", data.img_size), ("rand_augment", data.rand_augment)):
        if value is not None:
            raise RecipeError(f"data.{key} is for images, and the task is {data.task}")
    length = length_of(data, model)
    if length is None:
        raise RecipeError("the model has no longest length: give data.length, the tokens of a sample")
    return length
