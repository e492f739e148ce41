"""Fewer heads and hidden units, and an output projection that makes up for those that are gone.

Which of them stay, `choose` decides; the projection is that of `correction`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from leanify.architecture import Architecture, Layer
from leanify.errors import ShapeError
from leanify.lens.forwards import free
from leanify.lens.located import LocatedLayer, LocatedModel, Site
from leanify.lens.resize import features_of, resize
from leanify.lens.sites import locate
from leanify.upstream.settle import settle
from leanify.warm.axes import Picks, select, shared_table, sites_of
from leanify.warm.calibration import Batch, Moments
from leanify.warm.choose import chosen, importances, most_important, output_of
from leanify.warm.correction import corrected, set_matrix
from leanify.warm.donor import Cut, Donor, count_of, fewer
from leanify.warm.experts import keep_experts

CutOf = Callable[[Site, str], Cut]


def narrow(model: nn.Module, architecture: Architecture, batches: Sequence[Batch], correct: bool = True) -> nn.Module:
    """A new model of that shape and the same depth, whose heads and units were chosen on calibration data.

    New heads and units, where it has more, have zero output columns. Without ``correct`` the output
    projections keep their columns. Raises ShapeError for another depth.
    """
    return narrowed(Donor(model, batches, batches, correct=correct), architecture)


def narrowed(donor: Donor, architecture: Architecture) -> nn.Module:
    """The same from a donor, which remembers what stays."""
    for old, shape in zip(donor.located.stages, architecture.stages, strict=True):
        if len(old.blocks) != shape.depth:
            raise ShapeError("narrow keeps the depth: drop or pair blocks first")
    donor.prepare([architecture])
    new = locate(copy.deepcopy(donor.model))
    wanted = list(architecture.layers())
    common = common_heads(donor, wanted)
    for before, layer, size in zip(list(donor.located.layers), list(new.layers), wanted, strict=True):
        shape_layer(new.model, layer, size, by_donor(donor, size, common.get(before.attention.path)))
        keep_experts(donor, new, before, layer, size)
    for table in tables_of_heads(new):
        picks = {"h": next(iter(common.values()))["h"]} if common else {}
        sizes = select(new.model, table, picks)
        resize(new.model, table.path, table.module, table.reading, sizes, {**sizes, "h": wanted[0].heads})
    settle(new.model, new.architecture, architecture, {})
    return new.model


def by_donor(donor: Donor, wanted: Layer, heads: Picks | None = None) -> CutOf:
    """What stays of a layer's sites as they are in the donor; of the heads those given."""

    def cut(site: Site, symbol: str) -> Cut:
        return donor.cut(donor.located.by_path[site.path], symbol, wanted, heads if symbol == "h" else None)

    return cut


def tables_of_heads(located: LocatedModel) -> list[Site]:
    """Tables with one entry a head that stand outside the attentions and serve all of them."""
    return [site for site in located.sites if site.reading.is_table and "h" in site.sizes]


def common_heads(donor: Donor, wanted: Sequence[Layer]) -> dict[str, Picks]:
    """Which heads stay, by the attention's path, where layers share a table of heads and so must keep the same.

    The table stands outside the attentions, or in the first one of a stage alone (T5's relative positions).
    """
    located = donor.located
    shapes = {layer.attention.path: shape for layer, shape in zip(located.layers, wanted, strict=True)}
    stages = [list(stage.layers) for stage in located.stages if shared_table(located, stage)]
    together = [list(located.layers)] if tables_of_heads(located) else stages
    common: dict[str, Picks] = {}
    for layers in together:
        shape = shapes[layers[0].attention.path]
        if all(layer.attention.sizes["h"] > shape.heads for layer in layers):
            scores = [importances(layer.attention, "h", donor.heads(layer)) for layer in layers]
            total = torch.stack([score / score.sum().clamp(min=1e-300) for score in scores]).sum(0)
            picks = most_important(layers[0].attention, {"h": shape.heads, "g": shape.kv_heads}, total)
            common |= {layer.attention.path: picks for layer in layers}
    return common


def projections(located: LocatedModel) -> dict[str, nn.Module]:
    """The output projections of all layers, of heads and of units, by path."""
    found: dict[str, nn.Module] = {}
    for layer in located.layers:
        for site in sites_of(layer):
            for symbol in "hm":
                path, module = output_of(site, symbol)
                if module is not None:
                    found[path] = module
    return found


def by_moments(found: Mapping[str, Moments], wanted: Layer, correct: bool = True, heads: Picks | None = None) -> CutOf:
    """What stays of a layer's sites by these moments; of the heads those given."""

    def cut(site: Site, symbol: str) -> Cut:
        count = count_of(site, symbol, wanted)
        picks = heads if heads is not None and symbol == "h" else chosen(site, symbol, [count], found)[count]
        return Cut(picks, corrected(site, symbol, picks, found) if correct else None)

    return cut


@torch.no_grad()
def shape_layer(model: nn.Module, layer: LocatedLayer, wanted: Layer, cut: CutOf) -> None:
    """Bring a layer to a shape, in place: what ``cut`` says stays, and what is missing is added."""
    symbols = {"h": wanted.heads, "g": wanted.kv_heads, "d": wanted.head_dim, "m": wanted.mlp}
    for site in sites_of(layer):
        sizes = site.sizes
        cuts = {symbol: cut(site, symbol) for symbol in ("h", "m") if fewer(site, symbol, wanted)}
        if cuts:
            sizes = select(model, site, {name: pick for cut in cuts.values() for name, pick in cut.picks.items()})
        for symbol, one in cuts.items():
            _, module = output_of(site, symbol)
            if module is not None and one.weights is not None:
                set_matrix(module, *one.weights)
        grown = {name: symbols.get(name, size) for name, size in sizes.items()}
        resize(model, site.path, site.module, site.reading, sizes, grown)
    output = features_of(layer.output)
    if output.inputs != output.outputs:
        free(layer.attention.module)
