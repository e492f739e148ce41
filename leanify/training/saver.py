"""Checkpoints written while training goes on: tensors are copied to host memory, and a thread writes the copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from leanify import machine

CPU = torch.device("cpu")
Write = Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]


class Saver:
    """One checkpoint at a time is written in the background; `wait` ends it and raises what went wrong there.

    The host's buffers are kept for the next checkpoint. Where they do not fit into memory, the training waits instead.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Tensor] = {}
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def save(self, write: Write, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Copy, and return while ``write`` writes the copy."""
        self.wait()
        if not self.buffers and not _fits({"tensors": tensors, "state": state}):
            write(_on_cpu(tensors), _on_cpu(state))
            return
        copied = self._copied("", {"tensors": tensors, "state": state})
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # copies into pinned memory are asynchronous
        self.thread = threading.Thread(target=self._run, args=(write, copied["tensors"], copied["state"]))
        self.thread.start()

    def _run(self, write: Write, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        try:
            write(tensors, state)
        except BaseException as error:  # raised again in the thread that trains
            self.error = error

    def wait(self) -> None:
        """Until the last checkpoint is written. Raises TrainingError where it could not be."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        self.check()

    def check(self) -> None:
        """Raise what went wrong, without waiting."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _copied(self, name: str, value: Any) -> Any:
        """Nested tables and lists with their tensors copied into this saver's buffers."""
        if isinstance(value, Tensor):
            return self._buffer(name, value).copy_(value.detach(), non_blocking=value.is_cuda)
        if isinstance(value, Mapping):
            return {key: self._copied(f"{name}/{key}", item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._copied(f"{name}/{place}", item) for place, item in enumerate(value))
        return value

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        """Memory of the host for a tensor, pinned where it comes from a GPU."""
        held = self.buffers.get(name)
        if held is None or held.shape != like.shape or held.dtype != like.dtype:
            held = torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
            self.buffers[name] = held
        return held


def _fits(value: Any) -> bool:
    """Whether a copy of the tensors takes at most half of the memory that is left."""
    available = machine.available(CPU)
    return available is None or 2 * sum(tensor.nbytes for tensor in _tensors(value)) <= available


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping | list | tuple):
        return []
    return [tensor for part in parts for tensor in _tensors(part)]


def _on_cpu(value: Mapping[str, Any]) -> dict[str, Any]:
    from accelerate.utils import send_to_device

    moved: dict[str, Any] = send_to_device(dict(value), CPU)
    return moved
