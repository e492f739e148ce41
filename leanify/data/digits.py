"""scikit-learn's copy of the UCI handwritten digits: 1,797 real images of 8 × 8, ten classes, no download."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leanify.errors import DataError


class Digits:
    """In memory; pixels 0 … 16 brought to −1 … 1."""

    targets = None
    workers = 0
    classes = 10
    shape = (1, 8, 8)  # channels, height, width

    def __init__(self) -> None:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DataError("the digits come with scikit-learn: pip install scikit-learn") from error
        found = load_digits()
        self.images = torch.from_numpy(found.images.astype(np.float32) / 8 - 1)[:, None]
        self.labels = torch.from_numpy(found.target.astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """→ (B, 1, 8, 8) and (B,)"""
        chosen = torch.from_numpy(indices)
        return self.images[chosen], self.labels[chosen]
