"""The order of samples and all random numbers of a run, as functions of (seed, step) without stored state.

A resumed run draws exactly what the uninterrupted run would have drawn: no generator state needs saving, the
number of workers does not matter, and a step sees the same samples for any number of processes.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np
import torch

Key = tuple[int, int]  # epoch, index: with the seed, these determine a sample's augmentation
GROUP = 50  # batches sorted by length together, as in transformers' group_by_length
ORDER, SAMPLE, STEP, MODEL, HOLDOUT = range(5)  # purposes of random numbers, each with its own stream


def seed_everything(purpose: int, seed: int, major: int = 0, minor: int = 0) -> None:
    """Seed Python's, numpy's and torch's generators from the arguments alone."""
    for_python, for_numpy, state = _states(purpose, seed, major, minor)
    random.seed(for_python)
    np.random.seed(for_numpy)
    torch.default_generator.manual_seed(state)  # torch.manual_seed queues a call with its stack until CUDA starts
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(state)


def seed_mixing(seed: int, step: int) -> None:
    """Seed numpy's generator, which timm's mixup uses, alike in every process and pass of a step."""
    np.random.seed(_states(STEP, seed, step, 0)[1])


def _states(purpose: int, seed: int, major: int, minor: int) -> tuple[int, int, int]:
    """Seeds for Python, numpy and torch. A hash, because this runs for every image and must be fast."""
    digest = hashlib.blake2b(struct.pack("<4q", purpose, seed, major, minor), digest_size=16).digest()
    python, numpy, torchs = struct.unpack("<IIQ", digest)
    return python, numpy, torchs


@lru_cache(maxsize=4)
def permutation(purpose: int, seed: int, epoch: int, samples: int) -> np.ndarray:
    """A random permutation of 0 … samples − 1 for an epoch."""
    return np.random.default_rng((purpose, seed, epoch, 0)).permutation(samples)


@dataclass(frozen=True)
class Order:
    """The samples of every step, from the viewpoint of one of ``world`` processes."""

    samples: int
    batch_size: int  # of a step, over all processes; an epoch's last step may have fewer
    seed: int
    rank: int = 0
    world: int = 1
    accumulate: int = 1  # forward passes into which a process splits its share of a full step
    ramp: int = 0  # steps before the first full one, over which the batch grows linearly
    together: int = 1  # consecutive samples that must be in the same forward pass, because they are mixed
    lengths: np.ndarray | None = field(default=None, compare=False, repr=False)  # to batch similar samples

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in an epoch of full batches."""
        return -(-self.samples // self.batch_size)

    def place(self, step: int) -> tuple[int, int, int]:
        """Return (epoch, start, stop): a step's slice of its epoch's order."""
        if step < len(self._growing):
            return self._growing[step]
        epoch, place = divmod(step - len(self._growing), self.steps_per_epoch)
        if self._growing:
            epoch += self._growing[-1][0] + 1
        start = place * self.batch_size
        return epoch, start, min(start + self.batch_size, self.samples)

    @cached_property
    def _growing(self) -> list[tuple[int, int, int]]:
        """`place` of every step in the epochs during which the batch grows."""
        places: list[tuple[int, int, int]] = []
        epoch = start = 0
        while len(places) < self.ramp or start:
            size = min(self.batch_size, -(-self.batch_size * (len(places) + 1) // (self.ramp + 1)))
            stop = min(start + size, self.samples)
            places.append((epoch, start, stop))
            epoch, start = (epoch, stop) if stop < self.samples else (epoch + 1, 0)
        return places

    def position(self, step: int) -> float:
        """Progress before a step, in steps of full batches; equals ``step`` without a ramp."""
        epoch, start, _ = self.place(step)
        return epoch * self.steps_per_epoch + start / self.batch_size

    def step_at(self, position: float) -> int:
        """The first step whose `position` is at least ``position``."""
        return next(step for step in count(int(position)) if self.position(step) >= position)

    def epochs(self, step: int) -> float:
        """The number of epochs completed before a step, with fraction."""
        epoch, start, _ = self.place(step)
        return epoch + start / self.samples

    def batch(self, step: int) -> np.ndarray:
        """Sample indices of a step over all processes; an epoch's steps cover every sample once."""
        epoch, start, stop = self.place(step)
        return self.epoch_order(epoch)[start:stop]

    def epoch_order(self, epoch: int) -> np.ndarray:
        """All sample indices in the order of an epoch.

        With ``lengths``, samples are sorted by length within groups of 50 batches, then the batches are
        shuffled; an incomplete batch stays last.
        """
        random_order = permutation(ORDER, self.seed, epoch, self.samples)
        if self.lengths is None:
            return random_order
        if self._grouped.get("epoch") != epoch:
            size, full = self.batch_size, self.samples // self.batch_size * self.batch_size
            parts = np.split(random_order, range(GROUP * size, self.samples, GROUP * size))
            order = np.concatenate([part[self.lengths[part].argsort(kind="stable")] for part in parts])
            turn = np.random.default_rng((ORDER, self.seed, epoch, 1)).permutation(full // size)
            order = np.concatenate([order[:full].reshape(-1, size)[turn].ravel(), order[full:]])
            self._grouped.update(epoch=epoch, order=order)
        grouped: np.ndarray = self._grouped["order"]
        return grouped

    @cached_property
    def _grouped(self) -> dict[str, Any]:
        return {}

    def passes(self, step: int) -> list[list[Key]]:
        """Sample keys of each forward pass of this process: as many passes in every process.

        Passes for which this process has no sample come last; they get the step's first sample, which must
        not be counted (see `counted`).
        """
        batch, epoch = self.batch(step), self.place(step)[0]
        own_keys = [key.tolist() for key in self._parts(batch) if len(key)]
        spare = [batch[:1].tolist()] * (self._number(batch) - len(own_keys))
        return [[(epoch, index) for index in part] for part in own_keys + spare]

    def counted(self, step: int) -> int:
        """The number of leading passes that have samples of this process."""
        return sum(len(part) > 0 for part in self._parts(self.batch(step)))

    def _parts(self, batch: np.ndarray) -> list[np.ndarray]:
        """This process's samples of a batch, by pass; the last parts may be empty."""
        own_keys = batch[self._owners(batch) == self.rank]
        firsts = np.arange(0, len(own_keys), self.together)
        starts = [part[0] if len(part) else len(own_keys) for part in np.array_split(firsts, self._number(batch))]
        return np.split(own_keys, starts[1:])

    def _number(self, batch: np.ndarray) -> int:
        """The number of passes in a step: as many as rank 0 needs, which has the most samples."""
        largest_part = int((self._owners(batch) == 0).sum())
        longest = -(-self.batch_size // (self.world * self.accumulate))
        return min(-(-largest_part // self.together), -(-largest_part // longest))

    def _owners(self, batch: np.ndarray) -> np.ndarray:
        return np.arange(len(batch)) // self.together % self.world


def evaluation_batches(indices: np.ndarray | Sequence[int], batch_size: int, rank: int, world: int) -> list[list[Key]]:
    """One process's batches of an evaluation. Over all processes every sample occurs exactly once."""
    parts = (indices[start : start + batch_size][rank::world] for start in range(0, len(indices), batch_size))
    return [[(0, int(index)) for index in part] for part in parts if len(part)]
