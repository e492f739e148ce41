"""Read a model's shape, write another shape into it, and grow its heads.

The tests check these laws for every family:

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

from leanify.core.architecture import Architecture, Layer
from leanify.core.errors import ShapeError, UnsupportedModel
from leanify.core.units import format_names
from leanify.discovery.whole_laws import compare_models
from leanify.lens.blocks import container_prefix, get_container
from leanify.lens.families import Rows
from leanify.lens.forwards import free
from leanify.lens.located import LocatedModel, LocatedStage, Site, ancestors, find_routers, is_inside, parameter_names
from leanify.lens.resize import repeat_rows, resize
from leanify.reshaping import width
from leanify.reshaping.sites import locate
from leanify.upstream.build import initialise_model
from leanify.upstream.derived_attributes import (
    drop_path_rates,
    has_rotary_factors,
    leave_fast_path,
    sync_derived_attributes,
)
from leanify.upstream.libraries import reraise_as
from leanify.upstream.origin import get_example, get_origin, set_origin

Weights = Literal["keep", "fresh"]
Sizes = dict[str, int]


def read(model: nn.Module, inputs: Any = None, rows: Rows = None) -> Architecture:
    """Read the shape of a transformer from its tensors.

    For a module that is neither timm's nor transformers', ``inputs`` is an example of its forward's input: a tensor, a
    tuple of arguments, or a dictionary by argument name. One forward pass finds its attentions and MLPs; the result is
    stored with the model, so later calls need no inputs. ``rows`` describes the layout of classes that are not found:
    `Row` values as in ``leanify/lens/families``, TOML text, or a TOML file.

    Warns about parts that it could not read. Raises UnsupportedModel if there is no attention, or one with an unknown
    layout.

    >>> import leanify
    >>> print(leanify.read(leanify.load("vit_tiny", device="meta")))
    blocks: 12 × [3×64, mlp 768, width 192]
    """
    located_model = locate(model, inputs, rows)
    if get_example(model) is not None:
        for words in unread_parts(located_model):
            warnings.warn(words, stacklevel=2)
    return located_model.architecture


def write(
    model: nn.Module, architecture: Architecture, weights: Weights = "keep", inputs: Any = None, rows: Rows = None
) -> nn.Module:
    """Return a new model with the given shape; ``model`` is not changed. For ``inputs`` and ``rows`` see `read`.

    ``weights="keep"`` keeps the first blocks, heads and hidden units. New heads and units are initialised by upstream's
    initialiser with zero output columns, so that a grown model computes the same as before. ``weights="fresh"``
    initialises the whole model by upstream's initialiser.

    The residual width can change if upstream's constructor has an argument for it; the first channels are kept.
    Raises ShapeError if the architecture has other stages, a width that upstream cannot build, or a number of heads
    that does not fit the key/value groups.

    >>> import leanify
    >>> model = leanify.load("vit_tiny", device="meta")
    >>> leanify.read(leanify.write(model, leanify.read(model).grown(heads=5))).stages[0].primary.inner
    320
    """
    located_model = locate(model, inputs, rows)
    new_model = write_located(located_model, architecture, weights).model
    if get_example(model) is not None or width.differs_in_width(located_model.architecture, architecture):
        compare_models(model, new_model, keeps_outputs=False)
    return new_model


@torch.no_grad()
def write_located(located_model: LocatedModel, architecture: Architecture, weights: Weights = "keep") -> LocatedModel:
    """`write` for a located model; returns the new model located, without a new search."""
    old = located_model.architecture
    if width.differs_in_width(old, architecture):
        return _write_width(located_model, architecture, weights)
    # copy at the new depth, then resize each site
    cut, sizes = change_depth(located_model, architecture)
    for path in sizes:
        site = cut.sites_by_path[path]
        resize(cut.model, path, site.module, site.reading, site.sizes, sizes[path])
    # forwards that assume inner == width are adapted
    for layer, new_layer in zip(cut.layers, architecture.layers(), strict=True):
        if layer.read() != new_layer and layer.inner != new_layer.width:
            free(layer.attention.module)
            leave_fast_path(cut.model, layer.attention.path)
    new = cut.resize_sites(sizes)
    # tied parameters, numbers and tables that upstream derives from the sizes
    tie(new.model, located_model.model)
    rates = {stage.name: drop_path_rates(_children(stage)) for stage in located_model.stages}
    sync_derived_attributes(new.model, old, architecture, rates, {stage.name: _children(stage) for stage in new.stages})
    if weights == "fresh":
        is_initialised = initialise_model(new.model)
        if get_example(new.model) is not None and not is_initialised:
            shapes = dict(located_model.model.named_parameters(remove_duplicate=False))
            for name, parameter in new.model.named_parameters():
                before = shapes.get(name)  # as large as the constructor's weights; grown columns are not zero
                if before is not None and before.shape != parameter.shape and not parameter.is_meta:
                    parameter.normal_(float(before.mean()), float(before.std(correction=0)))
    return new


def _write_width(located_model: LocatedModel, architecture: Architecture, weights: Weights) -> LocatedModel:
    """`write_located` for another residual width: upstream builds the width, then the other sizes are written."""
    model = located_model.model
    # the first constructor argument whose result can also take the other sizes, on meta
    refusal = None
    candidates = width.candidates_of_width(located_model, architecture)
    while True:
        try:
            candidate, built = next(candidates)
            new_model = write_located(built, architecture)
            break
        except ShapeError as error:
            if not isinstance(error, width.NoWidth):
                refusal = error
                continue
            raise refusal or error from error
    if next(model.parameters()).is_meta:
        return new_model
    # build it again with values
    new = write_located(locate(width.build_like(candidate, model)), architecture, weights)
    if weights == "keep":
        at_old_width = width.replace_widths(architecture, located_model.architecture)
        old_width_model = write_located(located_model, at_old_width)
        width.keep_channels(new.model, old_width_model.model, at_old_width, architecture)
    return new


def change_depth(located_model: LocatedModel, architecture: Architecture) -> tuple[LocatedModel, dict[str, Sizes]]:
    """Return a copy at the new depth, and {path: new sizes} of its sites, not resized yet. Raises ShapeError."""
    _check_shape(located_model, architecture)
    _check_constants(located_model, architecture)
    _check_routers(located_model, architecture)
    # a copy without the blocks beyond each new depth: they may be most of the model, so they are not copied
    depths = {stage.name: stage.depth for stage in architecture.stages}
    dropped_blocks: list[nn.Module] = []
    for stage in located_model.stages:
        dropped_blocks += _children(stage)[depths[stage.name] :]
    # a module may keep results of a training step, which torch does not copy
    with reraise_as(f"{type(located_model.model).__name__} cannot be copied", UnsupportedModel):
        model = copy.deepcopy(located_model.model, {id(block): nn.Identity() for block in dropped_blocks})
    set_origin(model, get_origin(located_model.model))
    # the first blocks are kept, and the last one is repeated if needed
    for stage in located_model.stages:
        if stage.container is not None:
            blocks = get_container(model, stage.name)
            originals = _children(stage)
            del blocks[depths[stage.name] :]
            for _ in range(depths[stage.name] - len(originals)):
                blocks.append(copy.deepcopy(originals[-1]))
    cut = located_model.locate_copy(model)
    # the new sizes of its attentions, MLPs and tables
    sizes: dict[str, Sizes] = {}
    for layer, new_layer in zip(cut.layers, architecture.layers(), strict=True):
        symbols = {"h": new_layer.heads, "g": new_layer.kv_heads, "d": new_layer.head_dim, "m": new_layer.mlp}
        symbols |= {"x": new_layer.experts, "a": new_layer.active}
        for site in layer.sites:
            sizes[site.path] = {name: symbols.get(name, size) for name, size in site.sizes.items()}
    return cut, sizes | _table_sizes(cut, sizes)


def grow(
    model: nn.Module,
    heads: int | Sequence[int] | None = None,
    factor: int | None = None,
    inputs: Any = None,
    rows: Rows = None,
) -> nn.Module:
    """Return a copy with more heads, the same head_dim and unchanged outputs (new output columns are zero).

    ``heads`` is the new number, either one for all stages that a redesign changes or one per stage; ``factor``
    multiplies the heads of every stage. Under grouped-query attention, entire key/value groups are added. For
    ``inputs`` and ``rows`` see `read`.

    A norm over all heads leaves the old heads unchanged only if its mean and variance stay the same. In that case new
    heads are copies of the old ones, the same number of each; UnsupportedModel is raised if the new number is not a
    multiple. Raises ShapeError for fewer heads than before, or heads that do not fit the key/value groups.

    >>> import leanify, torch
    >>> model = leanify.load("vit_tiny", overrides={"depth": 2, "img_size": 32}).double()
    >>> images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    >>> bool((leanify.grow(model, factor=2)(images) - model(images)).abs().max() < 1e-10)
    True
    """
    located_model = locate(model, inputs, rows)
    shape = located_model.architecture.grown(heads, factor)
    # attentions with a norm over all heads: whole copies only
    mixing_sites = []
    for layer, new_layer in zip(located_model.layers, shape.layers(), strict=True):
        site, old = layer.attention, layer.attention.sizes["h"]
        if site.mixing_part and new_layer.heads % old:
            raise UnsupportedModel(
                f"{site.path}.{site.mixing_part} is a norm over all {old} heads: growth keeps the outputs only where "
                f"every head is copied equally often, so to multiples of {old}, not to {new_layer.heads}. "
                "leanify.write(model, leanify.read(model).grown(…)) grows it without that promise"
            )
        if site.mixing_part:
            mixing_sites.append(site)
    # grow, then copy the old heads' projections under such norms
    grown = write_located(located_model, shape)
    for site in mixing_sites:
        now = grown.sites_by_path[site.path]
        repeat_rows(site.module, now.module, now.reading, site.sizes, now.sizes)
    if get_example(model) is not None:
        compare_models(model, grown.model, keeps_outputs=True)
    return grown.model


def unread_parts(located_model: LocatedModel) -> Iterator[str]:
    """Describe the parts that a reading leaves out: blocks without an MLP, attentions with a fixed depth."""
    stages = located_model.stages
    without_mlp = [stage.name or "the model" for stage in stages if not any(layer.mlp for layer in stage.layers)]
    modules = [stage.name or "the model" for stage in stages if stage.container is None]
    if without_mlp:
        yield (
            f"{format_names(without_mlp)}: no MLP was found beside this attention in a block (a map to hidden units, "
            "an activation, a map back), so no hidden units can be traded; leanify.read(…, rows=…) accepts a row that "
            "describes it"
        )
    if modules:
        yield (
            f"{format_names(modules)}: this attention is not in a list of equal blocks whose length could change, so "
            "its depth stays; its heads can change"
        )


# -- checks -------------


def _check_shape(located_model: LocatedModel, new: Architecture) -> None:
    # the same stages
    old = located_model.architecture
    names = [stage.name for stage in new.stages]
    if names != [stage.name for stage in old.stages]:
        raise ShapeError(f"the architecture has the stages {names}; the model has {[s.name for s in old.stages]}")
    # depth of each stage, and the layers of each block
    for before, after in zip(old.stages, new.stages, strict=True):
        if after.depth < 1:
            raise ShapeError(f"stage {after.name!r} cannot have 0 blocks; it needs at least 1")
        if before.is_fixed and after.depth != before.depth:
            raise ShapeError(f"stage {after.name!r} is not a list of blocks, so its depth stays {before.depth}")
        attending = sum(bool(block) for block in after.blocks)
        if not before.is_fixed and attending < min(after.depth, 2):
            raise ShapeError(
                f"stage {after.name!r} would have {after.depth} blocks, of which {attending} have attention: "
                f"at least {min(after.depth, 2)} must"
            )
        for index, block in enumerate(after.blocks):
            template = before.blocks[min(index, before.depth - 1)]
            if len(template) != len(block):
                raise ShapeError(f"{after.name}.{index} has {len(template)} layers, not {len(block)}")
            for a, b in zip(template, block, strict=True):
                _check_layer(f"{after.name}.{index}", a, b)
    # the width that a stage ends in
    for located_stage, stage in zip(located_model.stages, new.stages, strict=True):
        # a last block may widen the stream, as in MViTv2
        if stage.depth < min(located_stage.min_blocks, len(located_stage.blocks)):
            raise ShapeError(
                f"stage {stage.name!r} cannot have {stage.depth} blocks: later layers need the width that it ends "
                f"in, and it takes at least {located_stage.min_blocks} blocks to end in that"
            )


def _check_layer(where: str, old: Layer, new: Layer) -> None:
    # width and experts
    if new.width != old.width:
        raise ShapeError(f"{where} is {old.width} wide; its width cannot become {new.width} here")
    if (new.experts < 1) != (old.experts < 1) or (new.active < 1) != (old.active < 1) or new.active > new.experts:
        raise ShapeError(
            f"{where} has {old.experts} experts, {old.active} of them active; {new.experts} and {new.active} were "
            "requested: a mixture must stay a mixture, with at most all of its experts active"
        )
    # heads, head_dim and hidden units
    if min(new.heads, new.kv_heads, new.head_dim) < 1 or (new.mlp < 1) != (old.mlp < 1):
        raise ShapeError(f"{where} cannot become {new}: every size must be positive")
    if old.set_heads(new.heads).kv_heads != new.kv_heads:
        raise ShapeError(
            f"{where} has {old.heads} heads on {old.kv_heads} key/value heads; {new.heads} heads go with "
            f"{old.set_heads(new.heads).kv_heads} key/value heads, not {new.kv_heads}"
        )


def _check_constants(located_model: LocatedModel, new: Architecture) -> None:
    """Raise ShapeError for a new head_dim if upstream made tables for the old one (rotary positions)."""
    pairs = width.paired_layers(located_model.architecture, new)
    changed_sizes = {old.head_dim for old, layer in pairs if layer.head_dim != old.head_dim}
    holders = [f"{site.path} ({type(site.module).__name__})" for site in located_model.sites if site.reading.constant]
    if has_rotary_factors(located_model.model):  # a factor for each pair of channels
        holders.append("this model (LongRoPE)")
    if holders and changed_sizes:
        raise ShapeError(
            f"{holders[0]} holds positions made for a head_dim of {', '.join(map(str, sorted(changed_sizes)))}; heads "
            "can be added (--heads-mode grow), but their size stays"
        )


def _check_routers(located_model: LocatedModel, new: Architecture) -> None:
    """Raise ShapeError if the number of experts changes and the router has no row, or cannot route the new numbers."""
    changes: list[tuple[Site, int, int]] = []  # each mixture with its new experts, and those of them that are active
    for located_stage, stage in zip(located_model.stages, new.stages, strict=True):
        for layers, block in zip(located_stage.blocks, stage.blocks, strict=False):  # blocks beyond repeat the last
            for layer, new_layer in zip(layers, block, strict=True):
                old = layer.read()
                if layer.mlp is not None and (old.experts, old.active) != (new_layer.experts, new_layer.active):
                    changes.append((layer.mlp, new_layer.experts, new_layer.active))
    for mixture, experts, active in changes:
        router_sizes: Sizes = {}
        for router in find_routers(mixture.path, located_model.sites):
            router_sizes |= router.sizes
        if not {"x", "a"} <= router_sizes.keys():
            raise ShapeError(
                f"{mixture.path} ({type(mixture.module).__name__}) keeps its {mixture.sizes['x']} experts, "
                f"{mixture.sizes['a']} of them active: no row of leanify's describes the router that chooses among them"
            )
        groups, chosen = router_sizes.get("u", 1), router_sizes.get("t", 1)
        group_size = experts // groups
        if experts % groups or (groups > 1 and group_size < 2) or active > group_size * chosen:
            raise ShapeError(
                f"{mixture.path} cannot have {experts} experts, {active} of them active: its router takes them from "
                f"{chosen} of {groups} equal groups of at least two, so experts must be a multiple of {groups}, and at "
                f"most {max(1, group_size) * chosen} of {experts} can be active"
            )


# -- depth -------------


def _children(stage: LocatedStage) -> list[nn.Module]:
    return list(stage.container.children()) if stage.container is not None else []


def tie(new: nn.Module, old: nn.Module) -> None:
    """Tie parameters in place that were tied in the old model, if their new shapes are equal."""
    now = dict(new.named_parameters(remove_duplicate=False))
    for first, *others in parameter_names(old).values():
        for name in others:
            if first in now and name in now and now[name] is not now[first] and now[name].shape == now[first].shape:
                owner, _, last = name.rpartition(".")
                setattr(new.get_submodule(owner), last, now[first])


# -- sizes -------------


def _table_sizes(located_model: LocatedModel, layer_sizes: dict[str, Sizes]) -> dict[str, Sizes]:
    """Return {path: new sizes} for every table outside the attentions.

    A per-head table belongs to its enclosing attention, or to every attention under the nearest common parent. A table
    of blocks belongs to the list inside its module, a router to the neighbouring mixture.
    """
    # router → sizes of its mixture
    mixtures: dict[str, Sizes] = {}
    for layer in located_model.layers:
        if layer.mlp is not None and "x" in layer.mlp.sizes:
            for router in find_routers(layer.mlp.path, located_model.sites):
                mixtures[router.path] = layer_sizes[layer.mlp.path]
    # sizes of each table, from its mixture, attentions or list of blocks
    table_sizes = {}
    for table in located_model.sites:
        if not table.reading.is_table or not table.sizes:
            continue
        new_sizes: Sizes = {}
        if table.path in mixtures:
            mixture = mixtures[table.path]
            new_sizes = {name: mixture[name] for name in table.sizes.keys() & {"x", "a"}}
        else:
            attention_sizes = [layer_sizes[site.path] for site in dependent_attentions(located_model, table)]
            heads = {sizes["h"] for sizes in attention_sizes}
            if "h" in table.sizes and len(heads) > 1 and heads != {table.sizes["h"]}:
                raise ShapeError(
                    f"{table.path} holds one table of heads for all its layers, so their heads must be equal; they "
                    f"were asked to be {', '.join(map(str, sorted(heads)))}"
                )
            shared_symbols = table.sizes.keys() & {"h", "g", "d"} & attention_sizes[0].keys()
            new_sizes = {name: attention_sizes[0][name] for name in shared_symbols}
            if "l" in table.sizes:
                lists = (stage for stage in located_model.stages if stage.container is not None)
                owner = next(stage for stage in lists if is_inside(container_prefix(stage.name), table.path))
                new_sizes["l"] = len(owner.blocks)
        table_sizes[table.path] = {**table.sizes, **new_sizes}
    return table_sizes


def dependent_attentions(located_model: LocatedModel, table: Site) -> list[Site]:
    """Return the attention around a table of positions, or all attentions in the nearest module that has some."""
    attentions = [layer.attention for layer in located_model.layers]
    paths = list(ancestors(table.path))
    around = [site for site in attentions if site.path in paths]
    if around:
        return around[-1:]  # the innermost
    nearest = next(path for path in paths if any(is_inside(site.path, path) for site in attentions))
    return [site for site in attentions if is_inside(site.path, nearest)]
