"""The costs of a model as a value, and their cache. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leanify.design.options import Options
from leanify.design.prices import cache
from leanify.tabular import Tabular
from leanify.units import binary, millions, operations
from leanify.units import seconds as time_of

AGREED = "torch's counter and fvcore agree"  # `Profile.cross_check`


@dataclass(frozen=True)
class Memory:
    """Bytes. Predicted: the peak of a training step, with AdamW's two moments.

    On CUDA the peaks are torch's allocated ones, with its reserved ones beside them and NVML's device-wide
    figure; on a CPU they are the process's resident set over what it held before, None where the system does
    not tell. Of a model that upstream trains with labels alone the training's figures are None.
    """

    train_predicted_bytes: int | None
    forward_peak_bytes: int | None = None
    train_peak_bytes: int | None = None
    forward_reserved_bytes: int | None = None
    train_reserved_bytes: int | None = None
    nvml_used_bytes: int | None = None


@dataclass(frozen=True, repr=False)
class Profile(Tabular):
    """One model's costs; shown as a table.

    macs               multiply-adds of one sample; ``flops`` are twice as many
    attention_kernels  calls of each attention kernel in a forward pass, by name; None if unmeasured
    not_measured       what was not tried because it does not fit into memory
    as_given           whether ``macs`` and ``latency_s`` are those of the user's whole example
    """

    source: str
    architecture: str
    params: int
    params_body: int
    macs: int
    flops: int
    fvcore_macs: int | None
    cross_check: str
    uncounted: list[str]
    weights_bytes: int
    batch_size: int
    dtype: str
    device: str
    latency_s: float | None
    throughput_per_s: float | None
    memory: Memory
    attention_kernels: dict[str, int] | None = None
    not_measured: str | None = None
    as_given: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def headline(self) -> str:
        return f"{self.source} · {self.architecture} · {self.dtype}, {self.device}"

    def rows(self) -> list[dict[str, Any]]:
        plain = {name: value for name, value in self.to_json().items() if name != "memory"}
        return [{**plain, **asdict(self.memory)}]

    def cells(self) -> list[dict[str, str]]:
        rate = "–" if self.throughput_per_s is None else f"{self.throughput_per_s:,.1f} /s"
        known = {
            "parameters": millions(self.params),
            "  in the blocks": millions(self.params_body),
            "MACs of the example" if self.as_given else "MACs a sample": operations(self.macs),
            "weights": binary(self.weights_bytes),
            f"latency, batch {self.batch_size if self.as_given else 1}": time_of(self.latency_s),
            f"throughput, batch {self.batch_size}": rate,
            "forward peak": binary(self.memory.forward_peak_bytes),
            "training peak": binary(self.memory.train_peak_bytes),
            "training, predicted": binary(self.memory.train_predicted_bytes),
        }
        return [{"cost": name, self.source: value} for name, value in known.items() if value != "–"]


@dataclass(frozen=True)
class CountKey:
    """What a count depends on, besides what `cache.key_of` knows of the source, the code and the libraries."""

    source: str | Path
    batch_size: int
    device: str | None
    dtype: str
    tokens: int | None
    overrides: Mapping[str, Any] | None
    cls: str | None

    @property
    def file(self) -> cache.CacheFile | None:
        options = Options(tokens=self.tokens, overrides=self.overrides or {}, cls=self.cls)
        here = self.device or f"{Path('/dev/nvidiactl').exists()} {os.environ.get('CUDA_VISIBLE_DEVICES')}"
        return cache.file_of("profiles", self.source, options, self.batch_size, self.dtype, here)


def kept(asked: CountKey) -> Profile | None:
    """What was counted before for the same source, code and libraries; None where nothing was."""
    return cache.kept(asked.file, lambda value: Profile(**{**value, "memory": Memory(**value["memory"])}))
