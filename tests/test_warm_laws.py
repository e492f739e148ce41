"""The laws of the moves, over the families of both zoos to which they apply.

A slice of the models is every tenth one; all ten slices are all models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_warm_shrink import ALL, PRE_NORM, TOLERANCE, built, data, drop, halved, narrow
from torch import nn
from zoo import tiny
from zoo.running import difference, outputs, randomise

import leanify
from leanify.carrying.calibration import run
from leanify.carrying.choose import output_projection
from leanify.carrying.narrow import projections
from leanify.carrying.residual import Residual, residuals
from leanify.core.errors import ShapeError, UnsupportedModel
from leanify.lens.located import LocatedModel
from leanify.lens.resize import linear_features
from leanify.reshaping.sites import locate

Call = Callable[[nn.Module], Any]


def dead_block(model: nn.Module, call: Call, located: LocatedModel) -> bool | None:
    """A residual block whose output projections are zero is dropped for nothing."""
    for stage in located.stages:
        if stage.container is None or len(stage.blocks) < 3:
            continue
        found = residuals(located, stage.name, lambda m: outputs(m, call))[1]
        if not isinstance(found, Residual) or found.post_norm:
            continue
        alone = replace(located, stages=[replace(stage, blocks=stage.blocks[1:2])])
        for module in projections(alone).values():
            for parameter in module.parameters():
                parameter.data.zero_()
        return difference(outputs(drop(model, stage.name, 1), call), outputs(model, call)) < TOLERANCE
    return None


def dead_units(model: nn.Module, call: Call, located: LocatedModel) -> bool | None:
    """Hidden units without a way out are narrowed for nothing."""
    shape = halved(model, heads=False)
    if shape == located.architecture:
        return None
    for layer in located.layers:
        module = output_projection(layer.mlp, "m")[1] if layer.mlp is not None else None
        if module is not None and layer.mlp is not None:
            dead = torch.arange(0, layer.mlp.sizes["m"] // 2 * 2, 2)
            module.weight.data.index_fill_(linear_features(module).input_axis, dead, 0.0)  # type: ignore[operator, union-attr]
    new = narrow(model, shape)
    return leanify.read(new) == shape and difference(outputs(new, call), outputs(model, call)) < 1e-8


LAWS = {"dead block": dead_block, "dead units": dead_units}


def held(name: str) -> Iterator[tuple[str, bool | None]]:
    """Every law's outcome for a model; None where it does not apply or the move is refused with a reason."""
    for law, holds in LAWS.items():
        model, call = built(name)
        try:
            yield law, holds(model, call, locate(model))
        except (UnsupportedModel, ShapeError):
            yield law, None


@pytest.mark.parametrize("name", ALL)
def test_laws_of_the_moves(name: str) -> None:
    outcomes = dict(held(name))
    assert False not in outcomes.values()
    assert outcomes["dead units"]
    assert outcomes["dead block"] or name not in PRE_NORM


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("library", ["timm", "hf"])
def test_moves_obey_laws_over_zoo(library: str, part: int) -> None:
    broken, applied = [], 0
    for name in tiny.names(library)[part::10]:
        try:
            model, call = tiny.build(library, name)
            outputs(randomise(model), call)
            run(model, data(model, 1)[0])
            locate(model)
        except Exception:
            continue  # the zoo's own tests say which models build here
        for law, outcome in held(f"{library}/{name}"):
            applied += outcome is not None
            broken += [f"{name}: {law}"] if outcome is False else []
    print(f"{library}, slice {part}: {applied} laws held against models, broken: {broken}")
    assert applied > 10
    assert not broken
