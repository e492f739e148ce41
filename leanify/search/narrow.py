"""The narrow and the balanced design: models of a smaller residual width, in the shapes that makers choose.

Narrow keeps the baseline's depth and answers the obvious question: why not simply use a narrower model? Balanced has
fewer layers as well, divided between depth and width as in published families (`published`). Both have heads × head_dim
in the baseline's share of the width, widths in multiples of 64 or of the head_dim, and MLPs that take up the rest of
the budget. Candidates are compared by arithmetic; the best guesses are counted on meta.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError, ShapeError
from leanify.core.units import format_count, format_share
from leanify.profiling.price_list import PriceList
from leanify.search.design import Design, design_of_architecture
from leanify.search.narrow_search import CLOSE, WIDE, NarrowSearch
from leanify.search.narrow_shape import primary_widths
from leanify.search.options import Width, spell_pin
from leanify.search.request import Request
from leanify.search.search import UNSPENT
from leanify.search.towers import pins_per_stage, towers


@dataclass(frozen=True)
class Narrow:
    """A narrower design, or the ``reason`` why there is none."""

    design: Design | None
    reason: str = ""


def find_narrower(name: str, prices: PriceList, lean: Design | None, request: Request) -> Narrow:
    """Return the narrow or the balanced design with lean's parameters, or with the budget's if there is no lean.

    Narrow may have a pinned width; without a budget its MLP then shrinks in proportion. Raises ShapeError for a pinned
    width that this model cannot have; the message names the nearest possible one.
    """
    search = NarrowSearch(prices, request)
    target = target_params(prices, lean, request)
    if request.options.width is not None and name == "narrow":
        return Narrow(design_of_architecture(prices, pinned(search, request.options.width, target)))
    if request.options.width is not None or target is None:
        return Narrow(None)
    find = search.nearest if name == "narrow" else search.balanced
    limit = None if lean is not None else request.limits.get("macs")
    try:
        design = design_of_architecture(prices, find(target))
        while limit is not None and design.macs > limit:  # fewer parameters, until its MACs are within the limit
            target = int(target * min(0.98, limit / design.macs))
            design = design_of_architecture(prices, find(target))
    except LeanifyError as error:  # the model has no such width, or does not run with it
        return Narrow(None, f"no {name}: {error}")
    return Narrow(design)


def target_params(prices: PriceList, lean: Design | None, request: Request) -> int | None:
    """Return the parameters, as the budget counts them, that narrower designs should have; None without a budget.

    They are lean's, for a fair comparison, unless lean leaves much of the budget unspent.
    """
    limit = request.limits.get(request.params_cost)
    if lean is not None:
        params = int(getattr(lean.cost, request.params_cost))
        if limit is None or params >= (1 - UNSPENT + CLOSE) * limit:
            return params
    if limit is not None:
        return limit
    baseline = prices.total(prices.baseline)
    params = int(getattr(baseline, request.params_cost))
    if request.tower_params:
        for tower in towers(prices.architecture, prices.stage_indices):
            tower_params = prices.fixed_cost(tower.stages, "params")
            params += request.tower_params.get(tower.name, tower_params) - tower_params
        return params
    if request.limits:
        return int(params * min(1.0, *(limit / getattr(baseline, cost) for cost, limit in request.limits.items())))
    return None


def narrowed_architecture(prices: PriceList, request: Request) -> Architecture:
    """Return the baseline at a budget's width, pinned or the usual one of published families. Raises ShapeError."""
    search = NarrowSearch(prices, request)
    if request.options.width is not None:
        return pinned(search, request.options.width, None)
    target = target_params(prices, None, request)
    assert target is not None
    share, _ = search.published_shares(target)
    unit = next(search.buildable_units(lambda unit: abs(math.log(unit / search.scale.unit / share))), None)
    if unit is None:
        raise ShapeError(f"--axes width: no other width of {prices.architecture.source} can be built")
    return search.scale.reshape(unit)


def narrow_remarks(
    name: str, narrow: Narrow, old: Architecture, target: int | None, has_lean: bool, request: Request
) -> Iterator[str]:
    """Yield why a narrower design is missing, or how it differs from ``target`` parameters or exceeds a limit."""
    if narrow.design is None:
        if narrow.reason:
            yield narrow.reason
        return
    off = 0.0 if target is None else 1 - getattr(narrow.design.cost, request.params_cost) / target
    if abs(off) > CLOSE:
        why = "its width is pinned" if request.options.width is not None else "its widths go in no finer steps"
        difference = f"{format_share(abs(off))} {'fewer' if off > 0 else 'more'} parameters"
        yield f"{name} has {difference} than {'lean' if has_lean else 'the budget'}: {why}"
    pairs = zip(old.layers(), narrow.design.architecture.layers(), strict=False)
    before, after = next(((before, after) for before, after in pairs if before.mlp), (None, None))
    if before is not None and after is not None and after.mlp * before.width > WIDE * before.mlp * after.width:
        ratios = f"{after.mlp / after.width:.3g} widths instead of {before.mlp / before.width:.3g}"
        yield f"{name} has an MLP of {ratios}: a width in finer steps would leave heads × head_dim out of proportion"
    limit = request.limits.get("macs")
    if limit is not None and narrow.design.macs > limit:
        yield f"{name} takes {format_count(narrow.design.macs)} MACs at lean's parameters, more than the limit"


# -- a width that the user pins: channels, or a share of the model's, for all stages, each stage or each tower --------


def pinned(search: NarrowSearch, pin: Width, target: int | None) -> Architecture:
    """Return the shape with a pinned width, or a share of it; its MLP makes up for the rest of ``target``."""
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
