"""The costs of a model as a value. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from leanify.core.tabular import Tabular
from leanify.core.units import format_bytes, format_count, format_operations, format_seconds

COUNTERS_AGREE = "torch's counter and fvcore agree"  # `Profile.cross_check`


@dataclass(frozen=True)
class Memory:
    """Bytes in memory. The predicted ones are the peak of a training step, with AdamW's two moments.

    On CUDA the peaks are torch's allocated bytes, together with its reserved bytes and NVML's device-wide
    figure; on a CPU they are the growth of the process's resident set, None if the system does not report it. A
    model that upstream trains only with labels has no figures of training.
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

    params_body        parameters in the blocks; None for a module that cannot be read
    params_embeddings  parameters of tables with a row for each token, a tied one once; None without a vocabulary
    macs               multiply-adds of one sample; ``flops`` are twice as many
    attention_kernels  calls of each attention kernel in a forward pass, by name; None if unmeasured
    not_measured       the measurement that was skipped because it does not fit into memory
    as_given           whether ``macs`` and ``latency_s`` refer to the user's whole example
    """

    source: str
    architecture: str
    params: int
    params_body: int | None
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
    params_embeddings: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def headline(self) -> str:
        return f"{self.source} · {self.architecture} · {self.dtype}, {self.device}"

    def rows(self) -> list[dict[str, Any]]:
        plain = {name: value for name, value in self.to_json().items() if name != "memory"}
        return [{**plain, **asdict(self.memory)}]

    def cells(self) -> list[dict[str, str]]:
        return [{"cost": label, self.source: unit(value)} for label, unit, value in self.costs() if value is not None]

    def costs(self) -> list[tuple[str, Callable[[Any], str], Any]]:
        """Every cost with its label, its unit as a function, and its value: None if it is unknown."""
        memory = self.memory
        return [
            ("parameters", format_count, self.params),
            ("  in the blocks", format_count, self.params_body),
            ("  in embeddings", _count, self.params_embeddings),
            ("MACs of the example" if self.as_given else "MACs a sample", format_operations, self.macs),
            ("FLOPs (2 × MACs)", format_operations, self.flops),
            ("weights", format_bytes, self.weights_bytes),
            ("latency of the example" if self.as_given else "latency, batch 1", format_seconds, self.latency_s),
            ("throughput", _rate, self.throughput_per_s),
            ("attention kernels", _kernels, self.attention_kernels),
            ("forward peak", format_bytes, memory.forward_peak_bytes),
            ("  reserved", format_bytes, memory.forward_reserved_bytes),
            ("training peak", format_bytes, memory.train_peak_bytes),
            ("  reserved", format_bytes, memory.train_reserved_bytes),
            ("training, predicted", format_bytes, memory.train_predicted_bytes),
            ("device used (NVML)", format_bytes, memory.nvml_used_bytes),
        ]


def _count(value: int | None) -> str:
    return "–" if value is None else format_count(value)


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} /s"


def _kernels(calls: Mapping[str, int] | None) -> str:
    if calls is None:
        return "–"
    return ", ".join(f"{times} × {name.removesuffix('_attention')}" for name, times in calls.items()) or "none seen"
