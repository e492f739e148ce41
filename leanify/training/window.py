"""Loss and sample counts since the last row of the log."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

HELD = 1000  # passes whose losses stay on the device; reading one waits for it


@dataclass
class Window:
    """Nats and targets of this process, and the samples of all. ``broken`` is the first step of infinite loss.

    Losses are read from the device when they are asked for, and added up one by one in float64: however often
    that is, the sum has the same bits.
    """

    loss: float = 0.0
    targets: float = 0.0
    samples: int = 0
    broken: float = math.inf
    began: float = 0.0
    held: list[tuple[int, Tensor, Tensor | int]] = field(default_factory=list)

    def add(self, step: int, loss: Tensor, targets: Tensor | int) -> None:
        """The summed loss of a pass of a step, counted from 1; no targets where it does not count."""
        self.held.append((step, loss, targets))
        if len(self.held) == HELD:
            self.read()

    def read(self) -> tuple[float, float, float]:
        """Loss, targets, and the first broken step."""
        if self.held:
            steps, losses, targets = zip(*self.held, strict=True)
            self.held.clear()
            for step, loss, count in zip(steps, _numbers(losses), _numbers(targets), strict=True):
                if not math.isfinite(loss):
                    self.broken = min(self.broken, step)
                if count:
                    self.loss, self.targets = self.loss + loss, self.targets + count
        return self.loss, self.targets, self.broken

    def clear(self) -> None:
        """Begin another row; what is broken stays so."""
        self.read()
        self.loss, self.targets, self.samples, self.began = 0.0, 0.0, 0, time.perf_counter()


def _numbers(values: tuple[Tensor | int, ...]) -> list[float]:
    """From the device all at once."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else [])
    return [next(read) if isinstance(value, Tensor) else value for value in values]
