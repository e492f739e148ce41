"""The narrow design: the baseline's depth and head_dim in a smaller residual width, with lean's parameters.

It answers the obvious question: why not simply use a narrower model? Heads and hidden units shrink in proportion to the
width; hidden units absorb the rounding of heads to integers. Every size is counted on meta, not estimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from leanify.core.architecture import Architecture, primary_layer
from leanify.core.errors import LeanifyError, ShapeError
from leanify.core.units import format_count, format_share
from leanify.profiling.price_list import PriceList
from leanify.search.design import Design, design_of_architecture
from leanify.search.narrow_shape import WidthScale, narrow_heads, primary_widths
from leanify.search.options import Width, spell_pin
from leanify.search.request import Request
from leanify.search.towers import pins_per_stage

CLOSE = 0.005  # narrow may have this share fewer parameters than lean
TRIED = 4  # number of widths to try: the best guesses, then those with the baseline's ratio inner / width
MLP_SHARE = 0.6  # assumed MLP share of parameters, to guess which widths keep the MLP's ratio; counts decide
RATIO = 2.0  # maximum factor on the MLP's ratio; beyond it, the design would no longer isolate the width


WIDTH_EXPONENT = 0.22  # of the width in the compute: Alabdulmohsin et al. 2023, Getting ViT in Shape


@dataclass(frozen=True)
class Narrow:
    """The narrow design, or the ``reason`` why there is none."""

    design: Design | None
    reason: str = ""


def find_narrow(prices: PriceList, lean: Design | None, request: Request) -> Narrow:
    """Return the narrower model with lean's parameters, or with the pinned width. With a pinned width and no lean, the
    MLP shrinks in proportion.

    Raises ShapeError for a pinned width that this model cannot have; the message names the nearest possible one.
    """
    search = _NarrowSearch(prices, request)
    if request.options.width is not None:
        return Narrow(design_of_architecture(prices, search.pinned(request.options.width, lean)))
    assert lean is not None
    try:
        return Narrow(design_of_architecture(prices, search.nearest(search.counted(lean))))
    except LeanifyError as error:  # the model has no such width, or does not run with it
        return Narrow(None, f"no narrow: {error}")


def narrowed_architecture(prices: PriceList, request: Request, share: float) -> Architecture:
    """Return the baseline at the width for a budget of this share: the pinned one, or the published scaling law's.

    Depth and head_dim are the baseline's; heads and MLP shrink in proportion to the width. Raises ShapeError if
    upstream builds no such width.
    """
    search = _NarrowSearch(prices, request)
    pin = request.options.width
    if pin is None:
        pin = next(search.possible(search.lead.width * share**WIDTH_EXPONENT), None)
    if pin is None:
        raise ShapeError(f"--axes width: no other width of {prices.architecture.source} can be built")
    return search.pinned(pin, None)


class _NarrowSearch:
    """Narrower shapes of a model and their parameters, as the budget counts them."""

    def __init__(self, prices: PriceList, request: Request) -> None:
        self.prices, self.request = prices, request
        self.architecture = prices.architecture
        self.scale = WidthScale.read(self.architecture)
        changed_stages = [self.architecture.stages[index] for index in prices.stage_indices]
        self.lead = primary_layer(max(changed_stages, key=lambda stage: stage.depth))

    def counted(self, design: Design) -> int:
        """Return the parameters of a design that the budget counts."""
        return int(getattr(design.cost, self.request.params_cost))

    def params(self, architecture: Architecture) -> int:
        """Return the parameters of a shape, built on meta. Raises ShapeError if upstream cannot build its width."""
        params, body = self.prices.costs.sizes(architecture)
        return params if self.request.params_cost == "params" else body

    def pinned(self, pin: Width, lean: Design | None) -> Architecture:
        """Return the shape with a pinned width (channels, or a share of them); its MLP compensates for the difference
        to lean's parameters.
        """
        # one width per stage: upstream decides whether they go together
        if not isinstance(pin, (int, float)):
            self.scale = replace(self.scale, pins=self._widths_by_stage(pin))
            try:
                shape = self.scale.reshape(self.scale.unit)
                return shape if lean is None else self._fit_mlp(self.scale.unit, self.counted(lean))[0]
            except ShapeError as error:
                raise ShapeError(f"--width {spell_pin(pin)}: {error}") from error

        # the nearest width that is possible
        full = self.lead.width
        units = self.scale.units_below()
        width = pin if pin > 1 else pin * full
        if not units or width >= full:
            raise ShapeError(f"--width {pin:g}: it must be below the model's width, {full}")
        unit = min(units, key=lambda unit: abs(self.scale.width(unit) - width))
        nearest = self.scale.width(unit)
        if pin > 1 and nearest != pin:
            raise ShapeError(
                f"--width {pin:g}: the widths of {self.architecture.source} go in steps of "
                f"{self.scale.width(self.scale.step)}; the nearest is {nearest}"
            )
        # upstream must be able to build it
        try:
            in_proportion = self.scale.reshape(unit)
            self.params(in_proportion)
        except ShapeError as error:
            other = next(self.possible(width), None)
            hint = "no other width works either" if other is None else f"the nearest that works is {other}"
            raise ShapeError(f"--width {pin:g}: {error}; {hint}") from error
        return in_proportion if lean is None else self._fit_mlp(unit, self.counted(lean))[0]

    def _widths_by_stage(self, pin: Sequence[float] | Mapping[str, float] | None) -> dict[int, int]:
        """Return {old width: new width} for pins per stage or tower. Raises ShapeError."""
        widths = {width: width for width in primary_widths(self.architecture)}
        values = pins_per_stage(self.architecture, {"width": pin}, ("width",))["width"]
        for stage, value in zip(self.architecture.stages, values, strict=True):
            if value is None or stage.primary is None:
                continue
            old = stage.primary.width
            new = round(value if value > 1 else value * old)
            if new > old or widths[old] not in (old, new):
                reason = f"above the stage's, {old}" if new > old else f"unlike {widths[old]} of a stage as wide"
                raise ShapeError(f"--width {spell_pin(pin)}: {new} for {stage.name} is {reason}")
            widths[old] = new
        if all(old == new for old, new in widths.items()):
            raise ShapeError(f"--width {spell_pin(pin)}: no stage gets another width")
        return widths

    def possible(self, width: float) -> Iterator[int]:
        """Yield widths that upstream can build, nearest first."""
        natural = [unit for unit in self.scale.units_below() if self._is_natural(unit)]
        for unit in sorted(natural, key=lambda unit: abs(self.scale.width(unit) - width))[:TRIED]:
            try:
                self.params(self.scale.reshape(unit))
            except ShapeError:
                continue
            yield self.scale.width(unit)

    def _is_natural(self, unit: int) -> bool:
        """Whether inner / width is exactly the baseline's ratio."""
        width = self.scale.width(unit)
        inner = narrow_heads(self.lead, width) * self.lead.head_dim
        return inner * self.lead.width == self.lead.inner * width

    def nearest(self, target: int) -> Architecture:
        """Return the shape with slightly fewer than ``target`` parameters whose heads and MLP are closest to
        proportional.

        Raises ShapeError if no width works.
        """
        units = self.scale.units_below()
        if not units:
            raise ShapeError(f"the width of {self.architecture.source}, {self.lead.width}, goes in no smaller steps")
        # count the best guesses until one is close to the target
        refusal, best, best_params = None, None, 0
        tried = 0
        for unit in self._sort_by_need(units, target):
            try:
                shape, params = self._fit_mlp(unit, target)
            except ShapeError as error:
                refusal = refusal or error
                continue
            tried += 1
            if best_params < params <= target:
                best, best_params = shape, params
            if best_params >= target * (1 - CLOSE) or tried == TRIED:
                break
        if best is None:
            smallest = refusal or ShapeError(f"no width of {self.architecture.source} has {target:,} parameters")
            raise smallest
        return best

    def _sort_by_need(self, units: list[int], target: int) -> Iterator[int]:
        """Yield units, starting with those whose heads and MLP would deviate least from the proportion."""
        full = self.params(self.architecture)
        # fit params(r) = b·r + c·r², with r the share of the width, to the model and a narrower one
        share = math.sqrt(target / full)
        counted_unit = min(units, key=lambda unit: abs(unit / self.scale.unit - share))
        counted_share = counted_unit / self.scale.unit
        slope, curve = 0.0, float(full)
        try:
            counted = self.params(self.scale.reshape(counted_unit))
            curve = (full - counted / counted_share) / (1 - counted_share)
            slope = full - curve
        except ShapeError:
            pass
        # score each unit by how far MLP and heads would deviate from the proportion
        needs = {}
        for unit in units:
            part = unit / self.scale.unit
            guess = slope * part + curve * part**2
            more_mlp = 1 + (target - guess) / (MLP_SHARE * guess)
            inner = narrow_heads(self.lead, self.scale.width(unit)) * self.lead.head_dim
            heads_part = inner / (self.lead.inner * part)
            # parameters of rounded-up heads are missing in the MLP
            more_mlp += (1 - heads_part) * (1 - MLP_SHARE) / MLP_SHARE
            if more_mlp > 0:  # a rough guess: `_fit_mlp` counts whether the ratio is kept
                needs[unit] = abs(math.log(more_mlp)) + abs(math.log(heads_part))
        # the best guesses, then units with the baseline's ratio of inner to width
        ordered = sorted(needs, key=lambda unit: needs[unit])
        natural = [unit for unit in ordered if self._is_natural(unit)]
        yield from ordered[:TRIED]
        yield from [unit for unit in natural if unit not in ordered[:TRIED]][:TRIED]

    def _fit_mlp(self, unit: int, target: int) -> tuple[Architecture, int]:
        """Return the shape with this unit whose hidden units bring it to ``target`` parameters, and its parameters."""
        # parameters at the proportional MLP, and per share of the MLP
        shape = self.scale.reshape(unit)
        at_ratio = self.params(shape)
        if not any(layer.mlp for layer in shape.layers()):
            return shape, at_ratio
        wider = self.scale.reshape(unit, RATIO)
        per_share = (self.params(wider) - at_ratio) / (RATIO - 1)
        share = 1 + (target - at_ratio) / per_share if per_share else 1.0
        if not 1 / RATIO < share < RATIO:
            return shape, at_ratio
        options = self.request.options
        best, best_params = shape, (at_ratio if at_ratio <= target else 0)
        mlp_steps = (options.multiple,) if options.multiple else (8, 1)
        for step in mlp_steps:
            lead_mlp = max(1.0, self.lead.mlp * self.scale.width(unit) / self.lead.width)
            for shift in (0.0, -step / lead_mlp):
                near = self.scale.reshape(unit, share + shift, step)
                params = self.params(near)
                if best_params < params <= target:
                    best, best_params = near, params
            if best_params >= target * (1 - CLOSE):
                break
        return best, best_params or at_ratio


def narrow_warnings(narrow: Narrow, lean: Design, request: Request) -> Iterator[str]:
    """Yield why a narrow design is missing, or how it differs from lean in more than its width."""
    if narrow.design is None:
        yield narrow.reason
        return
    cost = request.params_cost
    off = 1 - getattr(narrow.design.cost, cost) / getattr(lean.cost, cost)
    if abs(off) > CLOSE:
        why = "its width is pinned" if request.options.width is not None else "its widths go in no finer steps"
        comparative = "fewer" if off > 0 else "more"
        yield f"narrow has {format_share(abs(off))} {comparative} parameters than lean: {why}"
    limit = request.limits.get("macs")
    if limit is not None and narrow.design.macs > limit:
        yield f"narrow takes {format_count(narrow.design.macs)} MACs at lean's parameters, more than the limit"
