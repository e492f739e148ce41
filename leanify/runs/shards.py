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
import torch.distributed as dist
from torch import Tensor

from leanify.core.errors import TrainingError
from leanify.runs.checkpoints import SHARDS


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Write each process's rows into a folder that the first one made. → the SHA-256 of all files by name"""
    dcp, place = _import_dcp(), folder / SHARDS
    dist.barrier()
    dcp.save(dict(tensors), storage_writer=dcp.HuggingFaceStorageWriter(str(place), save_distributed=True))
    digests = {}
    for path in sorted(place.glob(f"shard-{dist.get_rank() + 1:05d}-*")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            digests[f"{SHARDS}/{path.name}"] = hashlib.file_digest(file, "sha256").hexdigest()

    # the first process writes them all into the checkpoint's card
    digests_by_rank: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(digests_by_rank, digests)
    all_digests: dict[str, str] = {}
    for part in digests_by_rank:
        all_digests |= part
    return all_digests


def sizes(folder: Path) -> dict[str, torch.Size]:
    """The full shapes of the tensors saved under ``folder``, by name."""
    metadata = _import_dcp().HuggingFaceStorageReader(str(folder / SHARDS)).read_metadata().state_dict_metadata
    return {name: entry.size for name, entry in metadata.items()}


def read(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors in place: full tensors, or this process's rows of sharded ones."""
    dcp = _import_dcp()
    reader = dcp.HuggingFaceStorageReader(str(folder / SHARDS))
    dcp.load(dict(tensors), storage_reader=reader, no_dist=not dist.is_initialized())


def _import_dcp() -> Any:
    import torch.distributed.checkpoint as dcp  # slow, and needed for sharded models alone

    if not hasattr(dcp, "HuggingFaceStorageReader"):
        raise TrainingError(f"sharded checkpoints need torch 2.9 or later; installed is {torch.__version__}")
    return dcp
