"""Which axes of a layer's tensors hold heads or hidden units, and the selection of some of them.

A row of `lens.families` describes how heads are laid out along the axes of a module's tensors. This module
expands it tensor by tensor, so that selecting, reordering and concatenating heads or units become index
operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanify.lens import notation
from leanify.lens.located import LocatedLayer, LocatedModel, LocatedStage, Site
from leanify.lens.resize import attribute_of, features_of, part_of, resize

GROWING = ("h", "g", "m")  # heads, key/value heads, hidden units: what a redesign adds and removes
Sizes = dict[str, int]
Picks = Mapping[str, Tensor]


@dataclass(frozen=True)
class Axes:
    """One tensor of a site: the part of the site it belongs to, and the layout of each axis that has one."""

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

    def picked(self, axis: int, sizes: Sizes, picks: Picks) -> Tensor:
        return notation.picked(self.layouts[axis], sizes, picks)


def axes_of(site: Site) -> Iterator[Axes]:
    """Every tensor of a site that its row describes, each once."""
    reading = site.reading
    for part in {**reading.rows, **reading.columns}:
        module = part_of(site.module, part)
        if module is None:
            continue
        features = features_of(module)
        rows, columns = reading.rows.get(part), reading.columns.get(part)
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if not tensor.dim():
                continue
            layouts = {} if rows is None else {features.output_axis if tensor.dim() > 1 else 0: rows}
            if columns is not None and tensor.dim() > 1 and features.input_axis != features.output_axis:
                layouts[features.input_axis] = columns
            yield Axes(part, module, name, layouts)
    for path, axes in reading.tensors.items():
        owner_path, _, name = path.rpartition(".")
        owner = attribute_of(site.module, owner_path) if owner_path else site.module
        if isinstance(getattr(owner, name, None), Tensor):
            yield Axes(path, owner, name, {axis: how for axis, how in enumerate(axes) if notation.symbols(how)})


def sites_of(layer: LocatedLayer) -> Iterable[Site]:
    """The attention and the MLP of a layer; a parallel block's one site once."""
    return {site.path: site for site in (layer.attention, layer.mlp) if site is not None}.values()


def shared_table(located: LocatedModel, stage: LocatedStage) -> str:
    """The path of a table of heads that a stage's layers share, so that their heads must be the same; or "".

    It stands outside the attentions, or in one of them alone (T5's first holds the relative positions of
    all).
    """
    outside = next((site.path for site in located.sites if site.reading.is_table and "h" in site.sizes), "")
    parts: dict[str, list[str]] = {}
    attentions = [layer.attention for layer in stage.layers]
    for site in attentions:
        for axes in axes_of(site):
            parts.setdefault(axes.part, []).append(site.path)
    alone = (f"{paths[0]}.{part}" for part, paths in parts.items() if len(set(paths)) == 1 < len(attentions))
    return outside or next(alone, "")


@torch.no_grad()
def select(model: nn.Module, site: Site, picks: Picks) -> Sizes:
    """Keep the picked heads and units of a site, in the picks' order, in place. Returns the new sizes."""
    kept = []
    for axes in axes_of(site):
        value = axes.value
        for axis in axes.layouts:
            value = value.index_select(axis, axes.picked(axis, site.sizes, picks).to(value.device))
        kept.append((axes, value))
    sizes = dict(site.sizes)
    for name, pick in picks.items():
        if name in sizes:
            sizes[name] = len(pick)
    resize(model, site.path, site.module, site.reading, site.sizes, sizes)
    for axes, value in kept:
        axes.value.copy_(value)
    return sizes
