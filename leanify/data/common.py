"""Helpers that data sets share: subsets and hold-outs, file locations, checks against the model's inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.recipe import DataSection
from leanify.data.samples import Selection
from leanify.data.sampling import HOLDOUT, permutation
from leanify.layouts.image_files import data_folder
from leanify.upstream.origin import get_origin, is_hf, text_config

HOLD_OUT = "to hold out a tenth of train instead: --set data.holdout=0.1"


def subset(samples: Any, data: DataSection) -> Any:
    """The subset given by ``data.samples`` and ``data.subset``; all samples if not set."""
    if data.samples is None or data.samples >= len(samples):
        return samples
    return Selection(samples, choose_indices(samples, data.samples, data.subset))


def choose_indices(dataset: Any, samples: int, how: str) -> np.ndarray:
    """Sorted indices of the first samples, or of a random subset that does not depend on the run's seed.

    A random subset keeps the classes' proportions: the first samples of a data set may be of one class only.
    """
    samples = min(samples, len(dataset))
    if how == "first" or samples == len(dataset):
        return np.arange(samples)
    order = permutation(HOLDOUT, 0, 1, len(dataset))
    labels = getattr(dataset, "labels", None)
    if labels is None or np.asarray(labels).dtype.kind == "f":
        return np.sort(order[:samples])
    shuffled_labels = np.asarray(labels)[order]
    classes, counts = np.unique(shuffled_labels, return_counts=True)
    places = []
    for kind, share in zip(classes, apportion(counts, samples), strict=True):
        places.append(order[shuffled_labels == kind][:share])
    return np.sort(np.concatenate(places))


def apportion(counts: np.ndarray, samples: int) -> np.ndarray:
    """Apportion ``samples`` to classes in proportion to ``counts``, by the largest-remainder method."""
    exact = counts * (samples / counts.sum())
    shares: np.ndarray = np.floor(exact).astype(int)
    largest_remainders = np.argsort(shares - exact, kind="stable")[: samples - shares.sum()]
    shares[largest_remainders] += 1
    return shares


def hold_out(dataset: Any, share: float, plain_dataset: Any = None) -> tuple[Any, Any]:
    """Split off a random share, which the run's seed does not change, for validation: (train, validation).

    ``plain_dataset`` is the same data without augmentation, for validation. Raises DataError for an empty part.
    """
    order = permutation(HOLDOUT, 0, 0, len(dataset))
    cut = math.ceil(share * len(dataset))
    if not 0 < cut < len(dataset):
        raise DataError(f"{len(dataset)} samples cannot be split {1 - share:g} to {share:g}: one part would be empty")
    return Selection(dataset, np.sort(order[cut:])), Selection(plain_dataset or dataset, np.sort(order[:cut]))


def spread_places(count: int, number: int) -> list[int]:
    """Return at most ``number`` places of ``count`` things, from the first to the last at equal distances."""
    places: list[int] = np.linspace(0, count - 1, min(count, number)).astype(int).tolist()
    return places


def data_path(data: DataSection) -> Path:
    """The path of the recipe's data. Raises DataError if it is unset, missing, or a pipe or device."""
    if data.path is None:
        raise DataError(f"the recipe has no data.path for {data.name}; name it with --set data.path=PATH")
    path = Path(data.path).expanduser()
    if not path.exists():
        raise DataError(f"data.path {data.path} does not exist")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"data.path must be a file or a folder; {data.path} is a pipe or a device")
    return data_folder(path)


def refuse_keys(data: DataSection, *keys: str) -> None:
    """Raise RecipeError if a key is set that does not apply to this data set."""
    plain = DataSection(data.name, data.task)
    for key in keys:
        if getattr(data, key) != getattr(plain, key):
            raise RecipeError(f"data.{key} does not apply to {data.name} for {data.task}; remove it")


def vocabulary_size(model: nn.Module, task: str) -> tuple[int, int | None]:
    """A text model's vocabulary size and number of positions (None if unlimited). Raises DataError."""
    any_model: Any = model
    if isinstance(getattr(model, "vocab", None), int):  # a module of the user's own says it itself
        return any_model.vocab, getattr(any_model, "length", None)
    config: Any = text_config(any_model.config) if is_hf(model) else None
    if not hasattr(config, "vocab_size"):
        raise DataError(f"{task} needs a text model, but {get_origin(model)} takes images")
    # positions that the table offers to tokens
    longest = getattr(config, "max_position_embeddings", None)
    if longest == -1:  # XLNet's word for no limit
        longest = None
    for name, table in model.named_modules():  # RoBERTa's family starts after the position reserved for padding
        if longest is not None and name.endswith("position_embeddings"):
            first = getattr(table, "padding_idx", None)
            if first is not None:
                longest -= first + 1
            break
    return config.vocab_size, longest


def max_length(data: DataSection, model: nn.Module) -> int | None:
    """The longest sample in tokens: data.length, or the model's positions; None if unlimited."""
    _, positions = vocabulary_size(model, data.task)
    if positions is not None and data.length is not None and data.length > positions:
        raise DataError(
            f"data.length is {data.length} tokens, but the model has only {positions} positions: "
            f"--set data.length={positions}"
        )
    return data.length or positions


def max_text_length(data: DataSection, model: nn.Module) -> int:
    """`max_length` for text that is cut into pieces, so that it must be finite."""
    refuse_keys(data, "img_size", "rand_augment")
    length = max_length(data, model)
    if length is None:
        raise RecipeError("the model has no maximum length; add --set data.length=256, the tokens of a sample")
    return length
