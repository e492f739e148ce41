"""Find the axes of a layer's tensors that hold heads or hidden units, and select some of them.

A row of `lens.families` describes the layout of heads along the axes of a module's tensors. This module expands it
for each tensor, so that heads and units can be selected, reordered and concatenated by index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanify.lens import notation
from leanify.lens.families import Row
from leanify.lens.located import LocatedModel, LocatedStage, Site
from leanify.lens.resize import get_attribute, map_axes, resize, weighted_parts

GROWING = ("h", "g", "m")  # heads, key/value heads, hidden units: a redesign changes their numbers
Sizes = dict[str, int]
Picks = Mapping[str, Tensor]


@dataclass(frozen=True)
class Axes:
    """One tensor of a site: the part of the site that contains it, and the layout of each axis that has one."""

    part: str
    owner: nn.Module
    name: str
    layouts: dict[int, str]

    @property
    def value(self) -> Tensor:
        value = getattr(self.owner, self.name)
        assert isinstance(value, Tensor)
        return value.detach()

    @property
    def grows(self) -> bool:
        """Whether any axis holds heads or hidden units."""
        return any(notation.symbols(layout) & set(GROWING) for layout in self.layouts.values())

    def pick_positions(self, axis: int, sizes: Sizes, picks: Picks) -> Tensor:
        return notation.pick_positions(self.layouts[axis], sizes, picks)


def resizable_axes(site: Site) -> Iterator[Axes]:
    """Yield every tensor of a site that its row describes, once."""
    return described_axes(site.module, site.reading)


def described_axes(module: nn.Module, reading: Row) -> Iterator[Axes]:
    """Yield every tensor of a module that a row describes, once."""
    for part, owner in weighted_parts(module, {**reading.rows, **reading.columns}).items():
        for name, layouts in map_axes(owner, reading.rows.get(part), reading.columns.get(part)).items():
            yield Axes(part, owner, name, layouts)
    for path, axes in reading.tensors.items():
        owner_path, _, name = path.rpartition(".")
        owner = get_attribute(module, owner_path)
        if isinstance(getattr(owner, name, None), Tensor):
            yield Axes(path, owner, name, {axis: how for axis, how in enumerate(axes) if notation.symbols(how)})


def shared_table(located_model: LocatedModel, stage: LocatedStage) -> str:
    """Return the path of a head table shared by a stage's layers, which then must keep the same heads; "" without one.

    The table is outside the attentions, or in only one of them (T5's first attention holds the relative positions of
    all).
    """
    outside_path = next((site.path for site in located_model.sites if site.reading.is_table and "h" in site.sizes), "")
    parts: dict[str, list[str]] = {}
    attentions = [layer.attention for layer in stage.layers]
    for site in attentions:
        for axes in resizable_axes(site):
            parts.setdefault(axes.part, []).append(site.path)
    shared_paths = (f"{paths[0]}.{part}" for part, paths in parts.items() if len(set(paths)) == 1 < len(attentions))
    return outside_path or next(shared_paths, "")


@torch.no_grad()
def select(model: nn.Module, site: Site, picks: Picks) -> Sizes:
    """Keep the picked heads and units of a site, in the order of the picks, in place. Returns the new sizes."""
    kept_slots = []
    for axes in resizable_axes(site):
        value = axes.value
        for axis in axes.layouts:
            value = value.index_select(axis, axes.pick_positions(axis, site.sizes, picks).to(value.device))
        kept_slots.append((axes, value))
    sizes = dict(site.sizes)
    for name, pick in picks.items():
        if name in sizes:
            sizes[name] = len(pick)
    resize(model, site.path, site.module, site.reading, site.sizes, sizes)
    for axes, value in kept_slots:
        axes.value.copy_(value)
    return sizes
