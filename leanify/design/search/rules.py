"""Rules for a sensible shape of one stage, each with its source and the option that loosens it.

Rules limit what a search proposes. A pinned value (``--mlp 512``) is taken as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from leanify.architecture import Stage, primary_of, widest
from leanify.design.options import Options

MULTIPLE = 64
SMALL_MULTIPLE = 8
EXPERT_MULTIPLE = 16  # experts are narrow and many: 64 units in each can add up to a tenth of a model
SMALL_WIDTH = 256  # below it, steps of 64 hidden units are a tenth of an MLP and more
MANY_HEADS = 32  # models with this many heads are served on several devices
DEEPEST_CUT = 3
LEAST_MLP = 1.0  # times the width


@dataclass(frozen=True)
class Rules:
    """The rules under these options; an option that is None has a default that depends on the baseline.

    multiple         hidden units and inner (heads × head_dim) are multiples of 64, of 8 where the width is below 256
                     and of 16 in experts, as far as the baseline's own sizes are. Tensor cores work on tiles of 8
                     numbers in half precision, and best on rows of 64 (NVIDIA, *Matrix Multiplication Background*).
    tensor_parallel  heads and hidden units are divisible by the number of devices; key/value heads are divisible by it
                     or divide it (Shoeybi et al. 2019, §3). By default gcd(8, the baseline's heads), for heads only and
                     from 32 heads on.
    min_mlp          the MLP has at least this many times the width in hidden units, or the baseline's if it has fewer;
                     the active experts of a mixture count together. By default 2, because no published lean model has
                     less (Leaner Transformers, Tables 1-2), and 1 if that leaves no design with more heads (`usual`).
    min_depth        the fewest blocks of a tower. By default log₃(width) layers (Levine et al. 2020, §3) on the path of
                     the input, and a third of the baseline's: the deepest published cut (ViT-L, 24 → 8).
    max_heads        at most this many times the baseline's heads. Published models stay below 2.5; beyond 3 each head
                     costs time that MACs do not show.
    """

    options: Options = field(default_factory=Options)

    # -- MLP ----------------------------------------------------------------------------------------------------------

    @property
    def least_mlp(self) -> float:
        """The smallest MLP of any design, in widths."""
        return LEAST_MLP if self.options.min_mlp is None else self.options.min_mlp

    def mlp_step(self, stage: Stage) -> int:
        """The hidden units by which a stage's MLP grows or shrinks."""
        return math.lcm(stage.units, self.mlp_multiple(stage), self.options.tensor_parallel or 1)

    def mlp_multiple(self, stage: Stage) -> int:
        """The multiple for the hidden units of a stage's MLP."""
        primary = primary_of(stage)
        return self._multiple(primary.width, primary.mlp, EXPERT_MULTIPLE if primary.experts else MULTIPLE)

    def mlp_floor(self, stage: Stage) -> int:
        """The fewest hidden units of a stage's MLP (of one expert)."""
        primary = primary_of(stage)
        wanted = math.ceil(self.least_mlp * primary.width / max(1, primary.active))
        step = self.mlp_step(stage)
        return min(primary.mlp, step * max(1, math.ceil(wanted / step)))

    # -- heads --------------------------------------------------------------------------------------------------------

    def head_step(self, stage: Stage) -> int:
        """The heads by which a stage grows."""
        primary = primary_of(stage)
        multiple = self._multiple(primary.width, primary.inner)
        devices = self.options.tensor_parallel or 1
        if self.options.tensor_parallel is None and primary.heads >= MANY_HEADS:
            devices = math.gcd(SMALL_MULTIPLE, primary.heads)
        return math.lcm(stage.group, multiple // math.gcd(multiple, primary.head_dim), devices)

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

    # -- depth --------------------------------------------------------------------------------------------------------

    def depth_floor(self, stage: Stage, share: float = 1.0, is_cross: bool = False) -> int:
        """The fewest blocks of a stage with ``share`` of the blocks on the input's path. A block counts as many layers
        as it has, without those that attend to another tower (``is_cross``).
        """
        if self.options.min_depth is not None:
            return min(stage.depth, max(stage.shortest, self.options.min_depth))
        layers = 1 if is_cross else len(widest(next(block for block in stage.blocks if block)))
        theory = math.ceil(depth_floor(primary_of(stage).width) * share / layers)
        return min(stage.depth, max(theory, self.following_depth(stage)))

    def following_depth(self, stage: Stage) -> int:
        """The fewest blocks of a stage that follows another one."""
        third = math.ceil(stage.depth / DEEPEST_CUT) if self.options.min_depth is None else 1
        return max(stage.shortest, third)

    def _multiple(self, width: int, size: int, usual: int = MULTIPLE) -> int:
        """The multiple for a size: ``--multiple``, or what the baseline's size has of the default."""
        if self.options.multiple is not None:
            return self.options.multiple
        return math.gcd(usual if width >= SMALL_WIDTH else SMALL_MULTIPLE, size)


def depth_floor(width: int) -> int:
    """log₃(width) layers (Levine et al. 2020)."""
    return max(1, round(math.log(width, 3)))
