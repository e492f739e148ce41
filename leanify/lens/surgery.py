"""`read` a model's shape, `write` another one into it, `grow` its heads.

Laws, which the tests check for every family:

    read(write(m, a)) == a
    write(m, read(m)) computes the same as m, bit for bit
    a model grown with zero output columns computes the same as before
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn

from leanify.architecture import Architecture, Layer
from leanify.errors import ShapeError, UnsupportedModel
from leanify.lens.blocks import container_of, prefix_of
from leanify.lens.families import Rows
from leanify.lens.forwards import free
from leanify.lens.located import LocatedModel, LocatedStage, Site, ancestors, names_of, routers_of, within
from leanify.lens.resize import repeat_rows, resize
from leanify.lens.sites import locate
from leanify.upstream.given import given_to
from leanify.upstream.initialise import has_initialiser, initialise_model
from leanify.upstream.origin import origin_of, set_origin
from leanify.upstream.settle import drop_path_rates, leave_fast_path, settle

Weights = Literal["keep", "fresh"]
Sizes = dict[str, int]


def read(model: nn.Module, inputs: Any = None, rows: Rows = None) -> Architecture:
    """Read the shape of a transformer from its tensors.

    Of a module that is neither timm's nor transformers', ``inputs`` are an example of what its forward takes:
    a tensor, a tuple of arguments, or a dictionary by argument. One forward pass shows its attentions and
    MLPs; what is found is kept with the model, so that later calls need no inputs. ``rows`` say how classes
    are laid out that are not found: rows as those of ``leanify/lens/families``, as values, as TOML or a TOML
    file.

    Warns of what it could not read. Raises UnsupportedModel if there is no attention, or one whose layout is unknown.

    >>> import leanify
    >>> print(leanify.read(leanify.load("vit_tiny", device="meta")))
    blocks: 12 × [3×64, mlp 768, width 192]
    """
    located = locate(model, inputs, rows)
    if given_to(model) is not None:
        for words in unread(located):
            warnings.warn(words, stacklevel=2)
    return located.architecture


def write(
    model: nn.Module, architecture: Architecture, weights: Weights = "keep", inputs: Any = None, rows: Rows = None
) -> nn.Module:
    """Return a new model with the given shape; ``model`` is not changed. ``inputs`` and ``rows`` are those of `read`.

    ``weights="keep"`` keeps the first blocks, heads and hidden units. New heads and units are initialised by
    upstream's initialiser with zero output columns, so that a grown model computes the same as before.
    ``weights="fresh"`` initialises the whole model by upstream's initialiser.

    Raises ShapeError if the architecture has other stages or widths, or heads that break key/value groups.

    >>> import leanify
    >>> model = leanify.load("vit_tiny", device="meta")
    >>> leanify.read(leanify.write(model, leanify.read(model).grown(heads=5))).stages[0].primary.inner
    320
    """
    return write_located(locate(model, inputs, rows), architecture, weights).model


@torch.no_grad()
def write_located(located: LocatedModel, architecture: Architecture, weights: Weights = "keep") -> LocatedModel:
    """`write` for a located model; returns the new model located, without searching it again."""
    old = located.architecture
    cut, sizes = at_new_depth(located, architecture)
    for path in sizes:
        site = cut.by_path[path]
        resize(cut.model, path, site.module, site.reading, site.sizes, sizes[path])
    for layer, wanted in zip(cut.layers, architecture.layers(), strict=True):
        if layer.read() != wanted and layer.inner != wanted.width:
            free(layer.attention.module)
            leave_fast_path(cut.model, layer.attention.path)
    new = cut.resized(sizes)
    tie(new.model, located.model)
    rates = {stage.name: drop_path_rates(_children(stage)) for stage in located.stages}
    settle(new.model, old, architecture, rates, {stage.name: _children(stage) for stage in new.stages})
    if weights == "fresh":
        initialise_model(new.model)
        if given_to(new.model) is not None and not has_initialiser(new.model):
            shapes = dict(located.model.named_parameters(remove_duplicate=False))
            for name, parameter in new.model.named_parameters():
                before = shapes.get(name)  # drawn as large as the constructor drew it: grown columns are not zero
                if before is not None and before.shape != parameter.shape and not parameter.is_meta:
                    parameter.normal_(float(before.mean()), float(before.std(correction=0)))
    return new


def at_new_depth(located: LocatedModel, architecture: Architecture) -> tuple[LocatedModel, dict[str, Sizes]]:
    """Return a copy with every list at its new depth, and path → new sizes for its sites, which are not resized yet.

    Raises ShapeError if the model cannot have this shape.
    """
    _check(located, architecture)
    _check_constants(located, architecture)
    _check_routers(located, architecture)
    cut = _cut(located, architecture)
    sizes = _layer_sizes(cut, architecture)
    return cut, sizes | _table_sizes(cut, sizes)


def grow(
    model: nn.Module,
    heads: int | Sequence[int] | None = None,
    factor: int | None = None,
    inputs: Any = None,
    rows: Rows = None,
) -> nn.Module:
    """Return a copy with more heads at constant head_dim and unchanged outputs (new output columns are zero).

    ``heads`` is the new number, one for all stages that a redesign changes or one per stage; ``factor``
    multiplies the heads of every stage. Under grouped-query attention, whole key/value groups are added.
    ``inputs`` and ``rows`` are those of `read`.

    A norm over all heads leaves the old heads unchanged only if its mean and variance stay the same. There,
    new heads are copies of the old ones, equally many of each; UnsupportedModel is raised if the new number
    is not a multiple. Raises ShapeError for fewer heads than before, or heads that break key/value groups.

    >>> import leanify, torch
    >>> model = leanify.load("vit_tiny", overrides={"depth": 2, "img_size": 32}).double()
    >>> images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    >>> bool((leanify.grow(model, factor=2)(images) - model(images)).abs().max() < 1e-10)
    True
    """
    located = locate(model, inputs, rows)
    shape = located.architecture.grown(heads, factor)
    mixed = []
    for layer, wanted in zip(located.layers, shape.layers(), strict=True):
        site, old = layer.attention, layer.attention.sizes["h"]
        if site.mixed_by and wanted.heads % old:
            raise UnsupportedModel(
                f"{site.path}.{site.mixed_by} is a norm over all {old} heads: growth keeps the outputs only where "
                f"every head is copied equally often, so to multiples of {old}, and {wanted.heads} were asked for. "
                "leanify.write(model, leanify.read(model).grown(…)) grows it without that promise"
            )
        if site.mixed_by:
            mixed.append(site)
    grown = write_located(located, shape)
    for site in mixed:
        now = grown.by_path[site.path]
        repeat_rows(site.module, now.module, now.reading, site.sizes, now.sizes)
    return grown.model


def unread(located: LocatedModel) -> Iterator[str]:
    """What a reading leaves out: blocks without an MLP, and attentions whose depth cannot change."""
    for stage in located.stages:
        name = stage.name or "the model"
        if not any(layer.mlp for layer in stage.layers):
            yield (
                f"{name}: no MLP was found in its blocks (a map to hidden units, an activation, a map back), so their "
                "widths cannot be traded; leanify.read(…, rows=…) takes a row that says where it is"
            )
        if stage.container is None:
            yield (
                f"{name}: this attention stands in no list of alike blocks whose length could change, so its depth "
                "stays; its heads can change"
            )


# -- checks -------------


def _check(located: LocatedModel, new: Architecture) -> None:
    old = located.architecture
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
    for found, stage in zip(located.stages, new.stages, strict=True):
        if stage.depth < min(found.least, len(found.blocks)):  # a last block may widen the stream, as in MViTv2
            raise ShapeError(
                f"stage {stage.name!r} was asked for {stage.depth} blocks; what follows needs the width that it ends "
                f"in, and it takes at least {found.least} blocks to end in that"
            )


def _check_layer(where: str, old: Layer, new: Layer) -> None:
    if new.width != old.width:
        raise ShapeError(f"{where} is {old.width} wide; a redesign keeps the width, {new.width} was asked for")
    if (new.experts < 1) != (old.experts < 1) or (new.active < 1) != (old.active < 1) or new.active > new.experts:
        raise ShapeError(
            f"{where} has {old.experts} experts, {old.active} of them active; {new.experts} and {new.active} were "
            "asked for: a mixture stays one, and no more are active than there are"
        )
    if min(new.heads, new.kv_heads, new.head_dim) < 1 or (new.mlp < 1) != (old.mlp < 1):
        raise ShapeError(f"{where} was asked for {new}; every number of it must be positive")
    if old.with_heads(new.heads).kv_heads != new.kv_heads:
        raise ShapeError(
            f"{where} has {old.heads} heads on {old.kv_heads} key/value heads; {new.heads} heads go with "
            f"{old.with_heads(new.heads).kv_heads} key/value heads, not {new.kv_heads}"
        )


def _check_constants(located: LocatedModel, new: Architecture) -> None:
    """Refuse to change a size for which upstream made tables at construction (rotary positions)."""
    sites = [site for site in located.sites if site.reading.constant]
    changed = set()
    for old_stage, new_stage in zip(located.architecture.stages, new.stages, strict=True):
        for index, block in enumerate(new_stage.blocks):
            before = old_stage.blocks[min(index, old_stage.depth - 1)]
            for old, layer in zip(before, block, strict=True):
                if layer.head_dim != old.head_dim:
                    changed.add(old.head_dim)
    if sites and changed:
        raise ShapeError(
            f"{sites[0].path} ({type(sites[0].module).__name__}) holds positions made for a head_dim of "
            f"{', '.join(map(str, sorted(changed)))}; heads can be added, but their size stays"
        )


def _check_routers(located: LocatedModel, new: Architecture) -> None:
    """Refuse to change the number of experts if the router has no row, or cannot route with the new numbers."""
    for found, stage in zip(located.stages, new.stages, strict=True):
        for layers, block in zip(found.blocks, stage.blocks, strict=False):  # blocks beyond repeat the last
            for layer, wanted in zip(layers, block, strict=True):
                old = layer.read()
                if layer.mlp is not None and (old.experts, old.active) != (wanted.experts, wanted.active):
                    known: Sizes = {}
                    for router in routers_of(layer.mlp.path, located.sites):
                        known |= router.sizes
                    _check_router(layer.mlp, wanted, known)


def _check_router(mixture: Site, wanted: Layer, known: Sizes) -> None:
    if not {"x", "a"} <= known.keys():
        raise ShapeError(
            f"{mixture.path} ({type(mixture.module).__name__}) keeps its {mixture.sizes['x']} experts, "
            f"{mixture.sizes['a']} of them active: no row of leanify's describes the router that chooses among them"
        )
    groups, chosen = known.get("u", 1), known.get("t", 1)
    each = wanted.experts // groups
    if wanted.experts % groups or (groups > 1 and each < 2) or wanted.active > each * chosen:
        raise ShapeError(
            f"{mixture.path} was asked for {wanted.experts} experts, {wanted.active} of them active; its router takes "
            f"them from {chosen} of {groups} equal groups of at least two, so experts must be a multiple of {groups}, "
            f"and at most {max(1, each) * chosen} of {wanted.experts} can be active"
        )


# -- depth -------------


def _cut(located: LocatedModel, architecture: Architecture) -> LocatedModel:
    """A copy with every list at its new depth: the first blocks are kept, the last one is repeated if needed.

    Dropped blocks are not copied, because they may be most of the model.
    """
    depths = {stage.name: stage.depth for stage in architecture.stages}
    dropped = [block for stage in located.stages for block in _children(stage)[depths[stage.name] :]]
    model = copy.deepcopy(located.model, {id(block): nn.Identity() for block in dropped})
    set_origin(model, origin_of(located.model))
    for stage in located.stages:
        if stage.container is not None:
            blocks = container_of(model, stage.name)
            originals = _children(stage)
            del blocks[depths[stage.name] :]
            for _ in range(depths[stage.name] - len(originals)):
                blocks.append(copy.deepcopy(originals[-1]))
    return located.copied_to(model)


def _children(stage: LocatedStage) -> list[nn.Module]:
    return list(stage.container.children()) if stage.container is not None else []


def tie(new: nn.Module, old: nn.Module) -> None:
    """Tie parameters in place that were tied in the old model, if their new shapes agree."""
    now = dict(new.named_parameters(remove_duplicate=False))
    for first, *others in names_of(old).values():
        for name in others:
            if first in now and name in now and now[name] is not now[first] and now[name].shape == now[first].shape:
                owner, _, last = name.rpartition(".")
                setattr(new.get_submodule(owner), last, now[first])


# -- sizes -------------


def _layer_sizes(located: LocatedModel, architecture: Architecture) -> dict[str, Sizes]:
    """Path → new sizes, for every attention and MLP."""
    sizes: dict[str, Sizes] = {}
    for layer, wanted in zip(located.layers, architecture.layers(), strict=True):
        symbols = {"h": wanted.heads, "g": wanted.kv_heads, "d": wanted.head_dim, "m": wanted.mlp}
        symbols |= {"x": wanted.experts, "a": wanted.active}
        for site in (layer.attention, layer.mlp):
            if site is not None:
                sizes[site.path] = {name: symbols.get(name, size) for name, size in site.sizes.items()}
    return sizes


def _table_sizes(located: LocatedModel, of_layers: dict[str, Sizes]) -> dict[str, Sizes]:
    """Path → new sizes, for every table outside the attentions.

    A per-head table belongs to its enclosing attention, otherwise to every attention under the nearest common
    parent. A table of blocks belongs to the list inside its module, a router to the mixture beside it.
    """
    mixtures: dict[str, Sizes] = {}
    for layer in located.layers:
        if layer.mlp is not None and "x" in layer.mlp.sizes:
            for router in routers_of(layer.mlp.path, located.sites):
                mixtures[router.path] = of_layers[layer.mlp.path]
    found = {}
    for table in located.sites:
        if not table.reading.is_table or not table.sizes:
            continue
        changed: Sizes = {}
        if table.path in mixtures:
            mixture = mixtures[table.path]
            changed = {name: mixture[name] for name in table.sizes.keys() & {"x", "a"}}
        else:
            around = [of_layers[site.path] for site in _attentions_of(located, table)]
            heads = {sizes["h"] for sizes in around}
            if "h" in table.sizes and len(heads) > 1 and heads != {table.sizes["h"]}:
                raise ShapeError(
                    f"{table.path} holds one table of heads for all its layers, so their heads must be equal; they "
                    f"were asked to be {', '.join(map(str, sorted(heads)))}"
                )
            changed = {name: around[0][name] for name in table.sizes.keys() & {"h", "g", "d"} & around[0].keys()}
            if "l" in table.sizes:
                lists = (stage for stage in located.stages if stage.container is not None)
                inside = next(stage for stage in lists if within(prefix_of(stage.name), table.path))
                changed["l"] = len(inside.blocks)
        found[table.path] = {**table.sizes, **changed}
    return found


def _attentions_of(located: LocatedModel, table: Site) -> list[Site]:
    """The attention around a table of positions; where there is none, all in the nearest module around it."""
    attentions = [layer.attention for layer in located.layers]
    by_path = {site.path: site for site in attentions}
    for path in ancestors(table.path):
        if path in by_path:
            return [by_path[path]]
    for path in ancestors(table.path):
        below = [site for site in attentions if within(site.path, path)]
        if below:
            return below
    raise AssertionError(f"{table.path} stands beside no attention")
