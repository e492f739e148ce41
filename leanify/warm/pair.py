"""Pair two consecutive layers: one layer with twice the heads and twice the hidden units.

Two pre-norm layers run side by side, h ← h + A₁(h) + A₂(h), then h ← h + M₁(h) + M₂(h), are one layer: the
heads of both attentions and the hidden units of both MLPs stand next to each other, and the output
projections add them up. Each layer has its own norms, LayerScale and biases: gains and biases of norms are
folded into the projections that read them, LayerScale into the output projections. (Calvo González et al.,
Leveraging the True Depth of LLMs, TMLR 2026, arXiv 2502.02790, run pairs of layers so for speed.)

The depth halves, no weight is lost, and parameters stay as many, up to one block's norms. What changes is the
function: the second layer no longer sees what the first one did. Every pair is checked against its two layers
run side by side.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens.forwards import free
from leanify.lens.located import LocatedModel, Site
from leanify.lens.resize import features_of, part_of, resize
from leanify.lens.sites import locate
from leanify.warm.axes import GROWING, Axes, Picks, Sizes, axes_of, shared_table
from leanify.warm.blocks import copied, counts_of, difference_in, list_of, stage_of, with_blocks
from leanify.warm.norms import affine_of, bias_after, fold, neutralise, precision
from leanify.warm.residual import Residual, Sublayer, residuals

Run = Callable[[nn.Module], Any]


@torch.no_grad()
def pair(model: nn.Module, stage: str, index: int, call: Run) -> nn.Module:
    """A new model in which the blocks ``index`` and ``index + 1`` of a stage are one that runs them side by side.

    ``call`` runs a model on example inputs. Raises UnsupportedModel for blocks that cannot be paired:
    post-norm, windowed, shared, or unlike each other.
    """
    located = locate(model)
    found = residuals(located, stage, call)
    if not 0 <= index < len(found) - 1:
        raise UnsupportedModel(f"stage {stage!r} has {len(found)} blocks: there is no pair at {index}")
    if table := shared_table(located, stage_of(located, stage)):
        raise UnsupportedModel(
            f"blocks {index} and {index + 1} of {stage!r} cannot be paired without data: {table} holds the heads of "
            "several layers, and a pair would have twice as many; leanify redesign --weights --data can"
        )
    blocks = list_of(located, stage)
    joined = joined_block(located, found[index], found[index + 1])
    kept = [*blocks[:index], joined, *blocks[index + 2 :]]
    return copy.deepcopy(with_blocks(located, {stage: kept}).model)


@torch.no_grad()
def joined_block(
    located: LocatedModel,
    first: Residual | UnsupportedModel,
    second: Residual | UnsupportedModel,
    kept: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> nn.Module:
    """The block that computes two blocks side by side; ``kept`` as in `join`. Raises UnsupportedModel."""
    if isinstance(first, UnsupportedModel):
        raise first
    if isinstance(second, UnsupportedModel):
        raise second
    if first.post_norm or second.post_norm:
        raise UnsupportedModel(
            f"{first.path} ({type(first.block).__name__}) is post-norm: its norms stand behind the sum, so that no "
            "layer equals two side by side; on data a pair is fitted by least squares"
        )
    check_alike(located, first, second)
    blocks = copied(first.block), copied(second.block)
    mine, theirs = ([moved(s, r, b) for s in r.sublayers] for r, b in zip((first, second), blocks, strict=True))
    for norm in dict.fromkeys(sublayer.norm for sublayer in mine):
        readers = [[s for s in side if s.norm == norm] for side in (mine, theirs)]
        _fold_norms([block.get_submodule(norm) for block in blocks], norm, readers)
    for block, side in zip(blocks, (mine, theirs), strict=True):
        for sublayer in side:
            _fold_scale(block, sublayer)
    for a, b in zip(mine, theirs, strict=True):
        join(located.model, a.site, b.site, kept)
    for layer in locate(blocks[0]).layers:
        if features_of(layer.output).inputs != features_of(layer.output).outputs:
            free(layer.attention.module)
    _check_sum(blocks[0], first, second)
    return blocks[0]


def moved(sublayer: Sublayer, residual: Residual, block: nn.Module) -> Sublayer:
    """The same sublayer in a copy of its block."""
    inner = sublayer.site.path.removeprefix(residual.path).lstrip(".")
    return replace(sublayer, site=replace(sublayer.site, module=block.get_submodule(inner)))


# -- what cannot be paired ----------


def check_alike(located: LocatedModel, first: Residual, second: Residual) -> None:
    def shape(residual: Residual) -> list[tuple[str, str, str, tuple[str, ...]]]:
        return [(type(s.site.module).__name__, s.norm, s.scale, s.readers) for group in residual.groups for s in group]

    where = f"{first.path} and {second.path} cannot be paired"
    stage = first.path.rpartition(".")[0]
    if shape(first) != shape(second) or [len(g) for g in first.groups] != [len(g) for g in second.groups]:
        raise UnsupportedModel(f"{where}: they hold different layers")
    names = list(dict(located.model.get_submodule(stage).named_children()))
    counted = counts_of(located, stage, names.index(first.path.rpartition(".")[2]))
    if different := difference_in(first.block, second.block, counted):
        raise UnsupportedModel(f"{where}: {different} differs between them")
    for sublayer in first.sublayers:
        sizes = sublayer.site.sizes
        mixing = [part for part in sublayer.site.reading.mixing if part_of(sublayer.site.module, part) is not None]
        if mixing:
            raise UnsupportedModel(f"{where}: {sublayer.site.path}.{mixing[0]} is a norm over all heads or units")
        if sizes.get("g", 0) == 1 != sizes.get("h"):
            raise UnsupportedModel(
                f"{where}: one key/value head serves all heads (multi-query attention), and a pair would need two"
            )


# -- folding ----------


def _fold_norms(norms: Sequence[nn.Module], path: str, sides: Sequence[Sequence[Sublayer]]) -> None:
    """Fold each side's norm into its projections; both norms then give the same."""
    affines = [affine_of(norm, path) for norm in norms]
    projections: list[list[Any]] = []
    for side in sides:
        projections.append([part_of(sublayer.site.module, part) for sublayer in side for part in sublayer.readers])
    after = bias_after(affines, [*projections[0], *projections[1]])
    for norm, affine, modules in zip(norms, affines, projections, strict=True):
        for module in modules:
            fold(affine, module, after)
        neutralise(norm, affine, after)


def _fold_scale(block: nn.Module, sublayer: Sublayer) -> None:
    """Fold a LayerScale into the output projection of its sublayer, in place."""
    if not sublayer.scale:
        return
    owner, _, name = sublayer.scale.rpartition(".")
    scale: Tensor = getattr(block.get_submodule(owner), name)
    for part in outputs_of_site(sublayer.site):
        axis = features_of(part).output_axis
        weight = part.weight
        assert isinstance(weight, Tensor)
        weight.copy_((weight.movedim(axis, -1) * scale).movedim(-1, axis))
        if isinstance(part.bias, Tensor):
            part.bias.copy_(part.bias * scale)
    scale.fill_(1.0)


def outputs_of_site(site: Site) -> list[nn.Module]:
    """The output projection of each kind of thing in a site: of heads first, then of hidden units."""
    found = []
    for symbol in ("h", "m"):
        parts = [part for part, how in site.reading.columns.items() if symbol in how.split()]
        modules = [module for part in parts if (module := part_of(site.module, part)) is not None]
        found += modules[:1]
    return found


# -- joining ----------


def join(model: nn.Module, mine: Site, theirs: Site, kept: Mapping[str, tuple[Tensor, Tensor]] | None = None) -> None:
    """Put the heads and units of ``theirs`` behind those of ``mine``, in place.

    ``kept`` has, by the path of ``mine``, the heads of either that stay where they are, in rows of a table.
    """
    fixed = [name for name in mine.sizes if name not in GROWING and mine.sizes[name] != theirs.sizes.get(name)]
    if fixed or _group(mine.sizes) != _group(theirs.sizes):
        what = fixed[0] if fixed else "heads a key/value head"
        raise UnsupportedModel(f"{mine.path} and {theirs.path} cannot be paired: they differ in {what}")
    rows = (kept or {}).get(mine.path)
    joined = [name for name in mine.sizes if name in GROWING and (rows is None or name == "m")]
    sizes = {name: size + theirs.sizes[name] if name in joined else size for name, size in mine.sizes.items()}
    values = [(a, a.value.clone(), b.value) for a, b in zip(axes_of(mine), axes_of(theirs), strict=True)]
    resize(model, mine.path, mine.module, mine.reading, mine.sizes, sizes)
    first_half = {name: torch.arange(mine.sizes[name]) for name in joined}
    second_half = {name: torch.arange(theirs.sizes[name]) for name in joined}
    behind = {name: second_half[name] + mine.sizes[name] for name in joined}
    stay: list[dict[str, Tensor]] = [{"h": each, "g": each} for each in rows] if rows is not None else [{}, {}]
    for axes, first, second in values:
        if axes.grows:
            axes.value.zero_()
            _place(axes, first, (mine.sizes, first_half | stay[0]), (sizes, first_half | stay[0]))
            _place(axes, second, (theirs.sizes, second_half | stay[1]), (sizes, behind | stay[1]))
        elif axes.name == "bias" and axes.owner in outputs_of_site(mine):
            axes.value.add_(second)
        elif not torch.equal(first, second):
            raise UnsupportedModel(
                f"{mine.path}.{axes.part} has one {axes.name} for all heads, and it differs between the two layers"
            )


def _group(sizes: dict[str, int]) -> float:
    return sizes["h"] / sizes["g"] if "g" in sizes and "h" in sizes else 1.0


def _place(axes: Axes, values: Tensor, given: tuple[Sizes, Picks], put: tuple[Sizes, Picks]) -> None:
    """Write one side's heads and units, picked among its sizes, to theirs in the joined tensor."""

    def grid(whole: Tensor, sizes: Sizes, picks: Picks) -> tuple[Tensor, ...]:
        slots = [torch.arange(length) for length in whole.shape]
        for axis in axes.layouts:
            slots[axis] = axes.picked(axis, sizes, picks)
        return torch.meshgrid(*(slot.to(values.device) for slot in slots), indexing="ij")

    axes.value[grid(axes.value, *put)] = values[grid(values, *given)]


# -- the check ----------


def side_by_side(first: Residual, second: Residual) -> Tensor:
    """What two blocks give side by side on the first one's input: x + Σ s₁ F₁(x) + s₂ F₂(x)."""
    x = first.call.state
    for mine, theirs in zip(first.groups, second.groups, strict=True):
        added: list[Tensor] = []
        for residual, side in ((first, mine), (second, theirs)):
            for sublayer, like in zip(side, mine, strict=True):
                added.append(_contribution(sublayer, residual.block, like, x))
        x = x + sum(added)
    return x


def _contribution(sublayer: Sublayer, block: nn.Module, like: Sublayer, x: Tensor) -> Tensor:
    """s · F(norm(x)), called with the other arguments that ``like`` was called with."""
    normed = block.get_submodule(sublayer.norm)(x)

    def put(value: Any) -> Any:
        return normed if value is like.normed else value

    kwargs = {name: put(value) for name, value in like.call.kwargs.items()}
    output = sublayer.site.module(*(put(value) for value in like.call.args), **kwargs)
    output = output[0] if isinstance(output, tuple) else output
    scale = block.get_parameter(sublayer.scale) if sublayer.scale else 1.0
    result: Tensor = scale * output
    return result


def _check_sum(joined: nn.Module, first: Residual, second: Residual) -> None:
    """Refuse a pair that does not compute what its two layers compute side by side."""
    expected = side_by_side(first, second)
    try:
        given = joined(*first.call.args, **first.call.kwargs)
    except RuntimeError as failed:
        raise UnsupportedModel(f"{first.path} and {second.path} cannot be paired: the pair fails, {failed}") from failed
    given = given[0] if isinstance(given, tuple) else given
    error = float((given - expected).norm() / expected.norm())
    if not error <= 256 * precision(expected):
        raise UnsupportedModel(
            f"{first.path} and {second.path} cannot be paired: the pair gives other outputs than the two layers side "
            f"by side (relative error {error:.1e})"
        )
