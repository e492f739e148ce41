"""Propose layouts of heads and hidden units in a module, from the results of `flow` and the lengths of parameters.

A guess is a `Row`, like the rows of `families`; `row_laws` tests it on the module. The most likely guesses come first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from leanify.core.errors import UnsupportedModel
from leanify.discovery.flow import Candidate, Use
from leanify.lens.families import Row, full_name, upstream_class
from leanify.lens.located import relative_path
from leanify.lens.notation import evaluate, symbols
from leanify.lens.resize import get_attribute, get_fields, linear_features, solve_sizes

FUSED_3 = ("3 h d", "h 3 d", "h d 3", "3 d h", "d 3 h", "d h 3")
FUSED_2 = ("2 h d", "h 2 d", "h d 2", "2 d h", "d 2 h", "d h 2")
NO_UNITS: Mapping[int, int] = MappingProxyType({})
MOST_NUMBERS = 5  # at most this many integers of a forward are tried both ways


# -- attentions -------------


def head_sizes(
    candidate: Candidate, moved: Sequence[int] = (), units: Mapping[int, int] = NO_UNITS, latent: Sequence[Use] = ()
) -> Iterator[dict[str, int]]:
    """Yield the numbers of heads and key/value heads, and the head_dim, that the lengths allow.

    ``moved`` counts how many channels of the concatenated heads change with one output of a projection, one count per
    output tried (`count_moved_channels`). ``units`` are the outputs of a projection that go to an MLP, by its length.
    ``latent`` projections have no heads.
    """
    # candidates for head_dim: an axis of the products, or a number of channels that move together
    inner = candidate.last.input_size
    uses = [use for use in candidate.projections if use not in latent]
    outs = {use.out_length - units.get(use.out_length, 0) for use in uses}
    lengths = [*candidate.came.lengths, *(count for count in sorted(set(moved)) if 1 < count < inner)]
    for d in dict.fromkeys(length for length in lengths if length > 0 and inner % length == 0):
        # candidates for the number of key/value heads, from the outputs of single and fused projections
        h = inner // d
        groups = [length // d for length in outs if length < inner and length % d == 0]
        groups += [(length - inner) // (2 * d) for length in outs if length > inner and (length - inner) % (2 * d) == 0]
        groups += [length // (2 * d) for length in outs if length % (2 * d) == 0]
        gated = 2 * inner  # queries and a gate
        groups += [(length - gated) // (2 * d) for length in outs if length > gated and (length - gated) % (2 * d) == 0]
        group_counts = [g for g in dict.fromkeys(groups) if 0 < g < h and h % g == 0]
        choices = [*group_counts, h]
        is_whole = all(length in (inner, 2 * inner, 3 * inner) or length % inner for length in outs)
        if is_whole and min(outs, default=inner) >= inner:
            choices = [h, *choices]
        for g in choices:
            if _agrees(moved, inner, d, h // g):
                yield {"h": h, "g": g, "d": d}


def _agrees(moved: Sequence[int], inner: int, head_dim: int, group: int) -> bool:
    """Whether heads of this size, ``group`` of them per key/value head, explain which channels move together.

    One output of the queries moves the channels of one head, one output of the keys the channels of a group. If every
    output moves every channel (a norm over all heads, talking heads), the counts fit any size.
    """
    partial = [count for count in moved if 1 < count < inner]
    if not partial:
        return True
    # an output that moves nothing belongs to an MLP or a mask; few of the tried outputs may belong to the other parts
    if 0 in moved:
        return max(partial) <= group * head_dim
    # a saturated softmax hides some channels of a head, now more, now fewer: the counts only bound its size
    is_unsteady = len(set(partial)) > 2 or len(set(partial)) == len(partial)
    if is_unsteady or any(inner % count for count in partial):
        return max(partial) <= group * head_dim
    if max(partial) > group * head_dim or moved.count(head_dim) == 0:
        return False
    return group * head_dim in moved if group > 1 else moved.count(head_dim) > 1


NARROW_LETTERS = "eckpqsw"  # head sizes of queries, keys or gates that differ from the values' head_dim


def head_layouts(length: int, sizes: Mapping[str, int], letter: str, is_pair: bool) -> list[str]:
    """Return the layouts that an axis of this length may have.

    ``letter`` names a head size other than the values' head_dim; ``is_pair`` allows one map to produce both queries
    and keys.
    """
    h, g, d = sizes["h"], sizes["g"], sizes["d"]
    if g == h:
        layouts = {h * d: ("h d", "d h"), 2 * h * d: FUSED_2, 3 * h * d: FUSED_3}
        layouts |= {4 * h * d: ("4 h d", "h 4 d"), (3 * d + 1) * h: ("3 h d | h", "h | 3 h d", "h (d+d+d+1)")}
    else:
        grouped_layouts = ("h d | g d | g d", "g (r+2) d", "g d | g d | h d")
        layouts = {g * d: ("g d",), 2 * g * d: ("2 g d", "g 2 d"), (h + 2 * g) * d: grouped_layouts, h * d: ("h d",)}
        gated_layouts = ("2 h d | g d | g d", "h d | g d | g d | h d", "h 2 d | g d | g d")
        layouts |= {2 * (h + g) * d: gated_layouts, (h + 2 * g) * d + h: ("h d | g d | g d | h",)}
        if h == 2 * g:  # queries are as long as keys and values together
            layouts[h * d] = ("h d", "2 g d", "g 2 d")
    if length in layouts:
        return list(layouts[length])
    if length == h:
        return ["h"]
    if length == g:
        return ["g"]
    # heads of another size
    narrow_layouts = []
    if length % h == 0 and length > h:
        narrow_layouts.append(f"h {letter}")
    if is_pair and length % (2 * h) == 0 and length > 2 * h:
        narrow_layouts += [f"2 h {letter}", f"h 2 {letter}"]
    return narrow_layouts


def attention_guesses(
    module: nn.Module,
    path: str,
    candidate: Candidate,
    numbers: Mapping[str, int],
    moved: Sequence[int],
    mlp: Candidate | None,
) -> Iterator[Row]:
    """Yield possible rows of an attention, most likely first; ``mlp`` takes its hidden units from the same map."""
    # the hidden units in the length of a shared map: once, or twice if gated
    unit_choices: list[dict[int, int]] = [{}]
    if mlp is not None:
        shared_length = next(use.out_length for use in candidate.projections if use in mlp.came.maps)
        unit_choices = [{shared_length: mlp.last.input_size}, {shared_length: 2 * mlp.last.input_size}]
    # a projection that feeds another one goes to a space that all heads share, or is a projection like the others
    latent_choices = [candidate.latent_maps, []] if candidate.latent_maps else [[]]
    for units, latent in itertools.product(unit_choices, latent_choices):
        # each choice of sizes, with the layouts that each projection may have under it
        for sizes in head_sizes(candidate, moved, units, latent):
            uses = [use for use in candidate.projections if use not in latent]
            lists = _head_lists(module, path, uses, sizes)
            direct_uses = [use for use in uses if not _belongs_to(relative_path(use.name, path), lists)]
            choices = _layout_choices(direct_uses, sizes, units, mlp)
            # each choice of numbers that follow the heads, with each combination of layouts
            for attributes in _number_choices(numbers, sizes):
                for *layouts, back in itertools.product(*choices.values(), ("h d", "d h")):
                    named_layouts: dict[int | str, str] = dict(zip(choices, layouts, strict=True))
                    before: Row | None = None
                    for with_tables in (False, True):  # embeddings and buffers may hold a number for each head
                        guess = _Guess(module, path, sizes, named_layouts, lists, latent)
                        guess.add(candidate, direct_uses, back, with_tables)
                        if mlp is not None:
                            guess._add_use(mlp.last, "", "m")
                        row = _add_size_attributes(module, guess.row(attributes, constant=("d",)), sizes)
                        if row == before:
                            continue
                        yield row
                        if guess.norms:  # over all heads, which see each other in it
                            yield replace(row, mixing=tuple(guess.norms))
                        before = row


def _layout_choices(
    uses: Sequence[Use], sizes: Mapping[str, int], units: Mapping[int, int], mlp: Candidate | None
) -> dict[int | str, list[str]]:
    """Return {length of outputs: the layouts that they may have}: projections of one length share one.

    Not so a map of queries and one of keys and values, as long as the queries where h = 2 g: each has its name as key.
    A projection that an MLP shares has its hidden units behind or before the heads, as ``units`` say.
    """
    keys: dict[int | str, int] = {length: length for length in sorted({use.out_length for use in uses})}
    twins = [use.name for use in uses if use.out_length == sizes["h"] * sizes["d"]]
    if sizes["h"] == 2 * sizes["g"] and len(uses) == len(twins) == 2:
        keys = dict.fromkeys(twins, sizes["h"] * sizes["d"])
    choices: dict[int | str, list[str]] = {}
    for letter, (key, length) in zip(itertools.cycle(NARROW_LETTERS), keys.items(), strict=False):
        layouts = head_layouts(length - units.get(length, 0), sizes, letter, is_pair=len(uses) == 2) or [""]
        if length in units and mlp is not None:
            how = "m" if units[length] == mlp.last.input_size else "2 m"
            layouts = [*itertools.chain(*[(f"{one} | {how}", f"{how} | {one}") for one in layouts if one])]
        choices[key] = layouts
    return choices


def _add_size_attributes(module: nn.Module, row: Row, sizes: Mapping[str, int]) -> Row:
    """Return the row with numbers for ``h`` and ``d`` if its axes do not determine them.

    Numbers of the module with a matching name come first, then numbers of its configuration, then the fixed size.
    """
    # numbers whose names and values say that they are h, g or d
    attributes: dict[str, str] = {}
    for name, value in iterate_integers(module):
        for how, pattern in SYMBOL_NAMES.items():
            is_new = name not in row.attributes and (how != "g" or sizes["g"] != sizes["h"])
            if is_new and value == sizes[how] and pattern.search(_leaf(name)):
                attributes[name] = how
    module_attributes = {name: how for name, how in attributes.items() if "config" not in name}
    for choice in (module_attributes, attributes):
        candidate_row = replace(row, attributes={**row.attributes, **choice})
        try:
            if {"h", "d"} <= solve_sizes("", module, candidate_row).keys():
                return candidate_row
        except UnsupportedModel:
            continue
    return replace(row, sizes={"d": sizes["d"]})


SYMBOL_NAMES = {
    "h": re.compile(r"^(?!.*(kv|key|dim|size)).*heads?$|^nhead$"),
    "g": re.compile(r"(kv|key_value)_?heads$"),
    "d": re.compile(r"head_?(dim|size)|d_?head|d_k$"),
}


def head_axes(tensor: Tensor, heads: int, how: str = "h", head_dim: int = 0) -> tuple[str, ...]:
    """The layouts of the axes of a table that has one entry per head along one of them.

    Of several axes of this length, such as samples and heads of a cache, it is the one before an axis of ``head_dim``.
    """
    shape = tuple(tensor.shape)
    axes = [axis for axis, length in enumerate(shape) if length == heads]
    before_dim = [axis for axis in axes if shape[axis + 1 : axis + 2] == (head_dim,)]
    axes = before_dim if len(before_dim) == 1 else axes
    return tuple(how if axis in axes else "1" for axis in range(len(shape)))


def iterate_integers(module: nn.Module, recurses: bool = True) -> Iterator[tuple[str, int]]:
    """Yield (path, value) of every integer in a module, its submodules and their configurations."""
    parts = module.named_modules() if recurses else [("", module)]
    for path, part in parts:
        for name, value in vars(part).items():
            content: Mapping[str, Any] = {}
            if "conf" in name or isinstance(value, (Mapping, tuple)):
                content = get_fields(value)
            for key, number in ((name, value), *((f"{name}.{key}", number) for key, number in content.items())):
                if type(number) is int:
                    yield f"{path}.{key}".lstrip("."), number


def _head_lists(module: nn.Module, path: str, uses: list[Use], sizes: Mapping[str, int]) -> dict[str, str]:
    """Return {path: "h"} for the lists with one module per head, as in a row's ``lists``."""
    lists: dict[str, str] = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.ModuleList) and len(part) == sizes["h"] > 1:
            list_uses = [use for use in uses if _belongs_to(relative_path(use.name, path), (name,))]
            if list_uses and len(list_uses) % len(part) == 0 and all(use.out_length == sizes["d"] for use in list_uses):
                lists[name] = "h"
    return lists


# -- MLPs -------------


def mlp_guesses(module: nn.Module, path: str, candidate: Candidate, numbers: Mapping[str, int]) -> Iterator[Row]:
    """Yield possible rows of an MLP: its up projections (two if gated, or both in one) and its down projection."""
    units = candidate.last.input_size
    ups = candidate.projections
    ways = [{units: ["m"], 2 * units: ["2 m", "m 2"]}.get(use.out_length, [""]) for use in ups]
    for attributes in _number_choices(numbers, {"m": units}):
        for choice in itertools.product(*ways):
            layouts: dict[int | str, str] = {use.out_length: how for use, how in zip(ups, choice, strict=True)}
            guess = _Guess(module, path, {"m": units}, layouts)
            guess.add(candidate, ups, "m")
            yield guess.row(attributes)


# -- parameters -------------


@dataclass
class _Guess:
    """The layouts of a module's parameters under one guess, collected as the fields of a row.

    ``layouts`` maps the length of a projection's outputs, or its name, to their layout; ``latent`` are projections
    without heads, and ``norms`` those on the way that see all heads.
    """

    module: nn.Module
    path: str
    sizes: Mapping[str, int]
    layouts: Mapping[int | str, str]
    lists: Mapping[str, str] = field(default_factory=dict)
    latent: Sequence[Use] = ()
    rows: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    norms: list[str] = field(default_factory=list)

    def row(self, attributes: Mapping[str, str], constant: tuple[str, ...] = ()) -> Row:
        """Return the guess as a row, without the numbers of maps and norms that are resized anyway."""
        resized_paths = (*self.rows, *self.columns, *self.lists)
        others = [name for name in attributes if not _belongs_to(name, resized_paths) or name.endswith(".num_groups")]
        row_attributes = {name: attributes[name] for name in others} | self.numbers
        return Row(
            full_name(upstream_class(self.module)),
            rows=self.rows,
            columns=self.columns,
            tensors=self.tensors,
            attributes=row_attributes,
            lists=self.lists,
            constant=constant,
        )

    def add(self, candidate: Candidate, uses: list[Use], back: str, with_tables: bool = False) -> None:
        """Add the last map with its layout, the other maps, and the other parameters on the way.

        ``with_tables`` includes embeddings and buffers that hold one entry per head.
        """
        self._add_use(candidate.last, "", back)
        for use in sorted(uses, key=lambda use: not use.name.endswith(".weight")):
            how = self.layouts.get(use.name) or self.layouts.get(use.out_length, "")
            if how and use.name != candidate.last.name:
                self._add_use(use, how, "")
                self._put_lengths(use.out_length, how)
        for use in candidate.logit_maps:
            if use.out_length == use.input_size == self.sizes.get("h"):
                self._add_use(use, "h", "h")
        for name in sorted(candidate.came.along - {candidate.last.name, *(use.name for use in uses)}):
            short = relative_path(name, self.path)
            owner, value = (get_attribute(self.module, path) for path in (short.rpartition(".")[0], short))
            if _belongs_to(short, (*self.rows, *self.lists)) or not isinstance(value, Tensor):
                continue
            if tuple(value.shape) in [(use.out_length,) for use in self.latent]:
                continue  # the bias of a projection without heads, or a norm after it
            if not isinstance(owner, nn.Embedding) and isinstance(value, nn.Parameter):
                self._put_along(short, value)
            elif with_tables and "h" in self.sizes and not hasattr(owner, "running_mean"):
                self._put_table(short, value)
        # tensors that are no buffers, such as caches of keys
        for name, value in vars(self.module).items() if with_tables and "h" in self.sizes else ():
            axes = head_axes(value, self.sizes["g"], "g", self.sizes["d"]) if isinstance(value, Tensor) else ()
            if axes.count("g") == 1:
                self.tensors[name] = axes

    def _put_lengths(self, length: int, how: str) -> None:
        """Add the tuples of the module by which a forward splits the outputs of a map (``x.split(self.lengths)``)."""
        pieces = [piece.strip() for piece in how.split("|")]
        pieces += [piece.partition(" ")[2] for piece in pieces if piece[0].isdigit()]
        known_pieces = {piece: evaluate(piece, self.sizes) for piece in pieces if symbols(piece) <= self.sizes.keys()}
        unknown = next((piece for piece in pieces if piece not in known_pieces), "")
        layouts = {size: piece for piece, size in reversed(known_pieces.items())}
        for name, value in vars(self.module).items():
            is_lengths = type(value) in (tuple, list) and len(value) > 1 and all(type(one) is int for one in value)
            if is_lengths and sum(value) == length and all(layouts.get(one, unknown) for one in value):
                self.tensors[name] = tuple(layouts.get(one, unknown) for one in value)

    def _put_table(self, name: str, value: Tensor) -> None:
        """Add an embedding or a buffer that has an axis with one entry per head."""
        part = name.rpartition(".")[0]
        axes = head_axes(value, self.sizes["h"], "h", self.sizes["d"])
        if axes.count("h") != 1:  # a cache of keys
            axes = head_axes(value, self.sizes["g"], "g", self.sizes["d"])
        if axes.count("1") != len(axes) - 1:
            return
        self.tensors[name] = axes
        if isinstance(get_attribute(self.module, part), nn.Embedding):
            self.numbers[f"{part}.embedding_dim"] = "h"

    def _add_use(self, use: Use, how: str, back: str) -> None:
        """Add one map: as a module with a weight if it is one, otherwise as a bare parameter."""
        name = relative_path(use.name, self.path)
        part, _, leaf = name.rpartition(".")
        if part in self.rows or part in self.columns:  # a low-rank addition to a map follows it
            return
        linear = self.module.get_submodule(part) if part and leaf == "weight" else nn.Module()
        weight = getattr(linear, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dim() > 1 and not isinstance(linear, nn.Embedding):
            features = linear_features(linear)
            if use.outs == (features.output_axis,) and features.input_axis in use.ins:
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
            symbols_left = layout.split()  # over several axes: "h d" on axes of h and d entries is "h" and "d"
            for axis in at:
                runs = [symbols_left[i : i + n] for n in range(1, 3) for i in range(len(symbols_left) - n + 1)]
                runs = [run for run in runs if symbols(" ".join(run)) <= self.sizes.keys()]
                run = next((run for run in runs if evaluate(" ".join(run), self.sizes) == use.shape[axis]), [])
                symbols_left = [factor for factor in symbols_left if factor not in run]
                axes[axis] = " ".join(run) if symbols(" ".join(run)) else "1"
        self.tensors[name] = tuple(axes)
        # inputs of a bare parameter are columns, and its bias has the layout of its outputs
        if back:
            heads = (axes[axis] for axis in use.ins if "h" in axes[axis].split())
            self.columns[name] = next(heads, axes[use.ins[-1]])
        bias = f"{part}.bias".lstrip(".")
        if how and leaf == "weight" and isinstance(get_attribute(self.module, bias), Tensor):
            self.tensors[bias] = (how,)

    def _put_along(self, name: str, value: Tensor) -> None:
        """Add another parameter on the way: a bias, norm, scale or table with a value for each head."""
        sizes = self.sizes
        if "m" in sizes:
            known = {sizes["m"]: "m"}
        else:
            known = {sizes["g"] * sizes["d"]: "g d", sizes["g"]: "g", sizes["h"]: "h", sizes["h"] * sizes["d"]: "h d"}
        known[1] = "1"
        axes = tuple(self.layouts.get(length) or known.get(length, "1") for length in value.shape)
        if all(axis == "1" for axis in axes):
            return
        part, _, leaf = name.rpartition(".")
        weight = getattr(self.module.get_submodule(part), "weight", None) if part else None
        is_norm = isinstance(weight, Tensor) and weight.dim() == value.dim() == 1
        is_depthwise = isinstance(self.module.get_submodule(part), nn.modules.conv._ConvNd) if part else False
        if leaf in ("weight", "bias") and (is_norm or is_depthwise):
            self.rows[part] = axes[0]
            if is_norm and "d" in axes[0].split() and part not in self.norms:
                self.norms.append(part)
        else:
            self.tensors[name] = axes


def _belongs_to(name: str, parts: Any) -> bool:
    return name.startswith(tuple(f"{part}." for part in parts))


# -- numbers -------------


_OF_HEADS = re.compile(r"head|kv|group|quer|emb|dim|width|hidden_size|inner|model|attn|qkv|split|(^|_)(n?h|c|d|g|e)$")
_OF_OTHERS = re.compile(r"layer|depth|block|seq|len|window|vocab|batch|pos|patch")


def _number_choices(numbers: Mapping[str, int], sizes: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Yield choices of integers that follow the heads: first by their names, then with some choices reversed."""
    # sure: the most likely meaning of each number; options: the alternatives of a doubtful one
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
    # combinations of the most doubtful numbers, fewest changes first
    doubtful = sorted(options, key=len)[:MOST_NUMBERS]
    for choice in sorted(itertools.product(*(range(len(options[name])) for name in doubtful)), key=sum):
        chosen = dict(sure)
        for name in doubtful:
            del chosen[name]
        for name, i in zip(doubtful, choice, strict=True):
            if options[name][i]:
                chosen[name] = options[name][i]
        yield chosen


def _leaf(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _meanings(name: str, value: int, sizes: Mapping[str, int]) -> list[str]:
    """Return the layouts that an integer may count, judged by its value; those that its name suggests come first."""
    if "m" in sizes:
        return [how for how, size in (("m", sizes["m"]), ("2 m", 2 * sizes["m"])) if size == value]
    h, g, d, leaf = sizes["h"], sizes["g"], sizes["d"], _leaf(name)
    if value == d and re.search(r"head_?(dim|size)|d_?head|d_k", leaf):
        return []
    products = [("h", h), ("h d", h * d), ("3 h d", 3 * h * d), ("2 h d", 2 * h * d)]
    if g != h:
        products += [("g", g), ("g d", g * d), ("2 g d", 2 * g * d), ("h d | g d | g d", (h + 2 * g) * d)]
    layouts = [how for how, size in products if size == value and value > 1]
    if re.search(r"kv|key_value|group|quer", leaf):
        layouts.sort(key=lambda how: "g" not in how)
    return layouts
