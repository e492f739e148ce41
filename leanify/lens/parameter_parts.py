"""The ledger of a model's blocks: each parameter is assigned to one named part.

attention   projections, and parameters with an entry per head (a bias, norm or table)
mlp         the MLP that a redesign resizes; experts, where a block has several that change together
norm        vectors that belong to no other part: norms, scales, biases
positions   embeddings and tables of positions
kept        known parts that keep their shape: narrower MLPs, routers, attentions with a fixed shape
unread      maps that no row describes: a redesign leaves them unchanged
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from leanify.core.units import format_names, format_share
from leanify.lens.located import LocatedLayer, LocatedModel, Site, is_inside
from leanify.lens.resize import map_parameters

UNREAD_SHARE = 0.05  # share of a block's parameters; above it, a screen lists the unread maps
_POSITIONS = re.compile(r"pos|rel|bias_table|table|slope", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """A part of a block: its kind, its path inside the block, its parameter count, and why it keeps its shape."""

    kind: str
    path: str
    params: int
    why: str = ""


@dataclass(frozen=True)
class BlockLedger:
    """The parts of one block; ``params`` counts all of its parameters, shared ones once."""

    path: str
    params: int
    parts: tuple[Part, ...]

    def share(self, kind: str) -> float:
        return sum(part.params for part in self.parts if part.kind == kind) / max(self.params, 1)


def read_ledger(located_model: LocatedModel) -> list[BlockLedger]:
    """Return the ledger of every block, in module order."""
    paths = {id(module): path for path, module in located_model.model.named_modules()}
    ledgers = []
    for block, layers in located_model.block_layers():
        ledgers.append(_read_block(block, paths[id(block)], layers, located_model.sites))
    return ledgers


def _read_block(block: nn.Module, path: str, layers: Sequence[LocatedLayer], sites: Sequence[Site]) -> BlockLedger:
    owners: dict[int, tuple[str, str, str]] = {}  # parameter → (kind, path in the block, why)
    # parts that a redesign resizes: the attentions, then the MLPs and their twins
    resized_sites = []
    for layer in layers:
        for site in layer.sites:
            mlp_kind = "experts" if "x" in site.sizes else "mlp"
            _own(owners, site, "attention" if site is layer.attention else mlp_kind, _inside(site.path, path), "")
            resized_sites.append(site)
    layer_paths = {site.path for site in resized_sites}
    # other rows: head tables and routers follow the new sizes, narrower MLPs and special attentions keep theirs
    for site in sites:
        if not is_inside(site.path, path):
            continue
        if site.reading.is_table:
            kind = "router" if "x" in site.sizes else "positions"
            _own(owners, site, kind, _inside(site.path, path), "")
        elif site.reading.kept:
            for parameter in site.module.parameters():
                owners.setdefault(id(parameter), ("kept", _inside(site.path, path), site.reading.kept))
        elif site.reading.is_mlp and site.path not in layer_paths:
            why = f"an MLP of {site.sizes.get('m', 0)} units next to the leading one"
            _own(owners, site, "kept", _inside(site.path, path), why)
    experts = {site.sizes["x"] for site in resized_sites if "x" in site.sizes}
    # remaining parameters, classified by shape, module and name
    parts: dict[tuple[str, str, str], int] = {}
    for name, parameter in block.named_parameters():
        owner = owners.get(id(parameter)) or _classify(block, name, parameter, experts)
        parts[owner] = parts.get(owner, 0) + parameter.numel()
    parts_in_order = tuple(Part(kind, where, params, why) for (kind, where, why), params in parts.items())
    return BlockLedger(path, sum(parts.values()), parts_in_order)


def _own(owners: dict[int, tuple[str, str, str]], site: Site, kind: str, path: str, why: str) -> None:
    """Record the owner of a site's parameters; in a parallel block, the MLP's parameters get their own owner."""
    for parameter in map_parameters(site.module, site.reading):
        owners.setdefault(id(parameter), (kind, path, why))
    # parallel block: the maps with hidden units belong to the MLP
    if kind == "attention" and site.reading.is_mlp:
        layouts = (*site.reading.rows.items(), *site.reading.columns.items())
        units = {part: how for part, how in layouts if "m" in how.split()}
        for parameter in map_parameters(site.module, replace(site.reading, rows=units, columns={}, tensors={})):
            owners[id(parameter)] = ("mlp", path, why)


def _classify(block: nn.Module, name: str, parameter: nn.Parameter, experts: set[int]) -> tuple[str, str, str]:
    """Return the part of a parameter that no row describes, judged by its shape, module and name."""
    owner = name.rpartition(".")[0]
    module = block.get_submodule(owner)
    if parameter.dim() > 1 and parameter.shape[0] in experts:
        return "kept", owner or name, "routes tokens to experts"
    if isinstance(module, nn.Embedding) or (parameter.dim() > 1 and _POSITIONS.search(name.rpartition(".")[2])):
        return "positions", owner or name, ""
    if parameter.dim() < 2 or max(parameter.shape) == parameter.numel():
        map_weight = getattr(module, "weight", None)
        if name.endswith("bias") and isinstance(map_weight, nn.Parameter) and map_weight.dim() > 1:
            return _classify(block, f"{owner}.weight".lstrip("."), map_weight, experts)
        return "norm", owner or name, ""
    return "unread", owner or name, "no row describes it"


def _inside(path: str, block: str) -> str:
    return path.removeprefix(block).lstrip(".") or "the block"


def describe_kept(located_model: LocatedModel) -> list[str]:
    """Describe the parts that a redesign leaves unchanged, once per kind of block: narrower MLPs and unread maps."""
    blocks: dict[str, str] = {}  # description → path of the first block that it applies to
    for ledger in read_ledger(located_model):
        kept_parts = [part for part in ledger.parts if part.kind == "kept" and "MLP" in part.why]
        unread = [part for part in ledger.parts if part.kind == "unread"]
        if kept_parts:
            words = f"kept: {_list_parts(kept_parts, ledger.params)}, narrower than the leading MLP"
            blocks.setdefault(words, ledger.path)
        if ledger.share("unread") > UNREAD_SHARE:
            words = (
                f"{format_share(ledger.share('unread'))} of a block is in maps that leanify cannot read, which stay: "
                f"{_list_parts(unread, ledger.params)}"
            )
            blocks.setdefault(words, ledger.path)
    return [f"{path or 'the model'}: {words}" for words, path in blocks.items()]


def _list_parts(parts: Sequence[Part], params: int) -> str:
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part.path] = sizes.get(part.path, 0) + part.params
    names = sorted(sizes, key=lambda name: -sizes[name])
    return format_names([f"{name} ({format_share(sizes[name] / params)})" for name in names], 4)
