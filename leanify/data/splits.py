"""[data] of a recipe → training and validation samples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from leanify import upstream
from leanify.data.order import HOLDOUT, permutation
from leanify.data.samples import Part, Splits
from leanify.errors import DataError, RecipeError
from leanify.inputs import example_inputs
from leanify.recipe import Data


def splits_of(data: Data, model: nn.Module) -> Splits:
    """The samples that a recipe names, in the shape that the model takes. Raises DataError and RecipeError."""
    if not 0 <= data.holdout < 1:
        raise RecipeError(f"data.holdout is {data.holdout:g}; it is a share of the training samples, 0 … 1")
    if data.name == "digits":
        return _digits(data, model)
    if data.task == "causal-lm":
        return _text(data, model)
    return _pictures(data, model)


def _pictures(data: Data, model: nn.Module) -> Splits:
    from leanify.data.pictures import pictures

    if upstream.is_own(model):
        raise DataError(
            f"classification of images needs a model that takes some; {upstream.origin_of(model)} is of text"
        )
    if len(data.crop) != 2 or not 0 < data.crop[0] <= data.crop[1] <= 1:
        raise RecipeError(f"data.crop is {list(data.crop)}; it is two shares of the area, the smaller one first")
    folder = folder_of(data)
    train, validation, classes = pictures(data, model, folder)
    if data.holdout:
        train, validation = held_out(train, data.holdout, validation)
    train = first(train, data.samples)
    words = (
        f"{len(train):,} images of {len(classes):,} classes in {folder} to train and {len(validation):,} to validate"
    )
    return Splits(train, validation, words, classes=len(classes))


def _text(data: Data, model: nn.Module) -> Splits:
    from leanify.data.corpus import corpora

    for key, value in (("img_size", data.img_size), ("rand_augment", data.rand_augment)):
        if value is not None:
            raise RecipeError(f"data.{key} is for images, and the task is {data.task}")
    any_model: Any = model
    if upstream.is_hf(model):
        config = any_model.config.get_text_config()
        vocabulary, positions = config.vocab_size, getattr(config, "max_position_embeddings", None)
    elif upstream.is_own(model):
        vocabulary, positions = any_model.vocab, any_model.length
    else:
        raise DataError(f"causal-lm needs a model of text, and {upstream.origin_of(model)} takes images")
    length = data.length or positions
    if length is None:
        raise RecipeError("the model has no longest length: give data.length, the tokens of a sample")
    if positions is not None and length > positions:
        raise DataError(f"data.length is {length} tokens, and the model has {positions} positions")
    train, validation, share, words = corpora(data, length, vocabulary)
    return Splits(train, validation, words, bytes_per_target=share)


def _digits(data: Data, model: nn.Module) -> Splits:
    from leanify.data.digits import Digits

    if data.task != "classification":
        raise RecipeError(f"the digits are for classification, not for {data.task}")
    if data.img_size is not None or data.rand_augment is not None:
        raise RecipeError("the digits are tensors of 8 × 8 pixels: img_size and rand_augment do not apply")
    whole = Digits()
    check_shape(model, whole.shape, "the digits", "img_size=8, in_chans=1")
    train, validation = held_out(first(whole, data.samples), data.holdout or 0.2)
    words = f"digits, {len(train):,} images to train and {len(validation):,} to validate"
    return Splits(train, validation, words, classes=whole.classes)


def first(whole: Any, samples: int | None) -> Any:
    """The first so many samples."""
    return whole if samples is None else Part(whole, np.arange(min(samples, len(whole))))


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


def folder_of(data: Data) -> Path:
    """Where the recipe's files lie."""
    if data.path is None:
        raise DataError(f"the recipe does not say where {data.name} lies on this machine: --set data.path=PATH")
    path = Path(data.path).expanduser()
    if not path.exists():
        raise DataError(f"data.path {data.path} does not exist")
    return path
