"""Select a shape for every block: measure the possible cuts, and solve a mixed-integer program under the budget.

NVIDIA's Puzzle (Bercovich et al. 2024, arXiv 2411.19146) keeps a library of variants of every block, scores each by its
effect on the outputs, and lets an integer program select. Here a block may have fewer heads, a narrower MLP, or be
removed; each variant is measured in place, starting at its block (`calibration`), and the sizes between the measured
ones are interpolated. Damages are additive only for small cuts, so the first round takes half of the saving, and
everything is measured again from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch

from leanify.carrying.blocks import copy_block, copy_modules, find_stage, replace_blocks, stage_blocks
from leanify.carrying.calibration import (
    Batch,
    CallTrace,
    RunningDivergence,
    TeacherOutputs,
    collect_outputs,
    model_divergence,
    record,
    replay_recorded,
    run,
)
from leanify.carrying.narrow import shape_layer, teacher_cuts
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import Step, TransferResult
from leanify.core.architecture import Block
from leanify.core.errors import BudgetError, ShapeError, UnsupportedModel
from leanify.lens.axes import shared_table
from leanify.lens.located import LocatedModel
from leanify.profiling.counting import parameters
from leanify.upstream.derived_attributes import drop_path_rates, sync_derived_attributes
from leanify.upstream.on_disk import deep_copy

SHARES = (0.5, 0.25)  # of a block's units, or of its heads, that a measured variant keeps
STEPS = 16  # equal parts of a block's units and heads, of which a size between the measured ones has some
ROUNDS = 2
PATCHES = 50  # tokens that an image counts as: a classifier has one output per image
TOKENS = 1024  # tokens of the held-out batches on which variants are scored
PARTS = {"heads": "attentions of fewer heads", "mlp": "narrower MLPs", "block": "blocks left out"}


@dataclass(frozen=True)
class Variant:
    """One possible cut of a block: its parameters and its damage. ``part`` is heads, mlp or block."""

    stage: str
    place: int
    part: str
    block: Block | None
    params_saved: int
    damage: float


def transfer_free(
    teacher: CalibratedTeacher, max_params: int, on_step: Callable[[Step], None] = lambda step: None
) -> TransferResult:
    """Return a model with at most ``max_params`` parameters whose blocks differ, by damage. Raises BudgetError."""
    # held-out batches with some tokens score the variants
    batches, token_count = list[Batch](), 0
    for batch in teacher.held_out:
        if token_count < TOKENS:
            batches.append(batch)
            token_count += teacher.count(batch) if "input_ids" in batch else len(next(iter(batch.values()))) * PATCHES
    target = collect_outputs(teacher.model, batches, teacher.headless)
    current, damage, steps = teacher, 0.0, list[Step]()  # the model as cut so far, on the teacher's data
    before = parameters(teacher.model)
    # heads go in whole key/value groups of the original, also where one group is left, which looks like MQA
    groups: dict[str, int] = {}
    for stage in teacher.architecture.stages:
        groups[stage.name] = max((layer.group for layer in chain.from_iterable(stage.blocks)), default=1)
    for turn in range(1, ROUNDS + 1):
        # the variants of each block, and the selection that saves this round's share
        saving = parameters(current.model) - before + (before - max_params) * turn // ROUNDS
        measured = measure_variants(current, groups, batches, target)
        variants = solve_program([*measured, *interpolate_variants(current, groups, measured)], saving)
        # the model after the cut: its damage is forecast as a sum, and measured
        current = current.for_model(cut_blocks(current, variants))
        forecast = damage + sum(variant.damage for variant in variants)
        damage = model_divergence(current.model, teacher.held_out, teacher.outputs, teacher.headless)
        parts = [variant.part for variant in variants]
        counts = [f"{parts.count(part)} {name}" for part, name in PARTS.items() if part in parts]
        words = f"round {turn}: {', '.join(counts) or 'nothing to lose'}; damages add up to {forecast:.3g}"
        steps.append(Step(words, "", (), damage))
        on_step(steps[-1])
    return TransferResult(deep_copy(current.model), steps, target.unit)


@torch.no_grad()
def measure_variants(
    current: CalibratedTeacher, groups: Mapping[str, int], batches: Sequence[Batch], target: TeacherOutputs
) -> list[Variant]:
    """List every variant of every block and its added damage, for stages with a list of blocks.

    ``groups`` are the heads of a key/value group in each stage of the original.
    """
    library: list[Variant] = []
    base = model_divergence(current.model, batches, target, current.headless)
    for stage in (stage for stage in current.located_model.stages if stage.container is not None):
        blocks = stage_blocks(current.located_model, stage.name)
        calls = record(current.model, blocks, batches)
        parts = ["mlp"] if shared_table(current.located_model, stage) else ["heads", "mlp"]
        for place, layers in enumerate(stage.blocks):
            # fewer heads unless they share a table, a narrower MLP, no block
            old = tuple(layer.read() for layer in layers)
            several: list[tuple[str, Block | None]] = []
            for part in parts:
                several += [(part, _scale(old, part, share, groups[stage.name])) for share in SHARES]
            if len(blocks) > 1:
                several.append(("block", None))
            current.measure_block(stage, place, [shape for _, shape in several if shape is not None])
            for part, new_block in several:
                try:
                    located_model = _reshape_blocks(current, stage.name, {place: new_block})
                except (UnsupportedModel, ShapeError):
                    continue
                params_saved = parameters(current.model) - parameters(located_model.model)
                if params_saved <= 0:
                    continue
                damage = _damage_from(current, located_model, stage.name, place, batches, calls, target) - base
                library.append(Variant(stage.name, place, part, new_block, params_saved, damage))
    return library


def interpolate_variants(
    current: CalibratedTeacher, groups: Mapping[str, int], measured: Sequence[Variant]
) -> list[Variant]:
    """List the sizes between a block's measured ones, with the damage of a monotone cubic (Fritsch and Carlson 1980).

    Parameters are linear in heads and in units.
    """
    from scipy.interpolate import PchipInterpolator

    # of each block's heads and units, the measured sizes with what they save and their damage
    cuts: dict[tuple[str, int, str], dict[int, tuple[int, float]]] = {}
    for variant in measured:
        if variant.block is not None:
            known = cuts.setdefault((variant.stage, variant.place, variant.part), {})
            known[_size(variant.block, variant.part)] = variant.params_saved, variant.damage

    library: list[Variant] = []
    for (stage, place, part), known in cuts.items():
        # the curve through these and the whole block, which saves nothing and does no damage
        old = tuple(layer.read() for layer in find_stage(current.located_model, stage).blocks[place])
        known[_size(old, part)] = 0, 0.0
        if len(known) < 3:
            continue
        sizes = sorted(known)
        saved, damages = zip(*(known[size] for size in sizes), strict=True)
        damage_of = PchipInterpolator(sizes, damages)
        # the sizes between, each once: heads and units are rounded down
        steps = [_scale(old, part, step / STEPS, groups[stage]) for step in range(1, STEPS)]
        between = {_size(block, part): block for block in steps}
        for size, block in between.items():
            if sizes[0] < size and size not in known:
                params_saved = int(np.interp(size, sizes, saved))
                library.append(Variant(stage, place, part, block, params_saved, float(damage_of(size))))
    return library


def _scale(old: Block, part: str, share: float, group: int) -> Block:
    """Return a block with a share of its heads or units; a layer of one key/value head loses heads by ``group``."""
    if part == "mlp":
        return tuple(replace(layer, mlp=_round_down(layer.mlp * share, 8) if layer.mlp else 0) for layer in old)
    multiples = [group if layer.kv_heads == 1 else layer.group for layer in old]
    counts = [_round_down(layer.heads * share, one) for layer, one in zip(old, multiples, strict=True)]
    return tuple(layer.set_heads(count) for layer, count in zip(old, counts, strict=True))


def _size(block: Block, part: str) -> int:
    """Return the heads or the units of a block."""
    return sum(layer.heads if part == "heads" else layer.mlp or 0 for layer in block)


def _round_down(count: float, multiple: int) -> int:
    return max(multiple, int(count) // multiple * multiple)


def _reshape_blocks(current: CalibratedTeacher, stage: str, shapes: Mapping[int, Block | None]) -> LocatedModel:
    """Return the model with some blocks of a stage in other shapes, or removed."""
    # copy the blocks that change; the others share their weights with it
    old = stage_blocks(current.located_model, stage)
    blocks = []
    for i, block in enumerate(old):
        blocks.append(copy_block(block) if shapes.get(i) is not None else copy_modules(block))
    located_model = replace_blocks(current.located_model, {stage: list(enumerate(blocks))})
    for place, shape in shapes.items():
        for layer, size in zip(find_stage(located_model, stage).blocks[place], shape or (), strict=False):
            shape_layer(located_model.model, layer, size, teacher_cuts(current, size))
    # remove the blocks that are left out
    remaining = [(i, block) for i, block in enumerate(blocks) if i not in shapes or shapes[i] is not None]
    return replace_blocks(located_model, {stage: remaining} if len(remaining) < len(blocks) else {})


def _damage_from(
    current: CalibratedTeacher,
    located_model: LocatedModel,
    stage: str,
    place: int,
    batches: Sequence[Batch],
    call_trace: CallTrace | None,
    target: TeacherOutputs,
) -> float:
    """Return the model's damage, reusing the recorded outputs of the blocks before ``place``."""
    blocks, tally = stage_blocks(located_model, stage), RunningDivergence(target)
    located_model.model.eval()
    for index, batch in enumerate(batches):
        recorded_calls = [] if call_trace is None else call_trace[index][:place]
        with replay_recorded(blocks[: len(recorded_calls)], recorded_calls):
            tally.add(run(located_model.model, batch, current.headless), batch)
    return tally.divergence


def solve_program(library: Sequence[Variant], saving: int) -> list[Variant]:
    """Return the variants that save ``saving`` parameters with the smallest sum of damages. Raises BudgetError.

    Per block, at most one variant of heads and one of units, or its removal.
    """
    if saving <= 0:
        return []
    from scipy.optimize import Bounds, LinearConstraint, milp

    # constraints: the saving, one per part of each block, and one per stage
    rows = [np.array([variant.params_saved for variant in library], dtype=float)]
    low, high = [float(saving)], [np.inf]
    for stage, place in dict.fromkeys((v.stage, v.place) for v in library):
        for part in ("heads", "mlp"):
            same_part = [v.stage == stage and v.place == place and v.part in (part, "block") for v in library]
            rows.append(np.array(same_part, dtype=float))
            high.append(1.0)
    for stage in dict.fromkeys(v.stage for v in library):  # at least one block stays
        drops = np.array([v.stage == stage and v.part == "block" for v in library], dtype=float)
        rows.append(drops)
        high.append(max(0.0, drops.sum() - 1))
    low += [0.0] * (len(rows) - 1)
    # 0 or 1 for every variant, with the smallest sum of damages
    costs = np.array([variant.damage for variant in library])
    limits, integrality = LinearConstraint(np.array(rows), low, high), np.ones(len(library))
    solution = milp(costs, constraints=limits, integrality=integrality, bounds=Bounds(0, 1)) if library else None
    if solution is None or solution.x is None:
        raise BudgetError(
            f"free shapes cannot save {saving:,} parameters by fewer heads, narrower MLPs and fewer blocks"
        )
    return [variant for variant, share in zip(library, solution.x, strict=True) if share > 0.5]


def cut_blocks(current: CalibratedTeacher, variants: Sequence[Variant]) -> LocatedModel:
    """Return the model with these variants of its blocks, stage by stage."""
    cut = current
    for stage in dict.fromkeys(variant.stage for variant in variants):
        # the new shape of each block by its place; None for one that is left out
        shapes: dict[int, Block | None] = {}
        for variant in [variant for variant in variants if variant.stage == stage]:
            before = shapes.get(variant.place)
            shapes[variant.place] = variant.block
            if before is not None and variant.block is not None:  # the block loses both heads and units
                heads, mlp = (before, variant.block) if variant.part == "mlp" else (variant.block, before)
                shapes[variant.place] = tuple(replace(a, mlp=b.mlp) for a, b in zip(heads, mlp, strict=True))
        cut = cut.for_model(_reshape_blocks(cut, stage, shapes))
    result = cut.located_model.locate_copy(deep_copy(cut.model))

    # layer counts, block numbers and the rates of drop path as the new depth asks
    located = current.located_model
    rates = {stage.name: drop_path_rates(stage_blocks(located, stage.name)) for stage in located.stages}
    sync_derived_attributes(result.model, current.architecture, result.architecture, rates)
    return result
