"""Image of the Long-Range Arena (Tay et al. 2020): images as sequences of grey pixels, row by row.

CIFAR-10 (Krizhevsky 2009) is laid out as FOLDER/SPLIT/CLASS/…; a pixel's id is its grey level, 0 … 255.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from torch import nn

from leanify.core.errors import DataError
from leanify.core.recipe import DataSection
from leanify.data.common import data_path, max_length, refuse_keys
from leanify.data.images.folder import class_names, read_picture
from leanify.data.samples import Splits
from leanify.layouts.image_files import ImageFiles
from leanify.layouts.split_names import synonyms
from lra_sequences import Sequences, only_sequences, sequence_splits, split_file

VOCABULARY = 256  # grey levels; nothing is padded


def images(folder: Path, classes: list[str], side: int) -> Sequences:
    """Read images of side × side pixels as sequences of ids, with classes. Raises DataError."""
    from leanify.core.terminal import track

    files = ImageFiles(folder, {name: index for index, name in enumerate(classes)})
    pixels = np.empty((len(files), side * side), dtype=np.uint8)
    labels = np.empty(len(pixels), dtype=np.int64)
    for index in track(range(len(pixels)), f"reading {folder.name}"):
        grey, labels[index] = read_picture(files, index, "L")
        if grey.size != (side, side):
            name = files.filename(index, absolute=True)
            raise DataError(
                f"the image {name} has {grey.width} × {grey.height} pixels; data.length requires {side} × {side}"
            )
        pixels[index] = np.asarray(grey).ravel()
    return Sequences(pixels.ravel(), np.arange(1, len(pixels) + 1) * side**2, labels)


def side_of(data: DataSection, model: nn.Module) -> int:
    """The side of an image in pixels, the square root of the sequence length; 32 if that is unlimited."""
    length = max_length(data, model) or 1024
    side = math.isqrt(length)
    if side**2 != length:
        raise DataError(f"{length} tokens are not a square image; set data.length to a square, say 1024")
    return side


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training, validation and test images of a folder. Raises DataError and RecipeError."""
    only_sequences(data, model, "pixels", vocabulary=VOCABULARY)
    refuse_keys(data, "options")
    return from_folder(data, model, data_path(data))


def from_folder(data: DataSection, model: nn.Module, folder: Path) -> Splits:
    """`splits` from FOLDER/SPLIT/CLASS/….

    With ``data.holdout``, the validation folder serves as the test split if there is no other.
    """
    side = side_of(data, model)
    train = split_file(folder, synonyms(data.train), "folder ")
    classes = class_names(train)
    own = tuple(name for name in synonyms(data.validation) if name not in synonyms("test"))
    validation = None if data.holdout else split_file(folder, own, "folder ")
    test = None
    if data.test is not None:
        test = split_file(folder, (data.test, *own) if data.holdout else (data.test,), "folder ")
    found = [None if split is None else images(_known(split, classes), classes, side) for split in (validation, test)]
    description = f"grey images of {len(classes)} classes in {folder}"
    description += f", tested on {test.name}" if test is not None else ""
    return sequence_splits(
        data, model, images(train, classes, side), *found, description=description, classes=len(classes), cut=False
    )


def _known(folder: Path, classes: list[str]) -> Path:
    """Return the folder; raise DataError if it has a class that train lacks."""
    if unknown := sorted(set(class_names(folder)) - set(classes)):
        raise DataError(f"{folder} has classes that are not in train: {', '.join(unknown[:5])}")
    return folder
