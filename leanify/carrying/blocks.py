"""Replace or remove blocks of a model, without copying tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from leanify.core.errors import ShapeError, UnsupportedModel
from leanify.lens.blocks import Run, block_paths
from leanify.lens.families import upstream_class
from leanify.lens.located import LocatedModel, LocatedStage, Site
from leanify.upstream.derived_attributes import drop_path_rates, sync_derived_attributes
from leanify.upstream.on_disk import deep_copy
from leanify.upstream.origin import get_origin, set_origin
from leanify.upstream.spelling import resize_list

Placed = tuple[int, nn.Module]  # the place of the old block that has the same layers, and a block


def replace_blocks(located_model: LocatedModel, blocks: Mapping[str, Sequence[Placed]]) -> LocatedModel:
    """Return the model with new blocks in the lists of some stages, given by the stage's name.

    Only modules are copied: tensors are shared with the old model, and the given blocks are used directly. Raises
    ShapeError for a stage that is not a list of blocks, UnsupportedModel for a block that does not fit its position.
    """
    left_out: list[nn.Module] = []
    kinds: dict[str, list[Any]] = {}
    for name, new_blocks in blocks.items():
        container = find_stage(located_model, name).container
        if container is None:
            raise ShapeError(f"stage {name!r} is not a list of blocks: none can be removed or replaced")
        if isinstance(container, Run):
            raise ShapeError(f"the blocks of stage {name!r} do not form a separate list: none can be replaced")
        old, new = list(container.children()), [block for _, block in new_blocks]
        kinds |= layer_kinds(located_model.model, old, new)
        for place, (before, after) in enumerate(zip(old, new, strict=False)):
            # blocks that depend on their position (shifted windows, a table in the first) must keep it
            different = before is not after and find_difference(
                before, after, position_counters(located_model, name, place)
            )
            if different and not _is_built_there(located_model.model, after, place, kinds):
                raise UnsupportedModel(
                    f"stage {name!r} cannot lose or join blocks there: another block would stand at place {place}, "
                    f"and {different} differs between the two"
                )
        left_out += old
    model = copy_modules(located_model.model, left_out)
    for config in configurations(model):  # as long as before: they are cut together with the number of layers
        for key, values in kinds.items():
            length = len(getattr(config, key, None) or ())
            if length > len(values):
                setattr(config, key, resize_list(values, length))
    set_origin(model, get_origin(located_model.model))
    for name, new_blocks in blocks.items():
        new_list: Any = model.get_submodule(name)
        del new_list[:]
        for _, block in new_blocks:
            new_list.append(block)
    places = {name: [place for place, _ in new_blocks] for name, new_blocks in blocks.items()}
    new_located = located_model.locate_copy(model, places).read_sizes()
    rates = {stage.name: drop_path_rates(stage_blocks(located_model, stage.name)) for stage in located_model.stages}
    sync_derived_attributes(model, located_model.architecture, new_located.architecture, rates)
    return new_located


def configurations(model: nn.Module, key: str = "num_hidden_layers") -> list[Any]:
    """Return the configurations of a model and its modules that have a key, each once."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    return list({id(config): config for config in configs if hasattr(config, key)}.values())


def layer_kinds(model: nn.Module, old: Sequence[nn.Module], new: Sequence[nn.Module]) -> dict[str, list[Any]]:
    """Return the configuration's lists with a value for each block (``layer_types``), in the order of the new blocks.

    Empty if the new blocks do not say their places in the old list.
    """
    places = []
    for block in new:
        numbers = (getattr(module, "layer_idx", None) for module in block.modules())
        places.append(next((number for number in numbers if isinstance(number, int)), -1))
    lists: dict[str, list[Any]] = {}
    for config in configurations(model):
        for key, values in vars(config).items():
            if isinstance(values, list) and len(values) == len(old) and all(0 <= i < len(old) for i in places):
                lists.setdefault(key, [values[place] for place in places])
    return lists


def _is_built_there(model: nn.Module, block: nn.Module, place: int, kinds: Mapping[str, list[Any]]) -> bool:
    """Whether upstream builds a block of these tensors and switches at this place, given a configuration's lists.

    ModernBERT's first block, for one, has no norm before its attention.
    """
    config = next((config for config in configurations(block) or configurations(model)), None)
    if not kinds or config is None:
        return False
    config = copy.deepcopy(config)
    for key, values in kinds.items():
        setattr(config, key, resize_list(values, config.num_hidden_layers))
    try:
        with torch.device("meta"):
            built_block = upstream_class(block)(config, place)
    except Exception:  # upstream's constructor takes other arguments
        return False
    # the same parameters, and no switch (a truth value, a word, None or not None) that is set otherwise
    for _, name, value, other in _attribute_pairs(built_block, block):
        is_switch = isinstance(value, (bool, str, type(None))) or isinstance(other, (bool, str, type(None)))
        if name != "training" and is_switch and value != other:
            return False
    return dict(block.named_parameters()).keys() == dict(built_block.named_parameters()).keys()


def _attribute_pairs(a: nn.Module, b: nn.Module) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield path, name and both values of the public attributes of modules at equal paths of two blocks."""
    others = dict(b.named_modules())
    for path, module in a.named_modules():
        if path not in others:
            continue
        for name, value in vars(module).items():
            if not name.startswith("_"):
                yield f"{path}.{name}".lstrip("."), name, value, getattr(others[path], name, value)


def copy_modules(module: nn.Module, without: Sequence[nn.Module] = ()) -> nn.Module:
    """Return a copy of a module and its submodules that shares all tensors; ``without`` is replaced by identities."""
    shared_tensors: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    for left_out in without:
        shared_tensors[id(left_out)] = nn.Identity()
    return copy.deepcopy(module, shared_tensors)


def copy_block(block: nn.Module) -> nn.Module:
    """Return a deep copy of a block that still shares its configuration with the rest of the model."""
    configs = (getattr(module, "config", None) for module in block.modules())
    return deep_copy(block, {id(config): config for config in configs if config is not None})


@contextmanager
def disable_cache(model: nn.Module) -> Iterator[None]:
    """Disable key/value caches of decoders: a block called twice would attend to its first call."""
    configs = [config for config in configurations(model, "use_cache") if config.use_cache]
    for config in configs:
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs:
            config.use_cache = True


def stage_blocks(located_model: LocatedModel, stage: str) -> list[nn.Module]:
    """Return the blocks of a stage; an empty list if it has no list of blocks."""
    container = find_stage(located_model, stage).container
    return [] if container is None else list(container.children())


def find_stage(located_model: LocatedModel, name: str) -> LocatedStage:
    match = next((stage for stage in located_model.stages if stage.name == name), None)
    if match is None:
        names = ", ".join(stage.name for stage in located_model.stages)
        raise ShapeError(f"there is no stage {name!r}; this model has {names}")
    return match


def block_sites(located_model: LocatedModel, stage: str, index: int) -> Iterator[Site]:
    """Yield the attentions and MLPs of a block, each once."""
    paths = set()
    for layer in find_stage(located_model, stage).blocks[index]:
        for site in layer.sites:
            if site.path not in paths:
                paths.add(site.path)
                yield site


COUNTERS = {"layer_idx", "layer_id", "block_idx", "idx", "drop_prob", "scale_by_keep", "training"}
LENGTHS = {"in_features", "out_features", "nf", "nx", "in_channels", "out_channels"}
LENGTHS |= {"normalized_shape", "num_features"}
PLAIN = (bool, int, float, str, tuple, type(None))


def position_counters(located_model: LocatedModel, stage: str, index: int) -> set[str]:
    """Return the attributes of a block, by path, that count its heads or hidden units."""
    path = block_paths(located_model.model, stage)[index]
    counters: set[str] = set()
    for site in block_sites(located_model, stage, index):
        inner = site.path.removeprefix(path).lstrip(".")
        counters |= {f"{inner}.{name}".lstrip(".") for name in site.reading.attributes}
        parts = {**site.reading.rows, **site.reading.columns}
        counters |= {f"{inner}.{part}.{name}".lstrip(".") for part in parts for name in LENGTHS}
    return counters


def find_difference(a: nn.Module, b: nn.Module, counters: set[str]) -> str:
    """Return the path of the first attribute or parameter in which two blocks differ, except ``counters``, or ""."""
    for where, name, value, other in _attribute_pairs(a, b):
        if name not in COUNTERS and where not in counters and isinstance(value, PLAIN) and value != other:
            return where
    unlike = dict(a.named_parameters()).keys() ^ dict(b.named_parameters()).keys()
    return min(unlike, default="")
