"""Propose how heads and hidden units lie in a module, from what `flow` saw and from the lengths of its parameters.

A guess is a `Reading`, as the rows of `families` are; `trials` holds it against the module. The most likely come first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens.families import Reading
from leanify.lens.flow import Found, Use
from leanify.lens.resize import features_of, sizes_of

FUSED_3 = ("3 h d", "h 3 d", "h d 3", "3 d h", "d 3 h", "d h 3")
FUSED_2 = ("2 h d", "h 2 d", "h d 2", "2 d h", "d 2 h", "d h 2")
MOST_NUMBERS = 5  # integers of a forward that are tried both ways


@dataclass(frozen=True)
class Parts:
    """The layouts of a module's parameters under one guess, as the fields of a row."""

    rows: Mapping[str, str]
    columns: Mapping[str, str]
    tensors: Mapping[str, tuple[str, ...]]
    lists: Mapping[str, str]


def name_of(module: nn.Module) -> str:
    kind = next(c for c in type(module).__mro__ if "freed" not in vars(c))
    return f"{kind.__module__}.{kind.__qualname__}"


# -- attentions -----------------------------------------------------------------------------------------------------


def sizes_of_heads(found: Found) -> Iterator[dict[str, int]]:
    """The numbers of heads, of key/value heads and of their channels that the lengths allow."""
    inner = found.last.in_length
    lengths = [length for length in found.came.lengths if length > 0]
    for d in dict.fromkeys(length for length in lengths if inner % length == 0):
        h = inner // d
        outs = {use.out_length for use in found.came.maps}
        groups = [length // d for length in outs if length < inner and length % d == 0]
        groups += [(length - inner) // (2 * d) for length in outs if length > inner and (length - inner) % (2 * d) == 0]
        groups += [length // (2 * d) for length in outs if length % (2 * d) == 0]
        allowed = [g for g in dict.fromkeys(groups) if 0 < g < h and h % g == 0]
        whole = all(length in (inner, 2 * inner, 3 * inner) or length % inner for length in outs)
        plain = [h] if whole else []
        for g in (*allowed, h) if any(length < inner for length in outs) else (*plain, *allowed, h):
            yield {"h": h, "g": g, "d": d}


def layouts_of_heads(length: int, sizes: Mapping[str, int]) -> list[str]:
    """The layouts that an axis of this length may have."""
    h, g, d = sizes["h"], sizes["g"], sizes["d"]
    if g == h:
        known = {h * d: ("h d", "d h"), 2 * h * d: FUSED_2, 3 * h * d: FUSED_3}
    else:
        grouped = ("h d | g d | g d", "g (r+2) d", "g d | g d | h d")
        known = {g * d: ("g d",), 2 * g * d: ("2 g d", "g 2 d"), (h + 2 * g) * d: grouped, h * d: ("h d",)}
    if length in known:
        return list(known[length])
    if length == h:
        return ["h"]
    if length == g:
        return ["g"]
    return ["h e"] if length % h == 0 and length > h else []


def attention_guesses(module: nn.Module, path: str, found: Found, numbers: Mapping[str, int]) -> Iterator[Reading]:
    """Yield readings of an attention, most likely first."""
    uses = sorted({use.name: use for use in found.came.maps}.values(), key=lambda use: use.name)
    for sizes in sizes_of_heads(found):
        lists = _lists_of_heads(module, path, uses, sizes)
        own = [use for use in uses if not any(_within(use, path, part) for part in lists)]
        lengths = sorted({use.out_length for use in own})
        ways = [layouts_of_heads(length, sizes) or [""] for length in lengths]
        choices = list(itertools.product(*ways, ("h d", "d h")))
        for counted in _number_choices(numbers, sizes):
            for choice in choices:
                layouts = dict(zip(lengths, choice[:-1], strict=True))
                parts = _parts(module, path, own, found, layouts, choice[-1], sizes, lists)
                taken = {name: how for name, how in counted.items() if not _in_parts(name, parts)}
                row = Reading(
                    name_of(module),
                    rows=parts.rows,
                    columns=parts.columns,
                    tensors=parts.tensors,
                    attributes=taken,
                    lists=parts.lists,
                    constant=("d",),
                )
                yield _with_sizes(module, row, sizes)


def _with_sizes(module: nn.Module, row: Reading, sizes: Mapping[str, int]) -> Reading:
    """The row with what gives the number of heads and their size, where its axes alone do not: numbers of the module
    that say it by name, though its forward may not read them, else the size itself.
    """
    named = {
        name: how
        for name, value in integers_of(module)
        for how in ("h", "g", "d")
        if value == sizes[how] and name not in row.attributes and _NAMED[how].search(name.rpartition(".")[2].lower())
    }
    named = {name: how for name, how in named.items() if how != "g" or sizes["g"] != sizes["h"]}
    own = {name: how for name, how in named.items() if "config" not in name}
    for more in (own, named):
        extended = replace(row, attributes={**row.attributes, **more})
        try:
            if {"h", "d"} <= sizes_of("", module, extended).keys():
                return extended
        except UnsupportedModel:
            continue
    return replace(row, sizes={"d": sizes["d"]})


_NAMED = {
    "h": re.compile(r"^(?!.*(kv|key|dim|size)).*heads?$|^nhead$"),
    "g": re.compile(r"(kv|key_value)_?heads$"),
    "d": re.compile(r"head_?(dim|size)|d_?head|d_k$"),
}


def integers_of(module: nn.Module) -> Iterator[tuple[str, int]]:
    """(path, value) of every integer in a module, its parts and what they keep as their configuration."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            inside: Mapping[str, Any] = {}
            if isinstance(value, Mapping):
                inside = value
            elif "conf" in name:
                inside = getattr(value, "__dict__", {})
            pairs = [(name, value)]
            for key, number in inside.items():
                pairs.append((f"{name}.{key}", number))
            for key, number in pairs:
                if type(number) is int:
                    yield f"{path}.{key}".lstrip("."), number


def _lists_of_heads(module: nn.Module, path: str, uses: list[Use], sizes: Mapping[str, int]) -> dict[str, str]:
    """Lists with a module for each head, as a row's ``lists``: path → "h"."""
    found: dict[str, str] = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.ModuleList) and len(part) == sizes["h"] > 1:
            inside = [use for use in uses if _within(use, path, name)]
            if inside and len(inside) % len(part) == 0 and all(use.out_length == sizes["d"] for use in inside):
                found[name] = "h"
    return found


def _within(use: Use, path: str, part: str) -> bool:
    return _relative(use.name, path).startswith(f"{part}.")


def _relative(name: str, path: str) -> str:
    return name.removeprefix(f"{path}.") if path else name


# -- MLPs -----------------------------------------------------------------------------------------------------------


def mlp_guesses(module: nn.Module, path: str, found: Found, numbers: Mapping[str, int]) -> Iterator[Reading]:
    """Yield readings of an MLP: its maps to hidden units (a gated one has two, or both in one) and the map back."""
    units = found.last.in_length
    ups = sorted({use.name: use for use in found.came.maps}.values(), key=lambda use: use.name)
    ways = [{units: ["m"], 2 * units: ["2 m", "m 2"]}.get(use.out_length, [""]) for use in ups]
    for counted in _number_choices(numbers, {"m": units}):
        for choice in itertools.product(*ways):
            layouts = {use.out_length: how for use, how in zip(ups, choice, strict=True)}
            parts = _parts(module, path, ups, found, layouts, "m", {"m": units}, {})
            taken = {name: how for name, how in counted.items() if not _in_parts(name, parts)}
            yield Reading(
                name_of(module), rows=parts.rows, columns=parts.columns, tensors=parts.tensors, attributes=taken
            )


# -- parameters -----------------------------------------------------------------------------------------------------


def _parts(
    module: nn.Module,
    path: str,
    uses: list[Use],
    found: Found,
    layouts: Mapping[int, str],
    back: str,
    sizes: Mapping[str, int],
    lists: Mapping[str, str],
) -> Parts:
    rows: dict[str, str] = {}
    columns: dict[str, str] = {}
    tensors: dict[str, tuple[str, ...]] = {}
    _put(module, path, found.last, "", back, sizes, rows, columns, tensors)
    for use in uses:
        how = layouts.get(use.out_length, "")
        if how and use.name != found.last.name:
            _put(module, path, use, how, "", sizes, rows, columns, tensors)
    skipped = {found.last.name, *(use.name for use in uses)}
    for name in sorted(found.came.along - skipped):
        short = _relative(name, path)
        if not any(short.startswith(f"{part}.") for part in (*rows, *lists)):
            _put_along(module, short, sizes, layouts, rows, tensors)
    return Parts(rows, columns, tensors, lists)


def _put(
    module: nn.Module,
    path: str,
    use: Use,
    how: str,
    back: str,
    sizes: Mapping[str, int],
    rows: dict[str, str],
    columns: dict[str, str],
    tensors: dict[str, tuple[str, ...]],
) -> None:
    """Add one map to a row: as a module with a weight, else as a bare parameter."""
    name = _relative(use.name, path)
    part, _, leaf = name.rpartition(".")
    if part and leaf == "weight" and is_linear(module.get_submodule(part), use):
        if how:
            rows[part] = how
        if back:
            columns[part] = back
        return
    axes = ["1"] * len(use.shape)
    for layout, at in ((how, use.outs), (back, use.ins)):
        if layout:
            for axis, factor in _spread(layout, at, use.shape, sizes):
                axes[axis] = factor
    tensors[name] = tuple(axes)
    if back:
        columns[name] = next((axes[axis] for axis in use.ins if "h" in axes[axis].split()), axes[use.ins[-1]])
    bias = f"{part}.bias".lstrip(".")
    if how and leaf == "weight" and isinstance(_get(module, bias), Tensor):
        tensors[bias] = (how,)


def is_linear(part: nn.Module, use: Use) -> bool:
    """Whether a module keeps a linear map as `resize` knows them: outputs and inputs on the axes that were used."""
    weight = getattr(part, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() < 2 or isinstance(part, nn.Embedding):
        return False
    features = features_of(part)
    return use.outs == (features.output_axis,) and features.input_axis in use.ins


def _spread(layout: str, axes: tuple[int, ...], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Any:
    """A layout over several axes of a bare parameter: "h d" on axes of h and d entries is "h" and "d"."""
    if len(axes) == 1:
        return [(axes[0], layout)]
    left = layout.split()
    found = []
    for axis in axes:
        length = shape[axis]
        match = next((f for f in left if (int(f) if f.isdigit() else sizes.get(f)) == length), None)
        if match is None:
            found.append((axis, "1"))
            continue
        left.remove(match)
        found.append((axis, "1" if match.isdigit() else match))
    return found


def _put_along(
    module: nn.Module,
    name: str,
    sizes: Mapping[str, int],
    layouts: Mapping[int, str],
    rows: dict[str, str],
    tensors: dict[str, tuple[str, ...]],
) -> None:
    """Add a parameter beside the maps: a bias, a norm, a scale or a table for each head."""
    value = _get(module, name)
    if not isinstance(value, Tensor) or not value.dim():
        return
    axes = tuple(_layout_beside(length, sizes, layouts) for length in value.shape)
    if all(axis == "1" for axis in axes):
        return
    part, _, leaf = name.rpartition(".")
    weight = getattr(module.get_submodule(part), "weight", None) if part else None
    if leaf in ("weight", "bias") and isinstance(weight, Tensor) and weight.dim() == value.dim() == 1:
        rows[part] = axes[0]
        return
    tensors[name] = axes


def _layout_beside(length: int, sizes: Mapping[str, int], layouts: Mapping[int, str]) -> str:
    if layouts.get(length):
        return layouts[length]
    known = [(sizes.get("m"), "m"), (sizes.get("h"), "h"), (sizes.get("g"), "g")]
    if "h" in sizes:
        known = [(sizes["h"] * sizes["d"], "h d"), *known, (sizes["g"] * sizes["d"], "g d")]
    return next((how for size, how in known if size == length and length > 1), "1")


def _get(module: nn.Module, path: str) -> Any:
    owner, _, leaf = path.rpartition(".")
    try:
        return getattr(module.get_submodule(owner), leaf, None)
    except AttributeError:
        return None


def _in_parts(name: str, parts: Parts) -> bool:
    """Whether a number belongs to a map or norm that is resized anyway."""
    return any(name.startswith(f"{part}.") for part in (*parts.rows, *parts.columns, *parts.lists))


# -- numbers --------------------------------------------------------------------------------------------------------


_OF_HEADS = re.compile(r"head|kv|group|quer|emb|dim|width|hidden_size|inner|model|attn|qkv|split|(^|_)(n?h|c|d|g|e)$")
_OF_OTHERS = re.compile(r"layer|depth|block|seq|len|window|vocab|batch|pos|patch")


def _number_choices(numbers: Mapping[str, int], sizes: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Which integers follow the heads: first those whose names may mean it, then with some of them the other way."""
    ways = {name: _meanings(name, value, sizes) for name, value in numbers.items()}
    open_ = {name: how for name, how in ways.items() if how}
    doubtful = sorted((name for name in open_ if not _is_sure(name, open_[name])), key=lambda name: len(name))
    doubtful = doubtful[:MOST_NUMBERS]
    sure = {name: how[0] for name, how in open_.items() if name not in doubtful}
    options = [[*open_[name], ""] if _is_likely(name) else ["", *open_[name]] for name in doubtful]
    every = sorted(itertools.product(*(range(len(option)) for option in options)), key=sum)
    for picked in every:
        chosen = {name: option[i] for name, option, i in zip(doubtful, options, picked, strict=True)}
        yield {**sure, **{name: how for name, how in chosen.items() if how}}


def _is_likely(name: str) -> bool:
    leaf = name.rpartition(".")[2].lower()
    return bool(_OF_HEADS.search(leaf)) and not _OF_OTHERS.search(leaf)


def _is_sure(name: str, meanings: list[str]) -> bool:
    leaf = name.rpartition(".")[2].lower()
    return meanings == ["h"] and bool(re.search(r"head", leaf)) and not re.search(r"dim|size", leaf)


def _meanings(name: str, value: int, sizes: Mapping[str, int]) -> list[str]:
    """What an integer may count, by its value; those that its name suggests come first."""
    if "m" in sizes:
        return [how for how, size in (("m", sizes["m"]), ("2 m", 2 * sizes["m"])) if size == value]
    h, g, d = sizes["h"], sizes["g"], sizes["d"]
    leaf = name.rpartition(".")[2].lower()
    known = [("h", h), ("h d", h * d), ("3 h d", 3 * h * d), ("2 h d", 2 * h * d)]
    if g != h:
        known += [("g", g), ("g d", g * d), ("2 g d", 2 * g * d), ("h d | g d | g d", (h + 2 * g) * d)]
    found = [how for how, size in known if size == value and value > 1]
    if re.search(r"kv|key_value|group|quer", leaf):
        found.sort(key=lambda how: "g" not in how)
    return [] if re.search(r"head_?(dim|size)|d_?head|d_k", leaf) and value == d else found
