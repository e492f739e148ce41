"""More heads by equal copies of each, and their merge: both exact.

Two copies of a head attend alike; with half the output columns each, their sum is the original output (Chen et al.
2016, Net2Net, do the same with hidden units). Merging adds the copies' columns up again. Two heads that attend
differently cannot be merged exactly, because softmax is not additive.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from leanify.errors import ShapeError, UnsupportedModel
from leanify.lens.forwards import free
from leanify.lens.located import LocatedLayer
from leanify.lens.resize import features_of, part_of
from leanify.lens.sites import locate
from leanify.upstream.settle import settle
from leanify.warm.axes import Picks, axes_of, select
from leanify.warm.choose import output_of


@torch.no_grad()
def split_into_copies(model: nn.Module, factor: int = 2) -> nn.Module:
    """A new model with ``factor`` copies of every head side by side, which computes what the old one did.

    Raises UnsupportedModel where heads are mixed or share a table, so that copies would change the outputs.
    """
    if factor < 1:
        raise ShapeError(f"{factor} copies of each head were asked for; at least 1 is needed")
    return _with_heads(model, lambda layer: _copies(layer, factor), 1 / factor)


@torch.no_grad()
def merge_copies(model: nn.Module, factor: int = 2) -> nn.Module:
    """The inverse of `split_into_copies`. Raises ShapeError where neighbouring heads are not copies."""
    return _with_heads(model, lambda layer: _firsts(layer, factor), float(factor))


def _with_heads(model: nn.Module, picks_of: object, scale: float) -> nn.Module:
    assert callable(picks_of)
    new = locate(copy.deepcopy(model))
    tables = [site.path for site in new.sites if site.reading.is_table and "h" in site.sizes]
    if tables:
        raise UnsupportedModel(f"{tables[0]} holds one table of heads for all layers: its heads cannot be copied alone")
    for layer in list(new.layers):
        site = layer.attention
        mixing = [part for part in site.reading.mixing if part_of(site.module, part) is not None]
        out = [
            p for p, how in site.reading.columns.items() if "h" in how.split() and part_of(site.module, p) is not None
        ]
        if mixing or len(out) > 1:
            raise UnsupportedModel(f"{site.path} mixes its heads, so that copies of them change what it gives")
        select(new.model, site, picks_of(layer))
        _, output = output_of(site, "h")
        assert output is not None
        weight = output.weight
        assert isinstance(weight, Tensor)
        weight.mul_(scale)
        if features_of(output).inputs != features_of(output).outputs:
            free(site.module)
    settle(new.model, new.architecture, locate(new.model).architecture, {})
    return new.model


def _copies(layer: LocatedLayer, factor: int) -> Picks:
    """Every key/value head ``factor`` times, each time with its own heads."""
    sizes = layer.attention.sizes
    groups = sizes.get("g", sizes["h"])
    if groups == 1:  # one key/value head serves them all
        return {"h": torch.arange(sizes["h"]).repeat_interleave(factor)}
    kept = torch.arange(groups).repeat_interleave(factor)
    each = sizes["h"] // groups
    return {"g": kept, "h": (kept[:, None] * each + torch.arange(each)).flatten()}


def _firsts(layer: LocatedLayer, factor: int) -> Picks:
    """The first of every ``factor`` key/value heads, after a check that the others equal it."""
    site = layer.attention
    groups = site.sizes.get("g", site.sizes["h"])
    units, symbol = (site.sizes["h"], "h") if groups == 1 else (groups, "g")
    if units % factor:
        raise ShapeError(f"{site.path} has {units} heads, which do not make groups of {factor} copies")
    each = 1 if groups == 1 else site.sizes["h"] // groups

    def at(copy_number: int) -> Picks:
        kept = torch.arange(0, units, factor) + copy_number
        heads = (kept[:, None] * each + torch.arange(each)).flatten()
        return {"h": heads} if symbol == "h" and groups == 1 else {"g": kept, "h": heads}

    for number in range(1, factor):
        for axes in axes_of(site):
            for axis in axes.layouts:
                pair = [axes.value.index_select(axis, axes.picked(axis, site.sizes, at(n))) for n in (0, number)]
                if not torch.equal(*pair):
                    raise ShapeError(f"{site.path}.{axes.part}: neighbouring heads are not copies of one another")
    return at(0)
