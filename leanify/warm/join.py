"""Two neighbours of a trained model as one block of a given shape.

Each is narrowed first to what the new block can hold of it, so that the pair has no more unknowns than needed. Side by
side they have twice as much at most, of which the best stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from leanify.architecture import Block, Layer
from leanify.lens.located import LocatedModel, Site
from leanify.warm.axes import shared_table
from leanify.warm.blocks import copied, list_of, modules_of, stage_of, with_blocks
from leanify.warm.calibration import moments, moments_in, run
from leanify.warm.donor import Cut, Donor
from leanify.warm.fit import fitted_pair
from leanify.warm.merge import Kept, kept_heads, rows_that_stay, silence
from leanify.warm.narrow import by_moments, projections, shape_layer
from leanify.warm.pair import joined_block
from leanify.warm.residual import Residual, residuals
from leanify.warm.tape import replay

SEEN = 2  # samples on which a block is taken apart


@torch.no_grad()
def joined(donor: Donor, stage: str, first: int, shape: Block) -> tuple[nn.Module, bool]:
    """The blocks ``first`` and ``first + 1`` as one of this shape, and whether by least squares: exactly side by side
    where norms stand before. Raises UnsupportedModel.
    """
    kept = kept_heads(donor, stage, first)
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

            def cut(site: Site, symbol: str, least: Layer = least) -> Cut:
                return donor.cut(donor.located.by_path[site.path], symbol, least)

            shape_layer(pared.model, layer, least, cut)
    return with_blocks(pared, {})


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
    shared = shared_table(donor.located, stage_of(donor.located, stage)) != ""
    common = rows_that_stay(donor, stage, shape, first) if shared else [None] * len(layers)
    for layer, wanted, heads in zip(layers, shape, common, strict=True):
        shape_layer(located.model, layer, wanted, by_moments(found, wanted, heads=heads))
    return block
