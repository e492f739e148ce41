"""Fewer heads and hidden units, and an output projection that makes up for those that are gone.

Which of them stay, `choose` decides. What is removed is compensated by least squares: the new projection W' of the kept
inputs minimises E|W a − W' a_S|² + λ|W' − W_S|², a being the projection's input (Frantar & Alistarh 2023, SparseGPT,
solve the same problem entry by entry). As W' = W_S is one of the candidates, the error on the calibration data never
rises.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from leanify.architecture import Architecture, Layer
from leanify.errors import ShapeError
from leanify.lens import notation
from leanify.lens.forwards import free
from leanify.lens.located import LocatedLayer, LocatedModel, Site
from leanify.lens.resize import features_of, resize
from leanify.lens.sites import locate
from leanify.upstream.settle import settle
from leanify.warm.axes import Picks, Sizes, select, shared_table
from leanify.warm.calibration import Batch, Moments, moments
from leanify.warm.choose import RIDGE, chosen, importances, matrix_of, most_important, output_of


def narrow(model: nn.Module, architecture: Architecture, batches: Sequence[Batch], correct: bool = True) -> nn.Module:
    """A new model of that shape and the same depth, whose heads and units were chosen on calibration data.

    Where the architecture has more heads or units than the model, new ones with zero output columns are added. Without
    ``correct`` the output projections keep their columns. Raises ShapeError for another depth.
    """
    new = locate(copy.deepcopy(model))
    wanted = list(architecture.layers())
    if [len(stage.blocks) for stage in new.stages] != [stage.depth for stage in architecture.stages]:
        raise ShapeError("narrow keeps the depth: drop or pair blocks first")
    found = moments(new.model, projections(new), batches)
    common = common_heads(new, wanted, found)
    for layer, shape in zip(list(new.layers), wanted, strict=True):
        shape_layer(new.model, layer, shape, found, correct, common.get(layer.attention.path))
    for table in tables_of_heads(new):
        heads = wanted[0].heads
        picks = {"h": next(iter(common.values()))["h"]} if common else {}
        sizes = select(new.model, table, picks)
        resize(new.model, table.path, table.module, table.reading, sizes, {**sizes, "h": heads})
    settle(new.model, new.architecture, architecture, {})
    return new.model


def tables_of_heads(located: LocatedModel) -> list[Site]:
    """Tables with one entry a head that stand outside the attentions and serve all of them."""
    return [site for site in located.sites if site.reading.is_table and "h" in site.sizes]


def common_heads(located: LocatedModel, wanted: Sequence[Layer], found: Mapping[str, Moments]) -> dict[str, Picks]:
    """Which heads stay, by the attention's path, where layers share a table of heads and so must keep the same ones.

    The table stands outside the attentions, or in the first one of a stage alone (T5's relative positions).
    """
    shapes = {layer.attention.path: shape for layer, shape in zip(located.layers, wanted, strict=True)}
    stages = [list(stage.layers) for stage in located.stages if shared_table(located, stage)]
    together = [list(located.layers)] if tables_of_heads(located) else stages
    common: dict[str, Picks] = {}
    for layers in together:
        shape = shapes[layers[0].attention.path]
        if all(layer.attention.sizes["h"] > shape.heads for layer in layers):
            scores = [importances(layer.attention, "h", found) for layer in layers]
            total = torch.stack([score / score.sum().clamp(min=1e-300) for score in scores]).sum(0)
            picks = most_important(layers[0].attention, {"h": shape.heads, "g": shape.kv_heads}, total)
            common |= {layer.attention.path: picks for layer in layers}
    return common


def projections(located: LocatedModel) -> dict[str, nn.Module]:
    """The output projections of all layers, of heads and of units, by path."""
    sites = {site.path: site for layer in located.layers for site in (layer.attention, layer.mlp) if site}
    return {
        path: module
        for site in sites.values()
        for symbol in "hm"
        for path, module in [output_of(site, symbol)]
        if module
    }


@torch.no_grad()
def shape_layer(
    model: nn.Module,
    layer: LocatedLayer,
    wanted: Layer,
    found: Mapping[str, Moments],
    correct: bool = True,
    heads: Picks | None = None,
) -> None:
    """Bring a layer to a shape, in place: the most important heads (or those given) and units stay, missing ones are
    added.
    """
    symbols = {"h": wanted.heads, "g": wanted.kv_heads, "d": wanted.head_dim, "m": wanted.mlp}
    for site in {s.path: s for s in (layer.attention, layer.mlp) if s}.values():
        picks = {**_fewer(site, symbols, found), **((heads or {}) if "h" in site.sizes else {})}
        sizes = _narrowed(model, site, picks, found, correct)
        grown = {name: symbols.get(name, size) for name, size in sizes.items()}
        resize(model, site.path, site.module, site.reading, sizes, grown)
    output = features_of(layer.output)
    if output.inputs != output.outputs:
        free(layer.attention.module)


def _fewer(site: Site, wanted: Mapping[str, int], found: Mapping[str, Moments]) -> dict[str, Tensor]:
    """The heads and units that stay, where fewer of them are wanted."""
    picks: dict[str, Tensor] = {}
    for symbol in ("h", "m"):
        if site.sizes.get(symbol, 0) > wanted[symbol]:
            picks |= chosen(site, symbol, wanted, found)
    return picks


def _narrowed(model: nn.Module, site: Site, picks: Picks, found: Mapping[str, Moments], correct: bool) -> Sizes:
    if not picks:
        return site.sizes
    weights = {s: _corrected(site, s, picks, found) for s in ("h", "m") if correct and s in picks}
    sizes = select(model, site, picks)
    for symbol, solved in weights.items():
        _, module = output_of(site, symbol)
        if module is not None and solved is not None:
            set_matrix(module, *solved)
    return sizes


# -- correction ---------------------------------------------------------------------------------------------------


def _corrected(
    site: Site, symbol: str, picks: Picks, found: Mapping[str, Moments]
) -> tuple[Tensor, Tensor | None] | None:
    """The output projection of the kept inputs, and its bias, by least squares; None where nothing is known."""
    path, module = output_of(site, symbol)
    if module is None or path not in found:
        return None
    layout = site.reading.columns[path.removeprefix(f"{site.path}.")]
    kept = notation.picked(layout, site.sizes, picks)
    bias = module.bias
    matrix = matrix_of(module).double()
    second = found[path].second.to(matrix.device)
    if isinstance(bias, Tensor):
        matrix = torch.cat([matrix, bias.double()[:, None]], 1)
        kept = torch.cat([kept, torch.tensor([second.shape[0] - 1])])
    else:
        second = second[:-1, :-1]
    solved = least_squares(matrix, second, kept)
    return (solved[:, :-1], solved[:, -1]) if isinstance(bias, Tensor) else (solved, None)


def least_squares(matrix: Tensor, second: Tensor, kept: Tensor) -> Tensor:
    """W' that minimises E|W a − W' a_S|² + λ|W' − W_S|², given E[a aᵀ].

    W' = W_S + (W G_S − W_S G_SS) (G_SS + λ)⁻¹ with G_S the columns of E[a aᵀ] that are kept.
    """
    start = matrix[:, kept]
    inner = second[kept][:, kept]
    strength = RIDGE * float(inner.diagonal().mean().clamp(min=1e-30))
    ridge = torch.diag(torch.full_like(inner.diagonal(), strength))
    change: Tensor = torch.linalg.solve(inner + ridge, (matrix @ second[:, kept] - start @ inner).T)
    return start + change.T


def set_matrix(module: nn.Module, matrix: Tensor, bias: Tensor | None) -> None:
    """The inverse of `matrix_of`, in place; None leaves the bias."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    weight.copy_(matrix.movedim(0, features_of(module).output_axis).reshape(weight.shape))
    if bias is not None and isinstance(module.bias, Tensor):
        module.bias.copy_(bias)
