"""Reduce heads and hidden units, and correct the output projections for the removed ones.

`choose` selects the heads and units to keep; `correction` computes the output projections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from leanify.carrying.calibration import Moments
from leanify.carrying.choose import choose_units, importances, most_important, output_projection
from leanify.carrying.correction import correct_output, set_matrix
from leanify.carrying.experts import keep_experts
from leanify.carrying.teacher import CalibratedTeacher, Cut, loses_units, target_count
from leanify.core.architecture import Architecture, Layer
from leanify.core.errors import ShapeError
from leanify.lens.axes import Picks, select, shared_table
from leanify.lens.forwards import free
from leanify.lens.located import LocatedLayer, LocatedModel, Site
from leanify.lens.resize import linear_features, resize
from leanify.upstream.derived_attributes import sync_derived_attributes
from leanify.upstream.on_disk import deep_copy, place_weights

CutOf = Callable[[Site, str], Cut]


def narrow_model(teacher: CalibratedTeacher, architecture: Architecture) -> LocatedModel:
    """Return a new model with this shape and the same depth; heads and units are selected on calibration data.

    If it has more heads or units, the new ones have zero output columns. Raises ShapeError for another depth.
    """
    # select and correct, with common heads under a shared table
    for old, shape in zip(teacher.located_model.stages, architecture.stages, strict=True):
        if len(old.blocks) != shape.depth:
            raise ShapeError("narrow keeps the depth: drop or pair blocks first")
    teacher.prepare([architecture])
    new = teacher.located_model.locate_copy(deep_copy(teacher.model))
    targets = list(architecture.layers())
    common = common_heads(teacher, targets)
    for before, layer, size in zip(list(teacher.located_model.layers), list(new.layers), targets, strict=True):
        shape_layer(new.model, layer, size, teacher_cuts(teacher, size, common.get(before.attention.path)))
        keep_experts(teacher, new, before, layer, size)
        for site in layer.sites:
            place_weights(site.module)
    # tables of all heads follow
    for table in head_tables(new):
        picks = {"h": next(iter(common.values()))["h"]} if common else {}
        sizes = select(new.model, table, picks)
        resize(new.model, table.path, table.module, table.reading, sizes, {**sizes, "h": targets[0].heads})
    sync_derived_attributes(new.model, new.architecture, architecture, {})
    return new.read_sizes()


def teacher_cuts(teacher: CalibratedTeacher, target: Layer, heads: Picks | None = None) -> CutOf:
    """Return a function that cuts a layer's sites as measured in the teacher; ``heads`` fixes the kept heads."""

    def cut(site: Site, symbol: str) -> Cut:
        return teacher.cut(
            teacher.located_model.sites_by_path[site.path], symbol, target, heads if symbol == "h" else None
        )

    return cut


def head_tables(located_model: LocatedModel) -> list[Site]:
    """Return the tables outside the attentions that have one entry per head and apply to all attentions."""
    return [site for site in located_model.sites if site.reading.is_table and "h" in site.sizes]


def common_heads(teacher: CalibratedTeacher, targets: Sequence[Layer]) -> dict[str, Picks]:
    """Return the kept heads by the attention's path, for layers that share a head table and must keep the same heads.

    The table is outside the attentions, or in the first attention of a stage (T5's relative positions).
    """
    located_model = teacher.located_model
    shapes = {layer.attention.path: shape for layer, shape in zip(located_model.layers, targets, strict=True)}
    stages = [list(stage.layers) for stage in located_model.stages if shared_table(located_model, stage)]
    layer_groups = [list(located_model.layers)] if head_tables(located_model) else stages
    # the heads with the largest share of importance, summed over the layers
    common: dict[str, Picks] = {}
    for layers in layer_groups:
        shape = shapes[layers[0].attention.path]
        if all(layer.attention.sizes["h"] > shape.heads for layer in layers):
            scores = [importances(layer.attention, "h", teacher.heads(layer)) for layer in layers]
            total = torch.stack([score / score.sum().clamp(min=1e-300) for score in scores]).sum(0)
            picks = most_important(layers[0].attention, {"h": shape.heads, "g": shape.kv_heads}, total)
            common |= {layer.attention.path: picks for layer in layers}
    return common


def projections(located_model: LocatedModel) -> dict[str, nn.Module]:
    """Return the output projections of all layers, of heads and of units, by path."""
    modules: dict[str, nn.Module] = {}
    for layer in located_model.layers:
        for site in layer.sites:
            for symbol in "hm":
                path, module = output_projection(site, symbol)
                if module is not None:
                    modules[path] = module
    return modules


def moment_cuts(moments: Mapping[str, Moments], target: Layer, heads: Picks | None = None) -> CutOf:
    """Return a function that cuts a layer's sites by these moments; ``heads`` fixes the kept heads."""

    def cut(site: Site, symbol: str) -> Cut:
        count = target_count(site, symbol, target)
        picks = heads if heads is not None and symbol == "h" else choose_units(site, symbol, [count], moments)[count]
        return Cut(picks, correct_output(site, symbol, picks, moments))

    return cut


@torch.no_grad()
def shape_layer(model: nn.Module, layer: LocatedLayer, target: Layer, cut: CutOf) -> None:
    """Bring a layer to a shape, in place: ``cut`` selects what to keep, and missing heads and units are added."""
    symbols = {"h": target.heads, "g": target.kv_heads, "d": target.head_dim, "m": target.mlp}
    for site in layer.sites:
        sizes = site.sizes
        cuts = {symbol: cut(site, symbol) for symbol in ("h", "m") if loses_units(site, symbol, target)}
        if cuts:
            picks: dict[str, Tensor] = {}
            for one in cuts.values():
                picks |= one.picks
            sizes = select(model, site, picks)
        for symbol, one in cuts.items():
            _, module = output_projection(site, symbol)
            if module is not None and one.weights is not None:
                set_matrix(module, *one.weights)
        grown = {name: symbols.get(name, size) for name, size in sizes.items()}
        resize(model, site.path, site.module, site.reading, sizes, grown)
    output = linear_features(layer.output)
    if output.inputs != output.outputs:
        free(layer.attention.module)
