"""Which stages change together: a tower is what a search treats as one model.

CLIP has a text and a vision tower, T5 an encoder and a decoder; all stages of a Swin are one tower, whose deepest
stage leads and the others follow in proportion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leanify.architecture import Architecture
from leanify.errors import ShapeError

PINS = ("depth", "heads", "head_dim", "mlp", "experts", "active_experts")
Pin = int | Sequence[int] | Mapping[str, int] | None


@dataclass(frozen=True)
class Tower:
    """Stages by index, and the one that leads: ``share`` of the blocks on the input's way are in it.

    ``cross`` where towers stand on each other: a decoder looks into its encoder.
    """

    name: str
    stages: tuple[int, ...]
    lead: int
    share: float = 1.0
    cross: bool = False


def towers(architecture: Architecture, changed: Sequence[int]) -> list[Tower]:
    """The changed stages in towers: stages whose paths differ in numbers alone belong together."""
    stages = architecture.stages
    groups: dict[str, list[int]] = {}
    for i in changed:
        groups.setdefault(re.sub(r"\d+", "#", stages[i].name), []).append(i)
    cross = len(groups) > 1 and any(len(block) > 1 for i in changed for block in stages[i].blocks)
    return [_tower(architecture, key, groups, cross) for key in groups]


def _tower(architecture: Architecture, key: str, groups: Mapping[str, list[int]], cross: bool) -> Tower:
    members = groups[key]
    depths = {i: architecture.stages[i].depth for i in members}
    lead = max(members, key=lambda i: (depths[i], -i))
    way = architecture.depth if cross or len(groups) == 1 else sum(depths.values())
    return Tower(_name(key, list(groups)), tuple(members), lead, depths[lead] / way, cross)


def _name(key: str, keys: list[str]) -> str:
    """The first part of a path that tells it from the others."""
    parts = [path.split(".") for path in keys]
    own = key.split(".")
    at = next((i for i in range(len(own)) if len({tuple(p[: i + 1]) for p in parts}) > 1), 0)
    return own[min(at, len(own) - 1)]


def stages_named(architecture: Architecture, name: str) -> list[int]:
    """The stages that a word names: one with this word, or one that begins with it, in its path. Raises ShapeError."""
    parts = [stage.name.split(".") for stage in architecture.stages]
    exact = [i for i, path in enumerate(parts) if name in path]
    found = exact or [i for i, path in enumerate(parts) if any(part.startswith(name) for part in path)]
    if not found or not name:
        known = ", ".join(stage.name for stage in architecture.stages)
        raise ShapeError(f"{name!r} names no part of this model; its stages are {known}")
    return found


def pins_of(architecture: Architecture, asked: Mapping[str, Pin]) -> dict[str, list[int | None]]:
    """For every name in `PINS` the pinned value of every stage."""
    return {what: _pin(architecture, asked.get(what), what) for what in PINS}


def _pin(architecture: Architecture, pin: Pin, what: str) -> list[int | None]:
    if not isinstance(pin, Mapping):
        return architecture.per_stage(pin, what)
    values: list[int | None] = [None] * len(architecture.stages)
    for name, value in pin.items():
        named = [i for i in stages_named(architecture, name) if architecture.stages[i].primary]
        for i in [i for i in named if i in architecture.varied] or named:
            values[i] = value
    return values
