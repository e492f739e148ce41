"""What a checkpoint holds of a training: weights, the average over them, maps of layers, moments, and open sums.

One process writes it all; processes with a sharded model write their rows side by side (`sources.shards`).
Either kind is read by any number of processes, sharded or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.errors import DirectoryError
from leanify.runs import shards
from leanify.runs.checkpoints import WEIGHTS, Checkpoint
from leanify.runs.files import few
from leanify.training import sharding


@dataclass(frozen=True)
class State:
    """The parts of a training that a checkpoint holds."""

    bare: nn.Module
    average: nn.Module | None
    learning: nn.Module  # with all that the optimiser learns: the model itself, or the learner around it
    maps: nn.Module | None
    optimizer: Any
    scaler: Any
    names: list[str]  # of the tensors that a checkpoint holds, tied ones once

    @property
    def evaluated(self) -> nn.Module:
        """The model of averaged weights if any, else the one that learns."""
        return self.bare if self.average is None else self.average

    def weights(self) -> dict[str, Tensor]:
        """What is evaluated and loaded."""
        return self._of(self.evaluated)

    def _of(self, model: nn.Module) -> dict[str, Tensor]:
        held = model.state_dict()
        return {name: held[name].detach() for name in self.names}

    def rest(self, window: list[float]) -> dict[str, Any]:
        """What training needs besides, of a model that is whole."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler is not None else {},
            "window": window,
            "weights": {} if self.average is None else self._of(self.bare),
            "maps": {} if self.maps is None else self.maps.state_dict(),
        }

    def parts(self) -> dict[str, Tensor]:
        """The same of a sharded model, as rows: ``optimizer/…``, ``weights/…``, ``maps/…``."""
        return sharding.moments_of(self.optimizer, self.learning) | self._behind()

    def _behind(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if self.average is not None:
            found |= {f"weights/{name}": tensor for name, tensor in self._of(self.bare).items()}
        if self.maps is not None:
            found |= {f"maps/{name}": tensor for name, tensor in self.maps.state_dict().items()}
        return found

    def restore(self, found: Checkpoint) -> list[float]:
        """Everything as it was at a checkpoint. Returns the open sums: loss, targets, samples."""
        state = found.state()
        put_file(self.evaluated, found.path / WEIGHTS, self.names)
        if found.is_sharded:
            moments = sharding.empty_moments(shards.sizes(found.path), self.learning)
            shards.read(found.path, moments | self._behind())
            sharding.put_moments(self.optimizer, self.learning, moments)
        else:
            if self.average is not None:
                put(self.bare, state["weights"])
            if self.maps is not None:
                put(self.maps, state["maps"])
            self.optimizer.load_state_dict(sharding.spread(state["optimizer"], self.optimizer))
            align(self.optimizer)
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        window = state["window"]
        if not isinstance(window, list) or [isinstance(number, int | float) for number in window] != [True] * 3:
            raise DirectoryError(f"its window is {window!s:.60}, not three numbers")
        return window


def put(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into a model, in place; a tied one fills both its names."""
    held = model.state_dict()
    for name, tensor in tensors.items():
        sharding.fill(held[name], tensor)


def align(optimizer: Any) -> None:
    """Lay moments out as their parameters: fused optimisers pair them by their place in memory."""
    for parameter, state in optimizer.state.items():
        for name, moment in state.items():
            if isinstance(moment, Tensor) and moment.shape == parameter.shape and moment.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=moment.dtype).copy_(moment)


@torch.no_grad()
def put_file(model: nn.Module, path: Path, names: Sequence[str]) -> None:
    """Copy a safetensors file into a model, or of a sharded one its rows. Raises DirectoryError."""
    from safetensors import safe_open

    held = model.state_dict()
    with safe_open(path, "pt") as file:
        if odd := sorted(set(file.keys()) ^ set(names)):
            raise DirectoryError(f"{path} lacks tensors of the model, or has others: {few(odd)}")
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            tensor, shape = held[name], file.get_slice(name).get_shape()
            if list(tensor.shape) != shape:
                raise DirectoryError(f"{path} has {name} of shape {shape}, and the model of {list(tensor.shape)}")
            if sharding.is_spread(tensor):
                mine, rows = sharding.rows_of(tensor)
                mine.copy_(file.get_slice(name)[rows])
            else:
                tensor.copy_(file.get_tensor(name))
