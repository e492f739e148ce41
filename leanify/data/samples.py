"""The interface between data sets and the training loop: samples by index, read in batches.

A data set provides one of three methods: ``batch(indices)`` if it is in memory, ``draw(seed, keys)`` if it
generates or randomly changes samples, ``__getitem__`` if it reads files. Anything random is a function of
(seed, epoch, index).
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from leanify.core import bounds, machine
from leanify.core.errors import DataError
from leanify.data.labels import LabelMatch
from leanify.data.sampling import SAMPLE, Key, seed_everything
from leanify.layouts.faults import Faults
from leanify.sources.heads import Pooling
from leanify.upstream.libraries import reraise_as, reraise_in_iteration

Inputs = Tensor | dict[str, Tensor]  # images, or token ids and masks by the names of the model's arguments
Batch = tuple[Inputs, Tensor]  # inputs and targets
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]
IGNORED = -100  # a target that the loss ignores: torch's default ignore_index


class Samples(Protocol):
    """A data set. ``targets``: how many a sample has, None if one; ``workers``: processes that should read.

    Optional: ``lengths`` if batches are padded, to batch samples of similar length (`sampling.Order`);
    ``labels`` if classes are known without reading the samples.
    """

    @property
    def targets(self) -> np.ndarray | None: ...
    @property
    def workers(self) -> int: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Splits:
    """The data sets of a recipe."""

    train: Samples
    validation: Samples
    description: str
    images: bool = False
    classes: int | None = None
    bytes_per_target: float | None = None
    tokenizer: Any = None  # transformers' tokenizer, saved with the run
    test: Samples | None = None
    constant: int | None = None  # train's most frequent class
    scale: Callable[[Any], Any] | None = None  # normalises a batch on the device: bytes are moved there faster
    names: tuple[str, ...] = ()  # class names in order, saved with the run
    labels: LabelMatch = field(default_factory=LabelMatch)  # how they were matched with the outputs of a trained model
    pooling: Pooling = ()  # of the hidden states into the embeddings that are the targets
    skipped: tuple[str, ...] = ()  # samples skipped while reading, under data.on_error = "skip"
    unchanged: Samples | None = None  # train without augmentation, if that differs
    decoding: Mapping[str, Any] = field(default_factory=dict)  # how pictures are decoded, as keys of [data]

    def scale_inputs(self, inputs: Inputs) -> Inputs:
        return inputs if self.scale is None else self.scale(inputs)


class Selection:
    """A subset of a data set."""

    def __init__(self, whole: Any, indices: np.ndarray) -> None:
        self.whole, self.indices = whole, indices
        self.workers: int = whole.workers
        self.skips = getattr(whole, "skips", False)
        for name in ("targets", "lengths", "labels"):
            values = getattr(whole, name, None)
            setattr(self, name, None if values is None else values[indices])
        if hasattr(whole, "batch"):
            self.batch = lambda some: whole.batch(indices[some])
        if hasattr(whole, "draw"):  # masks depend on the sample's place in the whole set
            self.draw = lambda seed, keys: whole.draw(seed, [(epoch, int(indices[i])) for epoch, i in keys])

    targets: np.ndarray | None
    lengths: Any
    labels: Any

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.whole[int(self.indices[index])]


class DatasetSamples:
    """A map-style data set of torch, or a list, whose items are (inputs, target)."""

    targets, workers = None, 0

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(index)]


class Keyed(Dataset[Any]):
    """A torch data set of samples by (epoch, index), each read with its own random state."""

    def __init__(self, samples: Any, seed: int) -> None:
        self.samples, self.seed = samples, seed

    def __getitems__(self, keys: Sequence[Key]) -> Any:
        with reraise_as("a batch cannot be read", DataError):  # in the worker: torch puts its traceback in the message
            return self._read(keys)

    def _read(self, keys: Sequence[Key]) -> Any:
        if hasattr(self.samples, "draw"):
            return self.samples.draw(self.seed, keys)
        if hasattr(self.samples, "batch"):
            return self.samples.batch(np.array([index for _, index in keys]))
        faults = Faults(getattr(self.samples, "skips", False))
        samples = []
        for epoch, index in keys:
            seed_everything(SAMPLE, self.seed, epoch, index)
            try:
                samples.append(self.samples[index])
            except DataError as error:
                if not faults.skip:
                    raise
                faults.record(str(error))
        if not samples:
            raise DataError(f"none of a batch's {len(keys)} samples can be read: {faults.names[0]}")
        return (*default_collate(samples), faults.names)


class Reader:
    """Iterate over batches in the order of their keys. Workers affect only speed, not the samples.

    ``again`` keeps the workers alive between iterations; each keeps ``prefetch`` batches ready. ``skipped``
    collects unreadable samples if the data set skips them; their batches are then smaller.
    """

    def __init__(
        self,
        samples: Samples,
        keys: Iterable[list[Key]],
        seed: int,
        workers: int | None,
        pin: bool = False,
        again: bool = False,
        skipped: set[str] | None = None,
        prefetch: int = 2,
    ) -> None:
        self.skipped = set() if skipped is None else skipped
        number = min(samples.workers, machine.cores()) if workers is None else workers
        if number > 0:
            # torch's thread pool is made and registered here: a forked worker that made it, in its own first call of
            # set_num_threads, was seen waiting for a lock of libc for ever
            torch.set_num_threads(torch.get_num_threads())
        self.loader = DataLoader(
            Keyed(samples, seed),
            batch_sampler=keys,
            num_workers=number,
            worker_init_fn=_deaf,
            collate_fn=_identity,
            pin_memory=pin,
            persistent_workers=again and number > 0,
            prefetch_factor=prefetch if number > 0 else None,
        )

    def __iter__(self) -> Iterator[Batch]:
        try:
            with reraise_as("a batch cannot be read", DataError), _signals_blocked():
                others = multiprocessing.active_children()
                batches = iter(self.loader)
                WORKERS.update(set(multiprocessing.active_children()).difference(others))
            for inputs, targets, *names in reraise_in_iteration(batches, "a batch cannot be read", DataError):
                self.skipped.update(*names)
                yield inputs, targets
        except DataError as error:  # torch prepends the worker's traceback to the message
            raise DataError(str(error).rpartition("DataError: ")[2].strip()) from error


WORKERS: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def end_workers() -> None:
    """End workers that still wait for work, as of a reader that an uncaught error holds.

    At exit multiprocessing sends SIGTERM to them, for which they are `_deaf`, and would wait forever. A process that
    multiprocessing started calls this itself: it leaves out functions registered with `atexit`.
    """
    if WORKERS and hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report them as lost
    for worker in WORKERS:
        worker.kill()


def _deaf(worker: int) -> None:
    """Ignore signals that reach the whole group (`timeout`, scancel, a closed shell) in a worker.

    The process that trains saves first, for which it may need a batch; workers end with it. If it is killed,
    the kernel ends them at once: torch's own watch takes seconds, in which they would hold the run's lock.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    readers = get_worker_info()
    bounds.divide(1 if readers is None else readers.num_workers)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it was killed before
        os._exit(1)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold such signals back while workers start: they inherit that, so none ends before it is `_deaf`."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _identity(batch: Any) -> Any:
    return batch
