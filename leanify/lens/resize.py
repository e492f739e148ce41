"""Resize heads and hidden units in tensors: linear maps, norms, bare parameters, and numbers that forwards read."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.errors import UnsupportedModel
from leanify.lens import notation
from leanify.lens.families import Row
from leanify.upstream.build import initialise_module


@dataclass(frozen=True)
class Features:
    """The output and input axes of a linear map (or norm), and the attributes that store their sizes."""

    outputs: int
    inputs: int
    output_axis: int
    input_axis: int
    output_name: str
    input_name: str


def linear_features(module: nn.Module) -> Features:
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


def weighted_part(module: nn.Module, path: str) -> nn.Module | None:
    """Return the submodule at a path if it has weights; None if it is absent or an identity."""
    part = get_attribute(module, path)
    return part if isinstance(part, nn.Module) and isinstance(getattr(part, "weight", None), Tensor) else None


def weighted_parts(module: nn.Module, paths: Iterable[str]) -> dict[str, nn.Module]:
    """Return the submodules with weights at these paths, by path."""
    parts = {path: weighted_part(module, path) for path in paths}
    return {path: part for path, part in parts.items() if part is not None}


def get_attribute(value: Any, path: str) -> Any:
    """Return the attribute at a dotted path; the value itself at ``""``; None if it is absent."""
    for name in path.split(".") if path else ():
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if value is None:
            return None
    return value


def get_fields(value: Any) -> Mapping[str, Any]:
    """Return the named values of an object: a mapping, a named tuple, an object with a dictionary or with slots."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple):
        return dict(zip(getattr(value, "_fields", ()), value, strict=False))
    fields = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                fields[name] = getattr(value, name)
    return fields


def set_number(module: nn.Module, path: str, value: Any) -> None:
    """Set a number in a module, or in a configuration stored in it: a mapping, a named tuple, a frozen dataclass."""
    owner_path, _, name = path.rpartition(".")
    owner = get_attribute(module, owner_path)
    if isinstance(owner, MutableMapping):
        owner[name] = value
    elif isinstance(owner, tuple):  # it cannot change: another takes its place
        set_number(module, owner_path, owner._replace(**{name: value}))  # type: ignore[attr-defined]
    else:
        name = getattr(type(owner), "attribute_map", {}).get(name, name)  # a configuration of transformers has aliases
        object.__setattr__(owner, name, value)  # bypass frozen dataclasses, and nn.Module's handling of parameters


def map_parameters(module: nn.Module, reading: Row) -> list[nn.Parameter]:
    """Return the parameters that a row describes, each once."""
    parameters: dict[int, nn.Parameter] = {}
    for part in (*reading.rows, *reading.columns, *reading.tensors, *reading.lists):
        value = get_attribute(module, part)
        inner = value.parameters() if isinstance(value, nn.Module) else [value]
        parameters.update({id(one): one for one in inner if isinstance(one, nn.Parameter)})
    return list(parameters.values())


def own_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return (name, tensor) of a module's own parameters and buffers, without its submodules."""
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def map_axes(module: nn.Module, rows: str | None, columns: str | None) -> dict[str, dict[int, str]]:
    """Return {tensor: {axis: layout}} for the own tensors of a linear map or norm.

    Besides the weight, a tensor follows that is as long as the outputs or inputs (a bias, a low-rank addition).
    """
    features = linear_features(module)
    is_depthwise = isinstance(module, nn.modules.conv._ConvNd) and 1 < module.groups == module.in_channels
    layouts: dict[str, dict[int, str]] = {}
    for name, tensor in own_tensors(module):
        if not tensor.dim():
            continue
        axes = layouts.setdefault(name, {})
        axis = features.output_axis if tensor.dim() > 1 else 0
        if rows is not None and (name == "weight" or tensor.shape[axis] == features.outputs):
            axes[axis] = rows
        has_inputs = tensor.dim() > 1 and features.input_axis != features.output_axis and not is_depthwise
        follows_inputs = has_inputs and (name == "weight" or tensor.shape[features.input_axis] == features.inputs)
        if columns is not None and follows_inputs:
            axes[features.input_axis] = columns
    return layouts


def solve_sizes(path: str, module: nn.Module, reading: Row) -> dict[str, int]:
    """Solve a row's symbols from the shapes and attributes of its parts. Raises UnsupportedModel if that fails."""
    # (layout, length) of every axis and attribute that exists: the equations for h, d, m, …
    facts: list[tuple[str, int]] = []
    for part, linear in weighted_parts(module, reading.rows).items():
        facts.append((reading.rows[part], linear_features(linear).outputs))
    for part, linear in weighted_parts(module, reading.columns).items():
        facts.append((reading.columns[part], linear_features(linear).inputs))
    for part, how in reading.attributes.items():
        value = get_attribute(module, part)
        if isinstance(value, int) and not isinstance(value, bool) and "^" not in how and "/" not in how:
            facts.append((how, value))
    for part, how in reading.lists.items():
        facts.append((how, len(module.get_submodule(part))))  # type: ignore[arg-type]
    for part, axes in reading.tensors.items():
        value = get_attribute(module, part)
        if isinstance(value, Tensor):
            facts += [(how, length) for how, length in zip(axes, value.shape, strict=False) if notation.symbols(how)]
    # their one solution; an attention needs its number of heads and their size
    try:
        sizes = notation.solve(facts, dict(reading.sizes))
    except ValueError as error:
        raise UnsupportedModel(
            f"{path} is not as the row of {reading.name} describes it: {error}. The row is wrong, or written for "
            "another version of the library"
        ) from error
    missing = {"h", "d"} - sizes.keys()
    if reading.is_attention and missing:
        raise UnsupportedModel(
            f"{path}: the row of {reading.name} leaves {' and '.join(sorted(missing))} open: no axis and no attribute "
            "that it names gives them (h is the number of heads, d their size)"
        )
    return sizes


def resize(
    model: nn.Module, path: str, site: nn.Module, reading: Row, old: notation.Sizes, sizes: notation.Sizes
) -> None:
    """Resize the tensors and attributes of the module at ``path`` in place.

    Existing entries are kept; new rows are initialised by upstream's initialiser, new columns are zero.
    """
    if sizes == old:
        return
    # linear maps and norms
    for part, module in weighted_parts(site, {**reading.rows, **reading.columns}).items():
        rows, columns = reading.rows.get(part), reading.columns.get(part)
        _resize_linear(model, f"{path}.{part}", module, rows, columns, old, sizes)
    # bare parameters and buffers
    bare = {part: axes for part, axes in reading.tensors.items() if isinstance(get_attribute(site, part), Tensor)}
    inputs = {part: axes.index(reading.columns[part]) for part, axes in bare.items() if part in reading.columns}
    if inputs:  # matrices stored as bare parameters, such as fused experts
        changed = {name for name, size in sizes.items() if old[name] != size}
        layouts = {}
        for part, axes in bare.items():
            layouts[part] = {axis: how for axis, how in enumerate(axes) if notation.symbols(how) & changed}
        _renew(model, path, site, layouts, inputs, old, sizes)
    else:
        for part, axes in reading.tensors.items():
            _resize_tensor(site, part, axes, old, sizes)
    # lists with a module per head, numbers, caches
    for part, how in reading.lists.items():
        _resize_list(model, f"{path}.{part}", site.get_submodule(part), int(notation.evaluate(how, sizes)))
    for part, how in reading.attributes.items():
        if notation.symbols(how) <= sizes.keys():  # an attention that reads another layer's keys has no groups itself
            _update_attribute(site, part, how, old, sizes)
    clear_caches(site, reading)


def clear_caches(module: nn.Module, reading: Row) -> None:
    """Clear the values that a forward cached from tensors that have changed."""
    for part in reading.clear:
        cache = get_attribute(module, part)
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
    features = linear_features(module)
    is_depthwise = isinstance(module, nn.modules.conv._ConvNd) and 1 < module.groups == module.in_channels
    # new numbers of outputs and inputs
    outputs, inputs = features.outputs, features.inputs
    if rows:
        outputs = int(notation.evaluate(rows, new))
    if columns:
        inputs = int(notation.evaluate(columns, new))
    elif is_depthwise or features.output_axis == features.input_axis:  # a norm has one axis for both
        inputs = outputs
    if (outputs, inputs) == (features.outputs, features.inputs):
        moves = (notation.positions(how, old, new) for how in (rows, columns) if how)
        if all(torch.equal(source, target) for source, target in moves):  # a split may reorder q, k and v
            return
    # numbers such as out_features, then the tensors
    layouts = map_axes(module, rows, columns)
    for name, size in ((features.output_name, outputs), (features.input_name, inputs)):
        if hasattr(module, name):
            setattr(module, name, (size,) if name == "normalized_shape" else size)
    if is_depthwise:
        module.__dict__["groups"] = outputs
    matrices = [name for name, tensor in own_tensors(module) if columns and tensor.dim() > 1]
    _renew(model, path, module, layouts, dict.fromkeys(matrices, features.input_axis), old, new)


def _resize_list(model: nn.Module, path: str, heads: nn.Module, length: int) -> None:
    """Shorten a list with one module per head, or extend it by copies of the last module with new weights."""
    assert isinstance(heads, nn.ModuleList)
    del heads[length:]
    while len(heads) < length:
        new_head = copy.deepcopy(heads[-1])
        for name, part in new_head.named_modules():
            if any(parameter.is_meta for parameter in part.parameters(recurse=False)):
                continue
            initialise_module(model, f"{path}.{len(heads)}.{name}".rstrip("."), part)
        heads.append(new_head)


@torch.no_grad()
def repeat_rows(old: nn.Module, new: nn.Module, reading: Row, before: notation.Sizes, after: notation.Sizes) -> None:
    """Initialise the projections of new heads as copies of the old heads' projections, cyclically."""
    for part, how in reading.rows.items():
        source, target = weighted_part(old, part), weighted_part(new, part)
        if source is None or target is None:
            continue
        indices = notation.cycle(how, before, after)
        for name, axes in map_axes(source, how, None).items():
            for axis in axes:
                value = getattr(source, name)
                getattr(target, name).copy_(value.index_select(axis, indices.to(value.device)))


def _renew(
    model: nn.Module,
    path: str,
    module: nn.Module,
    layouts: Mapping[str, dict[int, str]],
    input_axes: Mapping[str, int],
    old: notation.Sizes,
    new: notation.Sizes,
) -> None:
    """Resize tensors of a module: upstream initialises them, existing entries are kept, and new inputs are zero."""
    # the old values, and noise in the new shapes
    before = {}
    for name, tensor in own_tensors(module):
        if name not in layouts:  # upstream's initialiser works in place, on these tensors too
            before[name] = tensor.detach().clone()
    for part, axes in layouts.items():
        before[part] = get_attribute(module, part).detach()
        shape = list(before[part].shape)
        for axis, how in axes.items():
            shape[axis] = int(notation.evaluate(how, new))
        owner, _, name = part.rpartition(".")
        _replace(get_attribute(module, owner), name, _like(before[part], shape))
    if next(iter(before.values())).is_meta:
        return
    # initialise, then copy the existing entries back
    initialise_module(model, path, module)
    for name, tensor in before.items():
        target = get_attribute(module, name).data
        _copy_positions(tensor, target, layouts.get(name, {}), input_axes.get(name, -1), old, new)


def _like(tensor: Tensor, shape: list[int]) -> Tensor:
    """Return noise with a tensor's mean and deviation; it remains if upstream does not initialise the module."""
    new = tensor.new_empty(shape)
    if tensor.is_meta or not tensor.is_floating_point():
        return new
    return new.normal_(float(tensor.mean()), float(tensor.std(correction=0)))


def _replace(module: nn.Module, name: str, tensor: Tensor) -> None:
    value = getattr(module, name)
    if isinstance(value, nn.Parameter):
        tensor = nn.Parameter(tensor, requires_grad=value.requires_grad)
    setattr(module, name, tensor)


def _copy_positions(
    source: Tensor, target: Tensor, axes: Mapping[int, str], zero_axis: int, old: notation.Sizes, new: notation.Sizes
) -> None:
    """Copy existing positions from ``source`` to ``target``; new positions along ``zero_axis`` become zero."""
    values = source
    slots: list[tuple[int, Tensor]] = []
    for axis, how in axes.items():
        origin, slot = notation.positions(how, old, new)
        values = values.index_select(axis, origin.to(source.device))
        slots.append((axis, slot.to(target.device)))
        if axis == zero_axis:
            is_new = torch.ones(target.shape[axis], dtype=torch.bool)
            is_new[slot] = False
            target.index_fill_(axis, is_new.nonzero().flatten().to(target.device), 0.0)
    _write_slots(target, slots, values)


def _write_slots(target: Tensor, slots: list[tuple[int, Tensor]], values: Tensor) -> None:
    """Write ``values`` at the product of these positions, an axis at a time: an index per element needs much memory."""
    if not slots:
        target.copy_(values)
        return
    (axis, slot), *others = slots
    if others:
        part = target.index_select(axis, slot)
        _write_slots(part, others, values)
        values = part
    target.index_copy_(axis, slot, values)


def _resize_tensor(
    module: nn.Module, path: str, layouts: tuple[str, ...], old: notation.Sizes, new: notation.Sizes
) -> None:
    """Resize a bare per-head parameter or buffer; new heads repeat the values of the old heads cyclically.

    A tuple or list of lengths is treated as a tensor's shape.
    """
    owner_path, _, name = path.rpartition(".")
    owner = get_attribute(module, owner_path)
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
    """Update a number for the new sizes; a configuration is copied first, because other modules share it."""
    value = get_attribute(module, path)
    before, after = notation.evaluate(how, old), notation.evaluate(how, new)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or before == after:
        return
    # a configuration: replace it by a copy, with all that it is nested in
    owner_path = path.rpartition(".")[0]
    parts = owner_path.split(".") if owner_path else []
    for end in range(1, len(parts) + 1):
        config = get_attribute(module, ".".join(parts[:end]))
        if not isinstance(config, nn.Module):
            setattr(get_attribute(module, ".".join(parts[: end - 1])), parts[end - 1], copy.deepcopy(config))
            break
    set_number(module, path, after if value == before else value * (after / before))
    layer_path, _, owner_name = owner_path.rpartition(".")
    layer = get_attribute(module, layer_path)
    if owner_name == "axes_lengths" and hasattr(layer, "_axes_lengths"):  # einops' layers keep a second copy
        layer._axes_lengths = tuple(layer.axes_lengths.items())
