"""Which models can have another residual width, and the law that finds every forgotten axis.

permuted  the residual channels of all tensors in any order compute the same; the axes that hold them are read:
          those whose lengths differ where upstream builds another width

The count is made at each model's default configuration, on meta; the law at a small size, in float64.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError
from leanify.lens import surgery
from leanify.search.narrow_shape import WidthScale, primary_widths
from leanify.sources import find
from leanify.sources.describe import describe

from .running import Call, difference, outputs, randomise, require
from .verdict import UNSET

TOLERANCE = 1e-10
SHARES = (0.75, 0.5, 2 / 3)


@dataclass(frozen=True)
class WidthVerdict:
    """Whether a model can have another width; otherwise ``reason`` says why not. ``widths`` are the new ones."""

    library: str
    name: str
    changes: bool
    widths: tuple[int, ...] = ()
    reason: str = ""
    seconds: float = 0.0


def width_verdict(library: str, name: str) -> WidthVerdict:
    """Try three quarters, a half and two thirds of the width at the default configuration, on meta."""
    began = time.process_time()
    try:
        settings = UNSET.get(name, {}) if library == "hf" else {}
        model = find.build_on_meta(find.find(f"{library}/{name}", overrides=settings))
        shape = surgery.read(model)
    except LeanifyError as error:
        return WidthVerdict(library, name, False, reason=_line(error))
    scale = WidthScale.read(shape)
    reason = f"its widths {sorted(set(primary_widths(shape)))} have no common part that could be smaller"
    for share in SHARES:
        units = scale.units_below()
        if not units:
            break
        target = scale.reshape(min(units, key=lambda unit: abs(unit - share * scale.unit)))
        try:
            written = surgery.write(model, target)
        except LeanifyError as error:
            reason = _line(error)
            continue
        if surgery.read(written) == target:
            widths = tuple(dict.fromkeys(primary_widths(target)))
            return WidthVerdict(library, name, True, widths, seconds=time.process_time() - began)
        reason = "another shape is read back"
    return WidthVerdict(library, name, False, reason=reason, seconds=time.process_time() - began)


def check_permuted(model: nn.Module, call: Call, forgotten: str = "") -> bool:
    """Law `permuted`. Does not apply where no other width is built. ``forgotten`` leaves one tensor as it is, which
    must break the law. Raises LawBroken.
    """
    shape = surgery.read(model)
    axes, orders = width_axes(model, shape)
    if not axes:
        return False
    model = randomise(model)
    before = outputs(model, call)
    with torch.no_grad():
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        for name, tensor_axes in axes.items():
            for axis, width in tensor_axes if name != forgotten else ():
                tensor = tensors[name]
                parts = tensor.shape[axis] // width
                order = torch.cat([orders[width] + part * width for part in range(parts)])
                tensor.copy_(tensor.index_select(axis, order))
    after = outputs(model, call)
    errors = [min(_differences(new, old, orders)) for new, old in zip(after, before, strict=True)]
    require(max(errors) < TOLERANCE, "permuted", f"outputs differ by {max(errors):.1e}")
    return True


def _differences(new: Tensor, old: Tensor, orders: dict[int, Tensor]) -> Iterator[float]:
    """How far an output is from the old one, or from its channels in the new order."""
    yield difference([new], [old])
    for axis, length in enumerate(old.shape):
        if length in orders:
            yield difference([new], [old.index_select(axis, orders[length])])


def width_axes(model: nn.Module, shape: Architecture) -> tuple[dict[str, list[tuple[int, int]]], dict[int, Tensor]]:
    """(axis, width) of every tensor's axes that hold residual channels, and an order of the channels of each width.

    They differ in length where upstream builds another width and surgery keeps heads and hidden units. None where
    upstream builds no other width.
    """
    scale = WidthScale.read(shape)
    widths = set(primary_widths(shape))
    for unit in scale.units_below():
        try:
            narrow = surgery.write(find.build_on_meta(describe(model)), _at_unit(scale, unit))
        except LeanifyError:
            continue
        shapes = {name: tensor.shape for name, tensor in (*narrow.named_parameters(), *narrow.named_buffers())}
        axes: dict[str, list[tuple[int, int]]] = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            for axis, (old, new) in enumerate(zip(tensor.shape, shapes.get(name, ()), strict=False)):
                for width in sorted(widths, reverse=True):
                    parts = old // width
                    if old != new and old == parts * width and new == parts * scale.widths(unit)[width]:
                        axes.setdefault(name, []).append((axis, width))
                        break
        generator = torch.Generator().manual_seed(0)
        return axes, {width: torch.randperm(width, generator=generator) for width in widths}
    return {}, {}


def _at_unit(scale: WidthScale, unit: int) -> Architecture:
    """The shape of this unit with the old heads and hidden units."""
    old, new = scale.architecture, scale.reshape(unit)
    stages = []
    for stage, narrow in zip(old.stages, new.stages, strict=True):
        blocks = []
        for block, narrow_block in zip(stage.blocks, narrow.blocks, strict=True):
            pairs = zip(block, narrow_block, strict=True)
            blocks.append(tuple(replace(layer, width=other.width) for layer, other in pairs))
        stages.append(replace(stage, blocks=tuple(blocks)))
    return replace(old, stages=tuple(stages))


def width_verdicts(models: Sequence[tuple[str, str]]) -> Iterator[WidthVerdict]:
    """Yield the verdict of every model."""
    warnings.simplefilter("ignore")
    for library, name in models:
        try:
            yield width_verdict(library, name)
        except Exception as error:  # upstream's constructors may raise anything
            yield WidthVerdict(library, name, False, reason=f"{type(error).__name__}: {_line(error)}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
