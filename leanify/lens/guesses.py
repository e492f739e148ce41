"""Propose how heads and hidden units lie in a module, from what `flow` saw and from the lengths of its parameters.

A guess is a `Reading`, as the rows of `families` are; `trials` holds it against the module. The most likely come first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens.families import Reading, class_of, full_name
from leanify.lens.flow import Found, Use
from leanify.lens.resize import attribute_of, features_of, sizes_of

FUSED_3 = ("3 h d", "h 3 d", "h d 3", "3 d h", "d 3 h", "d h 3")
FUSED_2 = ("2 h d", "h 2 d", "h d 2", "2 d h", "d 2 h", "d h 2")
MOST_NUMBERS = 5  # integers of a forward that are tried both ways


# -- attentions -------------


def sizes_of_heads(found: Found) -> Iterator[dict[str, int]]:
    """The numbers of heads, of key/value heads and of their channels that the lengths allow."""
    inner = found.last.in_length
    outs = {use.out_length for use in found.came.maps}
    for d in dict.fromkeys(length for length in found.came.lengths if length > 0 and inner % length == 0):
        h = inner // d
        groups = [length // d for length in outs if length < inner and length % d == 0]
        groups += [(length - inner) // (2 * d) for length in outs if length > inner and (length - inner) % (2 * d) == 0]
        groups += [length // (2 * d) for length in outs if length % (2 * d) == 0]
        allowed = [g for g in dict.fromkeys(groups) if 0 < g < h and h % g == 0]
        choices = [*allowed, h]
        is_whole = all(length in (inner, 2 * inner, 3 * inner) or length % inner for length in outs)
        if is_whole and min(outs, default=inner) >= inner:
            choices = [h, *choices]
        for g in choices:
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
    uses = _maps_of(found)
    for sizes in sizes_of_heads(found):
        lists = _lists_of_heads(module, path, uses, sizes)
        own = [use for use in uses if not _is_in(_relative(use.name, path), lists)]
        lengths = sorted({use.out_length for use in own})
        ways = [layouts_of_heads(length, sizes) or [""] for length in lengths]
        for attributes in _number_choices(numbers, sizes):
            for *layouts, back in itertools.product(*ways, ("h d", "d h")):
                guess = _Guess(module, path, sizes, dict(zip(lengths, layouts, strict=True)), lists)
                guess.add(found, own, back)
                yield _with_sizes(module, guess.row(attributes, constant=("d",)), sizes)


def _with_sizes(module: nn.Module, row: Reading, sizes: Mapping[str, int]) -> Reading:
    """The row with what gives the number of heads and their size, where its axes alone do not: numbers of the
    module that say it by name, though its forward may not read them, else the size itself.
    """
    named: dict[str, str] = {}
    for name, value in integers_of(module):
        for how, pattern in _NAMED.items():
            is_new = name not in row.attributes and (how != "g" or sizes["g"] != sizes["h"])
            if is_new and value == sizes[how] and pattern.search(_leaf(name)):
                named[name] = how
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
            for key, number in ((name, value), *((f"{name}.{key}", number) for key, number in inside.items())):
                if type(number) is int:
                    yield f"{path}.{key}".lstrip("."), number


def _lists_of_heads(module: nn.Module, path: str, uses: list[Use], sizes: Mapping[str, int]) -> dict[str, str]:
    """Lists with a module for each head, as a row's ``lists``: path → "h"."""
    found: dict[str, str] = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.ModuleList) and len(part) == sizes["h"] > 1:
            inside = [use for use in uses if _is_in(_relative(use.name, path), (name,))]
            if inside and len(inside) % len(part) == 0 and all(use.out_length == sizes["d"] for use in inside):
                found[name] = "h"
    return found


# -- MLPs -------------


def mlp_guesses(module: nn.Module, path: str, found: Found, numbers: Mapping[str, int]) -> Iterator[Reading]:
    """Yield readings of an MLP: its maps to hidden units (two, or both in one, if gated) and the map back."""
    units = found.last.in_length
    ups = _maps_of(found)
    ways = [{units: ["m"], 2 * units: ["2 m", "m 2"]}.get(use.out_length, [""]) for use in ups]
    for attributes in _number_choices(numbers, {"m": units}):
        for choice in itertools.product(*ways):
            layouts = {use.out_length: how for use, how in zip(ups, choice, strict=True)}
            guess = _Guess(module, path, {"m": units}, layouts)
            guess.add(found, ups, "m")
            yield guess.row(attributes)


# -- parameters -------------


@dataclass
class _Guess:
    """The layouts of a module's parameters under one guess, as they become the fields of a row.

    ``layouts`` are those of the maps' outputs, by length.
    """

    module: nn.Module
    path: str
    sizes: Mapping[str, int]
    layouts: Mapping[int, str]
    lists: Mapping[str, str] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def row(self, attributes: Mapping[str, str], constant: tuple[str, ...] = ()) -> Reading:
        """The guess as a row; a number of a map or norm that is resized anyway is left out."""
        resized = (*self.rows, *self.columns, *self.lists)
        taken = {name: how for name, how in attributes.items() if not _is_in(name, resized)}
        return Reading(
            full_name(class_of(self.module)),
            rows=self.rows,
            columns=self.columns,
            tensors=self.tensors,
            attributes=taken,
            lists=self.lists,
            constant=constant,
        )

    def add(self, found: Found, uses: list[Use], back: str) -> None:
        """Add the map back with its layout, the other maps, and the parameters beside them."""
        self._put(found.last, "", back)
        for use in uses:
            how = self.layouts.get(use.out_length, "")
            if how and use.name != found.last.name:
                self._put(use, how, "")
        for name in sorted(found.came.along - {found.last.name, *(use.name for use in uses)}):
            short = _relative(name, self.path)
            if not _is_in(short, (*self.rows, *self.lists)):
                self._put_along(short)

    def _put(self, use: Use, how: str, back: str) -> None:
        """Add one map: as a module with a weight, else as a bare parameter."""
        name = _relative(use.name, self.path)
        part, _, leaf = name.rpartition(".")
        if part and leaf == "weight" and _is_linear(self.module.get_submodule(part), use):
            if how:
                self.rows[part] = how
            if back:
                self.columns[part] = back
            return
        axes = ["1"] * len(use.shape)
        for layout, at in ((how, use.outs), (back, use.ins)):
            if len(at) == 1 and layout:
                axes[at[0]] = layout
                continue
            left = layout.split()  # over several axes: "h d" on axes of h and d entries is "h" and "d"
            for axis in at:
                for factor in left:
                    length = int(factor) if factor.isdigit() else self.sizes.get(factor)
                    if length == use.shape[axis]:
                        left.remove(factor)
                        axes[axis] = "1" if factor.isdigit() else factor
                        break
        self.tensors[name] = tuple(axes)
        if back:
            heads = (axes[axis] for axis in use.ins if "h" in axes[axis].split())
            self.columns[name] = next(heads, axes[use.ins[-1]])
        bias = f"{part}.bias".lstrip(".")
        if how and leaf == "weight" and isinstance(attribute_of(self.module, bias), Tensor):
            self.tensors[bias] = (how,)

    def _put_along(self, name: str) -> None:
        """Add a parameter beside the maps: a bias, a norm, a scale or a table for each head."""
        value = attribute_of(self.module, name)
        if not isinstance(value, Tensor) or not value.dim():
            return
        axes = tuple(self._layout_beside(length) for length in value.shape)
        if all(axis == "1" for axis in axes):
            return
        part, _, leaf = name.rpartition(".")
        weight = getattr(self.module.get_submodule(part), "weight", None) if part else None
        if leaf in ("weight", "bias") and isinstance(weight, Tensor) and weight.dim() == value.dim() == 1:
            self.rows[part] = axes[0]
        else:
            self.tensors[name] = axes

    def _layout_beside(self, length: int) -> str:
        if self.layouts.get(length):
            return self.layouts[length]
        sizes = self.sizes
        if length == 1:
            return "1"
        if "m" in sizes:
            return "m" if length == sizes["m"] else "1"
        known = {sizes["g"] * sizes["d"]: "g d", sizes["g"]: "g", sizes["h"]: "h", sizes["h"] * sizes["d"]: "h d"}
        return known.get(length, "1")


def _is_linear(part: nn.Module, use: Use) -> bool:
    """Whether a module keeps a linear map as `resize` knows it: outputs and inputs on the axes used."""
    weight = getattr(part, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() < 2 or isinstance(part, nn.Embedding):
        return False
    features = features_of(part)
    return use.outs == (features.output_axis,) and features.input_axis in use.ins


def _maps_of(found: Found) -> list[Use]:
    """The linear maps before the last one, one a name, in order of their names."""
    return sorted({use.name: use for use in found.came.maps}.values(), key=lambda use: use.name)


def _relative(name: str, path: str) -> str:
    return name.removeprefix(f"{path}.") if path else name


def _is_in(name: str, parts: Any) -> bool:
    """Whether a path lies in one of these modules."""
    return name.startswith(tuple(f"{part}." for part in parts))


# -- numbers -------------


_OF_HEADS = re.compile(r"head|kv|group|quer|emb|dim|width|hidden_size|inner|model|attn|qkv|split|(^|_)(n?h|c|d|g|e)$")
_OF_OTHERS = re.compile(r"layer|depth|block|seq|len|window|vocab|batch|pos|patch")


def _number_choices(numbers: Mapping[str, int], sizes: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Which integers follow the heads: first those whose names say so, then with some the other way."""
    sure: dict[str, str] = {}
    options: dict[str, list[str]] = {}
    for name, value in numbers.items():
        leaf, ways = _leaf(name), _meanings(name, value, sizes)
        if not ways:
            continue
        sure[name] = ways[0]
        if ways != ["h"] or "head" not in leaf or re.search(r"dim|size", leaf):
            is_likely = _OF_HEADS.search(leaf) and not _OF_OTHERS.search(leaf)
            options[name] = [*ways, ""] if is_likely else ["", *ways]
    doubtful = sorted(options, key=len)[:MOST_NUMBERS]
    for picked in sorted(itertools.product(*(range(len(options[name])) for name in doubtful)), key=sum):
        chosen = dict(sure)
        for name in doubtful:
            del chosen[name]
        for name, i in zip(doubtful, picked, strict=True):
            if options[name][i]:
                chosen[name] = options[name][i]
        yield chosen


def _leaf(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _meanings(name: str, value: int, sizes: Mapping[str, int]) -> list[str]:
    """What an integer may count, by its value; those that its name suggests come first."""
    if "m" in sizes:
        return [how for how, size in (("m", sizes["m"]), ("2 m", 2 * sizes["m"])) if size == value]
    h, g, d, leaf = sizes["h"], sizes["g"], sizes["d"], _leaf(name)
    if value == d and re.search(r"head_?(dim|size)|d_?head|d_k", leaf):
        return []
    known = [("h", h), ("h d", h * d), ("3 h d", 3 * h * d), ("2 h d", 2 * h * d)]
    if g != h:
        known += [("g", g), ("g d", g * d), ("2 g d", 2 * g * d), ("h d | g d | g d", (h + 2 * g) * d)]
    found = [how for how, size in known if size == value and value > 1]
    if re.search(r"kv|key_value|group|quer", leaf):
        found.sort(key=lambda how: "g" not in how)
    return found
