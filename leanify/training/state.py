"""The tensors and sums of a training that its checkpoints hold, and the thread that writes them.

One process writes all of them; processes with a sharded model write their rows in parallel (`runs.checkpoint_writing`).
Either kind is read by any number of processes, sharded or not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from leanify.core import machine
from leanify.core.errors import DirectoryError
from leanify.core.files.reading import preview
from leanify.core.files.tensor_files import open_tensors
from leanify.runs.checkpoint_writing import read_shards, shard_sizes
from leanify.runs.checkpoints import WEIGHTS, Checkpoint
from leanify.training import sharding
from leanify.upstream.libraries import reraise_as

MAX_UNREAD = 1000  # passes whose losses stay on the device; reading one waits for it
Write = Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]


@dataclass(frozen=True)
class TrainingState:
    """The objects whose tensors and sums a checkpoint holds."""

    model: nn.Module  # unwrapped
    ema_model: nn.Module | None  # of averaged weights
    learner: nn.Module  # all that the optimiser trains: the model, or a learner that holds it and the maps
    maps: nn.Module | None  # between the layers of student and teacher
    optimizer: Any
    scaler: Any
    names: list[str]  # of the tensors that a checkpoint holds, tied ones once

    @property
    def eval_model(self) -> nn.Module:
        """The model to evaluate and to load later: the averaged one, if there is one."""
        return self.model if self.ema_model is None else self.ema_model

    def weights(self) -> dict[str, Tensor]:
        """The full tensors of `eval_model`; of a sharded one in the first process only."""
        model = self.eval_model
        tensors = sharding.full_tensors(model) if sharding.is_sharded(model) else model.state_dict()
        return self._select(tensors)

    def _select(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensors[name].detach() for name in self.names if name in tensors}

    def rest(self, window: list[float]) -> dict[str, Any]:
        """Everything else, of a model that is not sharded."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler is not None else {},
            "window": window,
            "weights": {} if self.ema_model is None else self._select(self.model.state_dict()),
            "maps": {} if self.maps is None else self.maps.state_dict(),
        }

    def shards(self) -> dict[str, Tensor]:
        """The same of a sharded model: ``optimizer/PARAMETER/KEY``, ``weights/NAME`` and ``maps/NAME``."""
        names = {parameter: name for name, parameter in self.learner.named_parameters()}
        tensors = self._shards_besides_moments()
        for parameter, moments in self.optimizer.state.items():
            for key, value in moments.items():
                tensors[f"optimizer/{names[parameter]}/{key}"] = value
        return tensors

    def _shards_besides_moments(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        if self.ema_model is not None:
            tensors |= {f"weights/{name}": tensor for name, tensor in self._select(self.model.state_dict()).items()}
        if self.maps is not None:
            tensors |= {f"maps/{name}": tensor for name, tensor in self.maps.state_dict().items()}
        return tensors

    def load_weights(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint's weights into `eval_model`."""
        path = checkpoint.path / WEIGHTS
        with reraise_as(f"{path} cannot be read", DirectoryError):
            load_safetensors(self.eval_model, path, self.names)

    def restore(self, checkpoint: Checkpoint) -> list[float]:
        """Restore everything from a checkpoint. Returns the open sums: loss, targets, samples."""
        state = checkpoint.state()
        self.load_weights(checkpoint)

        # trained weights if they differ from the averaged ones, the maps, and the optimiser's moments
        if checkpoint.is_sharded:
            self._restore_shards(checkpoint.path)
        else:
            if self.ema_model is not None:
                load_tensors(self.model, state["weights"])
            if self.maps is not None:
                load_tensors(self.maps, state["maps"])
            self._restore_moments(state["optimizer"])

        # moments in the memory layout of their parameters: fused optimisers pair elements by their place in memory
        for parameter, moments in self.optimizer.state.items():
            for name, moment in moments.items():
                if not isinstance(moment, Tensor) or moment.shape != parameter.shape:
                    continue
                if moment.stride() != parameter.stride():
                    moments[name] = torch.empty_like(parameter, dtype=moment.dtype).copy_(moment)
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])

        # the sums of the log's open row
        window = state["window"]
        if not isinstance(window, list) or [isinstance(number, int | float) for number in window] != [True] * 3:
            raise DirectoryError(f"its window is {window!s:.60}, not three numbers")
        return window

    def _restore_shards(self, folder: Path) -> None:
        """Restore what processes with a sharded model wrote, here as full tensors or as this process's rows."""
        tensors = self._shards_besides_moments()
        parameters = dict(self.learner.named_parameters())
        numbers = {id(parameter): number for number, parameter in enumerate(self._trained_parameters())}

        # the moments are not there before the first step: make empty ones to read into
        state: dict[int, dict[str, Tensor]] = {}
        for path, size in shard_sizes(folder).items():
            if path.startswith("optimizer/"):
                name, _, key = path.removeprefix("optimizer/").rpartition("/")
                parameter = parameters[name].detach()
                tensors[path] = torch.zeros_like(parameter) if size == parameter.shape else torch.zeros(size)
                state.setdefault(numbers[id(parameters[name])], {})[key] = tensors[path]

        # read in place, then hand the moments to the optimiser
        read_shards(folder, tensors)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _restore_moments(self, state: Mapping[str, Any]) -> None:
        """Restore an optimiser's full state dict; a sharded optimiser takes its rows of each moment."""
        parameters = self._trained_parameters()
        moments = {number: dict(entries) for number, entries in state["state"].items()}

        # moments of a parameter's shape are sharded like it; counts of steps are not
        if sharding.is_sharded(self.model):
            for number, entries in moments.items():
                for key, value in entries.items():
                    if isinstance(value, Tensor) and value.shape == parameters[number].shape:
                        entries[key] = sharding.local_rows(value, parameters[number])
        self.optimizer.load_state_dict({**state, "state": moments})

    def _trained_parameters(self) -> list[nn.Parameter]:
        """The optimiser's parameters, in the order in which its state dict numbers them."""
        parameters: list[nn.Parameter] = []
        for group in self.optimizer.param_groups:
            parameters += group["params"]
        return parameters


@torch.no_grad()
def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy full tensors into a model in place. A tied tensor fills both its names."""
    if sharding.is_sharded(model):
        sharding.load_full(model, tensors)
        return
    targets = model.state_dict()
    for name, tensor in tensors.items():
        targets[name].copy_(tensor)


def load_safetensors(model: nn.Module, path: Path, names: Sequence[str]) -> None:
    """Copy a safetensors file into a model. Raises DirectoryError if its tensors do not match the model."""
    targets = model.state_dict()
    with open_tensors(path, DirectoryError) as file:
        if odd := sorted(set(file.keys()) ^ set(names)):
            raise DirectoryError(f"{path} lacks tensors of the model, or has others: {preview(odd)}")
        for name in names:
            shape = file.get_slice(name).get_shape()
            if list(targets[name].shape) != shape:
                raise DirectoryError(
                    f"{path} has {name} of shape {shape}, and the model of {list(targets[name].shape)}"
                )
        load_tensors(model, {name: file.get_tensor(name) for name in names})


# -- the sums of the log's open row -----------------------------------------------------------------------------------


@dataclass
class Window:
    """The sums since the last row of the log.

    Losses are read from the device on demand and added up one by one in float64: the sum has the same bits however
    often it is read.
    """

    loss: float = 0.0  # in nats, of this process
    targets: float = 0.0  # of this process
    samples: int = 0  # of all processes
    first_broken_step: float = math.inf  # whose loss is not finite
    began: float = 0.0
    unread: list[tuple[int, Tensor, Tensor | int]] = field(default_factory=list)

    def add(self, step: int, loss: Tensor, targets: Tensor | int) -> None:
        """Add the summed loss of a pass in a step, counted from 1. A pass without targets does not count."""
        self.unread.append((step, loss, targets))
        if len(self.unread) == MAX_UNREAD:
            self.read()

    def read(self) -> tuple[float, float, float]:
        """Returns loss, targets, and the first step whose loss is not finite (infinity if all are)."""
        if self.unread:
            steps, losses, targets = zip(*self.unread, strict=True)
            self.unread.clear()
            for step, loss, count in zip(steps, _numbers(losses), _numbers(targets), strict=True):
                if not math.isfinite(loss):
                    self.first_broken_step = min(self.first_broken_step, step)
                if count:
                    self.loss, self.targets = self.loss + loss, self.targets + count
        return self.loss, self.targets, self.first_broken_step

    def clear(self) -> None:
        """Begin another row. The first step without a finite loss stays recorded."""
        self.read()
        self.loss, self.targets, self.samples, self.began = 0.0, 0.0, 0, time.perf_counter()


def _numbers(values: tuple[Tensor | int, ...]) -> list[float]:
    """Copy all tensors from the device at once."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else [])
    return [next(read) if isinstance(value, Tensor) else value for value in values]


# -- writing ----------------------------------------------------------------------------------------------------------


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
