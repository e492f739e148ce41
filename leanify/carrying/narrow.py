"""Reduce heads, hidden units and experts, and correct the output projections for the removed heads and units.

`choose` selects the heads and units to keep, and computes the output projections. Removing an expert of a mixture
changes its output for the tokens that its router sends to it: the size of this change on some of the data is the
expert's worth; an expert without tokens is worth nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from leanify.carrying.calibration import Call, Moments, first_tensor, record_trace, run
from leanify.carrying.choose import (
    choose_units,
    correct_output,
    importances,
    most_important,
    output_projection,
    output_projections,
    set_matrix,
)
from leanify.carrying.teacher import CalibratedTeacher, Cut, loses_units, target_count
from leanify.core.architecture import Architecture, Layer
from leanify.core.errors import ShapeError
from leanify.lens import notation
from leanify.lens.axes import Axes, Picks, resizable_axes, select, shared_table
from leanify.lens.forwards import free
from leanify.lens.located import LocatedLayer, LocatedModel, Site, find_routers
from leanify.lens.resize import linear_features, resize
from leanify.upstream.derived_attributes import sync_derived_attributes
from leanify.upstream.on_disk import deep_copy, place_weights

BATCHES = 4  # batches on which every expert is left out once
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
            modules |= output_projections(site)
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


# -- experts ----------


@torch.no_grad()
def keep_experts(
    teacher: CalibratedTeacher, new: LocatedModel, old: LocatedLayer, layer: LocatedLayer, target: Layer
) -> None:
    """Reduce the experts of a layer, and the rows of its router, to the target number, in place."""
    mixture = layer.mlp
    if mixture is None or old.mlp is None or not 0 < target.experts < mixture.sizes.get("x", 0):
        return
    routers = find_routers(mixture.path, new.sites)
    router_symbols = {name for router in routers for name in router.sizes}
    if not {"x", "a"} <= router_symbols or not any(True for _ in _tensors(mixture)):
        raise ShapeError(f"{mixture.path} keeps its {mixture.sizes['x']} experts: leanify cannot remove any of them")
    groups = next((router.sizes["u"] for router in routers if "u" in router.sizes), 1)
    scores = worth(teacher, old.mlp).view(groups, -1)
    best = scores.topk(target.experts // groups, dim=1).indices.sort(dim=1).values
    picks = (best + torch.arange(groups)[:, None] * scores.shape[1]).flatten()
    for site in (mixture, *routers):
        sizes = select(new.model, site, {"x": picks}) if "x" in site.sizes else site.sizes
        active = {"a": target.active} if "a" in sizes else {}
        resize(new.model, site.path, site.module, site.reading, sizes, sizes | active)


def worth(teacher: CalibratedTeacher, mixture: Site) -> Tensor:
    """Return the change of a mixture's output without each of its experts: Σ|difference|² over some of the data."""
    calls: list[tuple[Call, Tensor | None]] = []
    for batch in teacher.batches[:BATCHES]:
        with record_trace([mixture.module]) as passes:
            run(teacher.model, batch)
        calls += [(call, batch.get("attention_mask")) for call in itertools.chain(*passes)]
    scores = []
    for expert in range(mixture.sizes["x"]):
        lost = 0.0
        with _without(mixture, expert):
            for call, mask in calls:
                other = first_tensor(mixture.module(*call.args, **call.kwargs))
                rows = (other - call.output).flatten(0, -2)
                if mask is not None and mask.numel() == len(rows):
                    rows = rows[mask.flatten().bool()]
                lost += float(rows.double().square().sum())
        scores.append(lost)
    return torch.tensor(scores, dtype=torch.float64)


def _tensors(mixture: Site) -> Iterator[tuple[Axes, int]]:
    """Yield the tensors with an entry per expert, and their axis of experts."""
    for axes in resizable_axes(mixture):
        for axis, layout in axes.layouts.items():
            if "x" in notation.symbols(layout):
                yield axes, axis


@contextmanager
def _without(mixture: Site, expert: int) -> Iterator[None]:
    """Set an expert's weights to zero in the context, so that it adds nothing."""
    picks = {"x": torch.tensor([expert])}
    places = [(axes.value, axis, axes.pick_positions(axis, mixture.sizes, picks)) for axes, axis in _tensors(mixture)]
    before = [value.index_select(axis, at.to(value.device)) for value, axis, at in places]
    try:
        for value, axis, at in places:
            value.index_fill_(axis, at.to(value.device), 0.0)
        yield
    finally:
        for (value, axis, at), part in zip(places, before, strict=True):
            value.index_copy_(axis, at.to(value.device), part)
