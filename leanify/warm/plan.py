"""Carry a plan's weights by what the model does on the user's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify.architecture import Architecture
from leanify.data.probe_inputs import feed
from leanify.design.plan import Plan
from leanify.errors import DataError
from leanify.terminal import progress
from leanify.warm.carry import Carried, carry

BATCH = 8
SPLITS = ("train.csv", "train.tsv", "train.jsonl", "train.parquet", "train.txt", "train")


class Carrying:
    """Called with a model and a shape, gives the model of that shape; remembers the steps of every shape, by name.

    Half of the ``samples`` choose and correct, the other half measure the damage.
    """

    def __init__(self, plan: Plan, data: Path, samples: int, tokens: int | None, weights: str | Path | None) -> None:
        self.plan, self.data, self.samples, self.tokens = plan, data_file(data), samples, tokens
        self.place = next((Path(s) for s in (weights, plan.source) if s is not None and Path(s).is_dir()), None)
        self.results: dict[str, Carried] = {}
        self.words = ""
        self._batches: list[dict[str, Tensor]] = []

    def __call__(self, model: nn.Module, architecture: Architecture) -> nn.Module:
        batches = self._read(model)
        name = "lean" if architecture == self.plan.chosen.architecture else "control"
        half = len(batches) // 2
        with progress(f"carrying weights over to {name}", None) as advance:
            found = carry(model, architecture, batches[:half], batches[half:], advance)
        self.results[name] = found
        return found.model

    def _read(self, model: nn.Module) -> list[dict[str, Tensor]]:
        """Every other batch measures: what comes first in a file is often of one kind."""
        if not self._batches:
            size = max(1, min(BATCH, self.samples // 2))
            found = feed(
                model, self.data, samples=self.samples, batch_size=size, tokens=self.tokens, directory=self.place
            )
            read = list(found.batches)
            if len(read) < 2:
                raise DataError(
                    f"{self.data} gives {len(read)} batch of {size} samples; two are needed, one to measure"
                )
            self._batches = [*read[::2], *read[1::2]]
            self.words = f"chosen and measured on {self.samples} samples, {found.description}"
        return self._batches

    def to_json(self) -> dict[str, Any]:
        """By design: the unit of damage, the steps with the damage after each, and what was not paired and why."""
        return {"data": self.words, "designs": {name: found.to_json() for name, found in self.results.items()}}


def data_file(data: Path) -> Path:
    """A folder's training split, where it has one: what `leanify train` would take from it."""
    if not data.exists():
        raise DataError(f"{data} does not exist")
    return next((data / name for name in SPLITS if (data / name).exists()), data) if data.is_dir() else data
