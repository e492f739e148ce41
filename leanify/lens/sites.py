"""Locate a model's layers: attentions and MLPs, in blocks, in stages.

Rows in `families` describe the inside of an attention or MLP. The position of blocks needs no table: a block
is the innermost list entry that contains an attention and other weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from leanify.errors import UnsupportedModel
from leanify.lens import discovery, families
from leanify.lens.blocks import container_of, is_remembered, numbered_place, paths_of, remember, why_fixed
from leanify.lens.families import class_of, expanded, reading_of
from leanify.lens.located import LocatedLayer, LocatedModel, LocatedStage, Site, ancestors, name_of, routers_of, within
from leanify.lens.resize import sizes_of
from leanify.upstream.given import give, given_to
from leanify.upstream.inputs import knows_input
from leanify.upstream.spelling import experts_per_token


def locate(model: nn.Module, inputs: Any = None, rows: families.Rows = None) -> LocatedModel:
    """Locate every stage of the model, in module order.

    ``inputs`` are an example of the input of a model of unknown library, and ``rows`` say how its attentions
    and MLPs are laid out, where the user knows better; both are kept with the model.

    Raises UnsupportedModel if there is no attention, or one without a row that cannot be read by trial either.
    """
    check_bare(model)
    if inputs is not None:
        give(model, inputs)
    if rows is not None:
        families.attach_rows(model, rows)
    sites = _known_sites(model)
    for site in sites:
        check_weights(site.path, site.module)
    attentions = [site for site in sites if site.reading.is_attention]
    if not attentions:
        raise UnsupportedModel(
            f"{name_of(model)} has no attention layer that leanify knows: a redesign trades layers for attention "
            "heads, so it takes transformers (ViT, DeiT, XCiT, BERT, RoBERTa, GPT-2, Llama, Qwen2, …)"
            + ("" if knows_input(model) else "; of a module of your own give an example input: inputs=batch")
        )
    mlps = _residual_mlps(sites, attentions)
    stages: dict[str, dict[str, list[Site]]] = {}
    for attention, (container, block) in zip(attentions, _blocks(model, attentions, mlps), strict=True):
        stages.setdefault(container, {}).setdefault(block, []).append(attention)
        if given_to(model) is not None:  # an MLP that no trial could read is nevertheless part of the block
            check_weights(block, model.get_submodule(block))
    located = LocatedModel(model, sites, [_stage(model, name, blocks, mlps) for name, blocks in stages.items()])
    if given_to(model) is not None:
        if discovery.DEPTH_TRIED not in vars(model) and discovery.check_depth(located):
            return locate(model)
        remember(model, [stage.name for stage in located.stages if stage.container is not None])
    return located


def _residual_mlps(sites: list[Site], attentions: list[Site]) -> list[Site]:
    """The MLPs whose output is the residual stream: not one inside an attention (a table of positions)."""
    by_path = {site.path: site for site in attentions}
    found = []
    for mlp in (site for site in sites if site.reading.is_mlp):
        around = next((by_path[p] for p in ancestors(mlp.path) if p in by_path and p != mlp.path), None)
        if around is not None and any("m" in how for how in mlp.reading.columns.values()):
            width = LocatedLayer(around, None).width
            if LocatedLayer(around, mlp).width_after != width:
                continue
        found.append(mlp)
    return found


def _stage(model: nn.Module, name: str, attentions: dict[str, list[Site]], mlps: list[Site]) -> LocatedStage:
    block, first = next(iter(attentions.items()))
    if name == first[0].path:  # an attention outside any list of blocks
        return LocatedStage(name, None, [_layers(first, [m for m in mlps if within(m.path, block)])])
    name = _without_ends(model, name, attentions, mlps)
    paths = paths_of(model, name)
    level = paths[0].count(".") + 1
    by_block: dict[str, list[Site]] = {}
    for mlp in mlps:
        by_block.setdefault(".".join(mlp.path.split(".")[:level]), []).append(mlp)
    blocks = [_layers(attentions.get(path, []), by_block.get(path, [])) for path in paths]
    return LocatedStage(name, container_of(model, name), blocks)


def _without_ends(model: nn.Module, name: str, attentions: dict[str, list[Site]], mlps: list[Site]) -> str:
    """The place of the blocks in a user's list, without modules before and behind them (an embedding, a head)."""
    if given_to(model) is None or name.endswith("*"):
        return name
    entries = model.get_submodule(name)
    if not isinstance(entries, (nn.ModuleList, nn.Sequential)):
        return name
    paths = [f"{name}.{child}".lstrip(".") for child in entries._modules]
    kinds = {class_of(model.get_submodule(path)) for path in attentions}
    alike = [i for i, path in enumerate(paths) if class_of(model.get_submodule(path)) in kinds]
    before, after = alike[0], len(paths) - 1 - alike[-1]
    behind = paths[alike[-1] + 1 :]
    if not before + after or any(within(mlp.path, path) for mlp in mlps for path in behind):
        return name
    return f"{name}[{before}:-{after}]"


def _layers(attentions: list[Site], mlps: list[Site]) -> list[LocatedLayer]:
    """Pair a block's attentions with its MLPs: one each, or the last attention takes the only MLP.

    If a block has a mixture of experts and a dense MLP or a shared expert, the mixture counts as its MLP.
    """
    mlps = [mlp for mlp in mlps if "x" in mlp.sizes] or mlps
    if len(mlps) > len(attentions):
        mlps = mlps[-len(attentions) :] if attentions else []
    padded: list[Site | None] = [None] * (len(attentions) - len(mlps)) + list(mlps)
    return [LocatedLayer(attention, mlp) for attention, mlp in zip(attentions, padded, strict=True)]


# -- sites -------------


def sites_of(model: nn.Module) -> list[Site]:
    """Every module with a row; the experts of a mixture are read as one.

    Raises UnsupportedModel with the reason in a row that refuses its class.
    """
    sites = []
    active = experts_per_token(model)
    mixtures: set[str] = set()
    for path, module in model.named_modules():
        reading = reading_of(module)
        if reading is None or not mixtures.isdisjoint(ancestors(path)):
            continue
        reading = expanded(reading, module)
        if reading.refused:
            raise UnsupportedModel(f"{name_of(model)} cannot be redesigned: {reading.refused} ({path or 'the model'})")
        sizes = {} if reading.kept else sizes_of(path, module, reading)
        if reading.is_mlp and not reading.is_attention and "m" not in sizes:
            continue  # a block built without an MLP
        if reading.is_mlp and "x" in sizes:
            mixtures.add(path)
            sizes["a"] = active
        sites.append(Site(path, module, reading, sizes))
    for i, site in enumerate(sites):
        if site.path in mixtures:  # where the router has a row, it says how many experts are active
            known = [router.sizes["a"] for router in routers_of(site.path, sites) if "a" in router.sizes]
            if known:
                sites[i] = replace(site, sizes={**site.sizes, "a": known[0]})
    return sites


_ATTENTION_LIKE = re.compile(r"Attention|Attn|MultiHead|MHA", re.IGNORECASE)
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "head_dim")


def _known_sites(model: nn.Module) -> list[Site]:
    """Every module with a row, or read by trial now: all of a user's module, and what a library's has without a row.

    Raises UnsupportedModel for an unknown attention, which would otherwise silently keep its heads.
    """
    sites = sites_of(model)
    unknown = _unknown_attention(model, sites)
    if unknown is None and (given_to(model) is None or discovery.DONE in vars(model)):
        return sites
    try:
        missed = discovery.discover(model)
    except UnsupportedModel as error:
        if unknown is None:
            raise
        missed = {unknown: f"it could not be run: {error}"}
    sites = sites_of(model)
    left = _unknown_attention(model, sites)
    if left is not None and given_to(model) is None:
        missed.setdefault(left, "no softmax or fused kernel of products of linear maps was seen in it")
    if missed:
        path, why = next(iter(missed.items()))
        cls = class_of(model.get_submodule(path))
        raise UnsupportedModel(
            f"{name_of(model)}: the attention at {path!r} is a {cls.__module__}.{cls.__qualname__}, which leanify "
            f"does not know how to read: {why}"
        )
    return sites


def _unknown_attention(model: nn.Module, sites: list[Site]) -> str | None:
    """The path of an attention without a row, if there is one."""
    claimed = {site.path for site in sites if site.reading.is_attention or site.reading.kept}
    around = {path for site in claimed for path in ancestors(site)}
    for path, module in model.named_modules():
        if not _ATTENTION_LIKE.search(type(module).__name__) or path in around:
            continue
        maps = [child for child in module.children() if isinstance(child, (nn.Linear, nn.modules.conv._ConvNd))]
        has_heads = any(isinstance(getattr(module, name, None), int) for name in _HEAD_COUNTS)
        if (has_heads or len(maps) >= 3) and claimed.isdisjoint(ancestors(path)):
            return str(path)
    return None


# -- blocks -------------


def _blocks(model: nn.Module, attentions: list[Site], mlps: list[Site]) -> list[tuple[str, str]]:
    """(list, block) of each attention.

    If there is no list of blocks, the attention's own path stands for the list, and also for the block,
    unless it is the last attention there, which takes the block's MLP.
    """
    around_mlps = {path for mlp in mlps for path in ancestors(mlp.path)}
    finder = _BlockFinder(model, {a.path for a in attentions}, {mlp.path for mlp in mlps}, around_mlps)
    found = [finder.around(attention) for attention in attentions]
    last = {block: attention.path for attention, (_, block) in zip(attentions, found, strict=True)}
    around_lists = {path for container, _ in found for path in ancestors(container)}
    in_list: dict[str, set[str]] = {}
    for container, block in found:
        in_list.setdefault(container, set()).add(block)
    pairs = []
    for attention, (container, block) in zip(attentions, found, strict=True):
        path = attention.path
        if block in around_lists:  # a stage that contains lists of blocks is not a block itself
            pairs.append((path, path))
            continue
        is_list = why_fixed(model, container) is None
        if is_list and len(in_list[container]) == 1 and not is_remembered(model, container):
            is_list = len(list(container_of(model, container).children())) < 2
        if is_list:
            pairs.append((container, block))
        else:
            pairs.append((path, block if last[block] == path else path))
    return pairs


@dataclass(frozen=True)
class _BlockFinder:
    """Finds the list of blocks around an attention. ``around_mlps`` is the set of paths that contain an MLP."""

    model: nn.Module
    attentions: set[str]
    mlps: set[str]
    around_mlps: set[str]

    def around(self, attention: Site) -> tuple[str, str]:
        """Return (list, block): the innermost list entry that also contains an MLP; else the attention's path twice.

        An MLP, or anything else with weight matrices that is not an attention, distinguishes a list of blocks
        from a list inside a block (parallel attentions, T5's sublayers).
        """
        of_user = given_to(self.model) is not None
        inner: tuple[str, str] | None = None  # a list entry with only an attention
        whole = next((path for path in ancestors(attention.path) if path in self.mlps), attention.path)
        for block in ancestors(whole):  # if a row describes a whole block, lists inside it are not lists of blocks
            container, _, index = block.rpartition(".")
            around = self.model.get_submodule(container)
            if not isinstance(around, (nn.ModuleList, nn.Sequential)):
                place = numbered_place(around, container, index) if of_user and block else None
                if place is not None and self._holds_more(block):
                    return place, block
                continue
            if not index.isdigit():  # a Sequential with names for keys is one if it repeats one kind of block
                is_named = of_user and isinstance(around, nn.Sequential)
                repeats = is_remembered(self.model, container) or (len(around) > 1 and _is_uniform(around))
                if not (is_named and repeats):
                    continue
            if attention.reading.is_mlp or self._holds_more(block):
                plain = type(self.model.get_submodule(block)) is nn.Sequential and not _is_uniform(around)
                return inner if inner and plain else self._around_sublayers(container, block)
            if self._has_other_matrices(container):
                inner = inner or (container, block)
        return inner or (attention.path, attention.path)

    def _around_sublayers(self, container: str, block: str) -> tuple[str, str]:
        """Move one step out if the list is itself a block, as DaViT's Sequential of two different layers."""
        layers = self.model.get_submodule(container)
        outer, _, index = container.rpartition(".")
        if type(layers) is not nn.Sequential or not index.isdigit():
            return container, block
        kinds = [type(layer) for layer in layers.children()]
        repeated = len(kinds) == len(set(kinds)) > 1 and _is_uniform(self.model.get_submodule(outer))
        return (outer, container) if repeated else (container, block)

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


# -- wrappers -------------

# what changes a module's parameters and forward → what to give in its place
UNWRAP = {
    "DataParallel": "model.module",
    "DistributedDataParallel": "model.module",
    "FullyShardedDataParallel": "the module before it was sharded",
    "OptimizedModule": "model._orig_mod, and compile what leanify returns",
    "PeftModel": "model.merge_and_unload()",
    "PeftMixedModel": "model.merge_and_unload()",
    "RecursiveScriptModule": "the module before it was scripted",
    "ScriptModule": "the module before it was scripted",
    "TopLevelTracedModule": "the module before it was traced",
    "GraphModule": "the module before it was traced",
}


def check_bare(model: nn.Module) -> None:
    """Raise UnsupportedModel if the model, or a part of it, is wrapped."""
    for path, module in model.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        wrapper = next((name for name in UNWRAP if name in kinds), None)
        if wrapper is not None:
            where = f"{path} is" if path else "the model is"
            raise UnsupportedModel(f"{where} wrapped in {wrapper}; give {UNWRAP[wrapper]}")


def check_weights(path: str, layer: nn.Module) -> None:
    """Raise UnsupportedModel if a weight of an attention or MLP is computed from other parameters.

    Other parts may have such weights, as the positional convolution of wav2vec 2.0 has: no redesign reshapes them.
    """
    for name, module in layer.named_modules(prefix=path):
        if parametrize.is_parametrized(module) or "weight_g" in module._parameters:
            raise UnsupportedModel(
                f"{name} computes its weight from other parameters (weight_norm, a parametrization); remove that first "
                "(torch.nn.utils.parametrize.remove_parametrizations, torch.nn.utils.remove_weight_norm)"
            )
