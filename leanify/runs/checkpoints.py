"""A run's checkpoints: written completely or not at all, and verified before they are read.

    STEP/model.safetensors   the weights used for evaluation and loading (the averaged ones with EMA)
    STEP/state.pt            the rest of the training state: optimiser moments, raw weights under EMA
    STEP/shards/             the same for a sharded model, one file of rows per process (see `checkpoint_writing`)
    STEP/checkpoint.json     metrics, the length of metrics.jsonl, and a checksum of every file

Checksums are taken as the bytes are written, in one pass: SHA-256 of weights, CRC-32 of the rest, in place of
torch's own. A folder gets its final name by a rename once it is complete and synced, and loses it by a rename
before it is deleted, so a partial checkpoint never has a valid name. `checkpoint_writing` writes them; what
is here needs no torch until tensors are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.core.errors import DirectoryError, SourceError
from leanify.core.files import writing
from leanify.core.files.reading import checksum, read_json
from leanify.core.files.tensor_files import load_pickle, load_tensors

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, STATE, SHARDS, CARD = "model.safetensors", "state.pt", "shards", "checkpoint.json"
FILES = re.compile(rf"{re.escape(WEIGHTS)}|{re.escape(STATE)}|{re.escape(CARD)}")
SHARD_FILES = re.compile(r"shard-.+\.safetensors|\.metadata")


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
            checkpoint = Checkpoint(folder, **read_json(folder / CARD))
        except (SourceError, TypeError):
            return None
        return checkpoint if checkpoint._is_typed() else None

    def _is_typed(self) -> bool:
        """Whether every value has its declared type: anyone may have edited the card's file."""
        if not (isinstance(self.metrics, dict) and isinstance(self.sums, dict)):
            return False
        names = [name.removeprefix(f"{SHARDS}/") for name in self.sums]
        return (
            all(type(count) is int and count >= 0 for count in (self.step, self.rows))
            and all(isinstance(number, int | float) for number in (*self.metrics.values(), self.score or 0))
            and all(isinstance(digest, str) for digest in self.sums.values())
            and all(Path(name).name == name for name in names)
        )

    @property
    def is_sharded(self) -> bool:
        """Whether several processes wrote the checkpoint together."""
        return any(name.startswith(f"{SHARDS}/") for name in self.sums)

    def find_damage(self) -> str | None:
        """Verify every file's checksum. Returns a description of the first bad file, or None."""
        for name, expected_sum in self.sums.items():
            try:
                digest = checksum(self.path / name, expected_sum)
            except (OSError, SourceError) as error:
                return f"{name}: {error}"
            if digest != expected_sum:
                return f"{name} has changed since it was written"
        return None

    def weights(self) -> dict[str, Tensor]:
        return load_tensors(self.path / WEIGHTS, DirectoryError)

    def state(self) -> dict[str, Any]:
        state = load_pickle(self.path / STATE, DirectoryError)
        if not isinstance(state, dict):
            raise DirectoryError(f"{self.path / STATE} holds no state of a training, but a {type(state).__name__}")
        return state


# -- folders: removed if leanify gave the name and wrote every file ---------------------


def is_step(name: str) -> bool:
    """Whether a folder's name is a checkpoint's: ``00000100``, not ``2024`` and not ``best-for-paper``."""
    return re.fullmatch("[0-9]{8,}", name) is not None and f"{int(name):08d}" == name


def is_unfinished(name: str) -> bool:
    """Whether a half written or half removed checkpoint has such a name: ``.00000100``, ``.….old``."""
    return name.startswith(".") and is_step(name[1:].removesuffix(".old"))


def is_removable(folder: Path) -> bool:
    """Whether a folder holds nothing but what leanify writes into a checkpoint. Links are the user's."""
    shards = folder / SHARDS
    return writing.holds_only(folder, FILES, shards) and (
        not shards.exists() or writing.holds_only(shards, SHARD_FILES)
    )


def remove(folder: Path) -> None:
    """Remove a checkpoint, unless it holds files of the user's."""
    aside = folder.with_name(f".{folder.name}.old")
    if is_removable(folder) and (is_removable(aside) or not aside.exists()):
        writing.remove_folder(folder, aside)


def remove_or_rename(folder: Path) -> str | None:
    """Remove a checkpoint. One that holds files of the user's is renamed, and a message returned."""
    if is_removable(folder):
        remove(folder)
        return None
    new_path = writing.keep_aside(folder)
    return f"{folder} holds files that leanify did not write, so it was not removed but renamed to {new_path.name}"
