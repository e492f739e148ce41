"""A width that the user pins: channels, or a share of the model's, for all stages, each stage or each tower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from leanify.core.architecture import Architecture
from leanify.core.errors import ShapeError
from leanify.search.narrow_search import NarrowSearch
from leanify.search.narrow_shape import primary_widths
from leanify.search.options import Width, spell_pin
from leanify.search.towers import pins_per_stage


def pinned(search: NarrowSearch, pin: Width, target: int | None) -> Architecture:
    """Return the shape with a pinned width (channels, or a share of them); its MLP compensates for the difference
    to ``target`` parameters.
    """
    # one width per stage: upstream decides whether they go together
    if not isinstance(pin, (int, float)):
        scale = replace(search.scale, pins=_widths_by_stage(search.architecture, pin))
        try:
            shape = scale.reshape(scale.unit)
            return shape if target is None else search.fit_mlp(scale, scale.unit, target)[0]
        except ShapeError as error:
            raise ShapeError(f"--width {spell_pin(pin)}: {error}") from error

    # the nearest width that is possible
    full = search.lead.width
    units = search.scale.smaller_units()
    width = pin if pin > 1 else pin * full
    if not units or width >= full:
        raise ShapeError(f"--width {pin:g}: it must be below the model's width, {full}")
    unit = min(units, key=lambda unit: abs(search.scale.width(unit) - width))
    nearest = search.scale.width(unit)
    if pin > 1 and nearest != pin:
        raise ShapeError(
            f"--width {pin:g}: the widths of {search.architecture.source} go in steps of "
            f"{search.scale.width(search.scale.step)}; the nearest is {nearest}"
        )
    # upstream must be able to build it
    try:
        in_proportion = search.scale.reshape(unit)
        search.params(in_proportion)
    except ShapeError as error:
        other = next(search.buildable_units(lambda unit: abs(search.scale.width(unit) - width)), None)
        hint = "no other width works either"
        if other is not None:
            hint = f"the nearest that works is {search.scale.width(other)}"
        raise ShapeError(f"--width {pin:g}: {error}; {hint}") from error
    return in_proportion if target is None else search.fit_mlp(search.scale, unit, target)[0]


def _widths_by_stage(architecture: Architecture, pin: Sequence[float] | Mapping[str, float] | None) -> dict[int, int]:
    """Return {old width: new width} for pins per stage or tower. Raises ShapeError."""
    widths = {width: width for width in primary_widths(architecture)}
    values = pins_per_stage(architecture, {"width": pin}, ("width",))["width"]
    for stage, value in zip(architecture.stages, values, strict=True):
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
