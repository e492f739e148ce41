"""Where a model keeps its layers: every attention and MLP that a row of `families` describes, in blocks, in stages."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from leanify.architecture import Block, Layer, Stage
from leanify.errors import UnsupportedModel
from leanify.lens import discovery
from leanify.lens.families import Reading, known, reading_of
from leanify.lens.resize import features_of, part_of, sizes_of
from leanify.upstream.origin import origin_of


@dataclass(frozen=True)
class Site:
    """A module whose reading is known: where it is, and the sizes of its symbols, solved from its tensors."""

    path: str
    module: nn.Module
    reading: Reading
    sizes: dict[str, int]


@dataclass(frozen=True)
class Place:
    """One layer in the model: its attention, and the MLP behind it (the attention itself in a parallel block)."""

    attention: Site
    mlp: Site | None

    @property
    def output(self) -> nn.Module:
        """The output projection; its input is the concatenated heads A."""
        return self.attention.module.get_submodule(self._output)

    @property
    def output_path(self) -> str:
        return f"{self.attention.path}.{self._output}"

    @property
    def _output(self) -> str:
        site = self.attention
        return next(p for p, how in site.reading.columns.items() if "h" in how.split() and part_of(site.module, p))

    @property
    def width_after(self) -> int:
        """The width behind the layer: what its MLP ends in, where it has one."""
        site = self.mlp or self.attention
        ends = (part_of(site.module, p) for p, how in site.reading.columns.items() if "m" in how.split())
        return features_of(next((end for end in ends if end is not None), self.output)).outputs

    def read(self) -> Layer:
        sizes = self.attention.sizes
        return Layer(
            width=features_of(self.output).outputs,
            heads=sizes["h"],
            kv_heads=sizes.get("g", sizes["h"]),
            head_dim=sizes["d"],
            mlp=self.mlp.sizes["m"] if self.mlp else 0,
        )


@dataclass(frozen=True)
class Located:
    """One stage as it stands in a model: its list (None where upstream keeps none) and the layers of each block."""

    name: str
    container: nn.Module | None
    blocks: list[list[Place]]

    def read(self) -> Stage:
        blocks: tuple[Block, ...] = tuple(tuple(place.read() for place in block) for block in self.blocks)
        return Stage(self.name, blocks, fixed=self.container is None, least=self.least)

    @property
    def least(self) -> int:
        """The fewest blocks that end in the width that all of them end in, which what follows needs."""
        widths = [max((place.width_after for place in block), default=0) for block in self.blocks]
        last = next((width for width in reversed(widths) if width), 0)
        modules = self.container.children() if self.container is not None else ()
        pairs = enumerate(zip(widths, modules, strict=False))
        others = [index for index, (width, block) in pairs if not _ends_in(last, width, block)]
        return min(others[-1] + 2, len(widths)) if others else 1


def _ends_in(last: int, width: int, block: nn.Module) -> bool:
    """Whether a block ends in this width: as its layers say, or, without any, as one of its norms has it."""
    if width:
        return width == last
    return any(parameter.dim() == 1 and parameter.numel() == last for parameter in block.parameters())


# -- finding ------------------------------------------------------------------------------------------------------


def locate(model: nn.Module) -> list[Located]:
    """Every stage of the model, in the order in which its modules stand."""
    sites = _known_sites(model)
    attentions = [site for site in sites if site.reading.is_attention]
    mlps = [site for site in sites if site.reading.is_mlp]
    if not attentions:
        raise UnsupportedModel(
            f"{name_of(model)} has no attention layer that leanify knows: a redesign trades layers for attention "
            "heads, so it takes transformers (ViT, DeiT, XCiT, BERT, RoBERTa, GPT-2, Llama, Qwen2, …)"
        )
    mlps = [mlp for mlp in mlps if not _serves_attention(mlp, attentions)]
    blocks = {attention.path: _block_of(model, attention, attentions, mlps) for attention in attentions}
    stages: dict[str, dict[str, list[Site]]] = {}
    for attention in attentions:
        container, block = blocks[attention.path]
        if any(within(other, block) for other, _ in blocks.values()):  # a stage around lists of blocks is no block
            container = block = attention.path
        if container != block and len({b for c, b in blocks.values() if c == container}) == 1 < _length_of(
            model, container
        ):
            container = block = attention.path  # one attention among many blocks: there is no depth to trade
        stages.setdefault(container, {}).setdefault(block, []).append(attention)
    return [_located(model, name, blocks, mlps) for name, blocks in stages.items()]


def _length_of(model: nn.Module, container: str) -> int:
    return sum(1 for _ in model.get_submodule(container).children())


def _serves_attention(mlp: Site, attentions: list[Site]) -> bool:
    """Whether an MLP is a part of an attention that does not end in the width (it makes a table of positions)."""
    around = [site for site in attentions if within(mlp.path, site.path) and site is not mlp]
    last = next(part for path, how in mlp.reading.columns.items() if "m" in how and (part := part_of(mlp.module, path)))
    return bool(around) and features_of(last).outputs != features_of(Place(around[-1], None).output).outputs


def _located(model: nn.Module, name: str, attentions: dict[str, list[Site]], mlps: list[Site]) -> Located:
    fixed = name in attentions
    paths = [name] if fixed else [f"{name}.{child}" for child, _ in model.get_submodule(name).named_children()]
    blocks = [_places(attentions.get(path, []), [m for m in mlps if within(m.path, path)]) for path in paths]
    return Located(name, None if fixed else model.get_submodule(name), blocks)


def _places(attentions: list[Site], mlps: list[Site]) -> list[Place]:
    """Pair the attentions of a block with its MLPs: one each, or the last attention takes the only MLP."""
    if len(mlps) > len(attentions):
        mlps = mlps[-len(attentions) :] if attentions else []
    padded: list[Site | None] = [None] * (len(attentions) - len(mlps)) + list(mlps)
    return [Place(attention, mlp) for attention, mlp in zip(attentions, padded, strict=True)]


def sites_of(model: nn.Module) -> list[Site]:
    """Every module that a row describes. Raises UnsupportedModel where a row says why it cannot be redesigned."""
    sites = []
    for path, module in model.named_modules():
        reading = reading_of(module)
        if reading is None:
            continue
        if reading.refused:
            raise UnsupportedModel(f"{name_of(model)} cannot be redesigned: {reading.refused} ({path or 'the model'})")
        sites.append(Site(path, module, reading, {} if reading.kept else sizes_of(path, module, reading)))
    return sites


def _block_of(model: nn.Module, attention: Site, attentions: list[Site], mlps: list[Site]) -> tuple[str, str]:
    """(list, block) around an attention: the innermost list entry that holds an MLP too; else the attention itself.

    The MLP, or whatever else has weight matrices and is no attention, tells a list of blocks from a list inside a
    block (parallel attentions, T5's sublayers).
    """
    parts = attention.path.split(".")
    inner: tuple[str, str] | None = None  # a list entry with an attention and nothing else
    for end in range(len(parts), 0, -1):
        block, container = ".".join(parts[:end]), ".".join(parts[: end - 1])
        if (
            not isinstance(model.get_submodule(container), (nn.ModuleList, nn.Sequential))
            or not parts[end - 1].isdigit()
        ):
            continue
        holds_mlp = any(within(mlp.path, block) for mlp in mlps) or attention.reading.is_mlp
        if holds_mlp or _has_other_matrices(model.get_submodule(block), block, attentions):
            plain = type(model.get_submodule(block)) is nn.Sequential and not _is_uniform(
                model.get_submodule(container)
            )
            if inner and plain:
                return inner
            return _around_sublayers(model, container, block)
        if _has_other_matrices(model.get_submodule(container), container, attentions):
            inner = inner or (container, block)
    return attention.path, attention.path


def _is_uniform(blocks: nn.Module) -> bool:
    """Whether a list repeats one kind of block."""
    kinds = [
        [type(layer) for layer in block.children()] if type(block) is nn.Sequential else type(block)
        for block in blocks.children()
    ]
    return all(kind == kinds[0] for kind in kinds)


def _around_sublayers(model: nn.Module, container: str, block: str) -> tuple[str, str]:
    """One step out where the list is itself a block: DaViT's Sequential of two unlike layers, repeated in a list."""
    layers = model.get_submodule(container)
    outer, _, index = container.rpartition(".")
    if type(layers) is not nn.Sequential or not index.isdigit():
        return container, block
    kinds = [type(layer) for layer in layers.children()]
    repeated = len(kinds) == len(set(kinds)) > 1 and _is_uniform(model.get_submodule(outer))
    return (outer, container) if repeated else (container, block)


def _has_other_matrices(block: nn.Module, path: str, attentions: list[Site]) -> bool:
    return any(
        parameter.dim() > 1 and not any(within(f"{path}.{name}", attention.path) for attention in attentions)
        for name, parameter in block.named_parameters()
    )


def within(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(f"{ancestor}.") or not ancestor


_ATTENTION_LIKE = re.compile(r"Attention|Attn|MultiHead|MHA", re.IGNORECASE)
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "head_dim")


def _known_sites(model: nn.Module) -> list[Site]:
    """Every module that a row describes, or a reading that is found now.

    An attention that no row describes must not go unnoticed: it would keep its heads in silence.
    """
    sites = sites_of(model)
    while (path := _stranger(model, sites)) is not None:
        if why := discovery.learn(model, path):
            cls = type(model.get_submodule(path))
            raise UnsupportedModel(
                f"{name_of(model)}: the attention at {path!r} is a {cls.__module__}.{cls.__qualname__}, which leanify "
                f"does not know how to read{why}; known are {sum(r[0].is_attention for r in known().values())} others"
            )
        sites = sites_of(model)
    return sites


def _stranger(model: nn.Module, sites: list[Site]) -> str | None:
    """Where an attention stands that no row describes, if there is one."""
    claimed = [site.path for site in sites if site.reading.is_attention or site.reading.kept]
    for path, module in model.named_modules():
        if any(within(path, site) or within(site, path) for site in claimed):
            continue
        heads = any(isinstance(getattr(module, name, None), int) for name in _HEAD_COUNTS)
        if _ATTENTION_LIKE.search(type(module).__name__) and (heads or _projects(module)):
            return str(path)
    return None


def _projects(module: nn.Module) -> bool:
    """Whether a module has at least three linear maps of its own, as queries, keys and values need."""
    return sum(isinstance(child, (nn.Linear, nn.modules.conv._ConvNd)) for child in module.children()) >= 3


def name_of(model: nn.Module) -> str:
    origin = origin_of(model)
    return str(origin) if origin else type(model).__name__
