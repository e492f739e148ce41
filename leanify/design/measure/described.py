"""What a model is: origin, weights, shape and size, kept from one time to the next. Imports torch only to find out."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any

from leanify.design.options import Options
from leanify.design.prices.cache import file_of, heard
from leanify.runs.cache import read_value, write_value

LAYER = ("width", "heads", "kv_heads", "head_dim", "inner", "mlp")


@dataclass(frozen=True)
class Described:
    """``shape``: the architecture in words. ``layers``: a row for each layer, with its stage and its block's number."""

    origin: str
    weights: str | None
    shape: str
    params: int
    layers: list[dict[str, Any]]


def described(source: str) -> Described:
    """The model that SOURCE names, as it was found before or else now. Raises what finding and building it raise."""
    file = file_of("described", source, Options())
    before = None if file is None else read_value(*file, lambda value: Described(**value))
    if before is not None:
        return before
    found, warned = heard(lambda: _found(source))
    if file is not None and not warned:
        with contextlib.suppress(OSError):
            write_value(*file, asdict(found))
    return found


def _found(source: str) -> Described:
    from leanify.lens import surgery
    from leanify.sources import find

    found = find.find(source)
    model = find.build_on_meta(found)
    architecture = surgery.read(model)
    rows = [
        {"stage": stage.name, "layer": number, **{key: getattr(layer, key) for key in LAYER}}
        for stage in architecture.stages
        for number, block in enumerate(stage.blocks)
        for layer in block
    ]
    params = sum(parameter.numel() for parameter in model.parameters())
    weights = None if found.weights is None else str(found.weights)
    return Described(str(found.origin), weights, str(architecture), params, rows)
