"""The farthest-point task (Amsel, Yehudai & Bruna 2025, "When Adding More Heads Hurts"), with unlimited samples.

A sample is N points drawn uniformly from the sphere S^{d−1}. The target of each point is the point of the
sample farthest from it. Always answering the centre of the sphere has a squared error of 1.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.recipe import DataSection
from leanify.data.common import refuse_keys
from leanify.data.samples import Splits
from leanify.data.sampling import HOLDOUT, SAMPLE, Key
from leanify.upstream.inputs import example_inputs

EPOCH = 65_536  # samples per epoch; every epoch draws new ones
VALIDATION = 4_096
POINTS = 16


class FarthestPoint:
    """Samples drawn on demand, each a function of (seed, epoch, index), so none is repeated.

    ``purpose`` gives training and validation different samples. Validation ignores the seed, so that all runs
    are compared on the same samples.
    """

    targets = None
    workers = 0

    def __init__(self, samples: int, points: int, width: int, purpose: int) -> None:
        self.samples, self.points, self.width, self.purpose = samples, points, width, purpose

    def __len__(self) -> int:
        return self.samples

    def draw(self, seed: int, keys: list[Key]) -> tuple[dict[str, Tensor], Tensor]:
        """→ points and targets, (B, N, d) each"""
        entropy = (self.purpose, seed if self.purpose == SAMPLE else 0)
        first = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        generator = torch.Generator()
        drawn = [
            torch.randn(
                self.points,
                self.width,
                generator=generator.manual_seed((first + epoch * self.samples + index) % 2**32),
            )
            for epoch, index in keys
        ]
        points = F.normalize(torch.stack(drawn), dim=-1)
        return {"points": points}, farthest(points)


def farthest(points: Tensor) -> Tensor:
    """The point farthest from each point: the smallest inner product on a sphere. B, N, d → B, N, d"""
    places = (points @ points.mT).argmin(-1, keepdim=True)
    return points.gather(1, places.expand_as(points))


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Samples of data.length points (default 16) in the model's input width."""
    if data.task != "regression":
        raise RecipeError(f"farthest-point is a regression task; data.task is {data.task}")
    refuse_keys(data, "path", "tokenizer", "img_size", "rand_augment", "test", "holdout", "options")
    example = example_inputs(model, 1, 2).get("points")
    if example is None:
        raise DataError("farthest-point needs a model that takes points, such as point_encoder.py:PointEncoder")
    points = POINTS if data.length is None else data.length
    if points < 2:
        raise RecipeError(f"data.length is {points}; farthest-point needs at least 2 points per sample")
    width = example.shape[-1]
    train = FarthestPoint(data.samples or EPOCH, points, width, SAMPLE)
    description = f"{points} points on a sphere in {width} dimensions, fresh ones every epoch of {len(train):,}"
    return Splits(train, FarthestPoint(VALIDATION, points, width, HOLDOUT), description)
