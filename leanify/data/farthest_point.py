"""The farthest point (Amsel, Yehudai & Bruna 2025, "When Adding More Heads Hurts"): fresh samples for ever.

A sample is N points drawn uniformly from the sphere S^{d−1}; the target of each of them is that point of the sample
which is farthest from it. A constant answer, the middle of the sphere, has a squared error of 1.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.common import refuse
from leanify.data.samples import Splits
from leanify.data.sampling import HOLDOUT, SAMPLE, Key
from leanify.errors import DataError, RecipeError
from leanify.sources.recipe import DataSection
from leanify.upstream.inputs import example_inputs

EPOCH = 65_536  # samples that count as an epoch; the next one has others
VALIDATION = 4_096
POINTS = 16


class FarthestPoint:
    """Drawn when they are asked for: a sample is a function of (seed, epoch, index), and none comes twice.

    ``purpose`` keeps training and validation apart; validation ignores the seed, so that runs are compared on the same.
    """

    targets = None
    workers = 0

    def __init__(self, samples: int, points: int, width: int, purpose: int) -> None:
        self.samples, self.points, self.width, self.purpose = samples, points, width, purpose

    def __len__(self) -> int:
        return self.samples

    def draw(self, seed: int, keys: list[Key]) -> tuple[dict[str, Tensor], Tensor]:
        """→ points and targets, (B, N, d) each"""
        words = (self.purpose, seed if self.purpose == SAMPLE else 0)
        first = int(np.random.SeedSequence(words).generate_state(1)[0])
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
    """The farthest point from each one: on the sphere, that of the smallest inner product. B, N, d → B, N, d"""
    places = (points @ points.mT).argmin(-1, keepdim=True)
    return points.gather(1, places.expand_as(points))


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Samples of data.length points (16) in as many dimensions as the model is wide."""
    if data.task != "regression":
        raise RecipeError(f"the farthest point is a regression, not {data.task}")
    refuse(data, "path", "tokenizer", "img_size", "rand_augment", "test", "holdout")
    example = example_inputs(model, 1, 2).get("points")
    if example is None:
        raise DataError("the farthest point needs a model that takes points; leanify/point-encoder does")
    points = POINTS if data.length is None else data.length
    if points < 2:
        raise RecipeError(f"data.length is {points}; it takes two points for one to be the farthest")
    width = example.shape[-1]
    train = FarthestPoint(data.samples or EPOCH, points, width, SAMPLE)
    words = f"{points} points on a sphere in {width} dimensions, fresh ones every epoch of {len(train):,}"
    return Splits(train, FarthestPoint(VALIDATION, points, width, HOLDOUT), words)
