"""Two neighbours of a trained model as one block of a given shape.

Each is narrowed first to what the new block can hold of it, so that the pair has no more unknowns than
needed. Side by side they have twice as much at most, of which the best stays.

Where layers share a table of heads (T5's relative positions), row j of the table serves head j of every layer
of the stage, so that a pair can have no more heads than a layer. At each row the head stays that gives more,
of the first or of the second layer, and both output projections are corrected for the heads that go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from leanify.architecture import Block, Layer
from leanify.lens import notation
from leanify.lens.located import LocatedLayer, LocatedModel
from leanify.warm.axes import Picks, shared_table
from leanify.warm.blocks import copied, list_of, modules_of, stage_of, with_blocks
from leanify.warm.calibration import moments, moments_in, run
from leanify.warm.choose import importances, matrix_of, output_of
from leanify.warm.correction import set_matrix
from leanify.warm.donor import Donor
from leanify.warm.fit import fitted_pair
from leanify.warm.narrow import by_donor, by_moments, common_heads, projections, shape_layer
from leanify.warm.pair import joined_block
from leanify.warm.residual import Residual, residuals
from leanify.warm.tape import replay

SEEN = 2  # samples on which a block is taken apart
Kept = tuple[Tensor, Tensor]  # the rows of the table at which the first layer's head stays, and the second's


@torch.no_grad()
def joined(donor: Donor, stage: str, first: int, shape: Block) -> tuple[nn.Module, bool]:
    """The blocks ``first`` and ``first + 1`` as one of this shape, and whether it was fitted by least squares.

    Where norms stand before the sublayers it runs the two exactly side by side. Raises UnsupportedModel.
    """
    kept = _kept_heads(donor, stage, first)
    pared = _pared(donor, stage, first, shape, kept)
    batch = {name: value[:SEEN] for name, value in donor.batches[0].items()}
    layers = stage_of(pared, stage).blocks[first]
    paths = {layer.attention.path: heads for layer, heads in zip(layers, kept or (), strict=False)}
    mine, theirs = residuals(pared, stage, lambda model: run(model, batch), (first, first + 1))
    if isinstance(mine, Residual) and isinstance(theirs, Residual) and mine.post_norm and theirs.post_norm:
        fitted, block = True, fitted_pair(donor, stage, first, pared, mine, theirs, paths)
    else:
        fitted, block = False, joined_block(pared, mine, theirs, paths)
    return _narrowed(donor, stage, first, block, shape), fitted


def _kept_heads(donor: Donor, stage: str, first: int) -> list[Kept] | None:
    """Of each layer of the two blocks; None where every layer has its own table."""
    place = stage_of(donor.located, stage)
    if not shared_table(donor.located, place):
        return None
    found = []
    for pair in zip(*place.blocks[first : first + 2], strict=True):
        mine, theirs = (importances(layer.attention, "h", donor.heads(layer)) for layer in pair)
        stays = mine >= theirs
        found.append((stays.nonzero()[:, 0].cpu(), (~stays).nonzero()[:, 0].cpu()))
    return found


def _pared(donor: Donor, stage: str, first: int, shape: Block, kept: Sequence[Kept] | None) -> LocatedModel:
    """The donor with the two blocks narrowed to the shape, where that has fewer heads or units.

    Under a shared table all heads stay, and those that are not ``kept`` add nothing.
    """
    blocks = [modules_of(block) for block in list_of(donor.located, stage)]
    for place in (first, first + 1):
        blocks[place] = copied(list_of(donor.located, stage)[place])
    pared = with_blocks(donor.located, {stage: blocks})
    for side, place in enumerate((first, first + 1)):
        for i, (layer, wanted) in enumerate(zip(stage_of(pared, stage).blocks[place], shape, strict=True)):
            old = layer.read()
            least = donor.pared(old, wanted)
            if kept is not None:
                least = replace(least, heads=old.heads, kv_heads=old.kv_heads)
                silence(donor, layer, kept[i][side])
            shape_layer(pared.model, layer, least, by_donor(donor, least))
    return with_blocks(pared, {})


@torch.no_grad()
def silence(donor: Donor, layer: LocatedLayer, heads: Tensor) -> None:
    """Let the other heads of a layer in a copied block add nothing, and correct its output for that."""
    site = layer.attention
    path, output = output_of(site, "h")
    assert output is not None
    picks: Picks = {"h": heads, "g": heads}
    columns = notation.picked(site.reading.columns[path.removeprefix(f"{site.path}.")], site.sizes, picks)
    matrix, bias = torch.zeros_like(matrix_of(output)), None
    matrix[:, columns] = matrix_of(output)[:, columns]
    if len(heads):
        cut = donor.cut(donor.located.by_path[site.path], "h", layer.read(), picks)
        if cut.weights is not None:
            matrix[:, columns], bias = cut.weights
    set_matrix(output, matrix, bias)


def _narrowed(donor: Donor, stage: str, first: int, block: nn.Module, shape: Block) -> nn.Module:
    """The pair at its shape, by what it does in the donor."""
    others = list_of(donor.located, stage)
    placed = [*map(modules_of, others[:first]), block, *map(modules_of, others[first + 2 :])]
    located = with_blocks(donor.located, {stage: placed})
    layers = stage_of(located, stage).blocks[first]
    alone = replace(located, stages=[replace(stage_of(located, stage), blocks=[layers])])
    maps = projections(alone)
    if donor.tapes[stage] is None:
        found = moments(located.model, maps, donor.batches)
    else:
        calls = donor.calls(stage, first)
        found = moments_in(maps, ((mask, partial(replay, block, call)) for mask, call in calls))
    common = {}
    if shared_table(donor.located, stage_of(donor.located, stage)):  # all layers of the stage keep the same heads
        wanted: list[Layer] = []
        for each in donor.located.stages:
            for old in each.blocks:
                wanted += shape if each.name == stage else [layer.read() for layer in old]
        common = common_heads(donor, wanted)
    before = stage_of(donor.located, stage).blocks[first]
    for old_layer, layer, size in zip(before, layers, shape, strict=True):
        heads = common.get(old_layer.attention.path)
        shape_layer(located.model, layer, size, by_moments(found, size, heads=heads))
    return block
