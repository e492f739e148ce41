"""A model with its layers located, as passed between reading, writing, counting and measuring.

`reshaping.sites.locate` returns a LocatedModel. It is a snapshot: `read_sizes` reads it again after changes in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from torch import Tensor, nn

from leanify.core.architecture import Architecture, Block, Layer, Stage
from leanify.core.errors import UnsupportedModel
from leanify.lens.blocks import block_paths, container_prefix, get_container
from leanify.lens.families import Row
from leanify.lens.resize import get_attribute, linear_features, solve_sizes, weighted_part, weighted_parts
from leanify.upstream.origin import get_origin, remove_on_exit


@dataclass(frozen=True)
class Site:
    """A module that a row of `families` describes: its path, the row, and the size of each symbol in it."""

    path: str
    module: nn.Module
    reading: Row
    sizes: dict[str, int]

    @property
    def maps_heads(self) -> bool:
        """Whether a map takes one number of each head to one of each head (talking heads)."""
        reading = self.reading
        parts = {part for part, how in reading.columns.items() if how == "h" and weighted_part(self.module, part)}
        return bool(parts & reading.rows.keys()) or any(axes.count("h") > 1 for axes in reading.tensors.values())

    @property
    def mixing_part(self) -> str | None:
        """The part that mixes all heads or hidden units (a norm over them): adding more changes the existing ones."""
        return next(iter(weighted_parts(self.module, self.reading.mixing)), None)


@dataclass(frozen=True)
class LocatedLayer:
    """One layer of a model: its attention and its MLP (the same site in a parallel block).

    ``twins`` are further MLPs in the block that change with its MLP: other experts, or a second feed-forward.
    """

    attention: Site
    mlp: Site | None
    twins: tuple[Site, ...] = ()

    @property
    def sites(self) -> list[Site]:
        """The attention, the MLP and its twins; a parallel block's site appears once."""
        sites = {site.path: site for site in (self.attention, self.mlp, *self.twins) if site is not None}
        return list(sites.values())

    @property
    def output(self) -> nn.Module:
        """The output projection; its input is the concatenated heads A.

        Raises UnsupportedModel if it is a bare parameter, because hooks cannot see its input.
        """
        if not self.is_observable:
            raise UnsupportedModel(
                f"{self.output_path}: this attention's output projection is a bare parameter, not a module, so its "
                "input cannot be observed; reading, growing, writing and training it do not need that"
            )
        return self.attention.module.get_submodule(self._output)

    @property
    def is_observable(self) -> bool:
        """Whether the output projection is a module, so that a hook can see its input."""
        return weighted_part(self.attention.module, self._output) is not None

    @property
    def output_path(self) -> str:
        return f"{self.attention.path}.{self._output}"

    @property
    def _output(self) -> str:
        site = self.attention
        paths = [path for path, how in site.reading.columns.items() if "h" in how.split()]
        return next((path for path in paths if weighted_part(site.module, path)), paths[0])

    @property
    def width(self) -> int:
        """The number of outputs of the output projection: the residual width."""
        return map_sizes(self.attention, self._output)[0]

    @property
    def inner(self) -> int:
        """The current number of inputs of the output projection: all heads concatenated."""
        return map_sizes(self.attention, self._output)[1]

    @property
    def output_width(self) -> int:
        """The residual width after the layer: the output width of its MLP, or of the attention without an MLP."""
        site = self.mlp or self.attention
        for path, how in site.reading.columns.items():
            if "m" in how.split() and (weighted_part(site.module, path) is not None or path in site.reading.tensors):
                return map_sizes(site, path)[0]
        return self.width

    def read(self) -> Layer:
        sizes = self.attention.sizes
        units = self.mlp.sizes if self.mlp else {"m": 0}
        return Layer(
            width=self.width,
            heads=sizes["h"],
            kv_heads=sizes.get("g", sizes["h"]),
            head_dim=sizes["d"],
            mlp=units["m"],
            experts=units.get("x", 0),
            active=units.get("a", 0),
        )


def map_sizes(site: Site, path: str) -> tuple[int, int]:
    """Return (outputs, inputs) of a linear map inside a site: a module, or a bare parameter."""
    part = weighted_part(site.module, path)
    if part is not None:
        features = linear_features(part)
        return features.outputs, features.inputs
    outputs = inputs = 1
    for how, length in zip(site.reading.tensors[path], get_attribute(site.module, path).shape, strict=True):
        if how == "1":
            outputs *= length
        else:
            inputs *= length
    return outputs, inputs


@dataclass(frozen=True)
class LocatedStage:
    """One stage of a model: its list of blocks (None if upstream has no list) and the layers of each block."""

    name: str
    container: Any  # a module, or a `blocks.Run`
    blocks: list[list[LocatedLayer]]

    def read(self) -> Stage:
        blocks: list[Block] = []
        for block in self.blocks:
            blocks.append(tuple(layer.read() for layer in block))
        return Stage(self.name, tuple(blocks), is_fixed=self.container is None, min_depth=self.min_blocks)

    @property
    def layers(self) -> Iterator[LocatedLayer]:
        return chain.from_iterable(self.blocks)

    @cached_property
    def min_blocks(self) -> int:
        """The fewest leading blocks whose output width equals the stage's output width.

        For a block without a layer, the lengths of its norms count as its widths.
        """
        # output width of each block; 0 for a block without layers
        widths = []
        for block in self.blocks:
            widths.append(max((layer.output_width for layer in block), default=0))
        last = next((width for width in reversed(widths) if width), 0)
        modules = self.container.children() if self.container is not None else ()
        # at least one block more than the last one that ends in another width
        fewest = 1
        for index, (width, module) in enumerate(zip(widths, modules, strict=False)):
            ends = {width}
            if not width:
                ends = {parameter.numel() for parameter in module.parameters() if parameter.dim() == 1}
            if last not in ends:
                fewest = min(index + 2, len(widths))
        return fewest


@dataclass(frozen=True)
class LocatedModel:
    """A model, its sites (modules with a row) and its stages in module order."""

    model: nn.Module
    sites: list[Site]
    stages: list[LocatedStage]

    @cached_property
    def architecture(self) -> Architecture:
        return Architecture(model_name(self.model), tuple(stage.read() for stage in self.stages))

    @property
    def layers(self) -> Iterator[LocatedLayer]:
        return chain.from_iterable(stage.layers for stage in self.stages)

    @cached_property
    def sites_by_path(self) -> dict[str, Site]:
        return {site.path: site for site in self.sites}

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules of all blocks in order; an attention outside any list counts as a block."""
        return [block for block, _ in self.block_layers()]

    def block_layers(self) -> Iterator[tuple[nn.Module, list[LocatedLayer]]]:
        """Yield every block with its layers."""
        for stage in self.stages:
            if stage.container is not None:
                yield from zip(stage.container.children(), stage.blocks, strict=True)
                continue
            # the smallest module around its attentions and MLPs
            layers = stage.blocks[0]
            paths = [site.path for site in chain.from_iterable(layer.sites for layer in layers)]
            common = next(place for place in ancestors(paths[0]) if all(is_inside(path, place) for path in paths))
            yield self.model.get_submodule(common or stage.name), layers

    def locate_copy(self, model: nn.Module, places: Mapping[str, Sequence[int]] | None = None) -> LocatedModel:
        """Locate the same layers in a copy of the model with shortened lists, or lists that repeat their last block.

        ``places`` has, by the stage's name, the old place of each block where another order or selection is kept.
        """
        places = places or {}
        # the sites inside each block
        block_names: set[str] = set()
        for stage in self.stages:
            if stage.container is not None:
                block_names.update(block_paths(self.model, stage.name))
        in_block: dict[str, list[Site]] = {}  # by the path of the block around; "" outside every list
        for site in self.sites:
            block = next((path for path in ancestors(site.path) if path in block_names), "")
            in_block.setdefault(block, []).append(site)
        # the same sites at their paths in the copy
        moves = [("", "")]
        for stage in self.stages:
            if stage.container is not None:
                moves += [(old, new) for _, old, new in _moves(stage, model, places.get(stage.name))]
        sites = []
        for old, new in moves:
            for site in in_block.get(old, ()):
                path = new + site.path.removeprefix(old)
                sites.append(replace(site, path=path, module=model.get_submodule(path)))
        return self._with(model, sites, places)

    def resize_sites(self, sizes: Mapping[str, dict[str, int]]) -> LocatedModel:
        """Return the same layers with new sizes for the sites at these paths, which must already be resized."""
        return self._with(self.model, [replace(site, sizes=sizes.get(site.path, site.sizes)) for site in self.sites])

    def read_sizes(self) -> LocatedModel:
        """Return the same layers with the sizes that their tensors have now. Raises UnsupportedModel."""
        sizes = {}
        for site in self.sites:
            if not site.reading.kept:
                sizes[site.path] = site.sizes | solve_sizes(site.path, site.module, site.reading)
        return self.resize_sites(sizes)

    def _with(
        self, model: nn.Module, sites: list[Site], places: Mapping[str, Sequence[int]] | None = None
    ) -> LocatedModel:
        by_path, places = {site.path: site for site in sites}, places or {}
        stages = []
        for stage in self.stages:
            blocks = []
            for index, old, new in _moves(stage, model, places.get(stage.name)):
                layers = []
                for layer in stage.blocks[index]:
                    attention = by_path[_moved(layer.attention.path, old, new)]
                    mlp = layer.mlp and by_path[_moved(layer.mlp.path, old, new)]
                    twins = tuple(by_path[_moved(twin.path, old, new)] for twin in layer.twins)
                    layers.append(LocatedLayer(attention, mlp, twins))
                blocks.append(layers)
            container = None if stage.container is None else get_container(model, stage.name)
            stages.append(LocatedStage(stage.name, container, blocks))
        return LocatedModel(model, sites, stages)


def _moves(stage: LocatedStage, model: nn.Module, places: Sequence[int] | None) -> list[tuple[int, str, str]]:
    """Map the blocks of a copy to the original: (index in the stage, old path, path in ``model``).

    Without ``places``, they are the first ones, and the last one beyond the old depth. Without a list, paths do not
    change.
    """
    if stage.container is None:
        return [(0, "", "")]
    old = [f"{container_prefix(stage.name)}.{name}".lstrip(".") for name, _ in stage.container.named_children()]
    new = block_paths(model, stage.name)
    places = [min(i, len(old) - 1) for i in range(len(new))] if places is None else places
    return [(place, old[place], path) for place, path in zip(places, new, strict=True)]


def _moved(path: str, old: str, new: str) -> str:
    """Return the path in a block at its new place; a part of another block, which this one shares, stays there."""
    return new + path.removeprefix(old) if is_inside(path, old) else path


def model_name(model: nn.Module) -> str:
    origin = get_origin(model)
    return str(origin) if origin else type(model).__name__


def parameter_names(model: nn.Module) -> dict[int, list[str]]:
    """Return all names of every parameter by its id: tied parameters have several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def is_inside(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(f"{ancestor}.") or not ancestor


def ancestors(path: str) -> Iterator[str]:
    """Yield the path itself, then its parents, up to the model (``""``)."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def relative_path(path: str, parent: str) -> str:
    """Return a path inside a module as seen from there."""
    return path.removeprefix(f"{parent}.") if parent else path


def find_routers(mixture: str, sites: Iterable[Site]) -> list[Site]:
    """Return the sites with sizes that depend on the experts of this mixture: its siblings and its parent."""
    parent_path = mixture.rpartition(".")[0]
    tables = [site for site in sites if site.reading.is_table and site.sizes.keys() & {"x", "a"}]
    return [table for table in tables if is_inside(table.path, parent_path)]


@contextmanager
def record_outputs(blocks: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Record the outputs of ``blocks``, in order, during forward passes inside the context."""
    outputs: list[Any] = [None] * len(blocks)
    hooks = []
    for index, block in enumerate(blocks):

        def keep(module: nn.Module, args: Any, output: Any, index: int = index) -> None:
            outputs[index] = output if isinstance(output, Tensor) else output[0]

        hooks.append(block.register_forward_hook(keep))
    with remove_on_exit(hooks):
        yield outputs
