"""Inputs for measuring a model: from files, or random ones of the model's kind, with a description."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from leanify.core import recipe as recipes
from leanify.core.errors import DataError
from leanify.core.files.reading import open_file, preview, read_lines
from leanify.core.path_kinds import RECIPE, is_run
from leanify.data.images.decoding import choose_decoder, recorded_decoder
from leanify.data.texts import tokenizers
from leanify.data.texts.tokens import read_texts
from leanify.layouts import columns
from leanify.layouts.image_files import find_images
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import reraise_as, reraise_in_iteration
from leanify.upstream.origin import is_hf

InputBatch = dict[str, Tensor]
Encode = Callable[[list[str], bool], list[list[int]]]  # texts, whether to add special tokens → ids of each


@dataclass
class Feed:
    """Batches to iterate over once, and their description. ``skipped`` lists the images skipped so far."""

    description: str
    batches: Iterator[InputBatch]
    skipped: list[Path] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        if not self.skipped:
            return []
        names = preview([path.name for path in self.skipped])
        return [f"{len(self.skipped)} images could not be read and were skipped: {names}"]


def feed(
    model: nn.Module,
    data: Path | None,
    *,
    samples: int,
    batch_size: int,
    tokens: int | None,
    seed: int,
    directory: Path | None,
    device: str,
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
            inputs = Feed(_describe_random(name, example), _random(model, samples, batch_size, tokens, seed))
        elif not data.exists():
            raise DataError(f"{data} does not exist")
        elif name == "input_ids":
            inputs = _texts(model, data, samples, batch_size, example.shape[-1], directory)
        elif name == "points":
            raise DataError("this model takes points, which are always generated; omit the data")
        elif not data.is_dir():
            raise DataError(f"{data} is a file, but this model takes images; name a folder of images")
        else:
            section = recipes.load(directory / RECIPE).data if directory is not None and is_run(directory) else None
            folder = ImageFolder(data, seed, section)
            images = folder.batches(samples, batch_size, example.shape[1:], *_scale(model, example.shape[1]))
            inputs = Feed(f"images from {data}", ({name: image} for image in images), folder.skipped)
    # batches on the device; whatever a reader raises becomes a DataError
    read = reraise_in_iteration(inputs.batches, where, DataError)
    device_batches = ({name: value.to(device) for name, value in batch.items()} for batch in read)
    return replace(inputs, batches=device_batches)


# -- random ------------------------------------------------------------------------------------------------------------


def _random(model: nn.Module, samples: int, batch_size: int, tokens: int | None, seed: int) -> Iterator[InputBatch]:
    torch.manual_seed(seed)
    for start in range(0, samples, batch_size):
        yield example_inputs(model, min(batch_size, samples - start), tokens)


def _describe_random(name: str, example: Tensor) -> str:
    shape = " × ".join(map(str, example.shape[1:]))
    if name == "points":
        return f"random input: {example.shape[1]} points on a sphere in {example.shape[2]} dimensions"
    kinds = {"input_ids": "token ids, uniform over the vocabulary"}
    return f"random input: {shape} {kinds.get(name, 'standard normal pixels, not images')}"


# -- images ------------------------------------------------------------------------------------------------------------


class ImageFolder:
    """All images under a folder, in a random order fixed by ``seed``. ``skipped`` lists unreadable files."""

    def __init__(self, folder: Path, seed: int = 0, data: recipes.DataSection | None = None) -> None:
        """``data`` is the [data] of the run that the images are for: they are decoded as its own were."""
        self.folder = folder
        images = sorted(find_images(folder))
        self.paths = [path for path in images if path.is_file()]  # opening a pipe would block
        self.skipped = [path for path in images if not path.is_file()]
        if not self.paths:
            looked_for = ", ".join(columns.IMAGES)
            raise DataError(f"no image in {folder}; looked for {looked_for} there and in its subfolders")
        self.decoder = choose_decoder(self)[0] if data is None else recorded_decoder(data)
        random.Random(seed).shuffle(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, None]:
        """An image's open file, as `choose_decoder` takes it."""
        return open_file(self.paths[index], DataError), None

    def batches(
        self, samples: int, batch_size: int, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]
    ) -> Iterator[Tensor]:
        """Yield up to ``samples`` normalised images in batches (B, *shape); unreadable ones are replaced.

        ``shape`` is (channels, height, width); ``mean`` and ``std`` have one number per channel. Raises
        DataError.
        """
        pixels = (self._read(path, shape) for path in self.paths)
        chosen = islice((image for image in pixels if image is not None), samples)
        empty = True
        while batch := list(islice(chosen, batch_size)):
            empty = False
            yield (torch.stack(batch) - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
        if empty:
            raise DataError(f"none of the {len(self.paths)} images in {self.folder} could be read")

    def _read(self, path: Path, shape: Sequence[int]) -> Tensor | None:
        """An image as (C, H, W) in 0 … 1, scaled to cover the size and centre-cropped; None if unreadable."""
        from PIL import Image, ImageOps

        # resized to cover the model's size, and cropped at the centre
        channels, height, width = shape
        try:
            with open_file(path, DataError) as file:
                image = self.decoder(file, "L" if channels == 1 else "RGB", path)
        except DataError:
            self.skipped.append(path)
            return None
        image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)
        return pixels[None] if channels == 1 else pixels.permute(2, 0, 1)


def _scale(model: nn.Module, channels: int) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel; 0.5 if upstream does not specify them."""
    config = getattr(model, "pretrained_cfg", None) or {}
    mean, std = (list(config.get(key) or [0.5]) for key in ("mean", "std"))
    return (mean, std) if len(mean) == channels else (mean[:1] * channels, std[:1] * channels)


# -- texts -------------------------------------------------------------------------------------------------------------


def _texts(model: nn.Module, data: Path, samples: int, batch_size: int, tokens: int, directory: Path | None) -> Feed:
    if data.is_dir():  # its training split, as `leanify train` finds it
        file = columns.find_split_file(data, "train", (*columns.TABLES, *columns.TEXT_FILES))
        if file is None:
            raise DataError(f"{data} is a folder, but this model takes text; name a .txt, .csv, .tsv or .jsonl file")
        data = file
    any_model: Any = model
    vocab = any_model.config.vocab_size if is_hf(model) else any_model.vocab
    encode, description = text_encoder(directory, vocab)
    return Feed(f"text from {data} by {description}", text_batches(data, encode, samples, batch_size, tokens))


def text_encoder(directory: Path | None, vocab: int) -> tuple[Encode, str]:
    """A function from text to token ids, and its description: the directory's tokenizer, or bytes."""
    if directory is None or not tokenizers.has_tokenizer(directory):
        words = f"bytes modulo {vocab}, as there is no tokenizer"
        return (lambda texts, _: [[byte % vocab for byte in text.encode()] for text in texts]), words
    tokenizer = tokenizers.load(directory, "put the tokenizer that the model was trained with there")

    def encode(texts: list[str], with_ends: bool) -> list[list[int]]:
        return [ids.tolist() for ids in tokenizers.encode(tokenizer, texts, add_special_tokens=with_ends)["input_ids"]]

    return encode, f"the tokenizer in {directory}"


def text_batches(path: Path, encode: Encode, samples: int, batch_size: int, tokens: int) -> Iterator[InputBatch]:
    """Yield batches of input_ids and attention_mask (B, N), right-padded, with up to ``samples`` samples.

    In a table each row is a sample, truncated to ``tokens``. A text file is cut into pieces of ``tokens``; an
    incomplete last piece is dropped unless it is the only one. Raises DataError.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    encodings = _pieces(path, encode, tokens)
    if columns.is_table(path):
        encodings = _rows(path, encode, tokens, batch_size)
    chosen = islice((ids for ids in encodings if ids), samples)
    empty = True
    while batch := list(islice(chosen, batch_size)):
        empty = False
        rows = pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True)
        mask = pad_sequence([torch.ones(len(ids), dtype=torch.long) for ids in batch], batch_first=True)
        yield {"input_ids": rows, "attention_mask": mask}
    if empty:
        raise DataError(f"{path} has no text")


def _rows(path: Path, encode: Encode, tokens: int, batch_size: int) -> Iterator[list[int]]:
    """The texts of a table, encoded as many at a time as a batch has."""
    texts = (text[: tokenizers.LONGEST] for text in read_texts(path))
    while some := list(islice(texts, batch_size)):
        yield from (ids[:tokens] for ids in encode(some, True))


def _pieces(path: Path, encode: Encode, tokens: int) -> Iterator[list[int]]:
    """Consecutive pieces of a text file, read 64 lines at a time."""
    buffer: list[int] = []
    is_cut = False
    lines = read_lines(path, DataError)
    while part := "".join(islice(lines, 64)):
        for start in range(0, len(part), tokenizers.LONGEST):
            buffer += encode([part[start : start + tokenizers.LONGEST]], False)[0]
            full_length = len(buffer) // tokens * tokens
            yield from (buffer[place : place + tokens] for place in range(0, full_length, tokens))
            is_cut, buffer = is_cut or full_length > 0, buffer[full_length:]
    if buffer and not is_cut:
        yield buffer
