"""What a model is: origin, weights, shape and size. Cached; imports torch only if it is not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from leanify.design.options import Options
from leanify.design.prices import cache

LAYER = ("width", "heads", "kv_heads", "head_dim", "inner", "mlp")


@dataclass(frozen=True)
class Described:
    """``shape``: the architecture in words. ``layers``: a row for each layer, with its stage and block number."""

    origin: str
    weights: str | None
    shape: str
    params: int
    layers: list[dict[str, Any]]


def described(source: str) -> Described:
    """The model that SOURCE names, from the cache or built now. Raises what finding and building it raise."""
    file = cache.file_of("described", source, Options())
    before = cache.kept(file, lambda value: Described(**value))
    if before is not None:
        return before
    made, warned = cache.heard(lambda: _look(source))
    if not warned:
        cache.keep(file, asdict(made))
    return made


def _look(source: str) -> Described:
    from leanify.lens import surgery
    from leanify.sources import find

    found = find.find(source)
    model = find.build_on_meta(found)
    architecture = surgery.read(model)
    rows = []
    for stage in architecture.stages:
        for number, block in enumerate(stage.blocks):
            for layer in block:
                sizes = {key: getattr(layer, key) for key in LAYER}
                rows.append({"stage": stage.name, "layer": number, **sizes})
    params = sum(parameter.numel() for parameter in model.parameters())
    weights = None if found.weights is None else str(found.weights)
    return Described(str(found.origin), weights, str(architecture), params, rows)
