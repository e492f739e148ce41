"""Pair two consecutive layers: one layer with twice the heads and twice the hidden units.

Two pre-norm layers that run side by side, h ← h + A₁(h) + A₂(h), then h ← h + M₁(h) + M₂(h), are a single layer: the
heads of both attentions and the hidden units of both MLPs are concatenated, and the output projections add them up.
Each layer has its own norms, LayerScale and biases: gains and biases of norms are folded into the projections that
read them, LayerScale into the output projections. (Calvo González et al., Leveraging the True Depth of LLMs, TMLR
2026, arXiv 2502.02790, run pairs of layers in this way for speed.)

No weight is lost, but the second layer no longer sees the output of the first. Every pair is checked against its two
layers run side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from leanify.carrying.blocks import copy_block, find_difference, position_counters
from leanify.carrying.choose import output_projections
from leanify.carrying.norms import common_bias, fold, fold_scale, neutralise, precision, read_affine
from leanify.carrying.residual import Residual, Sublayer
from leanify.core.errors import UnsupportedModel
from leanify.lens.axes import GROWING, Axes, Picks, Sizes, resizable_axes
from leanify.lens.forwards import free
from leanify.lens.located import LocatedModel, Site
from leanify.lens.resize import linear_features, resize, weighted_parts
from leanify.reshaping.sites import locate


@torch.no_grad()
def join_pair(
    located_model: LocatedModel,
    first: Residual | UnsupportedModel,
    second: Residual | UnsupportedModel,
    kept_heads: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> nn.Module:
    """Return a block that computes two blocks side by side; for ``kept_heads`` see `join`. Raises UnsupportedModel."""
    if isinstance(first, UnsupportedModel):
        raise first
    if isinstance(second, UnsupportedModel):
        raise second
    if first.post_norm or second.post_norm:
        raise UnsupportedModel(
            f"{first.path} ({type(first.block).__name__}) is post-norm: its norms follow the sum, so no single "
            "layer equals two side by side; on data a pair is fitted by least squares"
        )
    check_alike(located_model, first, second)
    # copies of both blocks, with the norms and LayerScales folded into the projections
    blocks = copy_block(first.block), copy_block(second.block)
    first_sublayers = [copy_sublayer(sublayer, first, blocks[0]) for sublayer in first.sublayers]
    second_sublayers = [copy_sublayer(sublayer, second, blocks[1]) for sublayer in second.sublayers]
    for norm in dict.fromkeys(sublayer.norm for sublayer in first_sublayers):
        first_readers = [sublayer for sublayer in first_sublayers if sublayer.norm == norm]
        second_readers = [sublayer for sublayer in second_sublayers if sublayer.norm == norm]
        _fold_norms([block.get_submodule(norm) for block in blocks], norm, [first_readers, second_readers])
    for block, side in zip(blocks, (first_sublayers, second_sublayers), strict=True):
        for sublayer in side:
            if sublayer.scale:
                fold_layer_scale(block, sublayer)
    # join the heads and units
    for a, b in zip(first_sublayers, second_sublayers, strict=True):
        join_sites(located_model.model, a.site, b.site, kept_heads)
    adapt_forwards(blocks[0])
    _check_sum(blocks[0], first, second)
    return blocks[0]


def adapt_forwards(block: nn.Module) -> None:
    """Adapt the forwards of a joined block that assume inner == width."""
    for layer in locate(block).layers:
        if linear_features(layer.output).inputs != linear_features(layer.output).outputs:
            free(layer.attention.module)


def copy_sublayer(sublayer: Sublayer, residual: Residual, block: nn.Module) -> Sublayer:
    """Return the same sublayer in a copy of its block."""
    inner = sublayer.site.path.removeprefix(residual.path).lstrip(".")
    return replace(sublayer, site=replace(sublayer.site, module=block.get_submodule(inner)))


# -- blocks that cannot be paired ----------


def check_alike(located_model: LocatedModel, first: Residual, second: Residual) -> None:
    def shape(residual: Residual) -> list[tuple[str, str, str, tuple[str, ...]]]:
        return [(type(s.site.module).__name__, s.norm, s.scale, s.readers) for group in residual.groups for s in group]

    where = f"{first.path} and {second.path} cannot be paired"
    stage = first.path.rpartition(".")[0]
    if shape(first) != shape(second) or [len(g) for g in first.groups] != [len(g) for g in second.groups]:
        raise UnsupportedModel(f"{where}: they hold different layers")
    names = list(dict(located_model.model.get_submodule(stage).named_children()))
    counters = position_counters(located_model, stage, names.index(first.path.rpartition(".")[2]))
    if different := find_difference(first.block, second.block, counters):
        raise UnsupportedModel(f"{where}: {different} differs between them")
    for sublayer in first.sublayers:
        sizes = sublayer.site.sizes
        if part := sublayer.site.mixing_part:
            raise UnsupportedModel(f"{where}: {sublayer.site.path}.{part} is a norm over all heads or units")
        if sizes.get("g", 0) == 1 != sizes.get("h"):
            raise UnsupportedModel(
                f"{where}: one key/value head serves all heads (multi-query attention), and a pair would need two"
            )


# -- folding ----------


def _fold_norms(norms: Sequence[nn.Module], path: str, sides: Sequence[Sequence[Sublayer]]) -> None:
    """Fold each side's norm into its projections; afterwards both norms have equal outputs."""
    affines = [read_affine(norm, path) for norm in norms]
    projections: list[list[Any]] = []
    for side in sides:
        parts: list[Any] = []
        for sublayer in side:
            parts += weighted_parts(sublayer.site.module, sublayer.readers).values()
        projections.append(parts)
    after = common_bias(affines, [*projections[0], *projections[1]])
    for norm, affine, modules in zip(norms, affines, projections, strict=True):
        for module in modules:
            fold(affine, module, after)
        neutralise(norm, affine, after)


def fold_layer_scale(block: nn.Module, sublayer: Sublayer) -> None:
    """Fold a LayerScale into the output projections of its sublayer, in place."""
    scale = block.get_parameter(sublayer.scale)
    for part in output_projections(sublayer.site).values():
        fold_scale(part, scale)
    scale.fill_(1.0)


# -- joining ----------


def join_sites(
    model: nn.Module, first_site: Site, second_site: Site, kept_heads: Mapping[str, tuple[Tensor, Tensor]] | None = None
) -> None:
    """Append the heads and units of ``second_site`` to ``first_site``, in place.

    ``kept_heads`` has, by the path of ``first_site``, the heads of both that keep their rows of a shared table.
    """
    refusal = f"{first_site.path} and {second_site.path} cannot be paired: they differ in"
    for name, size in first_site.sizes.items():
        if name not in GROWING and size != second_site.sizes.get(name):
            raise UnsupportedModel(f"{refusal} {name}")
    if _group(first_site.sizes) != _group(second_site.sizes):
        raise UnsupportedModel(f"{refusal} heads per key/value head")
    # new sizes: heads and units add up; under a shared table only units do
    rows = (kept_heads or {}).get(first_site.path)
    joined_symbols = [name for name in first_site.sizes if name in GROWING and (rows is None or name == "m")]
    sizes = dict(first_site.sizes)
    for name in joined_symbols:
        sizes[name] += second_site.sizes[name]
    # values of both, then the resized tensors of the first
    values = []
    for a, b in zip(resizable_axes(first_site), resizable_axes(second_site), strict=True):
        values.append((a, a.value.clone(), b.value))
    resize(model, first_site.path, first_site.module, first_site.reading, first_site.sizes, sizes)
    first_half = {name: torch.arange(first_site.sizes[name]) for name in joined_symbols}
    second_half = {name: torch.arange(second_site.sizes[name]) for name in joined_symbols}
    second_symbols = {name: second_half[name] + first_site.sizes[name] for name in joined_symbols}
    stay: list[dict[str, Tensor]] = (
        [{"h": head_rows, "g": head_rows} for head_rows in rows] if rows is not None else [{}, {}]
    )
    # write both sides; output biases are added, other tensors must be equal
    for axes, first, second in values:
        if axes.grows:
            axes.value.zero_()
            _place(axes, first, (first_site.sizes, first_half | stay[0]), (sizes, first_half | stay[0]))
            _place(axes, second, (second_site.sizes, second_half | stay[1]), (sizes, second_symbols | stay[1]))
        elif axes.name == "bias" and axes.owner in output_projections(first_site).values():
            axes.value.add_(second)
        elif not torch.equal(first, second):
            raise UnsupportedModel(
                f"{first_site.path}.{axes.part} has one {axes.name} for all heads, and it differs between the two "
                f"layers"
            )


def _group(sizes: dict[str, int]) -> float:
    return sizes["h"] / sizes["g"] if "g" in sizes and "h" in sizes else 1.0


def _place(axes: Axes, values: Tensor, source: tuple[Sizes, Picks], destination: tuple[Sizes, Picks]) -> None:
    """Write the picked heads and units of one side to their positions in the joined tensor."""

    def grid(tensor: Tensor, sizes: Sizes, picks: Picks) -> tuple[Tensor, ...]:
        slots = [torch.arange(length) for length in tensor.shape]
        for axis in axes.layouts:
            slots[axis] = axes.pick_positions(axis, sizes, picks)
        return torch.meshgrid(*(slot.to(values.device) for slot in slots), indexing="ij")

    axes.value[grid(axes.value, *destination)] = values[grid(values, *source)]


# -- the check ----------


def _contribution(sublayer: Sublayer, block: nn.Module, like: Sublayer, x: Tensor) -> Tensor:
    """Return s · F(norm(x)), called with the other arguments of ``like``."""
    norm_output = block.get_submodule(sublayer.norm)(x)

    def substitute(value: Any) -> Any:
        return norm_output if value is like.norm_output else value

    kwargs = {name: substitute(value) for name, value in like.call.kwargs.items()}
    output = sublayer.site.module(*(substitute(value) for value in like.call.args), **kwargs)
    output = output[0] if isinstance(output, tuple) else output
    scale = block.get_parameter(sublayer.scale) if sublayer.scale else 1.0
    result: Tensor = scale * output
    return result


def _check_sum(joined_pair: nn.Module, first: Residual, second: Residual) -> None:
    """Raise UnsupportedModel if a pair differs from its two layers run side by side."""
    # x + Σ s₁ F₁(x) + s₂ F₂(x), group by group, on the first one's input
    reference = first.call.state
    for first_group, second_group in zip(first.groups, second.groups, strict=True):
        contributions: list[Tensor] = []
        for residual, side in ((first, first_group), (second, second_group)):
            for sublayer, like in zip(side, first_group, strict=True):
                contributions.append(_contribution(sublayer, residual.block, like, reference))
        reference = reference + sum(contributions)
    try:
        output = joined_pair(*first.call.args, **first.call.kwargs)
    except RuntimeError as failed:
        raise UnsupportedModel(f"{first.path} and {second.path} cannot be paired: the pair fails, {failed}") from failed
    output = output[0] if isinstance(output, tuple) else output
    error = float((output - reference).norm() / reference.norm())
    if not error <= 256 * precision(reference):
        raise UnsupportedModel(
            f"{first.path} and {second.path} cannot be paired: its outputs differ from those of the two layers side "
            f"by side (relative error {error:.1e})"
        )
