"""Find the wrong row when a law is broken, by changing the layers of one class at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from leanify.architecture import Architecture, Layer
from leanify.lens import sites, surgery
from leanify.lens.families import short
from leanify.lens.located import LocatedLayer, LocatedModel, Site
from leanify.lens.resize import part_of
from leanify.zoo.laws import TOLERANCE
from leanify.zoo.running import Call, difference, outputs


def blamed(model: nn.Module, call: Call) -> list[str]:
    """The classes whose rows are wrong, by their names in the tables, each with what went wrong."""
    located = sites.locate(model)
    reference = outputs(model, call)
    found = []
    for name, wanted in _alone(located):
        why = _wrong(model, wanted, call, reference)
        if why:
            found.append(f"{short(name)} ({why})")
    return found


def _alone(located: LocatedModel) -> Iterator[tuple[str, Architecture]]:
    """For each row, the model's shape with twice the heads or hidden units in that row's layers only."""
    for name in dict.fromkeys(layer.attention.reading.name for layer in located.layers):
        yield name, _changed(located, partial(_more_heads, name))
    plain = [layer.mlp for layer in located.layers if layer.mlp and not _mixes(layer.mlp)]
    for name in dict.fromkeys(mlp.reading.name for mlp in plain):
        yield name, _changed(located, partial(_more_units, name))


def _more_heads(name: str, at: LocatedLayer, layer: Layer) -> Layer:
    return layer.with_heads(2 * layer.heads) if at.attention.reading.name == name else layer


def _more_units(name: str, at: LocatedLayer, layer: Layer) -> Layer:
    return replace(layer, mlp=2 * layer.mlp) if at.mlp and at.mlp.reading.name == name else layer


def _mixes(mlp: Site) -> bool:
    """Whether a norm runs over the hidden units: new units then change the outputs even if the row is right."""
    return any(part_of(mlp.module, part) is not None for part in mlp.reading.mixing)


def _changed(located: LocatedModel, change: Callable[[LocatedLayer, Layer], Layer]) -> Architecture:
    stages = []
    for found, stage in zip(located.stages, located.architecture.stages, strict=True):
        blocks = []
        for places, block in zip(found.blocks, stage.blocks, strict=True):
            blocks.append(tuple(change(place, layer) for place, layer in zip(places, block, strict=True)))
        stages.append(replace(stage, blocks=tuple(blocks)))
    return replace(located.architecture, stages=tuple(stages))


def _wrong(model: nn.Module, wanted: Architecture, call: Call, reference: list[Tensor]) -> str:
    try:
        error = difference(outputs(surgery.write(model, wanted), call), reference)
    except Exception as failed:  # a wrong row can fail in any way: in a reshape, an index, a kernel
        return f"{type(failed).__name__}: {' '.join(str(failed).split())[:120]}"
    return "" if error < TOLERANCE else f"outputs differ by {error:.1e}"
