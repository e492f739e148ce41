"""Write checkpoints during training: tensors are copied to host memory, and a thread writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from leanify.core import machine

Write = Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]


class Saver:
    """Writes one checkpoint at a time in the background, from buffers that are kept. `wait` ends it."""

    def __init__(self) -> None:
        self.buffers: dict[int, Tensor] = {}
        self.writing: futures.Future[None] | None = None

    def save(self, write: Write, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Copy, and return while ``write`` writes the copy."""
        self.wait()
        values, structure = tree_flatten([dict(tensors), dict(state)])

        # too little host memory for buffers: write in this thread, without a copy on a CPU
        size = sum(value.nbytes for value in values if isinstance(value, Tensor))
        available = machine.available_memory(torch.device("cpu"))
        if not self.buffers and available is not None and 2 * size > available:
            write(*tree_unflatten(tree_map_only(Tensor, Tensor.cpu, values), structure))
            return

        # copy, so that training may change the tensors while the thread writes
        copies = [self._copy_to_host(place, value) for place, value in enumerate(values)]
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # copies into pinned memory are asynchronous
        executor = futures.ThreadPoolExecutor(1)
        self.writing = executor.submit(write, *tree_unflatten(copies, structure))
        executor.shutdown(wait=False)  # its thread ends with this checkpoint

    def wait(self) -> None:
        """Wait until the last checkpoint is written. Raises the error of the writing thread."""
        if self.writing is not None:
            futures.wait([self.writing])
            writing, self.writing = self.writing, None
            writing.result()

    def check(self) -> None:
        """Raise the error of the writing thread, if any, without waiting."""
        if self.writing is not None and self.writing.done():
            self.wait()

    def _copy_to_host(self, place: int, value: Any) -> Any:
        """Copy a tensor into a buffer in host memory, pinned if it comes from a GPU; returns other values unchanged."""
        if not isinstance(value, Tensor):
            return value
        buffer = self.buffers.get(place)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            self.buffers[place] = buffer
        return buffer.copy_(value.detach(), non_blocking=value.is_cuda)
