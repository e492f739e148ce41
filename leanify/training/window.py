"""Loss and sample counts since the last row of the log."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

MAX_UNREAD = 1000  # passes whose losses stay on the device; reading one waits for it


@dataclass
class Window:
    """Summed loss (nats) and targets of this process, the samples of all processes, and the first step whose loss
    is not finite.

    Losses are read from the device on demand and added up one by one in float64: the sum has the same bits however
    often it is read.
    """

    loss: float = 0.0
    targets: float = 0.0
    samples: int = 0
    first_broken_step: float = math.inf
    began: float = 0.0
    unread: list[tuple[int, Tensor, Tensor | int]] = field(default_factory=list)

    def add(self, step: int, loss: Tensor, targets: Tensor | int) -> None:
        """Add the summed loss of a pass in a step, counted from 1. A pass without targets does not count."""
        self.unread.append((step, loss, targets))
        if len(self.unread) == MAX_UNREAD:
            self.read()

    def read(self) -> tuple[float, float, float]:
        """Returns loss, targets, and the first step whose loss is not finite (infinity if all are)."""
        if self.unread:
            steps, losses, targets = zip(*self.unread, strict=True)
            self.unread.clear()
            for step, loss, count in zip(steps, _numbers(losses), _numbers(targets), strict=True):
                if not math.isfinite(loss):
                    self.first_broken_step = min(self.first_broken_step, step)
                if count:
                    self.loss, self.targets = self.loss + loss, self.targets + count
        return self.loss, self.targets, self.first_broken_step

    def clear(self) -> None:
        """Begin another row. The first step without a finite loss stays recorded."""
        self.read()
        self.loss, self.targets, self.samples, self.began = 0.0, 0.0, 0, time.perf_counter()


def _numbers(values: tuple[Tensor | int, ...]) -> list[float]:
    """Copy all tensors from the device at once."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else [])
    return [next(read) if isinstance(value, Tensor) else value for value in values]
