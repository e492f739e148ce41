"""Write a checkpoint: complete and synced, or not at all; and write and read its sharded part."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from leanify.core.errors import TrainingError
from leanify.core.files import writing
from leanify.core.files.reading import Crc32
from leanify.runs.checkpoints import CARD, SHARDS, STATE, WEIGHTS, is_removable

CHUNK = 1 << 22  # bytes hashed and then written at a time: small enough to stay in the processor's cache
DTYPES = {  # safetensors' names, in the order in which it lays tensors out: widest dtype first
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64",
    torch.float32: "F32", torch.uint32: "U32", torch.int32: "I32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16", torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write(
    target: Path,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    facts: Mapping[str, Any],
    shards: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint; ``facts`` are the card's fields without checksums. Leaves nothing on an OSError.

    ``shards`` are the tensors of a sharded model besides its weights: every process must call this, writes its
    own rows of them, and the first process everything else.
    """
    # a hidden folder, renamed when it is complete; one left by a killed process is removed first
    folder = target.with_name(f".{target.name}")
    is_main = shards is None or dist.get_rank() == 0
    digests: dict[str, str] = {}
    if is_main:
        if is_removable(folder):  # of a process that was killed
            shutil.rmtree(folder)
        folder.mkdir()
    try:
        # every process writes its rows of the sharded tensors
        if shards is not None:
            digests = write_shards(folder, shards)
        # the first process writes the rest, with checksums taken while the bytes are written
        if is_main:
            with open_hashed(folder / WEIGHTS, hashlib.sha256()) as weights:
                write_tensors(tensors, weights)
            with open_hashed(folder / STATE, Crc32()) as rest, _skip_crc():
                torch.save(dict(state), rest)  # type: ignore[arg-type]
            sums = {**digests, WEIGHTS: weights.digest.hexdigest(), STATE: rest.digest.hexdigest()}
            writing.write(folder / CARD, json.dumps({**facts, "sums": sums}, indent=2) + "\n")
            folder.rename(target)
            writing.sync_folder(target.parent)
    except BaseException:
        if is_main:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    # every process waits until the checkpoint is complete
    if shards is not None:
        dist.barrier()


@contextmanager
def _skip_crc() -> Iterator[None]:
    """Without the CRC-32 that torch.save takes of every tensor: the file has one already."""
    from torch.serialization import get_crc32_options, set_crc32_options

    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


class HashedFile:
    """A file open for writing that keeps a digest of its content."""

    def __init__(self, file: Any, digest: Any) -> None:
        self.file, self.digest = file, digest
        self.error: OSError | None = None  # torch.save replaces it by a RuntimeError

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), CHUNK):
                self.digest.update(view[start : start + CHUNK])
                self.file.write(view[start : start + CHUNK])
        except OSError as error:
            self.error = error
            raise
        return len(view)

    def flush(self) -> None:
        self.file.flush()


@contextmanager
def open_hashed(path: Path, digest: Any) -> Iterator[HashedFile]:
    """Open a new file as `HashedFile`, and fsync it. Raises OSError for torch.save too."""
    with writing.open_atomic(path) as file:
        hashed_file = HashedFile(file, digest)
        try:
            yield hashed_file
        except RuntimeError as error:
            raise hashed_file.error or error from error


def write_tensors(tensors: Mapping[str, Tensor], file: HashedFile) -> None:
    """Write tensors, contiguous and on the CPU, in the safetensors format.

    That is an 8-byte header length, a JSON header, and the bytes of the tensors in its order. The bytes are
    equal to the library's own, whose writer cannot hash them on the way.
    """
    # the header: dtype, shape and byte range of each tensor, widest dtype first
    order = list(DTYPES)
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor, start = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    # padded to 8 bytes, as the library does
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    # the tensors, in the header's order
    for name in names:
        if tensors[name].numel():
            file.write(tensors[name].reshape(-1).view(torch.uint8).numpy())


# -- the sharded part: STEP/shards/shard-RANK-….safetensors has one process's rows of every tensor, and any number of
# processes can read them. torch's own format would store its metadata as a pickle, which could run code.


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


def shard_sizes(folder: Path) -> dict[str, torch.Size]:
    """The full shapes of the tensors saved under ``folder``, by name."""
    metadata = _import_dcp().HuggingFaceStorageReader(str(folder / SHARDS)).read_metadata().state_dict_metadata
    return {name: entry.size for name, entry in metadata.items()}


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors in place: full tensors, or this process's rows of sharded ones."""
    dcp = _import_dcp()
    reader = dcp.HuggingFaceStorageReader(str(folder / SHARDS))
    dcp.load(dict(tensors), storage_reader=reader, no_dist=not dist.is_initialized())


def _import_dcp() -> Any:
    import torch.distributed.checkpoint as dcp  # slow, and needed for sharded models alone

    if not hasattr(dcp, "HuggingFaceStorageReader"):
        raise TrainingError(f"sharded checkpoints need torch 2.9 or later; installed is {torch.__version__}")
    return dcp
