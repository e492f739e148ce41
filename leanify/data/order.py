"""Which samples a step sees, and every random number of a run: functions of (seed, step), with no state to lose.

A run that is resumed at a step draws what the unbroken run would have drawn there: nothing of a generator is saved,
nothing depends on how many workers read ahead, and the samples of a step are the same for any number of processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

Key = tuple[int, int]  # epoch, index: what a sample's augmentation is a function of
ORDER, SAMPLE, STEP, MODEL, HOLDOUT = range(5)  # what random numbers are for


def seed_everything(purpose: int, seed: int, major: int = 0, minor: int = 0) -> None:
    """Bring Python's, numpy's and torch's generators to a state that is a function of the arguments alone."""
    words = np.random.SeedSequence((purpose, seed, major, minor)).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    state = int(words[2]) << 32 | int(words[3])
    torch.default_generator.manual_seed(state)  # torch.manual_seed queues a call with its stack where CUDA sleeps
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(state)


@lru_cache(maxsize=4)
def permutation(purpose: int, seed: int, epoch: int, samples: int) -> np.ndarray:
    """0 … samples − 1 in the order of an epoch."""
    return np.random.default_rng((purpose, seed, epoch, 0)).permutation(samples)


@dataclass(frozen=True)
class Order:
    """The samples of every step, as one of ``world`` processes sees them.

    batch_size   samples of a step, over all processes; an epoch's last step has what is left of it
    accumulate   forward passes that a process cuts its part of a step into
    """

    samples: int
    batch_size: int
    seed: int
    rank: int = 0
    world: int = 1
    accumulate: int = 1

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch_size)

    def batch(self, step: int) -> np.ndarray:
        """The indices of a step over all processes; an epoch's steps have every sample once."""
        epoch, place = divmod(step, self.steps_per_epoch)
        whole = permutation(ORDER, self.seed, epoch, self.samples)
        return whole[place * self.batch_size : (place + 1) * self.batch_size]

    def passes(self, step: int) -> list[list[Key]]:
        """The keys of each forward pass of this process. One without a sample gets one that it must not count."""
        batch = self.batch(step)
        mine = batch[self.rank :: self.world] if self.counts(step) else batch[:1]
        parts = np.array_split(mine, min(self.accumulate, len(mine)))
        return [[(step // self.steps_per_epoch, int(index)) for index in part] for part in parts]

    def counts(self, step: int) -> bool:
        """Whether this process has a sample of its own in the step."""
        return self.rank < len(self.batch(step))


@dataclass(frozen=True)
class Passes:
    """The keys of all forward passes from one step to another: a loader's batch sampler, read ahead by its workers."""

    order: Order
    start: int
    stop: int

    def __iter__(self) -> Iterator[list[Key]]:
        for step in range(self.start, self.stop):
            yield from self.order.passes(step)


def in_turn(samples: int, batch_size: int, rank: int, world: int, batches: int | None = None) -> list[list[Key]]:
    """The keys of an evaluation: every sample once, by whichever process; processes may have different numbers."""
    starts = range(0, samples, batch_size)[:batches]
    parts = (range(start, min(start + batch_size, samples))[rank::world] for start in starts)
    return [[(0, index) for index in part] for part in parts if part]
