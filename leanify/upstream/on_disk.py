"""Keep the weights of a model that does not fit into memory in files, and in memory what runs.

Inside `on_disk`, large tensors are shared mappings of files: the system reads a block's pages when it runs, and drops
them when memory is short. The computations are the same, so the numbers are the same to the bit. A file has no name
once it is mapped: nothing stays behind, whatever ends the process.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from leanify.core import machine
from leanify.core.errors import DirectoryError
from leanify.core.units import format_bytes

SMALL = 2**16  # numbers of a tensor that stays in memory
M = TypeVar("M", bound=nn.Module)
_folders: list[Path] = []  # the last one is used


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Keep large tensors of the CPU in files of this folder, for what runs inside."""
    # freed blocks of a megabyte go back to the system: the holes of a heap took half as much memory again
    machine.set_malloc_thresholds(mmap=1 << 20, trim=1 << 20)
    _folders.append(folder)
    try:
        yield
    finally:
        _folders.pop()
        machine.set_malloc_thresholds(mmap=32 << 20, trim=64 << 20)


def is_on_disk() -> bool:
    return bool(_folders)


def place(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the tensor in a type, by default its own; inside `on_disk`, a large one is copied to a file.

    Raises DirectoryError for a full disk.
    """
    dtype = dtype or tensor.dtype
    if not _folders or tensor.numel() <= SMALL or tensor.device.type != "cpu":
        return tensor.to(dtype)
    with tempfile.NamedTemporaryFile(dir=_folders[-1]) as file:
        size = tensor.numel() * dtype.itemsize
        try:  # to reserve it: a mapping that the disk cannot hold would end the process
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise DirectoryError(
                f"the weights do not fit on the disk of {_folders[-1]}, {format_bytes(size)} more: {error.strerror}"
            ) from error
        flat = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=dtype).view(tensor.shape)
    return flat.copy_(tensor)


def place_output(output: Any) -> Any:
    """Return a module's output, a tensor or a tuple, with its first tensor placed."""
    if isinstance(output, tuple) and isinstance(output[0], Tensor):
        return (place(output[0]), *output[1:])
    return place(output) if isinstance(output, Tensor) else output


def place_weights(module: nn.Module) -> None:
    """Move the weights of a module that are not in files yet."""
    if not _folders:
        return
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.untyped_storage().filename is None:
            tensor.data = place(tensor.data)


def deep_copy(module: M, memo: Mapping[int, Any] | None = None) -> M:
    """Return a deep copy of a module, inside `on_disk` with its tensors in files; ``memo`` as in deepcopy."""
    copies = dict(memo or {})
    tensors = (*module.parameters(), *module.buffers()) if _folders else ()
    for tensor in tensors:
        if tensor.numel() > SMALL and tensor.device.type == "cpu":
            new = place(tensor.detach())
            copies[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
    return copy.deepcopy(module, copies)
