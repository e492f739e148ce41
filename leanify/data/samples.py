"""What every data set is to the training loop: samples by index, a whole batch at a time.

A data set in memory has ``batch(indices)``; one that changes or draws its samples has ``draw(seed, keys)``; one that
reads them has ``__getitem__``. Whatever is drawn is a function of (seed, epoch, index).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from leanify import machine
from leanify.data.faults import Faults
from leanify.data.sampling import SAMPLE, Key, seed_everything
from leanify.errors import DataError
from leanify.upstream.wall import wall, walled

Inputs = Tensor | dict[str, Tensor]  # images as they are, token ids and their like by the names that models take
Batch = tuple[Inputs, Tensor]  # inputs and targets
IGNORED = -100  # a target that does not count, torch's own default


class Samples(Protocol):
    """``targets`` is how many targets each sample has, None for one each; ``workers`` how many processes read well.

    One that pads its batches has ``lengths`` too: those of like length then come together (`sampling.Order`). One that
    knows its classes without reading its samples has ``labels``.
    """

    @property
    def targets(self) -> np.ndarray | None: ...

    @property
    def workers(self) -> int: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Splits:
    """The data sets of a recipe. ``words`` describe them; ``constant`` is train's most frequent class.

    ``scale`` makes of a batch what a model takes, where it is needed: bytes are quicker to bring there.
    """

    train: Samples
    validation: Samples
    words: str
    images: bool = False
    classes: int | None = None
    bytes_per_target: float | None = None
    tokenizer: Any = None  # of transformers; a run keeps it
    test: Samples | None = None
    constant: int | None = None
    scale: Callable[[Any], Any] | None = None
    names: tuple[str, ...] = ()  # of the classes, in their order; a run keeps them
    pooling: tuple[str, ...] = ()  # of the embeddings that are the targets
    skipped: tuple[str, ...] = ()  # samples that were left out while reading, under data.on_error = "skip"

    def scaled(self, inputs: Inputs) -> Inputs:
        return inputs if self.scale is None else self.scale(inputs)


class Part:
    """Some of a data set's samples."""

    def __init__(self, whole: Any, indices: np.ndarray) -> None:
        self.whole, self.indices = whole, indices
        self.workers: int = whole.workers
        self.targets = None if whole.targets is None else whole.targets[indices]
        lengths = getattr(whole, "lengths", None)
        self.lengths = None if lengths is None else lengths[indices]
        labels = getattr(whole, "labels", None)
        self.labels = None if labels is None else labels[indices]
        self.skips = getattr(whole, "skips", False)
        if hasattr(whole, "batch"):
            self.batch = lambda some: whole.batch(indices[some])

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.whole[int(self.indices[index])]


class Keyed(Dataset[Any]):
    """Samples by (epoch, index), each read with generators that are its own."""

    def __init__(self, samples: Any, seed: int) -> None:
        self.samples, self.seed = samples, seed

    def __getitems__(self, keys: Sequence[Key]) -> Any:
        with wall("a batch cannot be read", DataError):  # here, in a worker: else its traceback would be the message
            return self._read(keys)

    def _read(self, keys: Sequence[Key]) -> Any:
        if hasattr(self.samples, "draw"):
            return self.samples.draw(self.seed, keys)
        if hasattr(self.samples, "batch"):
            return self.samples.batch(np.array([index for _, index in keys]))
        faults = Faults(getattr(self.samples, "skips", False))
        found = []
        for key in keys:
            try:
                found.append(self._one(*key))
            except DataError as error:
                if not faults.skip:
                    raise
                faults.found(str(error))
        if not found:
            raise DataError(f"none of the {len(keys)} samples of a batch can be read: {faults.names[0]}")
        return (*default_collate(found), faults.names)

    def _one(self, epoch: int, index: int) -> Any:
        seed_everything(SAMPLE, self.seed, epoch, index)
        return self.samples[index]


class Reader:
    """Batches in the order of their keys; how many workers read them changes nothing but the time.

    One that is read ``again`` and again keeps its workers. ``skipped`` gets the samples that could not be read, where
    the data set leaves them out; their batches are smaller.
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
    ) -> None:
        self.skipped = set() if skipped is None else skipped
        number = min(samples.workers, machine.cores()) if workers is None else workers
        self.loader = DataLoader(
            Keyed(samples, seed),
            batch_sampler=keys,
            num_workers=number,
            collate_fn=_as_it_is,
            pin_memory=pin,
            persistent_workers=again and number > 0,
        )

    def __iter__(self) -> Iterator[Batch]:
        try:
            for inputs, targets, *names in walled(self.loader, "a batch cannot be read", DataError):
                self.skipped.update(*names)
                yield inputs, targets
        except DataError as error:  # a worker's comes with its traceback in the message
            raise DataError(str(error).rpartition("DataError: ")[2].strip()) from error


def _as_it_is(batch: Any) -> Any:
    return batch
