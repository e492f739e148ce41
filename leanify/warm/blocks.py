"""A model with other blocks in its lists: some left out, some replaced."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from leanify.errors import ShapeError
from leanify.lens.located import LocatedModel, LocatedStage
from leanify.lens.sites import locate
from leanify.upstream.origin import origin_of, set_origin
from leanify.upstream.settle import drop_path_rates, settle


def with_blocks(located: LocatedModel, blocks: Mapping[str, Sequence[nn.Module]]) -> LocatedModel:
    """The model with these blocks in the lists of some stages, by the stage's name.

    Only modules are copied: tensors are shared with the old model, and the blocks given stand in the new one as they
    are. Raises ShapeError for a stage that is no list of blocks.
    """
    for stage in located.stages:
        if stage.name in blocks and stage.container is None:
            raise ShapeError(f"stage {stage.name!r} is no list of blocks: none can be taken out or replaced")
    model = structure_of(located.model, [old for name in blocks for old in list_of(located, name)])
    for name, new in blocks.items():
        container: Any = model.get_submodule(name)
        del container[:]
        for block in new:
            container.append(block)
    found = locate(model)
    rates = {stage.name: drop_path_rates(list_of(located, stage.name)) for stage in located.stages}
    settle(model, located.architecture, found.architecture, rates)
    return found


def structure_of(model: nn.Module, without: Sequence[nn.Module] = ()) -> nn.Module:
    """A copy of the modules of a model around the same tensors; identities stand in for the modules left out."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    new = copy.deepcopy(model, {**shared, **{id(module): nn.Identity() for module in without}})
    set_origin(new, origin_of(model))
    return new


def copied(block: nn.Module) -> nn.Module:
    """A deep copy of a block that keeps the configuration which it shares with the rest of the model."""
    configs = (getattr(module, "config", None) for module in block.modules())
    return copy.deepcopy(block, {id(config): config for config in configs if config is not None})


def list_of(located: LocatedModel, stage: str) -> list[nn.Module]:
    """The blocks of a stage; none where it is no list."""
    container = stage_of(located, stage).container
    return [] if container is None else list(container.children())


def stage_of(located: LocatedModel, name: str) -> LocatedStage:
    found = next((stage for stage in located.stages if stage.name == name), None)
    if found is None:
        names = ", ".join(stage.name for stage in located.stages)
        raise ShapeError(f"there is no stage {name!r}; this model has {names}")
    return found


def sites_in(located: LocatedModel, stage: str, index: int) -> Iterator[Any]:
    """The attentions and MLPs of a block, a parallel block's one site once."""
    seen = set()
    for layer in stage_of(located, stage).blocks[index]:
        for site in (layer.attention, layer.mlp):
            if site is not None and site.path not in seen:
                seen.add(site.path)
                yield site
