"""Discover how attentions and MLPs without a row are laid out, from one forward pass.

`flow` sees which parameters are an attention's projections and its output projection, `guesses` proposes
where heads lie in them, and `trials` keeps a guess only if more heads leave the module's outputs as they
were. What is found is a row as those of `families`. It is kept with the module, so nothing that was learnt of
one model is believed of another.
"""

from __future__ import annotations

import copy
import itertools
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from leanify.errors import LeanifyError, UnsupportedModel
from leanify.lens import families
from leanify.lens.blocks import container_of, fix, prefix_of
from leanify.lens.families import Reading
from leanify.lens.flow import Found, followed
from leanify.lens.guesses import attention_guesses, mlp_guesses, sizes_of_heads
from leanify.lens.located import LocatedModel, LocatedStage, within
from leanify.lens.resize import attribute_of, features_of, set_number, sizes_of
from leanify.lens.rewrites import rewrites
from leanify.lens.trials import Bench, without_hooks
from leanify.upstream.given import given_to
from leanify.upstream.hooked import hooked
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import in_words

MOST = 160  # guesses that are tried of one attention
TOKENS = 16


DONE = "_leanify_discovered"  # in the model, or the one that it is a copy of


def discover(model: nn.Module) -> dict[str, str]:
    """Find the attentions and MLPs without a row and keep one with each.

    Returns the attentions that could not be read, by path: why not. Raises UnsupportedModel if the model does not run.
    """
    twin = copied(model)
    with followed(twin) as follower:
        try:
            run(twin)
        except UnsupportedModel:  # on meta, where upstream may look for values, what was seen until then counts
            if not (follower.flow.attentions and any(parameter.is_meta for parameter in twin.parameters())):
                raise
    flow = follower.flow
    paths = {path for path, _ in model.named_modules()}
    known = _known(model)
    missed: dict[str, str] = {}
    tried: dict[Any, Reading] = {}
    for found in sorted(flow.attentions, key=lambda each: -each.owner.path.count(".")):  # the outermost last
        if any(within(found.last.name, path) for path, row in known.items() if row.is_attention or row.kept):
            continue
        row, why = _row_of(twin, found, tried, attention=True)
        if row is None:
            missed[found.owner.path or found.last.name.rpartition(".")[0]] = why
        elif found.owner.path in paths:
            _keep(model, found.owner.path, row)
    seen = {path for found in flow.attentions for path in found.came.inner}
    for path in dict.fromkeys(flow.softmax):
        if not any(within(path, one) if one else path == one for one in (*seen, *known)):
            missed[path] = "what follows its softmax goes through no output projection that could be told"
    for found in flow.mlps:
        if not any(within(found.last.name, path) for path, row in _known(model).items() if row.is_mlp):
            row, _ = _row_of(twin, found, tried, attention=False)
            if row is not None:
                _keep(model, found.owner.path, row)
    if not missed:
        model.__dict__[DONE] = True
    return missed


def _known(model: nn.Module) -> dict[str, Reading]:
    rows = {path: families.reading_of(module) for path, module in model.named_modules()}
    return {path: row for path, row in rows.items() if row is not None}


def _keep(model: nn.Module, path: str, row: Reading) -> None:
    """Keep a row with the module at ``path``; joined with its row if it has one (a block with both)."""
    module = model.get_submodule(path)
    own = families.attached(module)
    families.attach(module, row if own is None else joined(own, row))


def joined(one: Reading, other: Reading) -> Reading:
    """Two rows of one module as one: an attention and an MLP that stand in the same forward."""
    return replace(
        one,
        rows={**one.rows, **other.rows},
        columns={**one.columns, **other.columns},
        tensors={**one.tensors, **other.tensors},
        attributes={**one.attributes, **other.attributes},
        lists={**one.lists, **other.lists},
        constant=one.constant or other.constant,
    )


def copied(model: nn.Module) -> nn.Module:
    """A copy that shares the parameters, without hooks, in eval mode.

    Raises UnsupportedModel if it cannot be copied.
    """
    shared: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    try:
        twin = copy.deepcopy(model, shared)
    except Exception as error:  # whatever a module holds that Python cannot copy: locks, generators, process groups
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be copied, so it cannot be tried or reshaped: {in_words(error, 160)}"
        ) from error
    without_hooks(twin)
    return twin.eval()


def run(model: nn.Module) -> Any:
    """One forward pass on the inputs that were given, else on an example of the model's kind of input.

    Random numbers stay as they were, and compiled forwards run as they are written. Raises UnsupportedModel,
    which says what is missing.
    """
    own = next(model.parameters(), torch.empty(0))
    try:
        inputs = example_inputs(model, None, None if given_to(model) else TOKENS, own.device)
        inputs = {name: x for name, x in inputs.items() if name != "attention_mask" or not x.is_meta}
        compiles = "torch._dynamo" in sys.modules
        eager = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
        with torch.random.fork_rng(devices=[]), eager, torch.no_grad():
            return model(**inputs)
    except LeanifyError:
        raise
    except Exception as error:  # the user's code, on the user's input
        raise UnsupportedModel(f"{type(model).__name__} does not run on these inputs: {in_words(error)}") from error


def _row_of(twin: nn.Module, found: Found, tried: dict[Any, Reading], attention: bool) -> tuple[Reading | None, str]:
    """The row under which a module passes its trial, and else why there is none."""
    module, path = found.owner.module, found.owner.path
    bench = Bench(module, found.owner.args, found.owner.kwargs)
    if bench.error:
        return None, f"alone it could not be run: {bench.error}"
    alike = type(module), tuple(sorted(use.name.removeprefix(path) for use in found.came.maps))
    if alike in tried and bench.holds(tried[alike]):
        return tried[alike], ""
    guesses = attention_guesses if attention else mlp_guesses
    readings = list(itertools.islice(guesses(module, path, found, bench.numbers), MOST))
    row, count, ran = _first_that_holds(bench, readings)
    if row is None and attention and not ran:
        row, more = _rewritten(bench, module, readings)
        count += more
    if row is not None:
        tried[alike] = row
        return row, ""
    maps = ", ".join(sorted(f"{use.name} {' × '.join(map(str, use.shape))}" for use in found.came.maps)[:4])
    last = f"{found.last.name} {' × '.join(map(str, found.last.shape))}"
    heads = ""
    if attention:
        sizes = next(sizes_of_heads(found), None)
        if sizes is None:
            lengths = ", ".join(map(str, found.came.lengths))
            return None, (
                f"its output projection {last} takes {found.last.in_length} channels, and no axis of what was "
                f"multiplied ({lengths}) divides them into heads; projections seen: {maps}"
            )
        heads = f", of {sizes['h']} heads × {sizes['d']}"
    return None, (
        f"{count} readings of its parts were tried, and under none did more heads keep its outputs; seen were the "
        f"projections {maps} and the output projection {last}{heads}"
    )


def _first_that_holds(bench: Bench, readings: Iterable[Reading]) -> tuple[Reading | None, int, bool]:
    """(the first reading that holds, how many were tried, whether any ran)."""
    count, ran = 0, False
    for reading in readings:
        count += 1
        verdict = bench.holds(reading)
        if verdict:
            return reading, count, True
        ran = ran or verdict is False
    return None, count, ran


def _rewritten(bench: Bench, module: nn.Module, readings: list[Reading]) -> tuple[Reading | None, int]:
    """The first reading that holds with the width of its forward taken for the heads' inner width; how many were tried.

    The inner width is the number of inputs of the output projection, as a method of the module can say it.
    """
    count = 0
    first: dict[str, Reading] = {}
    for reading in readings:
        first.setdefault(repr(reading.attributes), reading)
    for base in list(first.values())[:8]:
        part = next(iter(base.columns))
        here = "self" + "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in part.split("."))
        weight = attribute_of(module, part)
        if isinstance(weight, Tensor):
            axes = [i for i, how in enumerate(base.tensors[part]) if how != "1"]
            inner = " * ".join(f"{here}.shape[{axis}]" for axis in axes)
        else:
            inner = f"{here}.weight.shape[{features_of(weight).input_axis}]"
        edits = rewrites(families.class_of(module), inner, sizes_of("", module, base)["d"])
        for rewrite in itertools.islice(edits, 40):
            count += 1
            verdict = bench.holds(replace(base, edits=rewrite.edits, methods=rewrite.methods))
            if verdict:
                return replace(base, edits=rewrite.edits, methods=rewrite.methods), count
            if verdict is False:  # it runs: what is wrong is the layout
                others = (replace(one, edits=rewrite.edits, methods=rewrite.methods) for one in readings)
                row, more, _ = _first_that_holds(bench, others)
                count += more
                if row is not None:
                    return row, count
    return None, count


# -- depth -------------

DEPTH_TRIED = "_leanify_depth_tried"
_COUNTS = re.compile(r"layer|depth|block|^n$")


def check_depth(located: LocatedModel) -> bool:
    """Find the stages whose depth cannot change and the numbers that follow it. Returns whether anything was found.

    A forward may loop over a list, or over a number that it keeps (``range(self.n_layer)``). The model is run with one
    block less in every stage; if that fails, with the numbers that count blocks changed too. Numbers that must follow
    become rows; a stage that runs in neither way keeps its depth. At most three forward passes.
    """
    model = located.model
    model.__dict__[DEPTH_TRIED] = True
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
