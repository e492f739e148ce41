"""The sharded part of a checkpoint, written by several processes through torch.distributed.checkpoint.

    STEP/shards/shard-RANK-….safetensors   one process's rows of every tensor

The files are safetensors, because torch's own format stores its metadata as a pickle, which could run code.
They can be read by any number of processes, whatever the number that wrote them.
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
from leanify.runs.checkpoints import SHARDS


def write(folder: Path, tensors: Mapping[str, Tensor], rank: int) -> dict[str, str]:
    """Write this process's rows; every process must call it. → its files, by name, with their SHA-256"""
    library, where = _library(), folder / SHARDS
    library.save(dict(tensors), storage_writer=library.HuggingFaceStorageWriter(str(where), save_distributed=True))
    return {f"{SHARDS}/{path.name}": _on_disk(path) for path in sorted(where.glob(f"shard-{rank + 1:05d}-*"))}


def _on_disk(path: Path) -> str:
    """Sync a file to disk and return its SHA-256."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def sizes(folder: Path) -> dict[str, torch.Size]:
    """The full shapes of the tensors saved under ``folder``, by name."""
    found = _library().HuggingFaceStorageReader(str(folder / SHARDS)).read_metadata().state_dict_metadata
    return {name: about.size for name, about in found.items()}


def read(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors in place: full tensors, or this process's rows of sharded ones."""
    import torch.distributed as dist

    library = _library()
    reader = library.HuggingFaceStorageReader(str(folder / SHARDS))
    library.load(dict(tensors), storage_reader=reader, no_dist=not dist.is_initialized())


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor on the CPU, in every process together; any other is returned as it is."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather().cpu()


def _library() -> Any:
    import torch.distributed.checkpoint as dcp

    if not hasattr(dcp, "HuggingFaceStorageReader"):
        raise TrainingError(f"sharded checkpoints need torch 2.9 or later; installed is {torch.__version__}")
    return dcp
