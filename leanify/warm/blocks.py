"""Replace or remove blocks of a model, without copying tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from leanify.errors import ShapeError, UnsupportedModel
from leanify.lens.blocks import Run
from leanify.lens.located import LocatedModel, LocatedStage, Site
from leanify.lens.sites import locate
from leanify.upstream.origin import origin_of, set_origin
from leanify.upstream.settle import drop_path_rates, settle
from leanify.warm.axes import sites_of


def with_blocks(located: LocatedModel, blocks: Mapping[str, Sequence[nn.Module]]) -> LocatedModel:
    """The model with these blocks in the lists of some stages, by the stage's name.

    Only modules are copied: tensors are shared with the old model, and the given blocks are used as they are.
    Raises ShapeError for a stage that is no list of blocks, UnsupportedModel for a block that cannot stand
    there.
    """
    left_out: list[nn.Module] = []
    for name, new in blocks.items():
        old = list_of(located, name)
        if stage_of(located, name).container is None:
            raise ShapeError(f"stage {name!r} is no list of blocks: none can be taken out or replaced")
        if isinstance(stage_of(located, name).container, Run):
            raise ShapeError(f"the blocks of stage {name!r} do not fill a list of their own: none can be replaced")
        for place, (before, after) in enumerate(zip(old, new, strict=False)):
            # blocks that differ by their place (shifted windows, a table that only the first holds) keep it
            different = before is not after and difference_in(before, after, counts_of(located, name, place))
            if different:
                raise UnsupportedModel(
                    f"stage {name!r} cannot lose or join blocks there: another block would stand at place {place}, "
                    f"and {different} differs between the two"
                )
        left_out += old
    model = modules_of(located.model, left_out)
    set_origin(model, origin_of(located.model))
    for name, new in blocks.items():
        container: Any = model.get_submodule(name)
        del container[:]
        for block in new:
            container.append(block)
    found = locate(model)
    rates = {stage.name: drop_path_rates(list_of(located, stage.name)) for stage in located.stages}
    settle(model, located.architecture, found.architecture, rates)
    return found


def modules_of(module: nn.Module, without: Sequence[nn.Module] = ()) -> nn.Module:
    """A copy of a module and of those in it, around the same tensors; identities replace those left out."""
    known: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    for left_out in without:
        known[id(left_out)] = nn.Identity()
    return copy.deepcopy(module, known)


def copied(block: nn.Module) -> nn.Module:
    """A deep copy of a block that keeps the configuration which it shares with the rest of the model."""
    configs = (getattr(module, "config", None) for module in block.modules())
    return copy.deepcopy(block, {id(config): config for config in configs if config is not None})


@contextmanager
def uncached(model: nn.Module) -> Iterator[None]:
    """Let decoders keep no keys and values: a block called twice would attend to its own first call."""
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


def sites_in(located: LocatedModel, stage: str, index: int) -> Iterator[Site]:
    """The attentions and MLPs of a block, each once."""
    seen = set()
    for layer in stage_of(located, stage).blocks[index]:
        for site in sites_of(layer):
            if site.path not in seen:
                seen.add(site.path)
                yield site


COUNTERS = {"layer_idx", "layer_id", "block_idx", "idx", "drop_prob", "scale_by_keep", "training"}
LENGTHS = {"in_features", "out_features", "nf", "nx", "in_channels", "out_channels"}
LENGTHS |= {"normalized_shape", "num_features"}
PLAIN = (bool, int, float, str, tuple, type(None))


def counts_of(located: LocatedModel, stage: str, index: int) -> set[str]:
    """The attributes of a block, by path, that say how many heads or hidden units there are."""
    path = f"{stage}.{list(dict(stage_of(located, stage).container.named_children()))[index]}"
    found: set[str] = set()
    for site in sites_in(located, stage, index):
        inner = site.path.removeprefix(path.lstrip(".")).lstrip(".")
        found |= {f"{inner}.{name}".lstrip(".") for name in site.reading.attributes}
        parts = {**site.reading.rows, **site.reading.columns}
        found |= {f"{inner}.{part}.{name}".lstrip(".") for part in parts for name in LENGTHS}
    return found


def difference_in(a: nn.Module, b: nn.Module, counted: set[str]) -> str:
    """The first attribute or parameter in which two blocks differ, by path, or ""; not ``counted`` ones."""
    others = dict(b.named_modules())
    for path, module in a.named_modules():
        for name, value in vars(module).items() if path in others else ():
            where = f"{path}.{name}".lstrip(".")
            if name.startswith("_") or name in COUNTERS or where in counted or not isinstance(value, PLAIN):
                continue
            if value != getattr(others[path], name, value):
                return where
    unlike = dict(a.named_parameters()).keys() ^ dict(b.named_parameters()).keys()
    return min(unlike, default="")
