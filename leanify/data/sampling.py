"""Which samples a step sees, and every random number of a run: functions of (seed, step), with no state to lose.

A run that is resumed at a step draws what the unbroken run would have drawn there: nothing of a generator is saved,
nothing depends on how many workers read ahead, and the samples of a step are the same for any number of processes.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np
import torch

Key = tuple[int, int]  # epoch, index: what a sample's augmentation is a function of
GROUP = 50  # batches whose samples are sorted by length together, as transformers' group_by_length does
ORDER, SAMPLE, STEP, MODEL, HOLDOUT = range(5)  # what random numbers are for


def seed_everything(purpose: int, seed: int, major: int = 0, minor: int = 0) -> None:
    """Bring Python's, numpy's and torch's generators to a state that is a function of the arguments alone."""
    for_python, for_numpy, state = _states(purpose, seed, major, minor)
    random.seed(for_python)
    np.random.seed(for_numpy)
    torch.default_generator.manual_seed(state)  # torch.manual_seed queues a call with its stack where CUDA sleeps
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(state)


def seed_mixing(seed: int, step: int) -> None:
    """Bring numpy's generator, by which timm mixes images, to the same state in every process and pass of a step."""
    np.random.seed(_states(STEP, seed, step, 0)[1])


def _states(purpose: int, seed: int, major: int, minor: int) -> tuple[int, int, int]:
    """For Python, numpy and torch. By a hash, because it is drawn for every image."""
    digest = hashlib.blake2b(struct.pack("<4q", purpose, seed, major, minor), digest_size=16).digest()
    python, numpy, torchs = struct.unpack("<IIQ", digest)
    return python, numpy, torchs


@lru_cache(maxsize=4)
def permutation(purpose: int, seed: int, epoch: int, samples: int) -> np.ndarray:
    """0 … samples − 1 in the order of an epoch."""
    return np.random.default_rng((purpose, seed, epoch, 0)).permutation(samples)


@dataclass(frozen=True)
class Order:
    """The samples of every step, as one of ``world`` processes sees them.

    batch_size   samples of a step, over all processes; an epoch's last step has what is left of it
    accumulate   forward passes that a process cuts its part of a full step into
    ramp         steps before the first full one, over which the batch grows by the same number of samples a step
    together     so many samples of a step that follow each other go through the same forward pass, to be mixed
    lengths      of every sample, where those of like length are to share a batch: padding is then rare
    """

    samples: int
    batch_size: int
    seed: int
    rank: int = 0
    world: int = 1
    accumulate: int = 1
    ramp: int = 0
    together: int = 1
    lengths: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch of full batches has."""
        return -(-self.samples // self.batch_size)

    def place(self, step: int) -> tuple[int, int, int]:
        """The epoch of a step, and from where to where it goes in that epoch's order."""
        if step < len(self._growing):
            return self._growing[step]
        epoch, place = divmod(step - len(self._growing), self.steps_per_epoch)
        start = place * self.batch_size
        return self._growing_epochs + epoch, start, min(start + self.batch_size, self.samples)

    @cached_property
    def _growing(self) -> list[tuple[int, int, int]]:
        """The places of all steps of the epochs in which the batch grows."""
        places: list[tuple[int, int, int]] = []
        epoch = start = 0
        while len(places) < self.ramp or start:
            size = min(self.batch_size, -(-self.batch_size * (len(places) + 1) // (self.ramp + 1)))
            stop = min(start + size, self.samples)
            places.append((epoch, start, stop))
            epoch, start = (epoch, stop) if stop < self.samples else (epoch + 1, 0)
        return places

    @property
    def _growing_epochs(self) -> int:
        return self._growing[-1][0] + 1 if self._growing else 0

    def position(self, step: int) -> float:
        """How many steps of full batches have the samples that were seen before a step: ``step`` without a ramp."""
        epoch, start, _ = self.place(step)
        return epoch * self.steps_per_epoch + start / self.batch_size

    def step_at(self, position: float) -> int:
        """The first step at a position or beyond."""
        return next(step for step in count(int(position)) if self.position(step) >= position)

    def epochs(self, step: int) -> float:
        """How often every sample was seen before a step."""
        epoch, start, _ = self.place(step)
        return epoch + start / self.samples

    def batch(self, step: int) -> np.ndarray:
        """The indices of a step over all processes; an epoch's steps have every sample once."""
        epoch, start, stop = self.place(step)
        return self.whole(epoch)[start:stop]

    def whole(self, epoch: int) -> np.ndarray:
        """All samples in the order of an epoch.

        Where lengths are given, the samples of 50 batches at a time are sorted by theirs, and the batches shuffled;
        what does not fill one stays last.
        """
        drawn = permutation(ORDER, self.seed, epoch, self.samples)
        if self.lengths is None:
            return drawn
        if self._grouped.get("epoch") != epoch:
            size, full = self.batch_size, self.samples // self.batch_size * self.batch_size
            parts = np.split(drawn, range(GROUP * size, self.samples, GROUP * size))
            order = np.concatenate([part[self.lengths[part].argsort(kind="stable")] for part in parts])
            turn = np.random.default_rng((ORDER, self.seed, epoch, 1)).permutation(full // size)
            order = np.concatenate([order[:full].reshape(-1, size)[turn].ravel(), order[full:]])
            self._grouped.update(epoch=epoch, order=order)
        grouped: np.ndarray = self._grouped["order"]
        return grouped

    @cached_property
    def _grouped(self) -> dict[str, Any]:
        """The last epoch that was grouped."""
        return {}

    def passes(self, step: int) -> list[list[Key]]:
        """The keys of each forward pass of this process; all processes have equally many passes in a step.

        Those without a sample of this process's come last and get one that they must not count (see `counted`).
        """
        batch, epoch = self.batch(step), self.place(step)[0]
        mine = [key.tolist() for key in self._parts(batch) if len(key)]
        spare = [batch[:1].tolist()] * (self._number(batch) - len(mine))
        return [[(epoch, index) for index in part] for part in mine + spare]

    def counted(self, step: int) -> int:
        """The number of passes with samples of this process's own; they are the first ones."""
        return sum(len(part) > 0 for part in self._parts(self.batch(step)))

    def _parts(self, batch: np.ndarray) -> list[np.ndarray]:
        """This process's samples of a batch, by pass; where it has fewer samples than passes, the last are empty."""
        mine = batch[self._owners(batch) == self.rank]
        firsts = np.arange(0, len(mine), self.together)
        starts = [part[0] if len(part) else len(mine) for part in np.array_split(firsts, self._number(batch))]
        return np.split(mine, starts[1:])

    def _number(self, batch: np.ndarray) -> int:
        """How many passes a step takes: as many as the first process needs, which has the most samples."""
        most = int((self._owners(batch) == 0).sum())
        longest = -(-self.batch_size // (self.world * self.accumulate))
        return min(-(-most // self.together), -(-most // longest))

    def _owners(self, batch: np.ndarray) -> np.ndarray:
        return np.arange(len(batch)) // self.together % self.world


@dataclass(frozen=True)
class Passes:
    """The keys of all forward passes from one step to another: a loader's batch sampler, read ahead by its workers."""

    order: Order
    start: int
    stop: int

    def __iter__(self) -> Iterator[list[Key]]:
        for step in range(self.start, self.stop):
            yield from self.order.passes(step)


def in_turn(indices: np.ndarray | Sequence[int], batch_size: int, rank: int, world: int) -> list[list[Key]]:
    """The keys of an evaluation: every sample once, by whichever process; processes may have different numbers."""
    parts = (indices[start : start + batch_size][rank::world] for start in range(0, len(indices), batch_size))
    return [[(0, int(index)) for index in part] for part in parts if len(part)]
