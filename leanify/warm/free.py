"""Every block its own shape: what each could lose is measured, and a mixed-integer program chooses under the budget.

NVIDIA's Puzzle (Bercovich et al. 2024, arXiv 2411.19146) keeps a library of variants of every block, scores
each by what it does to the outputs, and lets an integer program choose. Here a block may have fewer heads, a
narrower MLP, or be left out; each is measured in place, from the block on (`tape`). Damages add up as long as
little is taken, so half of the way is gone first, and everything is measured again from there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from leanify.architecture import Block
from leanify.errors import BudgetError, ShapeError, UnsupportedModel
from leanify.lens.located import LocatedModel
from leanify.lens.sites import locate
from leanify.upstream.settle import settle
from leanify.warm.axes import shared_table
from leanify.warm.blocks import copied, list_of, modules_of, stage_of, with_blocks
from leanify.warm.calibration import Answers, Batch, answers, damage, gathered, run
from leanify.warm.carry import Carried, Step
from leanify.warm.donor import Donor
from leanify.warm.narrow import by_donor, shape_layer
from leanify.warm.tape import Tape, record, resumed

UNITS, HEADS = (0.75, 0.5, 0.25), (0.5, 0.25)  # shares that a block may keep
ROUNDS = 2
PATCHES = 50  # that a picture counts as: a classifier answers once a picture
TOKENS = 1024  # of the held-out batches, by which variants are scored


@dataclass(frozen=True)
class Variant:
    """One thing that a block could lose: its parameters, and the damage. ``part``: heads, mlp or block."""

    stage: str
    place: int
    part: str
    block: Block | None
    saved: int
    damage: float


def free(donor: Donor, most: int, heard: Callable[[Step], None] = lambda step: None) -> Carried:
    """A model of at most ``most`` parameters whose blocks differ in shape, by damage. Raises BudgetError."""
    held = list(_some(donor))
    target = answers(donor.model, held, donor.headless)
    model, reached, steps = donor.model, 0.0, list[Step]()
    before = _parameters(model)
    for turn in range(1, ROUNDS + 1):
        now = donor if model is donor.model else replace(donor, model=model, _heads={}, _cuts={})
        taken = choose(variants(now, held, target), _parameters(model) - before + (before - most) * turn // ROUNDS)
        model = applied(now, taken)
        said = reached + sum(variant.damage for variant in taken)
        reached = damage(answers(model, donor.held_out, donor.headless), donor.teacher)
        steps.append(Step(f"round {turn}: {_words(taken)}; damages add up to {said:.3g}", "", (), reached))
        heard(steps[-1])
    return Carried(copy.deepcopy(model), steps, target.unit, {})


def passes(donor: Donor) -> float:
    """About how often the model runs on all held-out batches for `free`: every variant from its block on."""
    blocks = sum(len(stage.blocks) for stage in donor.architecture.stages)
    share = len(list(_some(donor))) / len(donor.held_out)
    return ROUNDS * (1 + blocks * (len(UNITS) + len(HEADS) + 1) / 2 * share)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _words(taken: Sequence[Variant]) -> str:
    names = {"heads": "attentions of fewer heads", "mlp": "narrower MLPs", "block": "blocks left out"}
    parts = [variant.part for variant in taken]
    found = [f"{parts.count(part)} {name}" for part, name in names.items() if part in parts]
    return ", ".join(found) or "nothing to lose"


def _some(donor: Donor) -> Iterator[Batch]:
    """As many of the held-out batches as hold `TOKENS` tokens."""
    seen = 0
    for batch in donor.held_out:
        if seen >= TOKENS:
            return
        yield batch
        seen += donor.count(batch) if "input_ids" in batch else len(next(iter(batch.values()))) * PATCHES


@torch.no_grad()
def variants(donor: Donor, held: Sequence[Batch], target: Answers) -> list[Variant]:
    """Every variant of every block of the stages that are lists, with what it adds to the damage."""
    found: list[Variant] = []
    base = damage(answers(donor.model, held, donor.headless), target)
    for stage in (stage for stage in donor.located.stages if stage.container is not None):
        blocks = list_of(donor.located, stage.name)
        calls = record(donor.model, blocks, held)
        shared = shared_table(donor.located, stage) != ""
        for place, layers in enumerate(stage.blocks):
            old = tuple(layer.read() for layer in layers)
            several = list(_shapes(old, shared, len(blocks)))
            donor.look(stage, place, [wanted for _, wanted in several if wanted is not None])
            for part, wanted in several:
                try:
                    located = _with(donor, stage.name, {place: wanted})
                except (UnsupportedModel, ShapeError):
                    continue
                saved = _parameters(donor.model) - _parameters(located.model)
                if saved <= 0:
                    continue
                cost = damage(_answers(donor, located, stage.name, place, held, calls), target) - base
                found.append(Variant(stage.name, place, part, wanted, saved, cost))
    return found


def _shapes(old: Block, shared: bool, depth: int) -> Iterator[tuple[str, Block | None]]:
    """What a block could become: fewer heads where it has its own, narrower MLPs, nothing."""
    for share in () if shared else HEADS:
        yield "heads", tuple(layer.with_heads(_whole(layer.heads * share, layer.group)) for layer in old)
    for share in UNITS:
        yield "mlp", tuple(replace(layer, mlp=_whole(layer.mlp * share, 8) if layer.mlp else 0) for layer in old)
    if depth > 1:
        yield "block", None


def _whole(count: float, multiple: int) -> int:
    return max(multiple, int(count) // multiple * multiple)


def _with(donor: Donor, stage: str, wanted: Mapping[int, Block | None]) -> LocatedModel:
    """The donor with some blocks of a stage at other shapes, or without them."""
    old = list_of(donor.located, stage)
    blocks = [copied(block) if wanted.get(i) is not None else modules_of(block) for i, block in enumerate(old)]
    located = with_blocks(donor.located, {stage: blocks})
    for place, shape in wanted.items():
        for layer, size in zip(stage_of(located, stage).blocks[place], shape or (), strict=False):
            shape_layer(located.model, layer, size, by_donor(donor, size))
    left = [block for i, block in enumerate(blocks) if i not in wanted or wanted[i] is not None]
    return with_blocks(located, {stage: left} if len(left) < len(blocks) else {})


def _answers(
    donor: Donor, located: LocatedModel, stage: str, place: int, held: Sequence[Batch], tape: Tape | None
) -> Answers:
    """What the model says when the blocks before ``place`` give what they gave."""
    model: Any = located.model
    blocks = list_of(located, stage)
    asked = getattr(model, "base_model", model) if donor.headless else model
    model.eval()
    outputs = []
    for index, batch in enumerate(held):
        known = [] if tape is None else tape[index][: min(place, len(blocks))]
        with resumed(blocks[: len(known)], known):
            outputs.append(run(asked, batch))
    return gathered(outputs, held)


def choose(library: Sequence[Variant], saving: int) -> list[Variant]:
    """The variants that save so many parameters at the least sum of damages. Raises BudgetError.

    Of a block one shape of heads and one of units, or nothing of it.
    """
    if saving <= 0:
        return []
    from scipy.optimize import Bounds, LinearConstraint, milp

    rows = [np.array([variant.saved for variant in library], dtype=float)]
    low, high = [float(saving)], [np.inf]
    for stage, place in dict.fromkeys((v.stage, v.place) for v in library):
        for part in ("heads", "mlp"):
            alike = [v.stage == stage and v.place == place and v.part in (part, "block") for v in library]
            rows.append(np.array(alike, dtype=float))
            high.append(1.0)
    for stage in dict.fromkeys(v.stage for v in library):  # one block stays
        gone = np.array([v.stage == stage and v.part == "block" for v in library], dtype=float)
        rows.append(gone)
        high.append(max(0.0, gone.sum() - 1))
    low += [0.0] * (len(rows) - 1)
    costs = np.array([variant.damage for variant in library])
    limits, whole = LinearConstraint(np.array(rows), low, high), np.ones(len(library))
    found = milp(costs, constraints=limits, integrality=whole, bounds=Bounds(0, 1)) if library else None
    if found is None or found.x is None:
        raise BudgetError(
            f"free shapes cannot save {saving:,} parameters by fewer heads, narrower MLPs and fewer blocks"
        )
    return [variant for variant, taken in zip(library, found.x, strict=True) if taken > 0.5]


def applied(donor: Donor, taken: Sequence[Variant]) -> nn.Module:
    """The donor with these variants."""
    model = donor
    for stage in dict.fromkeys(variant.stage for variant in taken):
        wanted: dict[int, Block | None] = {}
        for variant in taken:
            before = wanted.get(variant.place)
            if variant.stage != stage:
                continue
            wanted[variant.place] = variant.block
            if before is not None and variant.block is not None:  # one that loses heads and units
                heads, mlp = (before, variant.block) if variant.part == "mlp" else (variant.block, before)
                both = [replace(one, mlp=other.mlp) for one, other in zip(heads, mlp, strict=True)]
                wanted[variant.place] = tuple(both)
        located = _with(model, stage, wanted)
        model = replace(donor, model=located.model, _heads={}, _cuts={})
    result = copy.deepcopy(model.model)
    settle(result, donor.architecture, locate(result).architecture, {})
    return result
