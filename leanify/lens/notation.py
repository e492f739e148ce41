"""A short notation for how heads lie along one axis of a tensor.

A layout is a product of symbols and numbers, or several products joined by ``|`` (concatenated):

    "h d"              heads × head_dim           BERT's query
    "3 h d"            q, k, v, each all heads    timm's and GPT-2's fused qkv
    "h 3 d"            q, k, v within each head   GPT-NeoX
    "h d | g d | g d"  unequal parts              Phi-3
    "h (d+d+v)"        unequal parts in a head    LeViT
    "m"                hidden units of an MLP     fc1

    h heads   g key/value heads   d head_dim   m hidden units   l blocks   x experts, a of them active
    u groups of experts, t of which a router chooses among (they stay, as any other letter does)

An attribute may also use ``/g`` (divided by) and ``d^-0.5`` (a power). Everything here is arithmetic on integers;
`positions` alone makes index tensors, on the CPU, so that carrying weights is one gather and one scatter.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Sizes = Mapping[str, int]


@cache
def parse(layout: str) -> tuple[tuple[str, ...], ...]:
    """The concatenated parts, each a tuple of factors."""
    return tuple(tuple(part.split()) for part in layout.split("|"))


def symbols(layout: str) -> set[str]:
    """The letters that a layout uses."""
    factors = {name for part in parse(layout) for factor in part for name in factor.strip("()").split("+")}
    return {factor.strip("/").split("^")[0] for factor in factors if not factor.isdigit()}


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
    """The length of an axis with this layout, or the value of an attribute."""
    total: float = 0
    for part in parse(layout):
        value: float = 1
        for factor in part:
            value *= _factor(factor, sizes)
        total += value
    exact = "^" in layout
    return total if exact else round(total)


def solve(facts: list[tuple[str, int]], known: dict[str, int]) -> dict[str, int]:
    """Sizes of all symbols, from axes of known length; ``known`` is extended until nothing more follows.

    A layout is linear in each symbol, so one unknown symbol in an axis is found by division; a length that does not
    divide leaves it unknown, and an axis that contradicts what is known raises ValueError.
    """
    sizes = dict(known)
    progress = True
    while progress:
        progress = False
        for layout, length in facts:
            unknown = symbols(layout) - sizes.keys()
            if len(unknown) == 1:
                (name,) = unknown
                if "/" in layout or "^" in layout:
                    continue
                at_zero = evaluate(layout, {**sizes, name: 0})
                slope = evaluate(layout, {**sizes, name: 1}) - at_zero
                value, rest = divmod(length - at_zero, slope)
                if rest == 0 and value > 0:
                    sizes[name] = int(value)
                    progress = True
    for layout, length in facts:
        if symbols(layout) <= sizes.keys() and evaluate(layout, sizes) != length:
            raise ValueError(f"an axis of length {length} is not {layout!r} with {sizes}")
    return sizes


def positions(layout: str, old: Sizes, new: Sizes) -> tuple[Tensor, Tensor]:
    """Which positions of an old axis go where in the new one: index vectors (from, to) of equal length.

    Heads keep their number and their channels. A split (other head_dim, same inner width) keeps every channel: the
    heads side by side are cut into heads of the new size. Positions of the new axis that are in no ``to`` belong to
    new heads or units.
    """
    import torch

    sources, targets = [], []
    start_old = start_new = 0
    for part in parse(layout):
        shape_old = [int(_factor(factor, old)) for factor in part]
        shape_new = [int(_factor(factor, new)) for factor in part]
        size_old, size_new = _product(shape_old), _product(shape_new)
        grid_old = torch.arange(start_old, start_old + size_old).view(shape_old)
        grid_new = torch.arange(start_new, start_new + size_new).view(shape_new)
        start_old, start_new = start_old + size_old, start_new + size_new
        pair = next(((part.index(n), part.index("d")) for n in "hg" if n in part and "d" in part), None)
        if pair and shape_old[pair[1]] != shape_new[pair[1]] and _at(shape_old, pair) == _at(shape_new, pair):
            grid_old, grid_new = _side_by_side(grid_old, pair), _side_by_side(grid_new, pair)
        common = tuple(slice(min(a, b)) for a, b in zip(grid_old.shape, grid_new.shape, strict=True))
        sources.append(grid_old[common].reshape(-1))
        targets.append(grid_new[common].reshape(-1))
    return torch.cat(sources), torch.cat(targets)


def picked(layout: str, sizes: Sizes, picks: Mapping[str, Tensor]) -> Tensor:
    """The positions along an axis that belong to the ``picks`` of some symbols, in the layout's order.

    ``picks`` gives indices by symbol, such as ``{"h": [0, 2]}`` for the heads 0 and 2; other symbols stay whole.
    """
    import torch

    taken = []
    start = 0
    for part in parse(layout):
        shape = [int(_factor(factor, sizes)) for factor in part]
        grid = torch.arange(start, start + _product(shape)).view(shape)
        start += _product(shape)
        for axis, factor in enumerate(part):
            if factor in picks:
                grid = grid.index_select(axis, picks[factor])
        taken.append(grid.reshape(-1))
    return torch.cat(taken)


def cycle(layout: str, old: Sizes, new: Sizes) -> Tensor:
    """For each position of the new axis the old one whose value it repeats: sizes that grew start again at zero."""
    import torch

    taken = []
    start = 0
    for part in parse(layout):
        shape_old = [int(_factor(factor, old)) for factor in part]
        shape_new = [int(_factor(factor, new)) for factor in part]
        grid = torch.arange(start, start + _product(shape_old)).view(shape_old)
        start += _product(shape_old)
        for axis, (a, b) in enumerate(zip(shape_old, shape_new, strict=True)):
            grid = grid.index_select(axis, torch.arange(b) % a)
        taken.append(grid.reshape(-1))
    return torch.cat(taken)


def _side_by_side(grid: Tensor, pair: tuple[int, int]) -> Tensor:
    """Heads and their channels joined into one last axis, in head-major order."""
    moved = grid.movedim(pair, (-2, -1))
    return moved.reshape(*moved.shape[:-2], -1)


def _at(shape: list[int], pair: tuple[int, int]) -> int:
    return shape[pair[0]] * shape[pair[1]]


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
