"""Locate a model's layers: attentions and MLPs, in blocks, in stages.

Rows in `families` describe the inside of an attention or MLP. The position of blocks needs no table: a block is the
innermost list entry that contains an attention and other weights.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from leanify.core.errors import UnsupportedModel
from leanify.discovery import discover
from leanify.lens import families
from leanify.lens.blocks import block_paths, get_container, is_remembered, numbered_place, why_fixed
from leanify.lens.families import expand_experts, find_row, upstream_class
from leanify.lens.located import (
    LocatedLayer,
    LocatedModel,
    LocatedStage,
    Site,
    ancestors,
    find_routers,
    is_inside,
    model_name,
)
from leanify.lens.mlps import mark_experts, pair_layers, remember_leading
from leanify.lens.obstacles import OWN_BATCH, check_bare, check_weights, describe_obstacle
from leanify.lens.resize import solve_sizes
from leanify.upstream.example_inputs import give
from leanify.upstream.inputs import describe_made, knows_input
from leanify.upstream.libraries import format_error
from leanify.upstream.origin import get_example, get_record, is_hf, note_fact
from leanify.upstream.spelling import experts_per_token

SMALL_ENTRY = 0.25  # share of a block's parameters; below it, an entry between two blocks does not count as a block


def locate(model: nn.Module, inputs: Any = None, rows: families.Rows = None) -> LocatedModel:
    """Locate every stage of the model, in module order.

    ``inputs`` is an example input for a model that is not from a known library, and ``rows`` describes the layout of
    its attentions and MLPs; both are stored with the model.

    Raises UnsupportedModel if there is no attention, or one that has no row and cannot be read by trial.
    """
    check_bare(model)
    if inputs is not None:
        give(model, inputs)
    if rows is not None:
        families.attach_rows(model, rows)
    # attentions, MLPs and tables, each with its row and sizes
    sites = _known_sites(model)
    if get_example(model) is not None:
        sites = mark_experts(model, sites)
    for site in sites:
        check_weights(site.path, site.module)
    attentions = [site for site in sites if site.reading.is_attention]
    if not attentions:
        hint = "" if knows_input(model) else "; of a module of your own give an example input: inputs=batch"
        obstacle = describe_obstacle(model) if get_example(model) is not None else ""
        if obstacle:
            raise UnsupportedModel(f"{model_name(model)} cannot be read: {obstacle}")
        raise UnsupportedModel(
            f"{model_name(model)} has no attention layer that leanify knows: a redesign trades layers for attention "
            f"heads, so it takes transformers (ViT, DeiT, XCiT, BERT, RoBERTa, GPT-2, Llama, Qwen2, …){hint}"
        )
    # MLPs that write to the residual stream, without those inside an attention (a table of positions)
    by_path = {site.path: site for site in attentions}
    mlps = []
    for mlp in (site for site in sites if site.reading.is_mlp):
        outer_site = next((by_path[p] for p in ancestors(mlp.path) if p in by_path and p != mlp.path), None)
        if outer_site is not None:
            width = LocatedLayer(outer_site, None).width
            if LocatedLayer(outer_site, mlp).output_width != width:
                continue
        mlps.append(mlp)
    # group the attentions by list and block
    stages: dict[str, dict[str, list[Site]]] = {}
    for attention, (container, block) in zip(attentions, _blocks(model, attentions, mlps), strict=True):
        stages.setdefault(container, {}).setdefault(block, []).append(attention)
        if get_example(model) is not None:  # covers MLPs that could not be read
            check_weights(block, model.get_submodule(block))
    located_model = LocatedModel(model, sites, [_stage(model, name, blocks, mlps) for name, blocks in stages.items()])
    # a user's module: check whether its depth can change
    if get_example(model) is not None:
        if not get_record(model).is_depth_checked and discover.check_depth(located_model):
            return locate(model)
        remember_leading(located_model.layers)
        # after a cut to one block, a list no longer looks like a stage
        note_fact(model, stages=tuple(stage.name for stage in located_model.stages if stage.container is not None))
    return located_model


def _stage(model: nn.Module, name: str, attentions: dict[str, list[Site]], mlps: list[Site]) -> LocatedStage:
    of_user = get_example(model) is not None
    block, first = next(iter(attentions.items()))
    if name == first[0].path:  # an attention outside any list of blocks
        return LocatedStage(name, None, [pair_layers(first, [m for m in mlps if is_inside(m.path, block)], of_user)])
    name = _trim_ends(model, name, attentions, mlps)
    paths = block_paths(model, name)
    level = paths[0].count(".") + 1
    by_block: dict[str, list[Site]] = {}
    mlps_by_path = {mlp.path: mlp for mlp in mlps}
    if of_user:  # an MLP that blocks share has several paths
        by_module = {id(mlp.module): mlp for mlp in mlps}
        modules = model.named_modules(remove_duplicate=False)
        mlps_by_path = {path: by_module[id(module)] for path, module in modules if id(module) in by_module}
    for path, mlp in mlps_by_path.items():
        by_block.setdefault(".".join(path.split(".")[:level]), []).append(mlp)
    blocks = [pair_layers(attentions.get(path, []), by_block.get(path, []), of_user) for path in paths]
    return LocatedStage(name, get_container(model, name), blocks)


def _trim_ends(model: nn.Module, name: str, attentions: dict[str, list[Site]], mlps: list[Site]) -> str:
    """Return the name of the blocks in a user's list, without the modules around them (an embedding, a head)."""
    if get_example(model) is None or name.endswith("*"):
        return name
    entries = model.get_submodule(name)
    if not isinstance(entries, (nn.ModuleList, nn.Sequential)) or None in entries._modules.values():
        return name
    paths = [f"{name}.{child}".lstrip(".") for child in entries._modules]
    kinds = {upstream_class(model.get_submodule(path)) for path in attentions}
    matching = [i for i, path in enumerate(paths) if upstream_class(model.get_submodule(path)) in kinds]
    before, after = matching[0], len(paths) - 1 - matching[-1]
    with_mlps = {path for path in paths if any(is_inside(mlp.path, path) for mlp in mlps)}
    if not with_mlps.isdisjoint(paths[matching[-1] + 1 :]):
        return name
    # between equally distant blocks may stand small entries without MLPs
    steps = {later - earlier for earlier, later in itertools.pairwise(matching)}
    between = [path for i, path in enumerate(paths) if matching[0] < i < matching[-1] and i not in matching]
    if len(steps) == 1 and between and with_mlps.isdisjoint(between):
        sizes = {path: sum(p.numel() for p in model.get_submodule(path).parameters()) for path in paths}
        if max(sizes[path] for path in between) < SMALL_ENTRY * min(sizes[paths[i]] for i in matching):
            return f"{name}[{before}:-{after}:{steps.pop()}]"
    return f"{name}[{before}:-{after}]" if before + after else name


# -- sites -------------


def find_sites(model: nn.Module) -> list[Site]:
    """Return every module with a row; a mixture's experts are one site. Raises UnsupportedModel where a row refuses."""
    # one site per module with a row
    sites = []
    active = experts_per_token(model)
    mixtures: set[str] = set()
    for path, module in model.named_modules():
        reading = find_row(module)
        if reading is None or not mixtures.isdisjoint(ancestors(path)):
            continue
        reading = expand_experts(reading, module)
        if reading.refused:
            raise UnsupportedModel(
                f"{model_name(model)} cannot be redesigned: {reading.refused} ({path or 'the model'})"
            )
        sizes = {} if reading.kept else solve_sizes(path, module, reading)
        if reading.is_mlp and not reading.is_attention and "m" not in sizes:
            continue  # a block built without an MLP
        if reading.is_mlp and "x" in sizes:
            mixtures.add(path)
            sizes["a"] = active
        sites.append(Site(path, module, reading, sizes))
    # a router with a row determines the number of active experts
    for i, site in enumerate(sites):
        if site.path in mixtures:
            active_counts = [router.sizes["a"] for router in find_routers(site.path, sites) if "a" in router.sizes]
            if active_counts:
                sites[i] = replace(site, sizes={**site.sizes, "a": active_counts[0]})
    return sites


_ATTENTION_LIKE = re.compile(r"Attention|Attn|MultiHead|MHA", re.IGNORECASE)
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "head_dim")


def _known_sites(model: nn.Module) -> list[Site]:
    """Return every module with a row, reading modules without one by trial: all of a user's, unknown ones of a library.

    Raises UnsupportedModel for an unknown attention, which would otherwise keep its heads without notice.
    """
    sites = find_sites(model)
    unknown = _unknown_attention(model, sites)
    if unknown is None and (get_example(model) is None or get_record(model).is_read):
        return sites
    obstacle = describe_obstacle(model) if get_example(model) is not None else ""
    discovery, failures = None, dict[str, str]()
    try:
        discovery = discover.discover(model)
        failures = discovery.failures
    except UnsupportedModel as error:
        if obstacle:
            raise UnsupportedModel(f"{model_name(model)} cannot be read: {obstacle}") from error
        if unknown is None or type(model).forward is nn.Module.forward:
            raise
        cause = error.__cause__ or error
        if not isinstance(cause, UnsupportedModel):
            on = f"inputs that leanify makes up ({format_error(cause, 140)})"
            on = describe_made(model, cause) if is_hf(model) else on
            raise UnsupportedModel(
                f"{model_name(model)} does not run on {on}, so its attention cannot be tried. {OWN_BATCH}"
            ) from error
        failures = {unknown: f"it could not be run: {error}"}  # the error names the missing part
    unknown_path = _unknown_attention(model, find_sites(model))
    if unknown_path is not None and get_example(model) is None:
        unseen = "no softmax or fused kernel of products of linear maps was seen in it"
        on = f", on {describe_made(model)}. {OWN_BATCH}" if is_hf(model) else ""
        failures.setdefault(unknown_path, unseen + on)
    if failures:
        path, why = next(iter(failures.items()))
        if obstacle:
            raise UnsupportedModel(f"{model_name(model)} cannot be read: {obstacle}")
        cls = upstream_class(model.get_submodule(path))
        raise UnsupportedModel(
            f"{model_name(model)}: the attention at {path!r} is a {cls.__module__}.{cls.__qualname__}, which leanify "
            f"does not know how to read: {why}"
        )
    if discovery is not None:
        discovery.attach_mlps()
    return find_sites(model)


def _unknown_attention(model: nn.Module, sites: list[Site]) -> str | None:
    """Return the path of an attention without a row, or None."""
    attention_paths = {site.path for site in sites if site.reading.is_attention or site.reading.kept}
    parent_paths = set(itertools.chain(*map(ancestors, attention_paths)))
    for path, module in model.named_modules():
        if not _ATTENTION_LIKE.search(type(module).__name__) or path in parent_paths:
            continue
        maps = [child for child in module.children() if isinstance(child, (nn.Linear, nn.modules.conv._ConvNd))]
        has_heads = any(isinstance(getattr(module, name, None), int) for name in _HEAD_COUNTS)
        if (has_heads or len(maps) >= 3) and attention_paths.isdisjoint(ancestors(path)):
            return str(path)
    return None


# -- blocks -------------


def _blocks(model: nn.Module, attentions: list[Site], mlps: list[Site]) -> list[tuple[str, str]]:
    """Return (list, block) of each attention.

    Without a list of blocks, the attention's own path is used as the list, and also as the block, except for the last
    attention in a block, which takes the block's MLP.
    """
    # the innermost block with an MLP around each attention
    around_mlps = set(itertools.chain(*(ancestors(mlp.path) for mlp in mlps)))
    finder = _BlockFinder(model, {a.path for a in attentions}, {mlp.path for mlp in mlps}, around_mlps)
    block_places = [finder.find_block(attention) for attention in attentions]
    last = {block: attention.path for attention, (_, block) in zip(attentions, block_places, strict=True)}
    around_lists: set[str] = set()
    for attention, (container, _) in zip(attentions, block_places, strict=True):
        around_lists.update(ancestors(container) if container != attention.path else [container])
    in_list: dict[str, set[str]] = {}
    for container, block in block_places:
        in_list.setdefault(container, set()).add(block)
    pairs = []
    # keep lists with at least two blocks and a depth that can change
    for attention, (container, block) in zip(attentions, block_places, strict=True):
        path = attention.path
        if block in around_lists:  # a stage that contains lists of blocks is not a block itself
            pairs.append((path, path))
            continue
        is_list = why_fixed(model, container) is None
        if is_list and len(in_list[container]) == 1 and not is_remembered(model, container):
            is_list = len(list(get_container(model, container).children())) < 2
        if is_list:
            pairs.append((container, block))
        else:
            pairs.append((path, block if last[block] == path else path))
    return pairs


@dataclass(frozen=True)
class _BlockFinder:
    """Finds the list of blocks around an attention. ``around_mlps`` holds the paths that contain an MLP."""

    model: nn.Module
    attentions: set[str]
    mlps: set[str]
    around_mlps: set[str]

    def find_block(self, attention: Site) -> tuple[str, str]:
        """Return (list, block): the innermost list entry that also contains an MLP, or the attention's path twice.

        An MLP, or any other weight matrix outside an attention, distinguishes a list of blocks from a list inside a
        block (parallel attentions, T5's sublayers).
        """
        of_user = get_example(self.model) is not None
        inner: tuple[str, str] | None = None  # a list entry with only an attention
        # if a row describes a whole block, lists inside it are not lists of blocks
        parallel_path = next((path for path in ancestors(attention.path) if path in self.mlps), attention.path)
        for block in ancestors(parallel_path):
            container, _, index = block.rpartition(".")
            container_module = self.model.get_submodule(container)
            if not isinstance(container_module, (nn.ModuleList, nn.Sequential)):
                place = numbered_place(container_module, container, index) if of_user and block else None
                if place is not None and self._holds_more(block):
                    return place, block
                continue
            if not index.isdigit():  # a Sequential with names for keys is one if it repeats one kind of block
                is_named = of_user and isinstance(container_module, nn.Sequential)
                repeats = is_remembered(self.model, container) or (
                    len(container_module) > 1 and _is_uniform(container_module)
                )
                if not (is_named and repeats):
                    continue
            if attention.reading.is_mlp or self._holds_more(block):
                plain = type(self.model.get_submodule(block)) is nn.Sequential and not _is_uniform(container_module)
                return inner if inner and plain else self._around_sublayers(container, block)
            if self._has_other_matrices(container):
                inner = inner or (container, block)
        return inner or (attention.path, self._around(attention.path) if of_user else attention.path)

    def _around(self, attention: str) -> str:
        """Return the nearest module that holds this attention alone and an MLP; the attention itself without one."""
        for path in ancestors(attention):
            if any(other != attention and is_inside(other, path) for other in self.attentions):
                break
            if path in self.around_mlps:
                return path
        return attention

    def _around_sublayers(self, container: str, block: str) -> tuple[str, str]:
        """Move one level out if the list is itself a block, like DaViT's Sequential of two different layers."""
        layers = self.model.get_submodule(container)
        outer, _, index = container.rpartition(".")
        if not index.isdigit():
            return container, block
        # a list whose entries are lists of as many parts, of which some are None
        blocks = self.model.get_submodule(outer)
        parts = [list(entry._modules.values()) for entry in blocks.children() if isinstance(entry, nn.ModuleList)]
        is_regular = isinstance(blocks, nn.ModuleList) and len(parts) == len(blocks) and len(set(map(len, parts))) == 1
        if is_regular and any(None in part for part in parts):
            return outer, container
        # a list that repeats a Sequential of different layers
        kinds = [type(layer) for layer in layers.children()]
        is_varied = type(layers) is nn.Sequential and len(kinds) == len(set(kinds)) > 1
        return (outer, container) if is_varied and _is_uniform(blocks) else (container, block)

    def _holds_more(self, block: str) -> bool:
        return block in self.around_mlps or self._has_other_matrices(block)

    def _has_other_matrices(self, path: str) -> bool:
        for name, parameter in self.model.get_submodule(path).named_parameters():
            if parameter.dim() > 1 and self.attentions.isdisjoint(ancestors(f"{path}.{name}".lstrip("."))):
                return True
        return False


def _is_uniform(blocks: nn.Module) -> bool:
    """Whether a list repeats one kind of block."""
    kinds: list[Any] = []
    for block in blocks.children():
        is_list = type(block) is nn.Sequential
        kinds.append([type(layer) for layer in block.children()] if is_list else type(block))
    return all(kind == kinds[0] for kind in kinds)
