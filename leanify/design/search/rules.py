"""Rules for a sensible shape of one stage, each with its source and the option that loosens it.

Rules limit what a search proposes. A pinned value (``--mlp 512``) is taken as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from leanify.architecture import Layer, Stage, primary_of
from leanify.design.options import Options

MULTIPLE = 64
SMALL_MULTIPLE = 8
EXPERT_MULTIPLE = 16  # experts are narrow and many: 64 units in each can add up to a tenth of a model
SMALL_WIDTH = 256  # below it, steps of 64 hidden units are a tenth of an MLP and more
MANY_HEADS = 32  # models with this many heads are served on several devices
DEEPEST_CUT = 4
FEWEST_BLOCKS = 2
LEAST_MLP, MOST_MLP = 0.5, 12.0  # times the width: a little more than the designs that were measured


@dataclass(frozen=True)
class Rules:
    """The rules under these options; an option that is None has a default that depends on the baseline.

    multiple         hidden units and inner (heads × head_dim) are multiples of 64, of 8 where the width is below 256
                     and of 16 in experts, as far as the baseline's own sizes are. Tensor cores work on tiles of 8
                     numbers in half precision, and best on rows of 64 (NVIDIA, *Matrix Multiplication Background*).
    tensor_parallel  heads and hidden units are divisible by the number of devices; key/value heads are divisible by it
                     or divide it (Shoeybi et al. 2019, §3). By default gcd(8, the baseline's heads), for heads only and
                     from 32 heads on.
    min_mlp, max_mlp  the MLP has from half to twelve times the width in hidden units, or the baseline's if that lies
                     outside; the active experts of a mixture count together. That is a little more than was measured
                     (`recipes/results/ranking.csv`: 0.5 to 10), and the ranking prefers 1 to 10 (`ranking.rank`).
    min_depth        the fewest blocks of a stage: a quarter of the baseline's, and two if it has three or more. That is
                     the deepest cut that was measured (8 → 2); published ones go to a third (ViT-L, 24 → 8).
    max_heads        at most this many times the baseline's heads. Published models stay below 2.5; beyond 3 each head
                     costs time that MACs do not show.
    """

    options: Options = field(default_factory=Options)

    def mlp_step(self, stage: Stage) -> int:
        """The hidden units by which a stage's MLP grows or shrinks."""
        return math.lcm(stage.units, self.mlp_multiple(stage), self.options.tensor_parallel or 1)

    def mlp_multiple(self, stage: Stage) -> int:
        """The multiple for the hidden units of a stage's MLP."""
        primary = primary_of(stage)
        return self._multiple(primary.width, primary.mlp, EXPERT_MULTIPLE if primary.experts else MULTIPLE)

    def mlp_range(self, stage: Stage) -> tuple[int, int]:
        """The fewest and the most hidden units of a stage's MLP (or expert), in whole steps or the baseline's."""
        primary, step = primary_of(stage), self.mlp_step(stage)
        least = LEAST_MLP if self.options.min_mlp is None else self.options.min_mlp
        most = MOST_MLP if self.options.max_mlp is None else self.options.max_mlp
        width = primary.width / max(1, primary.active)
        fewest = step * max(1, math.ceil(least * width / step))
        largest = step * math.floor(most * width / step)
        return min(primary.mlp, fewest), max(primary.mlp, largest)

    def head_step(self, stage: Stage) -> int:
        """The heads by which a stage grows."""
        primary = primary_of(stage)
        multiple = self.inner_multiple(primary)
        devices = self.options.tensor_parallel or 1
        if self.options.tensor_parallel is None and primary.heads >= MANY_HEADS:
            devices = math.gcd(SMALL_MULTIPLE, primary.heads)
        return math.lcm(stage.group, multiple // math.gcd(multiple, primary.head_dim), devices)

    def inner_multiple(self, primary: Layer) -> int:
        """The multiple for inner, heads × head_dim."""
        return self._multiple(primary.width, primary.inner)

    def head_counts(self, stage: Stage) -> list[int]:
        """The head counts of a stage above the baseline's."""
        primary, step = primary_of(stage), self.head_step(stage)
        devices = self.options.tensor_parallel or 1
        counts = []
        for heads in range(step * (primary.heads // step + 1), self.most_heads(stage) + 1, step):
            kv_heads = primary.with_heads(heads).kv_heads
            if kv_heads % devices == 0 or devices % kv_heads == 0:
                counts.append(heads)
        return counts

    def most_heads(self, stage: Stage) -> int:
        return int(self.options.max_heads * primary_of(stage).heads)

    def depth_floor(self, stage: Stage) -> int:
        """The fewest blocks of a leading stage."""
        if self.options.min_depth is not None:
            return min(stage.depth, max(stage.shortest, self.options.min_depth))
        fewest = min(FEWEST_BLOCKS, max(1, stage.depth - 1))
        return min(stage.depth, max(fewest, self.following_depth(stage)))

    def following_depth(self, stage: Stage) -> int:
        """The fewest blocks of a stage that follows another one."""
        quarter = math.ceil(stage.depth / DEEPEST_CUT) if self.options.min_depth is None else 1
        return max(stage.shortest, quarter)

    def _multiple(self, width: int, size: int, usual: int = MULTIPLE) -> int:
        """The multiple for a size: ``--multiple``, or what the baseline's size has of the default."""
        if self.options.multiple is not None:
            return self.options.multiple
        return math.gcd(usual if width >= SMALL_WIDTH else SMALL_MULTIPLE, size)


def depth_floor(width: int) -> int:
    """log₃(width) layers (Levine et al. 2020)."""
    return max(1, round(math.log(width, 3)))
