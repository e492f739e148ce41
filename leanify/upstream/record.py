"""What leanify knows about a model as a whole: one record, kept in the model and inherited by its copies.

Facts of single modules stay with them: the row that reads a module (`lens.families`), how many experts process a token
(`lens.mlps`), and why the depth of its blocks is fixed (`lens.blocks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from leanify.upstream.origin import Origin

_KEY = "_leanify"


@dataclass(frozen=True)
class ModelRecord:
    """The facts of one model. A record never changes: `note_fact` replaces it, so copies of a model share none."""

    origin: Origin | None = None  # how upstream builds the model
    is_stamped: bool = False  # leanify built or reshaped it: ``origin`` holds, also where it is None
    inputs: Mapping[str, Any] | None = None  # the example that a user gave, by argument
    new_tensors: tuple[str, ...] = ()  # initialised while loading, because the checkpoint lacks them
    stages: tuple[str, ...] = ()  # their names before a cut to one block, after which a list is none
    is_read: bool = False  # trials have read every attention (`lens.discovery`)
    is_depth_checked: bool = False  # it has run with one block less (`lens.discovery.check_depth`)


def get_record(model: Any) -> ModelRecord:
    """Return the record of a model; an empty one where leanify has noted nothing."""
    record: ModelRecord = vars(model).get(_KEY, ModelRecord())
    return record


def note_fact(model: nn.Module, **facts: Any) -> None:
    """Note facts in the record of a model, by the names of its fields."""
    model.__dict__[_KEY] = replace(get_record(model), **facts)
