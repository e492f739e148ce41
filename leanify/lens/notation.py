"""A short notation for the layout of heads along one axis of a tensor.

A layout is a product of symbols and numbers, or several products joined by ``|`` (concatenated):

    "h d"              heads × head_dim           BERT's query
    "3 h d"            q, k, v, each all heads    timm's and GPT-2's fused qkv
    "h 3 d"            q, k, v within each head   GPT-NeoX
    "h d | g d | g d"  unequal parts              Phi-3
    "h (d+d+v)"        unequal parts in a head    LeViT
    "m"                hidden units of an MLP     fc1

    h heads   g key/value heads   d head_dim   m hidden units   l blocks   x experts, a of them active
    u groups of experts, t of which a router chooses among (constant, like any other letter)

An attribute may also use ``/g`` (division) and ``d^-0.5`` (power). Everything is integer arithmetic, except that
`positions`, `pick_positions` and `cycle` return index tensors on the CPU: weights are copied by a gather and a scatter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Sizes = Mapping[str, int]


@cache
def parse(layout: str) -> tuple[tuple[str, ...], ...]:
    """Return the concatenated parts, each a tuple of factors."""
    return tuple(tuple(part.split()) for part in layout.split("|"))


def symbols(layout: str) -> set[str]:
    """Return the symbols in a layout."""
    return set(re.findall(r"[a-z]", layout))


def _factor(factor: str, sizes: Sizes) -> float:
    if factor.isdigit():
        return int(factor)
    if factor.startswith("("):
        return sum(_factor(name, sizes) for name in factor.strip("()").split("+"))
    if factor.startswith("/"):
        return 1 / sizes[factor[1:]]
    name, _, power = factor.partition("^")
    return sizes[name] ** float(power) if power else sizes[name]


def evaluate(layout: str, sizes: Sizes) -> int | float:
    """Return the length of an axis with this layout, or the value of an attribute."""
    total: float = 0
    for part in parse(layout):
        value: float = 1
        for factor in part:
            value *= _factor(factor, sizes)
        total += value
    exact = "^" in layout
    return total if exact else round(total)


def solve(facts: list[tuple[str, int]], sizes_given: dict[str, int]) -> dict[str, int]:
    """Solve for the sizes of all symbols from (layout, length) facts, starting from ``sizes_given``.

    A layout is linear in each symbol, so one unknown symbol per axis is found by division. A symbol stays
    unknown if the length is not divisible. Raises ValueError for an axis that contradicts the others.
    """
    sizes = dict(sizes_given)
    progress = True
    # divide until no further symbol is determined
    while progress:
        progress = False
        for layout, length in facts:
            unknown = symbols(layout) - sizes.keys()
            if len(unknown) == 1:
                (name,) = unknown
                if "/" in layout or "^" in layout:
                    continue
                # the layout is linear in the unknown symbol: length = at_zero + slope · value
                at_zero = evaluate(layout, {**sizes, name: 0})
                slope = evaluate(layout, {**sizes, name: 1}) - at_zero
                value, rest = divmod(length - at_zero, slope)
                if rest == 0 and value > 0:
                    sizes[name] = int(value)
                    progress = True
    # every axis must agree with the solution
    for layout, length in facts:
        if symbols(layout) <= sizes.keys() and evaluate(layout, sizes) != length:
            raise ValueError(f"an axis of length {length} is not {layout!r} with {sizes}")
    return sizes


def positions(layout: str, old: Sizes, new: Sizes) -> tuple[Tensor, Tensor]:
    """Map the positions of an old axis to the new one: index vectors (from, to) of equal length.

    Heads keep their index and their channels. A split (other head_dim, same inner width) keeps every channel:
    the concatenated heads are cut into heads of the new size. New positions that are not in ``to`` belong to
    new heads or units.
    """
    import torch

    sources, targets = [], []
    start_old = start_new = 0
    # per concatenated part: a grid of old positions and one of new positions
    for part in parse(layout):
        shape_old = [int(_factor(factor, old)) for factor in part]
        shape_new = [int(_factor(factor, new)) for factor in part]
        size_old, size_new = math.prod(shape_old), math.prod(shape_new)
        grid_old = torch.arange(start_old, start_old + size_old).view(shape_old)
        grid_new = torch.arange(start_new, start_new + size_new).view(shape_new)
        start_old, start_new = start_old + size_old, start_new + size_new
        # a split moves channels between heads: compare the concatenated heads instead
        heads = next((part.index(name) for name in "hg" if name in part), None)
        if heads is not None and "d" in part:
            dim = part.index("d")
            same_inner = shape_old[heads] * shape_old[dim] == shape_new[heads] * shape_new[dim]
            if same_inner and shape_old[dim] != shape_new[dim]:
                grid_old, grid_new = _side_by_side(grid_old, (heads, dim)), _side_by_side(grid_new, (heads, dim))
        common = tuple(slice(min(a, b)) for a, b in zip(grid_old.shape, grid_new.shape, strict=True))
        sources.append(grid_old[common].reshape(-1))
        targets.append(grid_new[common].reshape(-1))
    return torch.cat(sources), torch.cat(targets)


def pick_positions(layout: str, sizes: Sizes, picks: Mapping[str, Tensor]) -> Tensor:
    """Return the positions along an axis of selected indices of some symbols, in the layout's order.

    ``picks`` maps symbols to indices, such as ``{"h": [0, 2]}`` for heads 0 and 2; other symbols keep all indices.
    """
    import torch

    indices = []
    start = 0
    for part in parse(layout):
        shape = [int(_factor(factor, sizes)) for factor in part]
        grid = torch.arange(start, start + math.prod(shape)).view(shape)
        start += math.prod(shape)
        for axis, factor in enumerate(part):
            if factor in picks:
                grid = grid.index_select(axis, picks[factor])
        indices.append(grid.reshape(-1))
    return torch.cat(indices)


def cycle(layout: str, old: Sizes, new: Sizes) -> Tensor:
    """Return, for each new position, the old one whose value it repeats: indices beyond the old size wrap around."""
    import torch

    picks = {}
    for factor in chain(*parse(layout)):
        picks[factor] = torch.arange(int(_factor(factor, new))) % int(_factor(factor, old))
    return pick_positions(layout, old, picks)


def _side_by_side(grid: Tensor, pair: tuple[int, int]) -> Tensor:
    """Merge heads and their channels into one last axis, in head-major order."""
    pairs_last = grid.movedim(pair, (-2, -1))
    return pairs_last.reshape(*pairs_last.shape[:-2], -1)
