"""Two layers that share a table of heads (T5's relative positions) as one: of every row of the table one head stays.

Row j of the table serves head j of every layer of the stage, so that a pair can have no more heads than a layer. At
each row the head stays that gives more, of the first or of the second layer, and both output projections are corrected
for the heads that go. Hidden units are joined as in every pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leanify.architecture import Block
from leanify.lens import notation
from leanify.lens.located import LocatedLayer
from leanify.warm.axes import Picks, shared_table
from leanify.warm.blocks import stage_of
from leanify.warm.choose import importances, matrix_of, output_of
from leanify.warm.correction import set_matrix
from leanify.warm.donor import Donor
from leanify.warm.narrow import common_heads

Kept = tuple[Tensor, Tensor]  # the rows of the table at which the first layer's head stays, and the second one's


def kept_heads(donor: Donor, stage: str, first: int) -> list[Kept] | None:
    """Of each layer of the blocks ``first`` and ``first + 1``; None where every layer has a table of its own."""
    place = stage_of(donor.located, stage)
    if not shared_table(donor.located, place):
        return None
    found = []
    for pair in zip(*place.blocks[first : first + 2], strict=True):
        mine, theirs = (importances(layer.attention, "h", donor.heads(layer)) for layer in pair)
        stays = mine >= theirs
        found.append((stays.nonzero()[:, 0].cpu(), (~stays).nonzero()[:, 0].cpu()))
    return found


@torch.no_grad()
def silence(donor: Donor, layer: LocatedLayer, heads: Tensor) -> None:
    """Let the other heads of a layer in a copy of the donor's block add nothing, and correct its output for that."""
    site = layer.attention
    path, output = output_of(site, "h")
    assert output is not None
    picks = picks_of(heads)
    cut = donor.cut(donor.located.by_path[site.path], "h", layer.read(), picks) if len(heads) else None
    columns = notation.picked(site.reading.columns[path.removeprefix(f"{site.path}.")], site.sizes, picks)
    matrix = torch.zeros_like(matrix_of(output))
    matrix[:, columns] = matrix_of(output)[:, columns]
    bias = None
    if cut is not None and cut.weights is not None:
        matrix[:, columns], bias = cut.weights
    set_matrix(output, matrix, bias)


def picks_of(heads: Tensor) -> Picks:
    return {"h": heads, "g": heads}


def rows_that_stay(donor: Donor, stage: str, shape: Block, place: int) -> Sequence[Picks | None]:
    """The heads that all layers of a stage keep at a shape, for each layer of a block; None where all stay."""
    wanted = [
        size
        for each in donor.located.stages
        for block in each.blocks
        for size in (shape if each.name == stage else [layer.read() for layer in block])
    ]
    common = common_heads(donor, wanted)
    return [common.get(layer.attention.path) for layer in stage_of(donor.located, stage).blocks[place]]
