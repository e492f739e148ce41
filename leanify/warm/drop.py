"""Drop the blocks that change their input least.

The influence of a run of blocks is the angle between what goes in and what comes out, arccos(cos(x, y)) / π, averaged
over tokens (Gromov et al. 2024, The Unreasonable Ineffectiveness of the Deeper Layers, eq. 7). A run of n blocks with a
small angle can be left out.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.errors import ShapeError, UnsupportedModel
from leanify.lens.located import LocatedModel
from leanify.lens.sites import locate
from leanify.warm.blocks import list_of, stage_of, with_blocks
from leanify.warm.calibration import Batch, counted, run, states_of


def drop(model: nn.Module, stage: str, indices: Collection[int]) -> nn.Module:
    """A new model without some blocks of a stage. Raises ShapeError where none would be left."""
    return copy.deepcopy(without(locate(model), stage, indices).model)


def without(located: LocatedModel, stage: str, indices: Collection[int]) -> LocatedModel:
    """The same, sharing its tensors with the old model."""
    blocks = list_of(located, stage)
    unknown = sorted(set(indices) - set(range(len(blocks))))
    if unknown or len(set(indices)) >= len(blocks):
        raise ShapeError(f"stage {stage!r} has {len(blocks)} blocks; {sorted(set(indices))} cannot be dropped")
    widths = {width for layer in stage_of(located, stage).layers for width in (layer.read().width, layer.width_after)}
    if len(widths) > 1:
        raise UnsupportedModel(f"stage {stage!r} changes its width ({', '.join(map(str, sorted(widths)))}) on the way")
    return with_blocks(located, {stage: [block for i, block in enumerate(blocks) if i not in indices]})


@torch.no_grad()
def influence(located: LocatedModel, stage: str, batches: Sequence[Batch]) -> Tensor:
    """The influence of every run of blocks: entry (i, n − 1) for the n blocks from i on; NaN where there are fewer."""
    blocks = list_of(located, stage)
    located.model.eval()
    total = torch.full((len(blocks), len(blocks)), torch.nan, dtype=torch.float64)
    count = 0
    for batch in batches:
        with states_of(blocks) as states:
            run(located.model, batch)
        rows = [counted(x, batch.get("attention_mask")).double() for x in states]
        count += len(rows[0])
        for start in range(len(blocks)):
            for length in range(1, len(blocks) - start + 1):
                angle = _angle(rows[start], rows[start + length]).sum().cpu()
                total[start, length - 1] = total[start, length - 1].nan_to_num() + angle
    return total / count


def _angle(x: Tensor, y: Tensor) -> Tensor:
    """The angle between rows, as a share of π."""
    return F.cosine_similarity(x, y, dim=-1).clamp(-1, 1).arccos() / torch.pi


def best_run(scores: Tensor, length: int) -> int:
    """Where the run of ``length`` blocks with the least influence begins."""
    return int(scores[: len(scores) - length + 1, length - 1].argmin())
