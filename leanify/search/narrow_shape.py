"""A narrower shape: residual widths, heads and hidden units in one proportion.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from leanify.core.architecture import Architecture, Layer
from leanify.search.rules import ENOUGH_HEAD_DIM, SMALL_WIDTH

FEWEST = 4  # minimum number of steps for exact proportions
CHANNELS = 8  # widths are multiples of this, or of their common divisor with it
GROUPS = 1.5  # maximum factor on the heads of a key/value group


@dataclass(frozen=True)
class WidthScale:
    """The widths of an architecture's stages as multiples of one unit, which a narrower shape reduces.

    unit  channels; the greatest common divisor of the widths, or the leading width if the divisor is too small, in
          which case each width is rounded separately
    step  decrement of the unit that keeps all widths multiples of `CHANNELS`, if they are in the baseline
    pins  {old width: new width} if the new widths are given; the unit then changes nothing
    """

    architecture: Architecture
    unit: int
    step: int
    is_rounded: bool = False
    pins: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, architecture: Architecture) -> WidthScale:
        widths = set(primary_widths(architecture))
        # the common divisor, and the smallest step that keeps all widths multiples of CHANNELS
        unit = math.gcd(*widths)
        step = 1
        for width in widths:
            parts = width // unit
            channels = math.gcd(CHANNELS, width)
            step = math.lcm(step, channels // math.gcd(channels, parts))
        scale = cls(architecture, unit, step)
        if len(scale.smaller_units()) >= FEWEST:
            return scale
        # too few steps: scale the leading width and round the others
        lead = lead_width(architecture)
        return cls(architecture, lead, math.gcd(CHANNELS, lead), True)

    def smaller_units(self) -> list[int]:
        """Return the units of narrower shapes, widest first: multiples of the step below the unit."""
        steps = math.ceil(self.unit / self.step) - 1
        return [self.step * count for count in range(steps, 0, -1)]

    def width(self, unit: int) -> int:
        """Return the width of the leading stage at this unit."""
        return self.widths(unit)[lead_width(self.architecture)]

    def widths(self, unit: int) -> dict[int, int]:
        """Return {old width: new width} at this unit."""
        if self.pins:
            return dict(self.pins)
        new_widths = {}
        for width in primary_widths(self.architecture):
            step = math.gcd(CHANNELS, width) if self.is_rounded else 1
            new_widths[width] = step * max(1, round(width * unit / (self.unit * step)))
        return new_widths

    def reshape(self, unit: int, mlp_share: float = 1.0, mlp_step: int = CHANNELS) -> Architecture:
        """Return the shape at this unit. ``mlp_share`` multiplies the hidden units after they shrink with the width."""
        widths = self.widths(unit)
        share = unit / self.unit

        def change(layer: Layer) -> Layer:
            if layer.width not in widths:
                return layer  # a separate inner stream, as in TNT
            width = widths[layer.width]
            mlp = layer.mlp
            if mlp:
                step = math.gcd(mlp_step, mlp)
                layer_share = width / layer.width if self.pins else share
                mlp = step * max(1, round(mlp * layer_share * mlp_share / step))
            return replace(narrow_layer(layer, width), mlp=mlp)

        return self.architecture.map_layers(change)


def narrow_layer(layer: Layer, width: int) -> Layer:
    """Return the layer at a smaller width, with heads of the same size in proportion, in whole key/value groups.

    Groups have another size if the heads then have exactly the layer's share of the width, as makers choose them
    (Qwen2.5: 14 heads on 2, 16 on 2). In a model of few channels, heads of under 64 may be narrower.
    """
    exact = layer.heads * width / layer.width
    heads = layer.group * max(1, round(exact / layer.group))
    narrow = replace(layer.set_heads(heads), width=width)
    if heads != exact == int(exact):
        heads, groups = int(exact), exact / layer.group
        divisors = [count for count in range(1, heads + 1) if heads % count == 0]
        kv_heads = min(divisors, key=lambda count: abs(math.log(count / groups)), default=1)
        narrow = replace(narrow, heads=heads, kv_heads=kv_heads)
    is_small = layer.width < SMALL_WIDTH and layer.head_dim < ENOUGH_HEAD_DIM
    if is_small and (narrow.heads != exact or narrow.heads == 1 < layer.heads):
        head_dim, rest = divmod(layer.head_dim * width, layer.width)
        if rest == 0 and head_dim % 2 == 0:  # even: rotary positions pair them
            return replace(layer, width=width, head_dim=head_dim)
    return narrow


def keeps_proportions(old: Layer, new: Layer, tolerance: float = 0.0) -> bool:
    """Whether a narrower layer has heads × head_dim in the old share of the width, at least two heads if the old one
    has, and about as many heads to a key/value head.
    """
    exact = old.inner * new.width / old.width
    if abs(new.inner - exact) > tolerance * exact or new.heads < min(2, old.heads):
        return False
    if old.kv_heads in (1, old.heads):
        return True
    ratio = (new.heads / new.kv_heads) / (old.heads / old.kv_heads)
    return 1 / GROUPS <= ratio <= GROUPS


def primary_widths(architecture: Architecture) -> Iterator[int]:
    """Yield the width of every block, taken from its widest layers, because others may have a separate stream."""
    for stage in architecture.stages:
        yield from (layer.width for layer in stage.primaries)


def lead_width(architecture: Architecture) -> int:
    """Return the width of the deepest stage that a redesign changes."""
    stages = [architecture.stages[index] for index in architecture.variable_stages]
    lead = max(stages, key=lambda stage: stage.depth)
    return lead.primary.width if lead.primary is not None else 0
