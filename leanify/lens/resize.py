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
    """The attribute at a dotted path, the thing itself at ``""``, or None."""
    for name in path.split(".") if path else ():
        thing = thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
        if thing is None:
            return None
    return thing


def set_number(module: nn.Module, path: str, value: float) -> None:
    """Set a number of a module, or of what it keeps: a dictionary, or an object (a frozen dataclass too)."""
    owner_path, _, name = path.rpartition(".")
    owner = attribute_of(module, owner_path)
    if isinstance(owner, dict):
        owner[name] = value
    else:
        object.__setattr__(owner, name, value)  # numbers of a module are no parameters


def own_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """(name, tensor) of a module's own parameters and buffers, not of its parts."""
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def sizes_of(path: str, module: nn.Module, reading: Reading) -> dict[str, int]:
    """Solve a reading's symbols from its parts' shapes and attributes. Raises UnsupportedModel if that fails."""
    facts: list[tuple[str, int]] = []  # (layout, length) of every axis and attribute that exists
    for part, how in reading.rows.items():
        found = part_of(module, part)
        if found is not None:
            facts.append((how, features_of(found).outputs))
    for part, how in reading.columns.items():
        found = part_of(module, part)
        if found is not None:
            facts.append((how, features_of(found).inputs))
    for part, how in reading.attributes.items():
        value = attribute_of(module, part)
        if isinstance(value, int) and not isinstance(value, bool) and "^" not in how and "/" not in how:
            facts.append((how, value))
    for part, how in reading.lists.items():
        facts.append((how, len(module.get_submodule(part))))  # type: ignore[arg-type]
    for part, axes in reading.tensors.items():
        value = attribute_of(module, part)
        if isinstance(value, Tensor):
            facts += [(how, length) for how, length in zip(axes, value.shape, strict=False) if notation.symbols(how)]
    try:
        sizes = notation.solve(facts, dict(reading.sizes))
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
            layouts = reading.rows.get(part), reading.columns.get(part)
            _resize_linear(model, f"{path}.{part}", module, *layouts, old, sizes)
    bare = {part: axes for part, axes in reading.tensors.items() if isinstance(attribute_of(site, part), Tensor)}
    if bare.keys() & reading.columns.keys():  # matrices that are bare parameters, as those of experts
        _resize_maps(model, path, site, reading, bare, old, sizes)
    else:
        for part, axes in reading.tensors.items():
            _resize_tensor(site, part, axes, old, sizes)
    for part, how in reading.lists.items():
        _resize_list(model, f"{path}.{part}", site.get_submodule(part), int(notation.evaluate(how, sizes)))
    for part, how in reading.attributes.items():
        if notation.symbols(how) <= sizes.keys():  # an attention that reads another layer's keys has no groups itself
            _update_attribute(site, part, how, old, sizes)
    for part in reading.clear:
        cache = attribute_of(site, part)
        if cache:
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
    is_depthwise = isinstance(module, nn.modules.conv._ConvNd) and 1 < module.groups == module.in_channels
    outputs, inputs = features.outputs, features.inputs
    if rows:
        outputs = int(notation.evaluate(rows, new))
    if columns:
        inputs = int(notation.evaluate(columns, new))
    elif is_depthwise or features.output_axis == features.input_axis:  # of a norm too, inputs are outputs
        inputs = outputs
    if (outputs, inputs) == (features.outputs, features.inputs):
        moves = (notation.positions(how, old, new) for how in (rows, columns) if how)
        if all(torch.equal(source, target) for source, target in moves):  # a split may reorder q, k and v
            return
    layouts, lengths = {features.output_axis: rows}, {features.output_axis: outputs}
    if not is_depthwise:
        layouts[features.input_axis], lengths[features.input_axis] = columns, inputs
    kept = {name: tensor.detach() for name, tensor in own_tensors(module) if tensor.dim()}
    for name, tensor in kept.items():
        shape = [outputs]
        if tensor.dim() > 1:
            shape = [lengths.get(axis, length) for axis, length in enumerate(tensor.shape)]
        _replace(module, name, _like(tensor, shape))
    for name, size in ((features.output_name, outputs), (features.input_name, inputs)):
        if hasattr(module, name):
            setattr(module, name, (size,) if name == "normalized_shape" else size)
    if is_depthwise:
        module.__dict__["groups"] = outputs
    if next(iter(kept.values())).is_meta:
        return
    initialise_module(model, path, module)
    for name, tensor in kept.items():
        target = getattr(module, name).data
        if tensor.dim() > 1:
            _carry(tensor, target, layouts, features.input_axis if columns else -1, old, new)
        else:
            _carry(tensor, target, {0: rows}, -1, old, new)


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
        for name, value in own_tensors(source):
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
    before = {}
    for name, tensor in own_tensors(site):
        if name not in tensors:  # upstream's initialiser works in place and would overwrite what keeps its shape
            before[name] = tensor.detach().clone()
    for part, layouts in tensors.items():
        before[part] = attribute_of(site, part).detach()
        shape = [_length(how, length, new) for how, length in zip(layouts, before[part].shape, strict=True)]
        owner, _, name = part.rpartition(".")
        _replace(attribute_of(site, owner), name, _like(before[part], shape))
    if next(iter(before.values())).is_meta:
        return
    initialise_module(model, path, site)
    for name, tensor in before.items():
        layouts = tensors.get(name, ())
        axes: dict[int, str | None] = {}
        for axis, how in enumerate(layouts):
            if any(old[one] != new[one] for one in notation.symbols(how)):
                axes[axis] = how
        inputs = reading.columns.get(name)
        _carry(tensor, attribute_of(site, name).data, axes, layouts.index(inputs) if inputs else -1, old, new)


def _like(tensor: Tensor, shape: list[int]) -> Tensor:
    """Noise with a tensor's mean and deviation; kept if upstream's initialiser does not handle the module."""
    new = tensor.new_empty(shape)
    if tensor.is_meta or not tensor.is_floating_point():
        return new
    return new.normal_(float(tensor.mean()), float(tensor.std(correction=0)))


def _replace(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace a parameter or buffer by a tensor."""
    value = getattr(module, name)
    parameter = isinstance(value, nn.Parameter)
    setattr(module, name, nn.Parameter(tensor, requires_grad=value.requires_grad) if parameter else tensor)


def _carry(
    source: Tensor,
    target: Tensor,
    axes: Mapping[int, str | None],
    zeroed: int,
    old: notation.Sizes,
    new: notation.Sizes,
) -> None:
    """Copy existing positions from ``source`` to ``target``; new ones along the axis ``zeroed`` become zero."""
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
    owner = attribute_of(module, owner_path)
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
    value = attribute_of(module, path)
    before, after = notation.evaluate(how, old), notation.evaluate(how, new)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or before == after:
        return
    owner_path = path.rpartition(".")[0]
    owner = attribute_of(module, owner_path)
    if not isinstance(owner, nn.Module):
        holder_path, _, held = owner_path.rpartition(".")
        setattr(attribute_of(module, holder_path), held, copy.deepcopy(owner))
    set_number(module, path, after if value == before else value * (after / before))
