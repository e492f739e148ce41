"""A run's checkpoints: written completely or not at all, and verified before they are read.

    STEP/model.safetensors   the weights used for evaluation and loading (the averaged ones with EMA)
    STEP/state.pt            the rest of the training state: optimiser moments, raw weights under EMA
    STEP/shards/             the same for a sharded model, one file of rows per process (see `shards`)
    STEP/checkpoint.json     metrics, the length of metrics.jsonl, and a checksum of every file

Checksums are taken as the bytes are written, in one pass: SHA-256 of weights, CRC-32 of the rest, in place of
torch's own. A folder gets its final name by a rename once it is complete and synced, and loses it by a rename
before it is deleted, so a partial checkpoint never has a valid name. `checkpoint_writing` writes them; what
is here needs no torch until tensors are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.errors import DirectoryError, SourceError
from leanify.runs import sums
from leanify.runs.files import read_json

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, STATE, SHARDS, CARD = "model.safetensors", "state.pt", "shards", "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int
    rows: int  # the length of metrics.jsonl at the time, in bytes
    score: float | None  # higher is better
    metrics: dict[str, float]
    sums: dict[str, str]  # checksums by file name

    @staticmethod
    def read(folder: Path) -> Checkpoint | None:
        """Read a checkpoint's card (not its tensors); None if the card is missing or damaged."""
        try:
            found = Checkpoint(folder, **read_json(folder / CARD))
        except (SourceError, TypeError):
            return None
        return found if found._is_typed() else None

    def _is_typed(self) -> bool:
        """Whether every value has its declared type: anyone may have edited the card's file."""
        if not (isinstance(self.metrics, dict) and isinstance(self.sums, dict)):
            return False
        for count in (self.step, self.rows):
            if type(count) is not int or count < 0:
                return False
        for number in (*self.metrics.values(), 0 if self.score is None else self.score):
            if not isinstance(number, int | float):
                return False
        for name, digest in self.sums.items():
            inside = name.removeprefix(f"{SHARDS}/")
            if not isinstance(digest, str) or Path(inside).name != inside:
                return False
        return True

    @property
    def is_sharded(self) -> bool:
        """Whether several processes wrote the checkpoint together."""
        return any(name.startswith(f"{SHARDS}/") for name in self.sums)

    def broken(self) -> str | None:
        """Verify every file's checksum. Returns what is wrong with the first bad file, or None."""
        for name, wanted in self.sums.items():
            try:
                found = sums.of(self.path / name, wanted)
            except (OSError, SourceError) as error:
                return f"{name}: {error}"
            if found != wanted:
                return f"{name} has changed since it was written"
        return None

    def weights(self) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        return load_file(self.path / WEIGHTS)

    def state(self) -> dict[str, Any]:
        from leanify.runs.unpickling import unpickled

        found = unpickled(self.path / STATE, DirectoryError)
        if not isinstance(found, dict):
            raise DirectoryError(f"{self.path / STATE} holds no state of a training, but a {type(found).__name__}")
        return found
