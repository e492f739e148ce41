"""Resize heads and hidden units in tensors: linear maps, norms, bare parameters, and the numbers that forwards read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens import notation
from leanify.lens.families import Reading
from leanify.upstream.initialise import initialise_module


@dataclass(frozen=True)
class Features:
    """The output and input axes of a linear map (or norm), and the attributes that hold their sizes."""

    outputs: int
    inputs: int
    output_axis: int
    input_axis: int
    output_name: str
    input_name: str


def features_of(module: nn.Module) -> Features:
    weight = module.weight
    assert isinstance(weight, Tensor)
    if weight.dim() == 1:
        name = "normalized_shape" if hasattr(module, "normalized_shape") else "num_features"
        return Features(weight.shape[0], weight.shape[0], 0, 0, name, name)
    if type(module).__name__ == "Conv1D":  # transformers' Conv1D, a linear map with a transposed weight
        return Features(weight.shape[1], weight.shape[0], 1, 0, "nf", "nx")
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return Features(weight.shape[1] * module.groups, weight.shape[0], 1, 0, "out_channels", "in_channels")
    if isinstance(module, nn.modules.conv._ConvNd):
        return Features(weight.shape[0], weight.shape[1] * module.groups, 0, 1, "out_channels", "in_channels")
    return Features(weight.shape[0], weight.shape[1], 0, 1, "out_features", "in_features")


def part_of(module: nn.Module, path: str) -> nn.Module | None:
    """The submodule at a path if it has weights; None if it is absent or an identity."""
    found = attribute_of(module, path)
    return found if isinstance(found, nn.Module) and isinstance(getattr(found, "weight", None), Tensor) else None


def attribute_of(thing: Any, path: str) -> Any:
    """The attribute at a dotted path, or None."""
    for name in path.split("."):
        thing = thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
        if thing is None:
            return None
    return thing


def sizes_of(path: str, module: nn.Module, reading: Reading) -> dict[str, int]:
    """Solve a reading's symbols from its parts' shapes and attributes. Raises UnsupportedModel if that fails."""
    try:
        sizes = notation.solve(_facts(module, reading), dict(reading.sizes))
    except ValueError as error:
        raise UnsupportedModel(
            f"{path} is not as the row of {reading.name} describes it: {error}. The row is wrong, or written for "
            "another version of the library"
        ) from error
    missing = ({"h", "d"} if reading.is_attention else set()) - sizes.keys()
    if missing:
        raise UnsupportedModel(
            f"{path}: the row of {reading.name} leaves {' and '.join(sorted(missing))} open: no axis and no attribute "
            "that it names gives them (h is the number of heads, d their size)"
        )
    return sizes


def _facts(module: nn.Module, reading: Reading) -> list[tuple[str, int]]:
    """(layout, length) of every axis and attribute that exists."""
    facts: list[tuple[str, int]] = []
    for part, how in reading.rows.items():
        if (found := part_of(module, part)) is not None:
            facts.append((how, features_of(found).outputs))
    for part, how in reading.columns.items():
        if (found := part_of(module, part)) is not None:
            facts.append((how, features_of(found).inputs))
    for part, how in reading.attributes.items():
        value = attribute_of(module, part)
        if isinstance(value, int) and not isinstance(value, bool) and "^" not in how and "/" not in how:
            facts.append((how, value))
    facts += [(how, len(module.get_submodule(part))) for part, how in reading.lists.items()]  # type: ignore[arg-type]
    for part, axes in reading.tensors.items():
        if isinstance(value := attribute_of(module, part), Tensor):
            facts += [(how, length) for how, length in zip(axes, value.shape, strict=False) if notation.symbols(how)]
    return facts


# -- resizing -----------------------------------------------------------------------------------------------------


def resize(
    model: nn.Module, path: str, site: nn.Module, reading: Reading, old: notation.Sizes, sizes: notation.Sizes
) -> None:
    """Resize the tensors and attributes of the module at ``path`` in place.

    Existing entries are kept; new rows are initialised by upstream's initialiser, new columns are zero.
    """
    if sizes == old:
        return
    for part in {**reading.rows, **reading.columns}:
        module = part_of(site, part)
        if module is not None:
            _resize_linear(
                model, f"{path}.{part}", module, reading.rows.get(part), reading.columns.get(part), old, sizes
            )
    bare = {part: axes for part, axes in reading.tensors.items() if isinstance(attribute_of(site, part), Tensor)}
    if bare.keys() & reading.columns.keys():  # matrices that are bare parameters, as those of experts
        _resize_maps(model, path, site, reading, bare, old, sizes)
    else:
        for part, layouts in reading.tensors.items():
            _resize_tensor(site, part, layouts, old, sizes)
    for part, how in reading.lists.items():
        _resize_list(model, f"{path}.{part}", site.get_submodule(part), int(notation.evaluate(how, sizes)))
    for part, how in reading.attributes.items():
        if notation.symbols(how) <= sizes.keys():  # an attention that reads another layer's keys has no groups itself
            _update_attribute(site, part, how, old, sizes)
    for part in reading.clear:
        if cache := attribute_of(site, part):
            cache.clear()


def _resize_linear(
    model: nn.Module,
    path: str,
    module: nn.Module,
    rows: str | None,
    columns: str | None,
    old: notation.Sizes,
    new: notation.Sizes,
) -> None:
    features = features_of(module)
    depthwise = _is_depthwise(module)
    one_axis = (
        depthwise or features.output_axis == features.input_axis
    )  # in a norm or depthwise convolution, input channels are output channels
    outputs = int(notation.evaluate(rows, new)) if rows else features.outputs
    inputs = int(notation.evaluate(columns, new)) if columns else outputs if one_axis else features.inputs
    same = (outputs, inputs) == (features.outputs, features.inputs)
    if same and all(_in_place(how, old, new) for how in (rows, columns) if how):
        return
    axes = {features.output_axis: rows} if depthwise else {features.output_axis: rows, features.input_axis: columns}
    sizes = (
        {features.output_axis: outputs} if depthwise else {features.output_axis: outputs, features.input_axis: inputs}
    )
    kept = {
        name: tensor.detach()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        if tensor.dim()
    }
    for name, tensor in kept.items():
        shape = [sizes.get(axis, length) for axis, length in enumerate(tensor.shape)] if tensor.dim() > 1 else [outputs]
        _replace(module, name, _like(tensor, shape))
    for name, size in ((features.output_name, outputs), (features.input_name, inputs)):
        if hasattr(module, name):
            setattr(module, name, (size,) if name == "normalized_shape" else size)
    if depthwise:
        module.__dict__["groups"] = outputs
    if next(iter(kept.values())).is_meta:
        return
    initialise_module(model, path, module)
    for name, tensor in kept.items():
        matrix = tensor.dim() > 1
        zeroed = features.input_axis if matrix and columns else -1
        _carry(tensor, getattr(module, name).data, axes if matrix else {0: rows}, zeroed, old, new)


def _resize_list(model: nn.Module, path: str, heads: nn.Module, length: int) -> None:
    """Shorten a list with one module for each head, or add copies of the last one with new weights."""
    assert isinstance(heads, nn.ModuleList)
    del heads[length:]
    while len(heads) < length:
        added = copy.deepcopy(heads[-1])
        for name, part in added.named_modules():
            if any(parameter.is_meta for parameter in part.parameters(recurse=False)):
                continue
            initialise_module(model, f"{path}.{len(heads)}.{name}".rstrip("."), part)
        heads.append(added)


@torch.no_grad()
def repeat_rows(
    old: nn.Module, new: nn.Module, reading: Reading, before: notation.Sizes, after: notation.Sizes
) -> None:
    """Initialise the projections to new heads as copies of those to the old heads, cyclically."""
    for part, how in reading.rows.items():
        source, target = part_of(old, part), part_of(new, part)
        if source is None or target is None:
            continue
        axis, taken = features_of(source).output_axis, notation.cycle(how, before, after)
        for name, value in (*source.named_parameters(recurse=False), *source.named_buffers(recurse=False)):
            if value.dim():
                along = axis if value.dim() > 1 else 0
                getattr(target, name).copy_(value.index_select(along, taken.to(value.device)))


def _resize_maps(
    model: nn.Module,
    path: str,
    site: nn.Module,
    reading: Reading,
    tensors: dict[str, tuple[str, ...]],
    old: notation.Sizes,
    new: notation.Sizes,
) -> None:
    """Resize linear maps stored as bare parameters: existing entries are kept, new inputs are zero."""
    before = {  # upstream's initialiser works in place and would overwrite tensors that keep their shape
        name: tensor.detach().clone()
        for name, tensor in (*site.named_parameters(recurse=False), *site.named_buffers(recurse=False))
        if name not in tensors
    }
    before |= {part: attribute_of(site, part).detach() for part in tensors}
    for part, layouts in tensors.items():
        shape = [_length(how, length, new) for how, length in zip(layouts, before[part].shape, strict=True)]
        owner, _, name = part.rpartition(".")
        _replace(attribute_of(site, owner) if owner else site, name, _like(before[part], shape))
    if next(iter(before.values())).is_meta:
        return
    initialise_module(model, path, site)
    for name, tensor in before.items():
        layouts = tensors.get(name, ())
        axes = {
            axis: how for axis, how in enumerate(layouts) if any(old[one] != new[one] for one in notation.symbols(how))
        }
        inputs = reading.columns.get(name)
        _carry(tensor, attribute_of(site, name).data, axes, layouts.index(inputs) if inputs else -1, old, new)


def _like(tensor: Tensor, shape: list[int]) -> Tensor:
    """Noise with a tensor's mean and standard deviation; kept if upstream's initialiser does not handle the module."""
    new = tensor.new_empty(shape)
    if tensor.is_meta or not tensor.is_floating_point():
        return new
    return new.normal_(float(tensor.mean()), float(tensor.std(correction=0)))


def _is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.conv._ConvNd) and 1 < module.groups == module.in_channels


def _replace(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace a parameter or buffer by a tensor."""
    value = getattr(module, name)
    parameter = isinstance(value, nn.Parameter)
    setattr(module, name, nn.Parameter(tensor, requires_grad=value.requires_grad) if parameter else tensor)


def _in_place(how: str, old: notation.Sizes, new: notation.Sizes) -> bool:
    """Whether all positions stay where they are. Equal length is not enough: a split may reorder q, k and v."""
    source, target = notation.positions(how, old, new)
    return bool(torch.equal(source, target))


def _carry(
    source: Tensor,
    target: Tensor,
    axes: Mapping[int, str | None],
    zeroed: int,
    old: notation.Sizes,
    new: notation.Sizes,
) -> None:
    """Copy existing positions from ``source`` to ``target``; new positions along the axis ``zeroed`` become zero."""
    taken = source
    slots: list[tuple[int, Tensor]] = []
    for axis, how in axes.items():
        if how is None:
            continue
        origin, slot = notation.positions(how, old, new)
        taken = taken.index_select(axis, origin.to(source.device))
        slots.append((axis, slot.to(target.device)))
        if axis == zeroed:
            added = torch.ones(target.shape[axis], dtype=torch.bool)
            added[slot] = False
            target.index_fill_(axis, added.nonzero().flatten().to(target.device), 0.0)
    _put(target, slots, taken)


def _put(target: Tensor, slots: list[tuple[int, Tensor]], values: Tensor) -> None:
    """Write ``values`` at the product of these positions, axis by axis; an index per element would not fit."""
    if not slots:
        target.copy_(values)
        return
    (axis, slot), *others = slots
    if others:
        part = target.index_select(axis, slot)
        _put(part, others, values)
        values = part
    target.index_copy_(axis, slot, values)


def _resize_tensor(
    module: nn.Module, path: str, layouts: tuple[str, ...], old: notation.Sizes, new: notation.Sizes
) -> None:
    """Resize a bare per-head parameter or buffer; new heads repeat the old heads' values cyclically.

    A tuple or list of lengths is treated as a tensor's shape.
    """
    owner_path, _, name = path.rpartition(".")
    owner = attribute_of(module, owner_path) if owner_path else module
    value = getattr(owner, name, None)
    if isinstance(value, (tuple, list)):
        lengths = zip(layouts, value, strict=True)
        setattr(owner, name, type(value)(_length(how, length, new) for how, length in lengths))
    if not isinstance(value, Tensor):
        return
    tensor = value.detach()
    for axis, how in enumerate(layouts):
        if notation.symbols(how):
            tensor = tensor.index_select(axis, notation.cycle(how, old, new).to(tensor.device))
    _replace(owner, name, tensor.clone())


def _length(how: str, length: int, sizes: notation.Sizes) -> int:
    return int(notation.evaluate(how, sizes)) if notation.symbols(how) else length


def _update_attribute(module: nn.Module, path: str, how: str, old: notation.Sizes, new: notation.Sizes) -> None:
    """Update a number for the new sizes; a configuration is first copied, because other modules share it."""
    owner_path, _, name = path.rpartition(".")
    owner = attribute_of(module, owner_path) if owner_path else module
    value = attribute_of(owner, name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    before, after = notation.evaluate(how, old), notation.evaluate(how, new)
    if before == after:
        return
    if not isinstance(owner, nn.Module):
        holder_path, _, held = owner_path.rpartition(".")
        owner = copy.deepcopy(owner)
        setattr(attribute_of(module, holder_path) if holder_path else module, held, owner)
    now = after if value == before else value * (after / before)
    if isinstance(owner, dict):
        owner[name] = now
    else:
        object.__setattr__(owner, name, now)  # a frozen dataclass too; numbers of a module are no parameters
