"""Replace or remove blocks of a model, without copying tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from leanify.errors import ShapeError, UnsupportedModel
from leanify.lens.blocks import Run
from leanify.lens.located import LocatedModel, LocatedStage
from leanify.lens.sites import locate
from leanify.upstream.origin import origin_of, set_origin
from leanify.upstream.settle import drop_path_rates, settle


def with_blocks(located: LocatedModel, blocks: Mapping[str, Sequence[nn.Module]]) -> LocatedModel:
    """The model with these blocks in the lists of some stages, by the stage's name.

    Only modules are copied: tensors are shared with the old model, and the blocks given stand in the new one as they
    are. Raises ShapeError for a stage that is no list of blocks, UnsupportedModel where a block cannot stand where it
    was put.
    """
    for name, new in blocks.items():
        if stage_of(located, name).container is None:
            raise ShapeError(f"stage {name!r} is no list of blocks: none can be taken out or replaced")
        if isinstance(stage_of(located, name).container, Run):
            raise ShapeError(f"the blocks of stage {name!r} do not fill a list of their own: none can be replaced")
        for place, (old, block) in enumerate(zip(list_of(located, name), new, strict=False)):
            _check_place(located, name, place, old, block)
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
    new = modules_of(model, without)
    set_origin(new, origin_of(model))
    return new


def modules_of(module: nn.Module, without: Sequence[nn.Module] = ()) -> nn.Module:
    """A copy of a module and of those in it, around the same tensors."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, {**shared, **{id(left_out): nn.Identity() for left_out in without}})


def copied(block: nn.Module) -> nn.Module:
    """A deep copy of a block that keeps the configuration which it shares with the rest of the model."""
    configs = (getattr(module, "config", None) for module in block.modules())
    return copy.deepcopy(block, {id(config): config for config in configs if config is not None})


@contextmanager
def uncached(model: nn.Module) -> Iterator[None]:
    """Decoders keep no keys and values inside: a block called twice would otherwise attend to its own first call."""
    found = (getattr(module, "config", None) for module in model.modules())
    configs: dict[int, Any] = {id(config): config for config in found if getattr(config, "use_cache", False)}
    for config in configs.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs.values():
            config.use_cache = True


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


# -- what differs from block to block -----------------------------------------------------------------------------

COUNTERS = {"layer_idx", "layer_id", "block_idx", "idx", "drop_prob", "scale_by_keep", "training"}
SIZES = {"in_features", "out_features", "nf", "nx", "in_channels", "out_channels", "normalized_shape", "num_features"}


def counts_of(located: LocatedModel, stage: str, index: int) -> set[str]:
    """The attributes of a block, by path, that say how many heads or hidden units there are."""
    path = f"{stage}.{list(dict(stage_of(located, stage).container.named_children()))[index]}"
    found: set[str] = set()
    for site in sites_in(located, stage, index):
        inner = site.path.removeprefix(path.lstrip(".")).lstrip(".")
        found |= {f"{inner}.{name}".lstrip(".") for name in site.reading.attributes}
        parts = {**site.reading.rows, **site.reading.columns}
        found |= {f"{inner}.{part}.{name}".lstrip(".") for part in parts for name in SIZES}
    return found


def difference_in(a: nn.Module, b: nn.Module, counted: set[str]) -> str:
    """The first plain attribute or parameter in which two blocks differ, by path, or "".

    ``counted`` attributes (`counts_of`), counters of layers and stochastic depth are left out.
    """
    plain = (bool, int, float, str, tuple, type(None))
    others = dict(b.named_modules())
    for path, module in a.named_modules():
        for name, value in vars(module).items() if path in others else ():
            where = f"{path}.{name}".lstrip(".")
            skipped = name.startswith("_") or name in COUNTERS or where in counted
            if not skipped and isinstance(value, plain) and value != getattr(others[path], name, value):
                return where
    unlike = dict(a.named_parameters()).keys() ^ dict(b.named_parameters()).keys()
    return min(unlike, default="")


def _check_place(located: LocatedModel, stage: str, place: int, old: nn.Module, new: nn.Module) -> None:
    """Blocks that differ by their place (shifted windows, layer types, a table that only the first holds) keep it."""
    if old is not new and (different := difference_in(old, new, counts_of(located, stage, place))):
        raise UnsupportedModel(
            f"stage {stage!r} cannot lose or join blocks there: another block would stand at place {place}, and "
            f"{different} differs between the two"
        )
