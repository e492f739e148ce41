"""Which stages change together: a search treats a tower as one model.

CLIP has a text and a vision tower, T5 an encoder and a decoder. All stages of a Swin are one tower: its
deepest stage leads, and the others follow in proportion.
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
    """Stages by index; ``lead`` is the deepest one."""

    name: str
    stages: tuple[int, ...]
    lead: int


def towers(architecture: Architecture, changed: Sequence[int]) -> list[Tower]:
    """The changed stages in towers: stages whose paths differ in numbers only belong together."""
    stages = architecture.stages
    groups: dict[str, list[int]] = {}
    for i in changed:
        groups.setdefault(re.sub(r"\d+", "#", stages[i].name), []).append(i)
    found = []
    for path, members in groups.items():
        lead = max(members, key=lambda i: (stages[i].depth, -i))
        found.append(Tower(_name(path, list(groups)), tuple(members), lead))
    return found


def _name(path: str, paths: list[str]) -> str:
    """The first part of a path that differs between the paths."""
    own, every = path.split("."), [other.split(".") for other in paths]
    for place in range(len(own)):
        if len({tuple(parts[: place + 1]) for parts in every}) > 1:
            return own[place]
    return own[0]


def stages_named(architecture: Architecture, name: str) -> list[int]:
    """The stages with this word in their path, or else with a word that begins with it. Raises ShapeError."""
    paths = [stage.name.split(".") for stage in architecture.stages]
    exact = [i for i, path in enumerate(paths) if name in path]
    found = exact or [i for i, path in enumerate(paths) if any(part.startswith(name) for part in path)]
    if not found or not name:
        known = ", ".join(stage.name for stage in architecture.stages)
        raise ShapeError(f"{name!r} names no part of this model; its stages are {known}")
    return found


def pins_of(architecture: Architecture, asked: Mapping[str, Pin]) -> dict[str, list[int | None]]:
    """For every name in `PINS` the pinned value of every stage."""
    pins = {}
    for what in PINS:
        pin = asked.get(what)
        if not isinstance(pin, Mapping):
            pins[what] = architecture.per_stage(pin, what)
            continue
        values: list[int | None] = [None] * len(architecture.stages)
        for name, value in pin.items():
            named = [i for i in stages_named(architecture, name) if architecture.stages[i].primary]
            varied = [i for i in named if i in architecture.varied]
            for i in varied or named:
                values[i] = value
        pins[what] = values
    return pins


def changed_stages(architecture: Architecture, asked: Mapping[str, Pin]) -> list[int]:
    """The stages whose shape may change: the varied ones, and those that a pin names."""
    changed = set(architecture.varied)
    for values in pins_of(architecture, asked).values():
        for i, value in enumerate(values):
            if value is not None and architecture.stages[i].primary:
                changed.add(i)
    return sorted(changed)
