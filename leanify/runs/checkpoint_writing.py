"""Write a checkpoint: complete and synced, or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanify.runs import shards, sums, writing
from leanify.runs.checkpoints import CARD, STATE, WEIGHTS
from leanify.runs.removing import is_own

CHUNK = 1 << 22  # bytes hashed and then written at a time: small enough to stay in the processor's cache
DTYPES = {  # safetensors' names, in the order in which it lays tensors out: widest dtype first
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64",
    torch.float32: "F32", torch.uint32: "U32", torch.int32: "I32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16", torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write(target: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write a checkpoint; ``facts`` are the card's fields without checksums. Leaves nothing on an OSError."""
    folder = _begun(target)
    try:
        with summed(folder / WEIGHTS) as weights:
            write_tensors(tensors, weights)
        _finish(folder, target, state, facts, {WEIGHTS: weights.digest.hexdigest()})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_together(
    target: Path,
    tensors: Mapping[str, Tensor],
    parts: Mapping[str, Tensor],
    state: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> None:
    """`write` for a sharded model; every process must call it.

    Each process writes its rows of ``parts`` in parallel. ``tensors`` are gathered one at a time and written
    by rank 0, so that no process ever holds the whole model.
    """
    import torch.distributed as dist

    rank = dist.get_rank()
    every: list[dict[str, str]] = [{}] * dist.get_world_size()
    folder = _begun(target) if rank == 0 else target.with_name(f".{target.name}")
    dist.barrier()
    try:
        dist.all_gather_object(every, shards.write(folder, parts, rank))
        if rank:
            for name in _in_order(tensors):
                if tensors[name].numel():
                    shards.whole(tensors[name])
        else:
            with summed(folder / WEIGHTS) as weights:
                write_tensors(tensors, weights)
            known = {WEIGHTS: weights.digest.hexdigest()} | {name: one for some in every for name, one in some.items()}
            _finish(folder, target, state, facts, known)
    except BaseException:
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    dist.barrier()


def _begun(target: Path) -> Path:
    """Create an empty temporary folder beside the target."""
    folder = target.with_name(f".{target.name}")
    if is_own(folder):  # of a process that was killed
        shutil.rmtree(folder)
    folder.mkdir()
    return folder


def _finish(
    folder: Path, target: Path, state: Mapping[str, Any], facts: Mapping[str, Any], known: Mapping[str, str]
) -> None:
    """Write the training state and the card, then rename the folder to its final name."""
    with summed(folder / STATE, sums.Crc32()) as rest, _without_crc():
        torch.save(dict(state), rest)  # type: ignore[arg-type]
    card = {**facts, "sums": {**known, STATE: rest.digest.hexdigest()}}
    writing.write(folder / CARD, json.dumps(card, indent=2) + "\n")
    folder.rename(target)
    writing.sync_folder(target.parent)


@contextmanager
def _without_crc() -> Iterator[None]:
    """Without the CRC-32 that torch.save takes of every tensor: the file has one already."""
    from torch.serialization import get_crc32_options, set_crc32_options

    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


class Summed:
    """A file open for writing that keeps a digest of what was written to it."""

    def __init__(self, file: Any, digest: Any) -> None:
        self.file, self.digest = file, digest
        self.failed: OSError | None = None

    def write(self, data: Any) -> int:
        """Hash and write. ``failed`` keeps an OSError, because torch.save replaces it by a RuntimeError."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), CHUNK):
                self.digest.update(view[start : start + CHUNK])
                self.file.write(view[start : start + CHUNK])
        except OSError as error:
            self.failed = error
            raise
        return len(view)

    def flush(self) -> None:
        self.file.flush()


@contextmanager
def summed(path: Path, digest: Any = None) -> Iterator[Summed]:
    """Open a new file as `Summed`, by SHA-256 by default, and fsync it. Raises OSError for torch.save too."""
    with writing.replacing(path) as file:
        made = Summed(file, hashlib.sha256() if digest is None else digest)
        try:
            yield made
        except RuntimeError as error:
            raise made.failed or error from error


def write_tensors(tensors: Mapping[str, Tensor], file: Summed) -> None:
    """Write tensors in the safetensors format: 8-byte header length, JSON header, tensor bytes in header order.

    Byte-identical to the library's own writer, whose output cannot be hashed while it is written. Tensors are
    contiguous and on the CPU, or sharded; those are gathered here, so other ranks must call `shards.whole` in
    the same order.
    """
    names = _in_order(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name in names:
        tensor, start = tensors[name], place
        place += tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, place]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        if tensors[name].numel():
            file.write(shards.whole(tensors[name]).reshape(-1).view(torch.uint8).numpy())


def _in_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Tensor names in the order in which safetensors lays them out: by dtype, then by name."""
    order = list(DTYPES)
    return sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
