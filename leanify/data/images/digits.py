"""scikit-learn's copy of the UCI handwritten digits: 1,797 images of 8 × 8 pixels, no download."""

from __future__ import annotations

from shlex import quote

import numpy as np
import torch
from torch import Tensor, nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.recipe import DataSection
from leanify.data.common import hold_out, refuse_keys, subset
from leanify.data.samples import Splits
from leanify.upstream.inputs import example_inputs


class Digits:
    """All digits in memory, with pixels scaled from 0 … 16 to −1 … 1."""

    targets = None
    workers = 0
    classes = 10

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        self.images = torch.from_numpy(digits.images.astype(np.float32) / 8 - 1)[:, None]
        self.labels = torch.from_numpy(digits.target.astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """→ (B, 1, 8, 8) and (B,)"""
        chosen = torch.from_numpy(indices)
        return self.images[chosen], self.labels[chosen]


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training and validation digits; holds out a fifth by default. Raises DataError and RecipeError."""
    # keys that have no meaning for these pictures
    if data.task != "classification":
        raise RecipeError(f"the digits are for classification, not for {data.task}")
    refuse_keys(data, "img_size", "rand_augment")
    if data.path is not None:
        raise RecipeError(
            f"data.path is {data.path}, but this recipe trains on the digits of scikit-learn, which are no folder; "
            f"what suits your own data is said by leanify train {quote(str(data.path))}"
        )
    digits = Digits()
    input_shape = tuple(next(iter(example_inputs(model, 1, device="cpu").values())).shape[1:])
    if input_shape != (1, 8, 8):
        takes = " × ".join(map(str, input_shape))
        raise DataError(
            f"the digits are 1 × 8 × 8, but the model takes {takes}; set img_size=8, in_chans=1 in [model.override]"
        )
    train, validation = hold_out(subset(digits, data), data.holdout or 0.2)
    description = f"digits, {len(train):,} images to train and {len(validation):,} to validate"
    return Splits(train, validation, description, images=True, classes=digits.classes)
