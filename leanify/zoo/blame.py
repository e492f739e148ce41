"""Find the wrong row when a law is broken, by changing the layers of one class at a time."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from leanify.architecture import Architecture
from leanify.lens import sites, surgery
from leanify.lens.families import short
from leanify.lens.located import LocatedModel
from leanify.zoo.laws import TOLERANCE
from leanify.zoo.running import Call, difference, outputs


def blamed(model: nn.Module, call: Call) -> list[str]:
    """The classes whose rows are wrong, by their names in the tables, each with what went wrong."""
    located = sites.locate(model)
    reference = outputs(model, call)
    places = [layer.attention for layer in located.layers]
    places += [layer.mlp for layer in located.layers if layer.mlp]
    found = []
    for name in dict.fromkeys(place.reading.name for place in places):
        try:
            error = difference(outputs(surgery.write(model, _doubled(located, name)), call), reference)
            why = "" if error < TOLERANCE else f"outputs differ by {error:.1e}"
        except Exception as failed:  # a wrong row can fail in any way: in a reshape, an index, a kernel
            why = f"{type(failed).__name__}: {' '.join(str(failed).split())[:120]}"
        if why:
            found.append(f"{short(name)} ({why})")
    return found


def _doubled(located: LocatedModel, name: str) -> Architecture:
    """The model's shape with twice the heads and hidden units in the layers of one row, where both keep the outputs."""
    stages = []
    for found, stage in zip(located.stages, located.architecture.stages, strict=True):
        blocks = []
        for places in found.blocks:
            layers = []
            for place in places:
                layer = place.read()
                if place.attention.reading.name == name:
                    layer = layer.with_heads(2 * layer.heads)
                if place.mlp and place.mlp.reading.name == name and not place.mlp.mixed_by:
                    layer = replace(layer, mlp=2 * layer.mlp)
                layers.append(layer)
            blocks.append(tuple(layers))
        stages.append(replace(stage, blocks=tuple(blocks)))
    return replace(located.architecture, stages=tuple(stages))
