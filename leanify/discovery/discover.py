"""Discover how attentions and MLPs without a row are laid out, from one forward pass.

`flow` sees which parameters are an attention's projections and its output projection, `row_candidates`
proposes where heads are stored in them, and `row_laws` accepts a guess only if additional heads leave the module's
outputs unchanged. The result is a row like the rows in `lens.families`. It is stored with the module, so knowledge
about one model is never applied to another.
"""

from __future__ import annotations

import copy
import itertools
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.errors import LeanifyError, UnsupportedModel
from leanify.core.files.reading import preview
from leanify.discovery.flow import Candidate, Flow, follow
from leanify.discovery.rewrites import INSTANCE, rewrites
from leanify.discovery.row_candidates import (
    SYMBOL_NAMES,
    attention_guesses,
    head_axes,
    head_sizes,
    iterate_integers,
    mlp_guesses,
)
from leanify.discovery.row_laws import Trial, count_moved_channels, read_on_meta, record_integers, remove_hooks
from leanify.lens import families
from leanify.lens.blocks import container_prefix, fix, get_container
from leanify.lens.families import Row, toml
from leanify.lens.located import LocatedModel, LocatedStage, ancestors, is_inside, relative_path
from leanify.lens.mlps import ACTIVE_KEY, copy_rows_to_siblings, expert_lists, measure_active
from leanify.lens.resize import get_attribute, get_fields, linear_features, set_number, solve_sizes
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import format_error, reraise_as
from leanify.upstream.origin import get_example, get_record, in_mode, note_fact, remove_on_exit

MAX_GUESSES = 160  # guesses to try per attention
TOKENS = 16
LAYER_NUMBERS = ("layer_idx", "layer_id", "layer_index", "layer_number")
SECONDS = 10  # processor seconds for all trials of one model; a large module gets the time of this many runs:
TRIALS = 100


@dataclass(frozen=True)
class Discovery:
    """The layers of a model as one forward pass showed them.

    twin        a copy of the model that ran
    flow        its attentions and MLPs
    numbers     integers that its forwards read, by path
    row_cache   rows of the modules that were tried, by what decides how those compute
    failures    {path: reason} of the attentions that could not be read
    start       processor time at which the trials began
    """

    model: nn.Module
    twin: nn.Module
    flow: Flow
    numbers: Mapping[str, int]
    row_cache: dict[Any, Row]
    failures: dict[str, str]
    start: float

    def attach_mlps(self) -> None:
        """Attach rows to the MLPs and the experts; an unread MLP is not an error, it keeps its shape."""
        model = self.model
        for candidate in self.flow.mlps:
            path, last = candidate.owner.path, candidate.last.name
            # read already: by a row from `families`, or by one with the same down projection
            around = {place: row for place, row in _rows_by_path(model).items() if is_inside(last, place)}
            mlp_rows = {place: row for place, row in around.items() if row.is_mlp}
            own_row = mlp_rows.pop(path, None)
            own_parts = own_row.columns if own_row is not None else ()
            if mlp_rows or any(is_inside(relative_path(last, path), part) for part in own_parts):
                continue
            row, _ = _find_row(candidate, self.row_cache, self.start)
            if row is None:
                continue
            # of two different MLPs in one forward the larger is read; the other keeps its shape
            module = model.get_submodule(path)
            before = families.attached_row(module)
            if before is None or not before.is_mlp:
                _attach_row(model, path, row)
                continue
            old_units, new_units = (solve_sizes("", module, one)["m"] for one in (before, row))
            if old_units == new_units:
                _attach_row(model, path, row)
            elif new_units > old_units and not before.is_attention:
                families.attach(module, row)
        _attach_counts(model, self.numbers)
        # a row for each expert in a list, and how many experts process each token
        copy_rows_to_siblings(model)
        rows = _rows_by_path(model)
        mlps = {path: repr(row) for path, row in rows.items() if row.is_mlp and not row.is_attention}
        lists = expert_lists(model, [path for path, row in rows.items() if row.is_attention], mlps)
        if lists and not any(parameter.is_meta for parameter in model.parameters()):
            for container, active in measure_active(self.twin, lists, run).items():
                model.get_submodule(container).__dict__[ACTIVE_KEY] = active
        note_fact(model, is_read=True)


def discover(model: nn.Module) -> Discovery:
    """Find the attentions and MLPs without a row, and attach a row to each attention.

    Those of the MLPs are left to `Discovery.attach_mlps`: trying large ones takes minutes, which a model that is
    refused need not wait for. Raises UnsupportedModel if the model does not run.
    """
    # one forward pass of a copy shows its attentions and MLPs
    start = time.process_time()
    twin = make_twin(model)
    of_user = get_example(model) is not None
    with record_integers(twin if of_user else nn.Module(), assumes_read=False) as numbers, follow(twin) as follower:
        try:
            run(twin)
        except UnsupportedModel:  # on meta, upstream may read values: keep the results up to then
            if not (follower.flow.attentions and any(parameter.is_meta for parameter in twin.parameters())):
                raise
    flow = follower.flow
    paths = {path for path, _ in model.named_modules()}
    # attentions: the first that cannot be read ends the search
    rows = _rows_by_path(model)
    failures: dict[str, str] = {}
    row_cache: dict[Any, Row] = {}
    for candidate in sorted(flow.attentions, key=lambda each: -each.owner.path.count(".")):  # the outermost last
        if any(is_inside(candidate.last.name, path) for path, row in rows.items() if row.is_attention or row.kept):
            continue
        row, why = _find_row(candidate, row_cache, start, flow.mlps)
        if row is None:  # the model is refused if one cannot be read
            failures[candidate.owner.path or candidate.last.name.rpartition(".")[0]] = why
            break
        if candidate.owner.path in paths:
            _attach_row(model, candidate.owner.path, row)
            _attach_tables(model, candidate, row)
    # a softmax outside every known attention belongs to one that was missed
    covered_paths = set().union(*(attention.came.inner for attention in flow.attentions))
    known_paths = [*covered_paths, *rows]
    for path in dict.fromkeys(flow.softmax):
        # "" is the model itself, which covers no softmax but its own
        is_covered = path in known_paths or any(known and is_inside(path, known) for known in known_paths)
        if not is_covered:
            failures.setdefault(path, "no output projection was recognised after its softmax")
    return Discovery(model, twin, flow, numbers, row_cache, failures, start)


def inherit_rows(built: nn.Module, model: nn.Module) -> None:
    """Attach the rows that trials found in ``model`` to another size of it, so that nothing is tried again.

    A module gets the row of the one at its path, or, in a deeper model, the row that all modules of its class have.
    """
    rows_by_path: dict[str, Row] = {}
    rows_by_class: dict[type, list[Row]] = {}
    for path, module in model.named_modules():
        row = families.attached_row(module)
        if row is not None:
            rows_by_path[path] = row
            rows_by_class.setdefault(type(module), []).append(row)
    if not rows_by_path:
        return
    classes = {path: type(module) for path, module in model.named_modules()}
    for path, module in built.named_modules():
        if classes.get(path) is type(module) and path in rows_by_path:
            families.attach(module, rows_by_path[path])
        elif path not in classes:
            rows = rows_by_class.get(type(module), [])
            if rows and all(row == rows[0] for row in rows):
                families.attach(module, rows[0])
    if get_record(model).is_read:
        note_fact(built, is_read=True)


def _attach_tables(model: nn.Module, candidate: Candidate, row: Row) -> None:
    """Attach rows to the modules outside an attention that hold a number for each of its heads (relative positions)."""
    path = candidate.owner.path
    heads = solve_sizes(path, model.get_submodule(path), row)["h"]
    for name in sorted(candidate.came.along):
        owner_path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(owner_path)
        value = getattr(owner, leaf, None)
        if is_inside(name, path) or not isinstance(value, Tensor) or value.shape.count(heads) != 1:
            continue
        if value.dim() > 1 and families.attached_row(owner) is None:
            axes = head_axes(value, heads)
            counts = [name for name, number in iterate_integers(owner, recurses=False) if number == heads]
            names = {name: "h" for name in counts if SYMBOL_NAMES["h"].search(name)}
            if isinstance(owner, nn.Embedding):
                names = {"embedding_dim": "h"}
            kind = families.full_name(families.upstream_class(owner))
            families.attach(owner, Row(kind, tensors={leaf: axes}, attributes=names))


def _attach_counts(model: nn.Module, numbers: Mapping[str, int]) -> None:
    """Attach rows to the modules outside attentions whose forwards read the number of heads (for a mask of each)."""
    attentions = {path: row for path, row in _rows_by_path(model).items() if row.is_attention}
    heads = {path: solve_sizes(path, model.get_submodule(path), row)["h"] for path, row in attentions.items()}
    paths = {path for path, _ in model.named_modules()}
    for name, value in numbers.items():
        owner = next(path for path in ancestors(name) if path in paths)
        inner = {count for path, count in heads.items() if is_inside(path, owner)}
        is_outside = not any(is_inside(owner, path) for path in attentions)
        if is_outside and inner == {value} and SYMBOL_NAMES["h"].search(name.rpartition(".")[2].lower()):
            _attach_numbers(model, owner, {relative_path(name, owner): "h"})


def _attach_numbers(model: nn.Module, path: str, attributes: dict[str, str]) -> None:
    """Let numbers of a module follow the model's sizes, besides those that already do."""
    module = model.get_submodule(path)
    attached_row = families.attached_row(module)
    if attached_row is None or attached_row.is_table:
        _attach_row(model, path, Row(families.full_name(families.upstream_class(module)), attributes=attributes))


def _rows_by_path(model: nn.Module) -> dict[str, Row]:
    rows = {path: families.find_row(module) for path, module in model.named_modules()}
    return {path: row for path, row in rows.items() if row is not None}


def _attach_row(model: nn.Module, path: str, row: Row) -> None:
    """Attach a row to the module at ``path``, merged with its existing row if it has one (a parallel block)."""
    module = model.get_submodule(path)
    before = families.attached_row(module)
    if before is not None:
        merged: dict[str, Any] = {}
        for name in ("rows", "columns", "tensors", "attributes", "lists"):
            merged[name] = {**getattr(before, name), **getattr(row, name)}
        mixing, constant = (*before.mixing, *row.mixing), before.constant or row.constant
        row = replace(before, **merged, mixing=mixing, constant=constant)
    families.attach(module, row)


def make_twin(model: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters, without hooks, in eval mode.

    Raises UnsupportedModel if it cannot be copied.
    """
    parameters: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    # a module may hold locks, generators or process groups
    message = f"{type(model).__name__} cannot be copied, so it cannot be tried or reshaped"
    with reraise_as(message, UnsupportedModel):
        twin = copy.deepcopy(model, parameters)
    remove_hooks(twin)
    return in_mode(twin)


def make_inputs(model: nn.Module) -> dict[str, Any]:
    """Return the user's example inputs, or short ones generated for the model's modality, on its device."""
    parameter = next(model.parameters(), torch.empty(0))
    tokens = None if get_example(model) else TOKENS
    inputs = example_inputs(model, None, tokens, parameter.device)
    return {name: x for name, x in inputs.items() if name != "attention_mask" or not x.is_meta}


def run(model: nn.Module, inputs: Mapping[str, Any] | None = None) -> Any:
    """Run one forward pass on ``inputs``, by default the user's example, or generated inputs for the model's modality.

    The random state is restored, and compiled forwards run in eager mode. Raises UnsupportedModel if the model does
    not run.
    """
    try:
        inputs = make_inputs(model) if inputs is None else inputs
        compiles = "torch._dynamo" in sys.modules
        eager = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
        with torch.random.fork_rng(devices=[]), eager, torch.no_grad():
            return model(**inputs)
    except LeanifyError:
        raise
    except Exception as error:  # the user's code, on the user's input
        if type(model).forward is nn.Module.forward:
            parts = preview([name for name, _ in model.named_children()])
            raise UnsupportedModel(
                f"{type(model).__name__} has no forward of its own ({parts}): give one of its parts with a batch, "
                "path/to/model.py:make, which returns both"
            ) from error
        raise UnsupportedModel(f"{type(model).__name__} does not run on these inputs: {format_error(error)}") from error


def _likeness(module: nn.Module, numbers: Mapping[str, int]) -> tuple[Any, ...]:
    """What decides how a module computes, but for its weights: the integers that its forward reads, its plain
    attributes and the shapes of its tensors. The number of its layer only finds its place in a cache.
    """
    read = [(name, value) for name, value in numbers.items() if name.rpartition(".")[2] not in LAYER_NUMBERS]
    plain = []
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, bool | float | str) and name != "training":
                plain.append((path, name, value))
    shapes = [(name, tuple(tensor.shape)) for name, tensor in module.state_dict(keep_vars=True).items()]
    return tuple(sorted(read)), tuple(plain), tuple(shapes)


def _find_row(
    candidate: Candidate, row_cache: dict[Any, Row], start: float, mlps: Sequence[Candidate] | None = None
) -> tuple[Row | None, str]:
    """Return the row under which a module passes its trial, or None and the reason.

    ``mlps`` are the MLPs of the model if the candidate is an attention: one of them may share a map with it.
    """
    attention = mlps is not None
    # modules of one class that read the same numbers compute the same: only the first of them is tried
    module, path = candidate.owner.module, candidate.owner.path
    args, kwargs = candidate.owner.args, candidate.owner.kwargs
    key = type(module), tuple(sorted(use.name.removeprefix(path) for use in candidate.came.maps))
    likeness = None
    numbers = read_on_meta(module, args, kwargs)
    if numbers is not None and (likeness := (*key, _likeness(module, numbers))) in row_cache:
        return row_cache[likeness], ""
    # a copy of the module alone, with the arguments of its call
    bench = Trial(module, args, kwargs)
    if bench.error:
        return None, f"it could not be run on its own: {bench.error}"
    deadline = start + max(SECONDS, TRIALS * bench.seconds)
    likeness = likeness or (*key, _likeness(module, bench.numbers))
    if likeness in row_cache:
        return row_cache[likeness], ""
    # others of one class are usually alike: try the row of the previous one first
    if key in row_cache and bench.holds(row_cache[key]):
        row_cache[likeness] = row_cache[key]
        return row_cache[key], ""
    # candidate rows that agree with the channels that move together, most likely first
    moved_channels = count_moved_channels(bench, candidate, path) if attention else []
    if mlps is not None:
        joint = (mlp for mlp in mlps if mlp.owner.path == path and mlp.came.maps <= candidate.came.maps)
        guesses = attention_guesses(module, path, candidate, bench.numbers, moved_channels, next(joint, None))
    else:
        guesses = mlp_guesses(module, path, candidate, bench.numbers)
    readings = list(itertools.islice(guesses, MAX_GUESSES))
    # try them until the deadline, then with edits of the forward
    row, ran = _first_that_holds(bench, readings, deadline)
    if row is None and attention and not ran and bench.has_inputs_of_heads:
        bench.widens_inputs = True
        row, _ = _first_that_holds(bench, readings, deadline)
    if row is None and attention:  # a window may take what a wrong size leaves over, so that it runs
        row = _try_rewrites(bench, module, readings, deadline)
    if row is not None:
        row_cache[key] = row_cache[likeness] = row
        return row, ""
    is_late = time.process_time() > deadline
    return None, _describe_failure(bench, candidate, readings, is_late, moved_channels if attention else None)


def _describe_failure(
    bench: Trial, candidate: Candidate, readings: Sequence[Row], is_late: bool, moved: Sequence[int] | None
) -> str:
    """Say why no reading holds: the projections of the module, and the most likely row as a template.

    ``moved`` are the moved channels of an attention, as `count_moved_channels` counts them; None for an MLP.
    """
    maps = ", ".join(sorted(f"{use.name} {' × '.join(map(str, use.shape))}" for use in candidate.came.maps)[:4])
    last = f"{candidate.last.name} {' × '.join(map(str, candidate.last.shape))}"
    inner = candidate.last.input_size
    heads = ""
    if moved is not None:
        sizes = next(head_sizes(candidate, moved), None)
        if sizes is None:
            by_length = next(head_sizes(candidate), None)
            if by_length is None:
                return (
                    f"its output projection {last} takes {inner} channels, and no axis of what was multiplied "
                    f"({', '.join(map(str, candidate.came.lengths))}) divides them into heads; projections seen: {maps}"
                )
            counts = sorted({count for count in moved if 1 < count < inner})
            return (
                f"two readings contradict each other: the lengths of what it multiplies say {by_length['h']} heads × "
                f"{by_length['d']} on {by_length['g']} key/value heads, and one output of its projections moves "
                f"{' or '.join(map(str, counts))} of the {inner} channels that {candidate.last.name} takes"
            )
        heads = f", of {sizes['h']} heads × {sizes['d']}"
    time_words = f" in the {SECONDS} seconds of the processor that it may take" if is_late else ""
    obstacle = f"; the likeliest failed: {bench.obstacle}" if bench.obstacle else ""
    proposal = ""
    if readings:
        proposal = f"; leanify.read(model, rows=…) accepts a corrected row, such as\n{toml(readings[0])}"
    return (
        f"{bench.count} readings of its parts were tried{time_words}, and none holds{obstacle}; seen were the "
        f"projections {maps} and the output projection {last}{heads}{proposal}"
    )


def _first_that_holds(bench: Trial, readings: Iterable[Row], deadline: float) -> tuple[Row | None, bool]:
    """Return (first row that holds or None, whether any ran); after the first, rows are tried until the deadline."""
    ran = False
    for index, reading in enumerate(readings):
        if index and time.process_time() > deadline:
            break
        bench.count += 1
        verdict = bench.holds(reading)
        if verdict:
            return reading, True
        ran = ran or verdict is False
    return None, ran


def _try_rewrites(bench: Trial, module: nn.Module, readings: list[Row], deadline: float) -> Row | None:
    """Return a row that holds once the forward uses the inner width instead of the width; None without one.

    The inner width is the number of inputs of the output projection, as an expression that a method can evaluate.
    """
    # up to 8 candidates that differ in the attributes and tensors that they resize
    first: dict[str, Row] = {}
    for reading in readings:
        first.setdefault(repr((reading.attributes, [*reading.tensors])), reading)
    for base in list(first.values())[:8]:
        # source code of the inner width, as read from the output projection
        part = next(iter(base.columns))
        module_expression = INSTANCE
        for name in part.split("."):
            module_expression += f"[{name}]" if name.isdigit() else f".{name}"
        weight = get_attribute(module, part)
        if isinstance(weight, Tensor):
            axes = [i for i, how in enumerate(base.tensors[part]) if how != "1"]
            inner = " * ".join(f"{module_expression}.shape[{axis}]" for axis in axes)
        else:
            inner = f"{module_expression}.weight.shape[{linear_features(weight).input_axis}]"
        head_dim = solve_sizes("", module, base)["d"]
        all_edits = rewrites(families.upstream_class(module), inner, head_dim, [*base.rows], part)
        # up to 40 edits of the forward; the first that runs decides the layout
        for edits, methods in itertools.islice(all_edits, 40):
            if time.process_time() > deadline:
                return None
            edited = partial(replace, edits=edits, methods=methods)
            row, ran = _first_that_holds(bench, [edited(base)], deadline)
            if ran and row is None:  # the edit is right, but the layout is wrong
                row, _ = _first_that_holds(bench, map(edited, readings), deadline)
            if row is not None:
                return row
    return None


# -- depth -------------

_COUNTS = re.compile(r"layer|depth|block|^n$")


def check_depth(located_model: LocatedModel) -> bool:
    """Find the stages with a fixed depth, and the numbers that must follow the depth. Returns whether it found any.

    A forward may loop over a list, or over a number stored in the module (``range(self.n_layer)``). The model is run
    with one block removed from every stage; if that fails, it is run again with the numbers that count blocks reduced
    too. Those numbers become rows. A stage that runs in neither way has a fixed depth. At most three forward passes.
    """
    model = located_model.model
    note_fact(model, is_depth_checked=True)
    # a block that occurs twice in its list cannot be removed on its own
    stages, repeats = [], False
    for stage in located_model.stages:
        if stage.container is None:
            continue
        modules = getattr(stage.container, "_modules", None)
        children = list(modules.values() if modules else stage.container.children())
        if len(set(map(id, children))) < len(children):
            fix(model, stage.name, "the same block occurs several times in it")
            repeats = True
        elif len(stage.blocks) > 1:
            stages.append(stage)
    # one block less in every stage
    if not stages or _runs(model, stages, {}):
        return repeats
    # and the numbers that count blocks, too
    numbers = {stage.name: _block_counters(model, stage) for stage in stages}
    if _runs(model, stages, numbers):
        for stage in stages:
            for holder, names in numbers[stage.name].items():
                _attach_numbers(model, holder, dict.fromkeys(names, "l"))
        return True
    # neither runs: the depth is fixed
    for stage in stages:
        fix(model, stage.name, "the model does not run with one block removed")
    return True


def _runs(model: nn.Module, stages: list[LocatedStage], numbers: Mapping[str, Mapping[str, list[str]]]) -> bool:
    """Whether the model runs with one block removed from these stages and calls every remaining block."""
    # a copy with one block less, and with its counters reduced
    twin = make_twin(model)
    blocks: list[nn.Module] = []
    for stage in stages:
        container = get_container(twin, stage.name)
        del container[len(stage.blocks) - 1 :]
        blocks += container.children()
        for holder, names in numbers.get(stage.name, {}).items():
            for name in names:
                set_number(twin.get_submodule(holder), name, len(stage.blocks) - 1)
    called_blocks: set[int] = set()  # indices of the blocks of which any submodule ran
    handles = []
    for index, block in enumerate(blocks):
        for part in block.modules():
            handles.append(part.register_forward_hook(lambda *_, index=index: called_blocks.add(index)))
    with remove_on_exit(handles):
        try:
            run(twin)
        except UnsupportedModel:
            return False
    return len(called_blocks) == len(blocks)


def _block_counters(model: nn.Module, stage: LocatedStage) -> dict[str, list[str]]:
    """Return {module path: names} of integers in a module or its configuration that may count a stage's blocks."""
    counters: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        if not is_inside(container_prefix(stage.name), path):
            continue
        for name, value in vars(module).items():
            if isinstance(value, nn.Module) or name.startswith("_leanify"):
                continue
            content = get_fields(value)
            pairs = [(name, value)]
            pairs += [(f"{name}.{key}", number) for key, number in content.items() if "." not in str(key)]
            for key, number in pairs:
                counts = type(number) is int and number == len(stage.blocks)
                if counts and _COUNTS.search(key.rpartition(".")[2].lower()):
                    counters.setdefault(path, []).append(key)
    return counters
