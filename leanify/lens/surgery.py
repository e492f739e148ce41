"""The lens: `read` a model's shape, `write` another one into it, `grow` its heads.

Laws (the test suite holds every family against them):

    read(write(m, a)) == a
    write(m, read(m)) changes nothing, bit for bit
    a model grown with zero output columns computes what the old one did
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from leanify.architecture import Architecture, Layer
from leanify.errors import ShapeError, UnsupportedModel
from leanify.lens.forwards import free
from leanify.lens.resize import features_of, part_of, resize
from leanify.lens.sites import Place, Site, locate, name_of, sites_of, within
from leanify.upstream.initialise import initialise_model
from leanify.upstream.origin import origin_of, set_origin
from leanify.upstream.settle import drop_path_rates, settle

Weights = Literal["keep", "fresh"]


def read(model: nn.Module) -> Architecture:
    """The shape of any timm or transformers module, taken from its tensors.

    Raises UnsupportedModel where there is no attention, or one that is not known.
    """
    return Architecture(name_of(model), tuple(stage.read() for stage in locate(model)))


@torch.no_grad()
def write(model: nn.Module, architecture: Architecture, weights: Weights = "keep") -> nn.Module:
    """A new model of the given shape; ``model`` stays untouched.

    ``weights="keep"`` carries over what fits: the first blocks, the first heads, the first hidden units. New heads and
    units are drawn by upstream's initialiser and their output columns are zero, so that a grown model computes what
    the old one did. ``weights="fresh"`` draws everything anew by upstream's own initialiser.

    Raises ShapeError where the architecture has other stages, other widths, or heads that break key/value groups.
    """
    old = read(model)
    _check(old, architecture)
    _check_constants(model, old, architecture)
    _check_ends(model, architecture)
    dropped = [
        block
        for found, stage in zip(locate(model), architecture.stages, strict=True)
        if found.container is not None
        for block in list(found.container.children())[stage.depth :]
    ]
    origin = origin_of(model)
    new = copy.deepcopy(model, {id(block): nn.Identity() for block in dropped})
    set_origin(new, origin)
    rates = _cut(new, model, architecture)
    for found, stage in zip(locate(new), architecture.stages, strict=True):
        for places, block in zip(found.blocks, stage.blocks, strict=True):
            for place, layer in zip(places, block, strict=True):
                _turn(new, place, layer)
    _turn_tables(new)
    _tie(new, model)
    settle(new, old, architecture, rates)
    if weights == "fresh":
        initialise_model(new)
    return new


def grow(model: nn.Module, heads: int | Sequence[int] | None = None, factor: int | None = None) -> nn.Module:
    """More heads at constant head_dim, outputs unchanged: the output columns of new heads are zero.

    ``heads`` is the new number (one for every stage that a redesign turns, or one a stage); ``factor`` multiplies the
    heads of every stage. Under grouped-query attention whole key/value groups grow.

    Raises UnsupportedModel where a norm runs over all heads: there no growth keeps the outputs.
    """
    for stage in locate(model):
        for place in (place for block in stage.blocks for place in block):
            for part in place.attention.reading.mixing:
                if part_of(place.attention.module, part) is not None:
                    raise UnsupportedModel(
                        f"{place.attention.path}.{part} is a norm over all heads, so new heads change what the old "
                        "ones give: growth cannot keep the outputs. leanify.write(model, leanify.read(model).grown(…)) "
                        "grows it without that promise"
                    )
    return write(model, read(model).grown(heads, factor))


def _check(old: Architecture, new: Architecture) -> None:
    names = [stage.name for stage in new.stages]
    if names != [stage.name for stage in old.stages]:
        raise ShapeError(f"the architecture has the stages {names}; the model has {[s.name for s in old.stages]}")
    for before, after in zip(old.stages, new.stages, strict=True):
        if after.depth < 1:
            raise ShapeError(f"stage {after.name!r} was asked for no blocks; it takes at least 1")
        if before.fixed and after.depth != before.depth:
            raise ShapeError(f"stage {after.name!r} is no list of blocks: its depth stays {before.depth}")
        attending = sum(bool(block) for block in after.blocks)
        if not before.fixed and attending < min(after.depth, 2):
            raise ShapeError(
                f"stage {after.name!r} was asked for {after.depth} blocks, of which {attending} would have attention: "
                f"at least {min(after.depth, 2)} must"
            )
        for index, block in enumerate(after.blocks):
            template = before.blocks[min(index, before.depth - 1)]
            if len(template) != len(block):
                raise ShapeError(f"{after.name}.{index} has {len(template)} layers, not {len(block)}")
            for a, b in zip(template, block, strict=True):
                _check_layer(f"{after.name}.{index}", a, b)


def _check_layer(where: str, old: Layer, new: Layer) -> None:
    if new.width != old.width:
        raise ShapeError(f"{where} is {old.width} wide; a redesign keeps the width, {new.width} was asked for")
    if min(new.heads, new.kv_heads, new.head_dim) < 1 or (new.mlp < 1) != (old.mlp < 1):
        raise ShapeError(f"{where} was asked for {new}; every number of it must be positive")
    if old.with_heads(new.heads).kv_heads != new.kv_heads:
        raise ShapeError(
            f"{where} has {old.heads} heads on {old.kv_heads} key/value heads; {new.heads} heads go with "
            f"{old.with_heads(new.heads).kv_heads} key/value heads, not {new.kv_heads}"
        )


def _check_constants(model: nn.Module, old: Architecture, new: Architecture) -> None:
    """Refuse a change of what upstream made tables for at construction (rotary positions for one head_dim)."""
    sites = [site for site in sites_of(model) if site.reading.constant]
    pairs = zip(old.stages, new.stages, strict=True)
    blocks = ((b.blocks[min(i, b.depth - 1)], block) for b, a in pairs for i, block in enumerate(a.blocks))
    changed = {
        x.head_dim for before, after in blocks for x, y in zip(before, after, strict=True) if x.head_dim != y.head_dim
    }
    if sites and changed:
        raise ShapeError(
            f"{sites[0].path} ({type(sites[0].module).__name__}) holds positions made for a head_dim of "
            f"{', '.join(map(str, sorted(changed)))}; heads can be added, but their size stays"
        )


def _check_ends(model: nn.Module, new: Architecture) -> None:
    """Refuse to drop a last block that widens what follows it (MViTv2's do so in their MLP)."""
    for found, stage in zip(locate(model), new.stages, strict=True):
        if stage.depth < min(found.least, len(found.blocks)):
            raise ShapeError(
                f"stage {stage.name!r} was asked for {stage.depth} blocks; what follows needs the width that it ends "
                f"in, and it takes at least {found.least} blocks to end in that"
            )


def _cut(new: nn.Module, model: nn.Module, architecture: Architecture) -> dict[str, list[float]]:
    """Bring every list to its new depth, in place: the first blocks stay, the last is repeated. Returns old rates."""
    rates = {}
    for stage in architecture.stages:
        if stage.fixed:
            continue
        blocks = new.get_submodule(stage.name)
        assert isinstance(blocks, (nn.ModuleList, nn.Sequential))
        originals = list(model.get_submodule(stage.name).children())
        rates[stage.name] = drop_path_rates(originals)
        del blocks[stage.depth :]
        for _ in range(stage.depth - len(originals)):
            blocks.append(copy.deepcopy(originals[-1]))
    return rates


def _turn(model: nn.Module, place: Place, layer: Layer) -> None:
    """Bring one layer to its new shape, in place."""
    if place.read() == layer:
        return
    sizes = {"h": layer.heads, "g": layer.kv_heads, "d": layer.head_dim, "m": layer.mlp}
    for site in {id(s.module): s for s in (place.attention, place.mlp) if s is not None}.values():
        _resize(model, site, {name: sizes.get(name, size) for name, size in site.sizes.items()})
    if features_of(place.output).inputs != layer.width:
        free(place.attention.module)


def _tie(new: nn.Module, old: nn.Module) -> None:
    """Let what was one parameter under several names be one again, where its new shapes agree; in place."""
    names: dict[int, list[str]] = {}
    for name, parameter in old.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    now = dict(new.named_parameters(remove_duplicate=False))
    for first, *others in names.values():
        for name in others:
            if first in now and name in now and now[name] is not now[first] and now[name].shape == now[first].shape:
                owner, _, last = name.rpartition(".")
                setattr(new.get_submodule(owner), last, now[first])


def _turn_tables(model: nn.Module) -> None:
    """Bring every table outside the attentions to the heads, and to the blocks, that stand around it now.

    A table of heads belongs to the attention that it stands in, else to all attentions of the smallest module around
    both; a table of blocks belongs to the list inside its module.
    """
    sites = sites_of(model)
    attentions = [site for site in sites if site.reading.is_attention]
    for table in (site for site in sites if site.reading.is_table and site.sizes):
        around = [site for site in attentions if within(table.path, site.path)][-1:]
        path = table.path
        while not around:
            around = [site for site in attentions if within(site.path, path)]
            path = path.rpartition(".")[0]
        follows = {site.sizes["h"] for site in around}
        if "h" in table.sizes and len(follows) > 1 and follows != {table.sizes["h"]}:
            raise ShapeError(
                f"{table.path} holds one table of heads for all its layers, so their heads must be equal; they were "
                f"asked to be {', '.join(map(str, sorted(follows)))}"
            )
        changed = {
            name: around[0].sizes[name] for name in table.sizes.keys() & {"h", "g", "d"} & around[0].sizes.keys()
        }
        if "l" in table.sizes:
            changed["l"] = next(len(s.blocks) for s in locate(model) if s.container and within(s.name, table.path))
        _resize(model, table, {**table.sizes, **changed})


def _resize(model: nn.Module, site: Site, sizes: dict[str, int]) -> None:
    resize(model, site.path, site.module, site.reading, site.sizes, sizes)
