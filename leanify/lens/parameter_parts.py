"""Describe what a redesign leaves unchanged in a model's blocks: narrower MLPs, and maps that no row describes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import nn

from leanify.core.units import format_names, format_share
from leanify.lens.located import LocatedLayer, LocatedModel, Site, is_inside
from leanify.lens.resize import map_parameters

UNREAD_SHARE = 0.05  # share of a block's parameters; above it, a screen lists the unread maps
_POSITIONS = re.compile(r"pos|rel|bias_table|table|slope", re.IGNORECASE)


def describe_kept(located_model: LocatedModel) -> list[str]:
    """Describe the parts that a redesign leaves unchanged, once per kind of block."""
    paths = {id(module): path for path, module in located_model.model.named_modules()}
    blocks: dict[str, str] = {}  # description → path of the first block that it applies to
    for block, layers in located_model.block_layers():
        path = paths[id(block)]
        params = sum(parameter.numel() for parameter in block.parameters())
        narrow, unread = _kept_parts(block, path, layers, located_model.sites)
        if narrow:
            blocks.setdefault(f"kept: {_list_parts(narrow, params)}, narrower than the leading MLP", path)
        share = sum(unread.values()) / max(params, 1)
        if share > UNREAD_SHARE:
            words = (
                f"{format_share(share)} of a block is in maps that leanify cannot read, which stay: "
                f"{_list_parts(unread, params)}"
            )
            blocks.setdefault(words, path)
    return [f"{path or 'the model'}: {words}" for words, path in blocks.items()]


def _kept_parts(
    block: nn.Module, path: str, layers: Sequence[LocatedLayer], sites: Sequence[Site]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return {path inside the block: parameters} of its narrower MLPs, and of its unread maps."""
    # the parameters that a redesign resizes, or that a row describes: id → the narrower MLP that they belong to, or ""
    resized_sites = [site for layer in layers for site in layer.sites]
    resized_paths = {site.path for site in resized_sites}
    owners: dict[int, str] = {}
    for site in (*resized_sites, *(site for site in sites if is_inside(site.path, path))):
        parameters = site.module.parameters() if site.reading.kept else map_parameters(site.module, site.reading)
        is_narrow = site.reading.is_mlp and not site.reading.kept and site.path not in resized_paths
        owner = site.path.removeprefix(path).lstrip(".") or "the block"
        for parameter in parameters:
            owners.setdefault(id(parameter), owner if is_narrow else "")
    # the others, classified by shape, module and name
    experts = {site.sizes["x"] for site in resized_sites if "x" in site.sizes}
    narrow: dict[str, int] = {}
    unread: dict[str, int] = {}
    for name, parameter in block.named_parameters():
        if owners.get(id(parameter)):
            part = owners[id(parameter)]
            narrow[part] = narrow.get(part, 0) + parameter.numel()
        elif id(parameter) not in owners and _is_map(block, name, parameter, experts):
            part = name.rpartition(".")[0] or name
            unread[part] = unread.get(part, 0) + parameter.numel()
    return narrow, unread


def _is_map(block: nn.Module, name: str, parameter: nn.Parameter, experts: set[int]) -> bool:
    """Whether a parameter that no row describes maps channels; a router, a table of positions and a norm do not."""
    owner, _, leaf = name.rpartition(".")
    module = block.get_submodule(owner)
    if parameter.dim() < 2 or max(parameter.shape) == parameter.numel():  # a bias goes with its map
        weight = getattr(module, "weight", None)
        if not (leaf.endswith("bias") and isinstance(weight, nn.Parameter) and weight.dim() > 1):
            return False
        return _is_map(block, f"{owner}.weight".lstrip("."), weight, experts)
    is_position = isinstance(module, nn.Embedding) or _POSITIONS.search(leaf) is not None
    return parameter.shape[0] not in experts and not is_position


def _list_parts(sizes: Mapping[str, int], params: int) -> str:
    names = sorted(sizes, key=lambda name: -sizes[name])
    return format_names([f"{name} ({format_share(sizes[name] / params)})" for name in names], 4)
