"""The part of a checkpoint that several processes write together, through torch.distributed.checkpoint.

    STEP/shards/shard-RANK-….safetensors   the rows of every tensor that one process holds

The files are safetensors: torch's own format keeps its metadata as a pickle, and nothing of a checkpoint is executed.
Read back, the rows go to as many processes as there are then, or whole to a single one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanify.errors import TrainingError

FOLDER = "shards"


def write(folder: Path, tensors: Mapping[str, Tensor], rank: int) -> dict[str, str]:
    """Write this process's rows below ``folder``; every process calls it. Returns the SHA-256 of its files, by name."""
    library, where = _library(), folder / FOLDER
    library.save(dict(tensors), storage_writer=library.HuggingFaceStorageWriter(str(where), save_distributed=True))
    return {f"{FOLDER}/{path.name}": _on_disk(path) for path in sorted(where.glob(f"shard-{rank + 1:05d}-*"))}


def _on_disk(path: Path) -> str:
    """The SHA-256 of a file that is brought to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def sizes(folder: Path) -> dict[str, torch.Size]:
    """The names and whole shapes of the tensors that were written below ``folder``."""
    found = _library().HuggingFaceStorageReader(str(folder / FOLDER)).read_metadata().state_dict_metadata
    return {name: about.size for name, about in found.items()}


def read(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors in place: whole ones, or the rows that this process holds of sharded ones."""
    import torch.distributed as dist

    library = _library()
    reader = library.HuggingFaceStorageReader(str(folder / FOLDER))
    library.load(dict(tensors), storage_reader=reader, no_dist=not dist.is_initialized())


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its rows, on the CPU; of one that is spread over processes, every process asks."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather().cpu()


def _library() -> Any:
    import torch.distributed.checkpoint as dcp

    if not hasattr(dcp, "HuggingFaceStorageReader"):
        raise TrainingError(f"sharded checkpoints need torch 2.9 or later, and this is {torch.__version__}")
    return dcp
