"""Group the stages that change together: a search treats each tower as one model.

CLIP has a text and a vision tower, T5 an encoder and a decoder. All stages of a Swin are one tower: its
deepest stage leads, and the others follow in proportion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leanify.core.architecture import Architecture
from leanify.core.errors import ShapeError
from leanify.search.options import EXPERTS, PINS, Pin


@dataclass(frozen=True)
class Tower:
    """Stages by index; ``lead`` is the deepest one."""

    name: str
    stages: tuple[int, ...]
    lead: int


def towers(architecture: Architecture, stage_indices: Sequence[int]) -> list[Tower]:
    """Group the changed stages into towers: stages belong together if their paths differ only in numbers."""
    stages = architecture.stages
    groups: dict[str, list[int]] = {}
    for i in stage_indices:
        groups.setdefault(_pattern(stages[i].name), []).append(i)
    result = []
    for path, members in groups.items():
        lead = max(members, key=lambda i: (stages[i].depth, -i))
        result.append(Tower(_name(path, list(groups)), tuple(members), lead))
    return result


def tower_stages(architecture: Architecture, tower: Tower) -> list[int]:
    """Return the indices of all stages of a tower, including the stages that do not change."""
    pattern = _pattern(architecture.stages[tower.lead].name)
    return [i for i, stage in enumerate(architecture.stages) if _pattern(stage.name) == pattern]


def _pattern(path: str) -> str:
    """Return a path without its numbers, which is equal for stages of one tower."""
    return re.sub(r"\d+", "#", path)


def _name(path: str, paths: list[str]) -> str:
    """Return the first part of a path that differs between the paths."""
    own_parts, other_parts = path.split("."), [other.split(".") for other in paths]
    for place in range(len(own_parts)):
        if len({tuple(parts[: place + 1]) for parts in other_parts}) > 1:
            return own_parts[place]
    return own_parts[0]


def find_stages(architecture: Architecture, name: str) -> list[int]:
    """Return the stages with this word in their path, or with a word that begins with it. Raises ShapeError."""
    paths = [stage.name.split(".") for stage in architecture.stages]
    exact = [i for i, path in enumerate(paths) if name in path]
    matches = exact or [i for i, path in enumerate(paths) if any(part.startswith(name) for part in path)]
    if not matches or not name:
        names = ", ".join(stage.name for stage in architecture.stages)
        raise ShapeError(f"{name!r} names no part of this model; its stages are {names}")
    return matches


def pins_per_stage(
    architecture: Architecture, pins_by_option: Mapping[str, Any], names: Sequence[str] = PINS
) -> dict[str, list[Any]]:
    """Return the pinned value of every stage for every name of an option."""
    pins = {}
    for what in names:
        pin = pins_by_option.get(what)
        if not isinstance(pin, Mapping):
            pins[what] = architecture.per_stage(pin, what)
            continue
        values: list[Any] = [None] * len(architecture.stages)
        for name, value in pin.items():
            if name in EXPERTS:
                continue
            stage_indices = [i for i in find_stages(architecture, name) if architecture.stages[i].primary]
            variable_indices = [i for i in stage_indices if i in architecture.variable_stages]
            for i in variable_indices or stage_indices:
                values[i] = value
        pins[what] = values
    return pins


def stages_to_change(architecture: Architecture, pins: Mapping[str, Pin]) -> list[int]:
    """Return the stages whose shape may change: the varied ones, and those named by a pin."""
    indices = set(architecture.variable_stages)
    for values in pins_per_stage(architecture, pins).values():
        for i, value in enumerate(values):
            if value is not None and architecture.stages[i].primary:
                indices.add(i)
    return sorted(indices)
