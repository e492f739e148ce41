"""Rules for a sensible shape of one stage, each with its source and the flag that loosens it.

Rules bind what a search proposes. A pinned value (``--mlp 512``) is taken as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from leanify.architecture import Stage, primary_of, widest
from leanify.errors import ShapeError

MULTIPLE = 64
SMALL_MULTIPLE = 8
EXPERT_MULTIPLE = 16  # experts are narrow and many: 64 units in each can add up to a tenth of a model
SMALL_WIDTH = 256  # below it, steps of 64 hidden units are a tenth of an MLP and more
MANY_HEADS = 32  # from here on models are served on several devices
DEEPEST_CUT = 3
LEAST_MLP = 1.0  # times the width


@dataclass(frozen=True)
class Constraints:
    """The rules, at their defaults; None means that the default depends on the baseline.

    multiple         ``--multiple``: hidden units and inner (heads × head_dim) in multiples of 64, of 8 where the width
                     is below 256 and of 16 in experts, as far as the baseline's own sizes are. Tensor cores work on
                     tiles of 8 numbers in half precision, and best on rows of 64 (NVIDIA, *Matrix Multiplication
                     Background*).
    tensor_parallel  ``--tensor-parallel``: heads and hidden units divide by so many devices, and key/value heads
                     divide by them or into them (Shoeybi et al. 2019, §3). By default 8, or what the baseline's heads
                     have in common with 8, for heads alone and from 32 heads on.
    min_mlp          ``--min-mlp``: the MLP has at least so many times the width in hidden units, or the baseline's
                     where it has fewer; with experts those that are active count together. By default 2, as no
                     published lean model has less (Leaner Transformers, Tables 1-2), and 1 where that leaves no design
                     with more heads (see `search.usual`).
    min_depth        ``--min-depth``: the fewest blocks of a tower. By default log₃(width) layers (Levine et al. 2020,
                     §3), counted along the way that the input takes, and a third of the baseline's: the deepest cut
                     that was published (ViT-L, 24 → 8).
    max_heads        ``--max-heads``: at most so many times the baseline's heads. The published rows stay below 2.5;
                     beyond 3 each head costs time that MACs do not show.
    """

    multiple: int | None = None
    tensor_parallel: int | None = None
    min_mlp: float | None = None
    min_depth: int | None = None
    max_heads: float = 3.0

    def __post_init__(self) -> None:
        """Raises ShapeError where a rule makes no sense."""
        least = {"multiple": 1, "tensor_parallel": 1, "min_mlp": 0, "min_depth": 1, "max_heads": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not bound <= value < math.inf:
                raise ShapeError(f"--{name.replace('_', '-')} {value}: it must be at least {bound}")

    def mlp_step(self, stage: Stage) -> int:
        """How many hidden units a stage's MLP gains or loses at a time."""
        return math.lcm(stage.units, self.granule_of(stage), self.tensor_parallel or 1)

    @property
    def least_mlp(self) -> float:
        """The fewest hidden units of any design, in widths."""
        return LEAST_MLP if self.min_mlp is None else self.min_mlp

    def mlp_floor(self, stage: Stage) -> int:
        """The fewest hidden units of a stage's MLP (of one expert)."""
        primary = primary_of(stage)
        wanted = math.ceil(self.least_mlp * primary.width / max(1, primary.active))
        step = self.mlp_step(stage)
        return min(primary.mlp, step * max(1, math.ceil(wanted / step)))

    def head_step(self, stage: Stage) -> int:
        """How many heads a stage gains at a time."""
        primary = primary_of(stage)
        rows = self.granule(primary.width, primary.inner)
        devices = self.tensor_parallel or (
            math.gcd(SMALL_MULTIPLE, primary.heads) if primary.heads >= MANY_HEADS else 1
        )
        return math.lcm(stage.group, rows // math.gcd(rows, primary.head_dim), devices)

    def head_counts(self, stage: Stage) -> list[int]:
        """The head counts of a stage above the baseline's."""
        primary, step = primary_of(stage), self.head_step(stage)
        most = int(self.max_heads * primary.heads)
        counts = range(step * (primary.heads // step + 1), most + 1, step)
        return [count for count in counts if self._shares_out(primary.with_heads(count).kv_heads)]

    def _shares_out(self, kv_heads: int) -> bool:
        """Whether devices can hold whole key/value heads each, or share whole ones."""
        devices = self.tensor_parallel or 1
        return kv_heads % devices == 0 or devices % kv_heads == 0

    def granule(self, width: int, size: int, usual: int = MULTIPLE) -> int:
        """The multiple that a size keeps: the one that is asked for, or what the baseline's has of the default."""
        if self.multiple is not None:
            return self.multiple
        return math.gcd(usual if width >= SMALL_WIDTH else SMALL_MULTIPLE, size)

    def granule_of(self, stage: Stage) -> int:
        """The multiple that the hidden units of a stage's MLP keep."""
        primary = primary_of(stage)
        return self.granule(primary.width, primary.mlp, EXPERT_MULTIPLE if primary.experts else MULTIPLE)

    def depth_floor(self, stage: Stage, share: float = 1.0, cross: bool = False) -> int:
        """The fewest blocks of a stage that holds ``share`` of the blocks on the input's way; a block counts as many
        layers as it has, those that look ``cross`` to another tower left out.
        """
        if self.min_depth is not None:
            return min(stage.depth, max(stage.shortest, self.min_depth))
        primary = primary_of(stage)
        layers = len(widest(next(block for block in stage.blocks if block))) if not cross else 1
        theory = math.ceil(depth_floor(primary.width) * share / layers)
        return min(stage.depth, max(stage.shortest, theory, self.least(stage)))

    def least(self, stage: Stage) -> int:
        """The fewest blocks of a stage that follows another one."""
        third = math.ceil(stage.depth / DEEPEST_CUT) if self.min_depth is None else 1
        return max(stage.shortest, third)


def depth_floor(width: int) -> int:
    """log₃(width) layers (Levine et al. 2020)."""
    return max(1, round(math.log(width, 3)))
