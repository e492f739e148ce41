"""Try whether a user's module runs with fewer blocks, before its depth is offered for a trade.

A forward may loop over a list, or over a number that it keeps (``range(self.n_layer)``). The model is run once with one
block less in every stage, and if that fails once more with the numbers that count blocks changed too. Numbers that must
follow become rows of the modules that keep them; a stage that runs in neither way keeps its depth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from leanify.errors import UnsupportedModel
from leanify.lens import families
from leanify.lens.blocks import container_of, fix, prefix_of
from leanify.lens.discovery import copied, run
from leanify.lens.families import Reading
from leanify.lens.located import LocatedModel, LocatedStage, within
from leanify.lens.resize import set_number
from leanify.upstream.hooked import hooked

DONE = "_leanify_depth_tried"
_COUNTS = re.compile(r"layer|depth|block|^n$")


def check(located: LocatedModel) -> bool:
    """Find the stages whose depth cannot change and the numbers that follow it. Returns whether anything was found.

    At most three forward passes.
    """
    model = located.model
    model.__dict__[DONE] = True
    lists = [stage for stage in located.stages if stage.container is not None and len(stage.blocks) > 1]
    stages = []
    for stage in lists:
        held: Mapping[str, Any] = getattr(stage.container, "_modules", None) or dict(stage.container.named_children())
        if len({id(block) for block in held.values()}) < len(held):
            fix(model, stage.name, "one block stands in it several times")
        else:
            stages.append(stage)
    if not stages or _runs(model, stages, {}):
        return len(stages) < len(lists)
    numbers = {stage.name: _numbers(model, stage) for stage in stages}
    if _runs(model, stages, numbers):
        for stage in stages:
            for holder, names in numbers[stage.name].items():
                module = model.get_submodule(holder)
                if families.attached(module) is None:
                    name = families.full_name(families.class_of(module))
                    families.attach(module, Reading(name, attributes=dict.fromkeys(names, "l")))
        return True
    for stage in stages:
        fix(model, stage.name, "with a block less the model does not run")
    return True


def _runs(model: nn.Module, stages: list[LocatedStage], numbers: Mapping[str, Mapping[str, list[str]]]) -> bool:
    """Whether the model runs with one block less in these stages, and calls all that are left."""
    twin = copied(model)
    blocks: list[nn.Module] = []
    for stage in stages:
        container = container_of(twin, stage.name)
        del container[len(stage.blocks) - 1 :]
        blocks += container.children()
        for holder, names in numbers.get(stage.name, {}).items():
            for name in names:
                set_number(twin.get_submodule(holder), name, len(stage.blocks) - 1)
    called: set[int] = set()  # a block may be a list itself, whose entries are called
    parts = [(index, part) for index, block in enumerate(blocks) for part in block.modules()]
    handles = [part.register_forward_hook(lambda *_, index=index: called.add(index)) for index, part in parts]
    with hooked(handles):
        try:
            run(twin)
        except UnsupportedModel:
            return False
    return len(called) == len(blocks)


def _numbers(model: nn.Module, stage: LocatedStage) -> dict[str, list[str]]:
    """Path of a module → its integers, or its configuration's, that may count the blocks of a stage."""
    found: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        if not within(prefix_of(stage.name), path):
            continue
        for name, value in vars(module).items():
            if isinstance(value, nn.Module):
                continue
            inside = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
            pairs = [(name, value)]
            pairs += [(f"{name}.{key}", number) for key, number in inside.items() if "." not in str(key)]
            for key, number in pairs:
                counts = type(number) is int and number == len(stage.blocks)
                if counts and _COUNTS.search(key.rpartition(".")[2].lower()):
                    found.setdefault(path, []).append(key)
    return found
