"""Join two neighbouring blocks of a trained model into one block of a given shape.

Each is first narrowed to the part that the new block can hold, so that the pair has no more unknowns than needed.
Side by side they have at most twice the target's size, of which the best part is kept.

If layers share a table of heads (T5's relative positions), row j of the table belongs to head j of every layer of the
stage, so a pair can have no more heads than a layer. For each row, the more important head of the first or second
layer is kept, and both output projections are corrected for the removed heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from leanify.carrying.blocks import copy_block, copy_modules, find_stage, replace_blocks, stage_blocks
from leanify.carrying.calibration import run
from leanify.carrying.choose import importances, input_positions, output_projection, set_matrix, weight_matrix
from leanify.carrying.fit import fit_pair
from leanify.carrying.narrow import common_heads, moment_cuts, projections, shape_layer, teacher_cuts
from leanify.carrying.pair import join_pair
from leanify.carrying.residual import Residual, residuals
from leanify.carrying.teacher import CalibratedTeacher
from leanify.core.architecture import Block, Layer
from leanify.lens.axes import Picks, shared_table
from leanify.lens.located import LocatedLayer, LocatedModel

PROBE_SAMPLES = 2  # samples on which a block is analysed
KeptRows = tuple[Tensor, Tensor]  # rows of the table for the kept heads of the first and of the second layer


@torch.no_grad()
def join_blocks(teacher: CalibratedTeacher, stage: str, first: int, shape: Block) -> tuple[nn.Module, bool]:
    """Return the blocks ``first`` and ``first + 1`` as one of this shape, and whether it was fitted by least squares.

    For pre-norm blocks, the result runs the two exactly side by side. Raises UnsupportedModel.
    """
    # narrow both blocks, then find their residual sublayers by running two samples
    kept_heads = _kept_heads(teacher, stage, first)
    narrow_model = _narrow_pair(teacher, stage, first, shape, kept_heads)
    batch = {name: value[:PROBE_SAMPLES] for name, value in teacher.batches[0].items()}
    layers = find_stage(narrow_model, stage).blocks[first]
    paths = {layer.attention.path: heads for layer, heads in zip(layers, kept_heads or (), strict=False)}
    first_residual, second_residual = residuals(
        narrow_model, stage, lambda model: run(model, batch), (first, first + 1)
    )
    # post-norm blocks are fitted, pre-norm blocks are joined exactly
    if (
        isinstance(first_residual, Residual)
        and isinstance(second_residual, Residual)
        and first_residual.post_norm
        and second_residual.post_norm
    ):
        is_fitted, block = True, fit_pair(teacher, stage, first, narrow_model, first_residual, second_residual, paths)
    else:
        is_fitted, block = False, join_pair(narrow_model, first_residual, second_residual, paths)
    return _narrow_joined(teacher, stage, first, block, shape), is_fitted


def _kept_heads(teacher: CalibratedTeacher, stage: str, first: int) -> list[KeptRows] | None:
    """Return the kept rows for each layer of the two blocks; None if every layer has its own table."""
    place = find_stage(teacher.located_model, stage)
    if not shared_table(teacher.located_model, place):
        return None
    rows = []
    for pair in zip(*place.blocks[first : first + 2], strict=True):
        first_scores, second_scores = (importances(layer.attention, "h", teacher.heads(layer)) for layer in pair)
        stays = first_scores >= second_scores
        rows.append((stays.nonzero()[:, 0].cpu(), (~stays).nonzero()[:, 0].cpu()))
    return rows


def _narrow_pair(
    teacher: CalibratedTeacher, stage: str, first: int, shape: Block, kept_heads: Sequence[KeptRows] | None
) -> LocatedModel:
    """Return the teacher with the two blocks narrowed to the shape, if it has fewer heads or units.

    With a shared table all heads stay, and the heads outside ``kept_heads`` add nothing.
    """
    blocks = [copy_modules(block) for block in stage_blocks(teacher.located_model, stage)]
    for place in (first, first + 1):
        blocks[place] = copy_block(stage_blocks(teacher.located_model, stage)[place])
    narrow_model = replace_blocks(teacher.located_model, {stage: list(enumerate(blocks))})
    for side, place in enumerate((first, first + 1)):
        for i, (layer, target) in enumerate(zip(find_stage(narrow_model, stage).blocks[place], shape, strict=True)):
            old = layer.read()
            min_layer = teacher.intermediate_layer(old, target)
            if kept_heads is not None:
                min_layer = replace(min_layer, heads=old.heads, kv_heads=old.kv_heads)
                silence(teacher, layer, kept_heads[i][side])
            shape_layer(narrow_model.model, layer, min_layer, teacher_cuts(teacher, min_layer))
    return replace_blocks(narrow_model, {})


@torch.no_grad()
def silence(teacher: CalibratedTeacher, layer: LocatedLayer, heads: Tensor) -> None:
    """Make the other heads of a layer in a copied block add nothing, and correct its output for their loss."""
    site = layer.attention
    path, output = output_projection(site, "h")
    assert output is not None
    picks: Picks = {"h": heads, "g": heads}
    columns = input_positions(site, path, picks)
    matrix, bias = torch.zeros_like(weight_matrix(output)), None
    matrix[:, columns] = weight_matrix(output)[:, columns]
    if len(heads):
        cut = teacher.cut(teacher.located_model.sites_by_path[site.path], "h", layer.read(), picks)
        if cut.weights is not None:
            matrix[:, columns], bias = cut.weights
    set_matrix(output, matrix, bias)


def _narrow_joined(teacher: CalibratedTeacher, stage: str, first: int, block: nn.Module, shape: Block) -> nn.Module:
    """Narrow the pair to its shape, by its activations in the teacher."""
    # the pair in its place in the teacher
    new_blocks = [(i, copy_modules(other)) for i, other in enumerate(stage_blocks(teacher.located_model, stage))]
    new_blocks[first : first + 2] = [(first, block)]
    located_model = replace_blocks(teacher.located_model, {stage: new_blocks})
    layers = find_stage(located_model, stage).blocks[first]
    one_block = replace(located_model, stages=[replace(find_stage(located_model, stage), blocks=[layers])])
    moments_by_path = teacher.block_moments(located_model, stage, first, projections(one_block))
    # heads that all layers under a shared table keep
    common = {}
    if shared_table(
        teacher.located_model, find_stage(teacher.located_model, stage)
    ):  # all layers of the stage keep the same heads
        targets: list[Layer] = []
        for other_stage in teacher.located_model.stages:
            for old in other_stage.blocks:
                targets += shape if other_stage.name == stage else [layer.read() for layer in old]
        common = common_heads(teacher, targets)
    # the pair at its shape
    before = find_stage(teacher.located_model, stage).blocks[first]
    for old_layer, layer, size in zip(before, layers, shape, strict=True):
        heads = common.get(old_layer.attention.path)
        shape_layer(located_model.model, layer, size, moment_cuts(moments_by_path, size, heads))
    return block
