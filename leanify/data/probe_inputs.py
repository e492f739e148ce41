"""Inputs for measuring a model: from files, or random ones of the model's kind, with a description."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core import recipe as recipes
from leanify.core.errors import DataError
from leanify.core.files.reading import preview
from leanify.core.path_kinds import RECIPE, is_run
from leanify.data.images.batches import ImageFolder
from leanify.data.texts import text
from leanify.layouts import columns
from leanify.layouts.image_files import find_split_folder
from leanify.upstream.inputs import example_inputs
from leanify.upstream.origin import is_hf
from leanify.upstream.reraise import reraise_as, reraise_in_iteration

InputBatch = dict[str, Tensor]


@dataclass
class Feed:
    """Batches to iterate over once, and their description. ``notes`` lists images skipped so far."""

    description: str
    batches: Iterator[InputBatch]
    folder: ImageFolder | None = None

    @property
    def notes(self) -> list[str]:
        skipped_images = self.folder.skipped if self.folder else []
        if not skipped_images:
            return []
        names = preview([path.name for path in skipped_images])
        return [f"{len(skipped_images)} images could not be read and were skipped: {names}"]


def feed(
    model: nn.Module,
    data: Path | None = None,
    *,
    samples: int,
    batch_size: int = 16,
    tokens: int | None = None,
    seed: int = 0,
    directory: Path | None = None,
    device: str = "cpu",
) -> Feed:
    """Batches of the model's kind of input, from images, texts or a table, or random. Raises DataError.

    ``tokens`` is the length of a text sample; ``directory`` is the model's, whose tokenizer is used.
    """
    # the input's kind decides which data are read
    if samples < 1:
        raise DataError(f"the number of samples is {samples}; it must be at least 1")
    where = f"{data} cannot be read" if data is not None else "no random input can be made for this model"
    with reraise_as(where, DataError):
        name, example = next(iter(example_inputs(model, 1, tokens).items()))
        if data is None:
            inputs = Feed(_random_words(name, example), _random(model, samples, batch_size, tokens, seed))
        elif not data.exists():
            raise DataError(f"{data} does not exist")
        elif name == "input_ids":
            inputs = _texts(model, data_file(data), samples, batch_size, example.shape[-1], directory)
        elif name == "points":
            raise DataError("this model takes points, which are always generated; omit the data")
        elif not data.is_dir():
            raise DataError(f"{data} is a file, but this model takes images; name a folder of images")
        else:
            section = recipes.load(directory / RECIPE).data if directory is not None and is_run(directory) else None
            folder = ImageFolder(data, seed, section)
            images = folder.batches(samples, batch_size, example.shape[1:], *_scale(model, example.shape[1]))
            inputs = Feed(f"images from {data}", ({name: image} for image in images), folder)
    # batches on the device; whatever a reader raises becomes a DataError
    read = reraise_in_iteration(inputs.batches, where, DataError)
    device_batches = ({name: value.to(device) for name, value in batch.items()} for batch in read)
    return replace(inputs, batches=device_batches)


def _scale(model: nn.Module, channels: int) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel; 0.5 if upstream does not specify them."""
    config = getattr(model, "pretrained_cfg", None) or {}
    mean, std = (list(config.get(key) or [0.5]) for key in ("mean", "std"))
    return (mean, std) if len(mean) == channels else (mean[:1] * channels, std[:1] * channels)


def _random(model: nn.Module, samples: int, batch_size: int, tokens: int | None, seed: int) -> Iterator[InputBatch]:
    torch.manual_seed(seed)
    for start in range(0, samples, batch_size):
        yield example_inputs(model, min(batch_size, samples - start), tokens)


def _random_words(name: str, example: Tensor) -> str:
    shape = " × ".join(map(str, example.shape[1:]))
    if name == "points":
        return f"random input: {example.shape[1]} points on a sphere in {example.shape[2]} dimensions"
    if name == "input_ids":
        return f"random input: {shape} token ids, uniform over the vocabulary"
    return f"random input: {shape} standard normal pixels, not images"


def data_file(data: Path) -> Path:
    """A folder's training split, as `leanify train` finds it. Raises DataError."""
    if not data.exists():
        raise DataError(f"{data} does not exist")
    if not data.is_dir():
        return data
    return (
        columns.find_split_file(data, "train", (*columns.TABLES, *columns.TEXT_FILES))
        or find_split_folder(data, "train")
        or data
    )


def _texts(model: nn.Module, data: Path, samples: int, batch_size: int, tokens: int, directory: Path | None) -> Feed:
    if data.is_dir():
        raise DataError(f"{data} is a folder, but this model takes text; name a .txt, .csv, .tsv or .jsonl file")
    any_model: Any = model
    vocab = any_model.config.vocab_size if is_hf(model) else any_model.vocab
    encode, description = text.encoder(directory, vocab)
    return Feed(f"text from {data} by {description}", text.batches(data, encode, samples, batch_size, tokens))
