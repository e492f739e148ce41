"""Rules for a sensible shape of one stage, each with its source and the option that loosens it.

Rules limit the proposals of a search. A pinned value (``--mlp 512``) is used as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from leanify.core.architecture import Stage, primary_layer
from leanify.search.options import Options

MULTIPLE = 64
SMALL_MULTIPLE = 8
EXPERT_MULTIPLE = 32  # as kernels take them; many narrow experts: 64 units in each can be a tenth of a model
SMALL_WIDTH = 256  # below this, a step of 64 hidden units is a tenth of an MLP or more
MANY_HEADS = 32  # models with this many heads are served on several devices
EVEN_HEADS = 2  # heads are multiples of this: kernels handle odd numbers such as 47 poorly
ENOUGH_HEAD_DIM = 64  # heads of as many channels are not made narrower
DEEPEST_CUT = 3  # deepest published cuts: ViT-L 24 → 8, GPT-2 12 → 4
FEWEST_BLOCKS = 2
MIN_MLP, MIN_GATED_MLP = 2.0, 8 / 3  # as multiples of the width: all published lean models are at least this wide
MAX_MACS = 1.1  # as a multiple of the MACs without more heads


@dataclass(frozen=True)
class Rules:
    """The rules under these options; an option that is None has a default that depends on the baseline.

    multiple         hidden units and inner (heads × head_dim) are multiples of 64, of 8 if the width is below 256
                     and of 32 in experts, as far as the baseline's own sizes are. Tensor cores work on tiles of 8
                     numbers in half precision, and best on rows of 64 (NVIDIA, *Matrix Multiplication Background*).
    tensor_parallel  heads and hidden units are divisible by the number of devices; key/value heads are divisible by it
                     or divide it (Shoeybi et al. 2019, §3). The default is gcd(8, the baseline's heads), for heads only
                     and from 32 heads on.
    min_mlp, max_mlp  the MLP has at least two widths of hidden units (2.67 if gated), like every published lean model,
                     and at most the baseline's; a narrower baseline keeps its MLP. The active experts of a mixture
                     are added up.
    min_depth        the minimum number of blocks: a third of the baseline's in every stage, the deepest published cut,
                     and log₃ of the width in a tower (Levine et al. 2020), the published minimum depth.
    max_heads        at most this many times the baseline's heads: no published lean model has more than twice as many.
    """

    options: Options = field(default_factory=Options)

    def mlp_step(self, stage: Stage) -> int:
        """Return the step in which a stage's hidden units grow or shrink."""
        return math.lcm(stage.units, self.mlp_multiple(stage), self.options.tensor_parallel or 1)

    def mlp_multiple(self, stage: Stage) -> int:
        """Return the multiple for the hidden units of a stage's MLP."""
        primary = primary_layer(stage)
        return self._multiple(primary.width, primary.mlp, EXPERT_MULTIPLE if primary.experts else MULTIPLE)

    def mlp_range(self, stage: Stage, is_gated: bool = False) -> tuple[int, int]:
        """Return the minimum and maximum hidden units of a stage's MLP (or expert), in full steps or the baseline's."""
        primary, step = primary_layer(stage), self.mlp_step(stage)
        width = primary.width / max(1, primary.active)
        min_ratio = self.options.min_mlp
        if min_ratio is None:
            min_ratio = MIN_GATED_MLP if is_gated else MIN_MLP
        fewest = step * max(1, math.ceil(min_ratio * width / step))
        largest = primary.mlp
        if self.options.max_mlp is not None:
            largest = max(primary.mlp, step * math.floor(self.options.max_mlp * width / step))
        return min(primary.mlp, fewest), largest

    def head_step(self, stage: Stage) -> int:
        """Return the step in which a stage's heads grow."""
        primary = primary_layer(stage)
        multiple = self._multiple(primary.width, primary.inner)  # of heads × head_dim
        devices = self.options.tensor_parallel or 1
        if self.options.tensor_parallel is None and primary.heads >= MANY_HEADS:
            devices = math.gcd(SMALL_MULTIPLE, primary.heads)
        return math.lcm(stage.group, multiple // math.gcd(multiple, primary.head_dim), devices, EVEN_HEADS)

    def head_counts(self, stage: Stage) -> list[int]:
        """Return the head counts of a stage above the baseline's."""
        primary, step = primary_layer(stage), self.head_step(stage)
        devices = self.options.tensor_parallel or 1
        counts = []
        for heads in range(step * (primary.heads // step + 1), self.most_heads(stage) + 1, step):
            kv_heads = primary.set_heads(heads).kv_heads
            if kv_heads % devices == 0 or devices % kv_heads == 0:
                counts.append(heads)
        return counts

    def most_heads(self, stage: Stage) -> int:
        return int(self.options.max_heads * primary_layer(stage).heads)

    def depth_floor(self, stage: Stage) -> int:
        """Return the minimum number of blocks of a leading stage; its tower may need more (`tower_floor`)."""
        if self.options.min_depth is not None:
            return min(stage.depth, max(stage.shortest, self.options.min_depth))
        fewest = min(FEWEST_BLOCKS, max(1, stage.depth - 1))
        return min(stage.depth, max(fewest, self.following_depth(stage)))

    def following_depth(self, stage: Stage) -> int:
        """Return the minimum number of blocks of a stage that follows another one."""
        third = math.ceil(stage.depth / DEEPEST_CUT) if self.options.min_depth is None else 1
        return max(stage.shortest, third)

    def _multiple(self, width: int, size: int, usual: int = MULTIPLE) -> int:
        """Return the multiple for a size: ``--multiple``, or the default's common divisor with the baseline's size."""
        if self.options.multiple is not None:
            return self.options.multiple
        return math.gcd(usual if width >= SMALL_WIDTH else SMALL_MULTIPLE, size)


def depth_floor(width: int) -> int:
    """Return log₃(width) layers (Levine et al. 2020)."""
    return max(1, round(math.log(width, 3)))


def max_width(stages: Sequence[Stage]) -> int:
    """Return the largest width of any layer of these stages."""
    blocks = chain.from_iterable(stage.blocks for stage in stages)
    return max(layer.width for layer in chain(*blocks))


def tower_floor(stages: Sequence[Stage]) -> int:
    """Return the minimum number of blocks of a tower with these stages: log₃ of its width, or all of its blocks."""
    width = max_width(stages)
    return min(sum(stage.depth for stage in stages), depth_floor(width))
