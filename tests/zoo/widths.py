"""Which models can have another residual width, and the law that finds every forgotten axis.

permuted  the residual channels of all tensors in any order compute the same; the axes that hold them are read:
          those whose lengths differ where upstream builds another width

runs      a narrower model takes the same inputs

`write` keeps no weights, and refuses, where a model would not run (LayoutLMv3: ``coordinate_size`` and ``shape_size``
must add up to the width; MobileBERT: a bottleneck of another width around its layers; GCViT: global queries of whole
heads), where it would have other tensors (most of CPUBone), where the width stands beside other channels (RoCBert,
Zamba 2), and where a module's own channels follow it in another order (Zamba, RecurrentGemma, EdgeNeXt). LiLT and WavLM
run and break `permuted`: they give each head a part of the residual channels (a second attention, a gate), so only
whole heads can change places, as `write` keeps them.

The count is made at each model's default configuration, on meta; the law at a small size, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError
from leanify.reshaping import surgery
from leanify.search.narrow_shape import WidthScale, primary_widths
from leanify.sources import find
from leanify.sources.source import describe
from leanify.upstream.libraries import format_error

from .running import Call, difference, keep_experts, outputs, randomise, require
from .verdict import UNSET

TOLERANCE = 1e-10
SHARES = (0.75, 0.5, 2 / 3)


def other_width(library: str, name: str) -> tuple[tuple[int, ...], str]:
    """Try three quarters, a half and two thirds of the width at the default configuration, on meta.

    Returns the new widths, or () and the reason why there is no other.
    """
    reason = "another shape is read back"
    try:
        settings = UNSET.get(name, {}) if library == "hf" else {}
        model = find.build_on_meta(find.find(f"{library}/{name}", overrides=settings))
        shape = surgery.read(model)
    except Exception as error:  # upstream's constructors may raise anything
        return (), format_error(error, 300)
    scale = WidthScale.read(shape)
    units = scale.smaller_units()
    if not units:
        return (), f"its widths {sorted(set(primary_widths(shape)))} have no common part that could be smaller"
    for share in SHARES:
        target = scale.reshape(min(units, key=lambda unit: abs(unit - share * scale.unit)))
        try:
            written = surgery.write(model, target)
        except Exception as error:
            reason = format_error(error, 300)
            continue
        if surgery.read(written) == target:
            return tuple(dict.fromkeys(primary_widths(target))), ""
    return (), reason


def check_permuted(model: nn.Module, call: Call, forgotten: str = "") -> bool:
    """Law `permuted`. Does not apply where no other width is built. ``forgotten`` leaves one tensor as it is, which
    must break the law. Raises LawBroken.
    """
    shape = surgery.read(model)
    axes = width_axes(model, shape)
    if not axes or not _run_narrow(model, shape, call):
        return False
    model = randomise(model)
    tensors = dict(_named_tensors(model))
    with _ConstantSines():
        before = outputs(model, call)
    # one order within parts of all lengths: groups of a convolution, tables that are put together, merged pixels
    lengths = [tensors[name].shape[axis] for name, tensor_axes in axes.items() for axis in tensor_axes]
    part = math.gcd(*primary_widths(shape), *lengths)
    require(part > 1, "permuted", "its channels come one by one, so that none can change places")
    order = torch.randperm(part, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, tensor_axes in axes.items():
            for axis in tensor_axes if name != forgotten else ():
                tensors[name].copy_(_permute(tensors[name], axis, order))
    with _ConstantSines():
        error = _error(outputs(model, call), before)
        # an input may hold residual channels, too, such as the queries of a resampler
        if error >= TOLERANCE:
            with _changed_inputs(model, set(primary_widths(shape)), lambda value, axis: _permute(value, axis, order)):
                error = min(error, _error(outputs(model, call), before))
    require(error < TOLERANCE, "permuted", f"outputs differ by {error:.1e}")
    return True


def _run_narrow(model: nn.Module, shape: Architecture, call: Call) -> bool:
    """Law `runs`: a narrower model takes the same inputs, or those with fewer channels. Does not apply where `write`
    refuses every width. Raises LawBroken.
    """
    scale, widths = WidthScale.read(shape), set(primary_widths(shape))
    reason = ""
    for unit in scale.smaller_units():
        try:
            narrow = surgery.write(model, scale.reshape(unit)).double().eval()
        except LeanifyError:
            continue
        keep_experts(narrow, model)
        for share in (Fraction(1), Fraction(unit, scale.unit)):
            with _changed_inputs(narrow, widths, lambda x, axis, s=share: x.narrow(axis, 0, int(x.shape[axis] * s))):
                try:
                    outputs(narrow, call)
                except Exception as error:  # another width may do, such as a multiple of what the code divides by
                    reason = reason or format_error(error)
                else:
                    return True
    require(not reason, "runs", reason)
    return False


class _ConstantSines(TorchFunctionMode):
    """Sines and cosines are 1 / 2: channels of positions that a forward computes have their places in its code."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_wave = getattr(func, "__name__", "") in ("sin", "cos", "sin_", "cos_")
        return torch.full_like(result, 0.5) if is_wave else result


def _permute(tensor: Tensor, axis: int, order: Tensor) -> Tensor:
    """Return ``tensor`` with every part of an axis in this order."""
    starts = torch.arange(0, tensor.shape[axis], len(order))
    return tensor.index_select(axis, (starts[:, None] + order).flatten())


def _error(new: list[Tensor], old: list[Tensor]) -> float:
    """How far the outputs are from the old ones, where channels of an output may stand in another order."""
    errors = []
    for after, before in zip(new, old, strict=True):
        possible = [difference([after], [before])]
        for axis in range(before.dim()):
            possible.append(difference([after.sort(axis).values], [before.sort(axis).values]))
        errors.append(min(possible))
    return max(errors)


@contextmanager
def _changed_inputs(model: nn.Module, widths: set[int], change: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """Inside this context, inputs that hold channels of a width arrive with this change of that axis."""

    def change_one(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            for axis in range(value.dim() - 1, -1, -1):
                if any(value.shape[axis] % width == 0 for width in widths):
                    return change(value, axis)
        return value

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        running.append(module)  # the call may be of a tower alone
        if len(running) > 1:
            return None
        return tuple(map(change_one, args)), {name: change_one(value) for name, value in kwargs.items()}

    def leave(*_: Any) -> None:
        running.pop()

    running: list[nn.Module] = []
    with ExitStack() as handles:
        for module in model.modules():
            handles.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.enter_context(module.register_forward_hook(leave, always_call=True))
        yield


def width_axes(model: nn.Module, shape: Architecture) -> dict[str, list[int]]:
    """The axes of every tensor that hold residual channels, or parts of them.

    Their lengths change in the proportion of the width where upstream builds another and surgery keeps heads and hidden
    units. Empty where upstream builds no other width of the same tensors.
    """
    scale = WidthScale.read(shape)
    for unit in scale.smaller_units():
        try:
            narrow = surgery.write(find.build_on_meta(describe(model)), _at_unit(scale, unit))
        except LeanifyError:
            continue
        widths = scale.widths(unit).items()
        shapes = {name: tensor.shape for name, tensor in _named_tensors(narrow)}
        if shapes.keys() != dict(_named_tensors(model)).keys():
            continue  # `write` refuses it where it should keep weights
        axes: dict[str, list[int]] = {}
        for name, tensor in _named_tensors(model):
            for axis, (old, new) in enumerate(zip(tensor.shape, shapes.get(name, ()), strict=False)):
                if old != new and any(old * new_width == new * width for width, new_width in widths):
                    axes.setdefault(name, []).append(axis)
        return axes
    return {}


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of all parameters and buffers, and of tensors stored as plain attributes."""
    yield from model.named_parameters()
    yield from model.named_buffers()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}", value


def _at_unit(scale: WidthScale, unit: int) -> Architecture:
    """The shape of this unit with the old heads and hidden units."""
    layers = scale.reshape(unit).layers()
    return scale.architecture.map_layers(lambda layer: replace(layer, width=next(layers).width))
