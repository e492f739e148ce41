"""From a trained model to a given shape: narrow, then drop or pair blocks one by one, each time what costs least.

Every block is first brought to the new heads and hidden units (`narrow`). Then, until the depth is right, the block is
dropped or the two neighbours are paired whose loss moves the outputs least on held-out data: every possibility is
tried. A pair is joined from the original layers and narrowed afterwards, so that its heads and units are the best of
both; of post-norm layers, which no layer equals side by side, it is fitted by least squares (`fit`). Damage is measured
against the trained model, after every step (`calibration.damage`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from leanify.architecture import Architecture, Layer, Stage
from leanify.errors import DataError, ShapeError, UnsupportedModel
from leanify.lens import surgery
from leanify.lens.located import LocatedModel
from leanify.lens.sites import locate
from leanify.warm.blocks import list_of, modules_of, stage_of, with_blocks
from leanify.warm.calibration import Answers, Batch, answers, damage, moments, run
from leanify.warm.drop import influence
from leanify.warm.fit import fitted_pair
from leanify.warm.narrow import narrow, projections, shape_layer
from leanify.warm.pair import joined_block
from leanify.warm.residual import Residual, residuals

Slot = tuple[int, ...]  # the original blocks that one new block is made of, counted from 0
Joined = dict[tuple[str, Slot], tuple[nn.Module, bool]]  # by stage and slot: the pair, and whether it was fitted
TRIED = 12  # blocks of a deep stage that are tried for dropping: those with the least influence


@dataclass(frozen=True)
class Step:
    """One step and the damage after it. ``move`` is narrow, drop, pair or deepen; ``blocks`` are the original ones.

    ``fitted``: the pair is of post-norm blocks, and fitted by least squares (`fit`).
    """

    move: str
    stage: str
    blocks: Slot
    damage: float
    fitted: bool = False

    @property
    def words(self) -> str:
        if self.move in ("narrow", "deepen"):
            return self.move
        how = ", by least squares" if self.fitted else ""
        return f"{self.move} {self.stage} {' + '.join(map(str, self.blocks))}{how}"


@dataclass(frozen=True)
class Carried:
    """A model of the wanted shape, the steps that led there, what damage is measured in, and why no pair was made."""

    model: nn.Module
    steps: list[Step]
    unit: str
    refused: dict[str, str]

    def to_json(self) -> dict[str, object]:
        steps = [{**vars(step), "blocks": list(step.blocks)} for step in self.steps]
        return {"unit": self.unit, "steps": steps, "not_paired": self.refused}


def carry(
    model: nn.Module,
    architecture: Architecture,
    batches: Sequence[Batch],
    held_out: Sequence[Batch],
    tried: Callable[[int], None] = lambda count: None,
    moves: Collection[str] = ("drop", "pair"),
    joined: Joined | None = None,
) -> Carried:
    """A new model of this shape that computes what ``model`` does, as nearly as these steps can.

    ``batches`` choose and correct, ``held_out`` measure the damage; ``tried`` hears how many models were measured;
    without "pair" among the ``moves`` blocks are only dropped, without "drop" only paired. ``joined`` keeps the pairs
    for another shape of the same model on the same batches: joining is the dear part, and does not depend on the shape.
    Raises ShapeError where a stage is to lose blocks and its new blocks differ, DataError without data.
    """
    if not batches or not held_out:
        raise DataError("weights are carried over by what the model does on data: two batches at least are needed")
    found = _Carrier(model, architecture, batches, held_out, tried, moves, {} if joined is None else joined)
    for old, new in zip(found.old.stages, architecture.stages, strict=True):
        if new.depth < old.depth:
            found.shorten(old.name, new)
    return found.done()


class _Carrier:
    """The state of `carry`: which slots each stage has now, and the narrowed block of every slot."""

    def __init__(
        self,
        model: nn.Module,
        architecture: Architecture,
        batches: Sequence[Batch],
        held_out: Sequence[Batch],
        tried: Callable[[int], None],
        moves: Collection[str],
        joined: Joined,
    ) -> None:
        self.original = locate(model)
        self.old = self.original.architecture
        self.wanted = architecture
        self.batches, self.held_out, self.tried, self.moves = batches, held_out, tried, moves
        self.teacher: Answers = answers(model, held_out)
        self.joined = joined
        self.count = 0
        self.refused: dict[str, str] = {}
        self.fitted: set[str] = set()  # stages
        self.base = locate(narrow(model, _at_old_depth(self.old, architecture), batches))
        self.slots: dict[str, list[Slot]] = {}
        self.blocks: dict[tuple[str, Slot], nn.Module] = {}
        self.steps = [Step("narrow", "", (), self._damage({}))]

    # -- measuring ------------------------------------------------------------------------------------------------

    def _with(self, slots: Mapping[str, Sequence[Slot]]) -> LocatedModel:
        return with_blocks(
            self.base, {name: [modules_of(self.blocks[name, s]) for s in several] for name, several in slots.items()}
        )

    def _damage(self, slots: Mapping[str, Sequence[Slot]]) -> float:
        self.count += 1
        self.tried(self.count)
        model = self._with(slots).model if slots else self.base.model
        return damage(answers(model, self.held_out), self.teacher)

    # -- steps ----------------------------------------------------------------------------------------------------

    def shorten(self, stage: str, new: Stage) -> None:
        """Drop or pair blocks of a stage until it is as deep as asked."""
        if len(set(new.blocks)) > 1:
            raise ShapeError(
                f"stage {stage!r} would lose blocks and have blocks of several shapes: which of them stays where is "
                "not defined; ask for blocks of one shape"
            )
        blocks = list_of(self.base, stage)
        self.slots[stage] = [(i,) for i in range(len(blocks))]
        self.blocks |= {(stage, (i,)): block for i, block in enumerate(blocks)}
        pairs = self._pairs(stage, new) if "pair" in self.moves else set()
        candidates = self._droppable(stage) if "drop" in self.moves else set()
        while len(self.slots[stage]) > new.depth:
            self._best_move(stage, pairs, candidates, new.depth)

    def _droppable(self, stage: str) -> set[int]:
        depth = len(self.slots[stage])
        if depth <= TRIED:
            return set(range(depth))
        scores = influence(self.original, stage, self.held_out[:1])[:, 0]
        return set(scores.argsort()[:TRIED].tolist())

    def _pairs(self, stage: str, new: Stage) -> set[Slot]:
        """The pairs of blocks that can be made; each is joined, then narrowed to the new shape."""
        found: set[Slot] = set()
        states = residuals(self.original, stage, lambda model: run(model, self.batches[0]))
        for first in range(len(states) - 1):
            slot = (first, first + 1)
            try:
                if (stage, slot) not in self.joined:
                    self.joined[stage, slot] = self._joined(states[first], states[first + 1])
                block, fitted = self.joined[stage, slot]
                self.fitted |= {stage} if fitted else set()
                self.blocks[stage, slot] = self._narrowed(stage, slot, block, new.blocks[0])
                self._with({stage: [slot, *self.slots[stage][2:]]})
            except UnsupportedModel as error:
                self.refused.setdefault(stage, str(error))
                continue
            found.add(slot)
        return found

    def _joined(
        self, first: Residual | UnsupportedModel, second: Residual | UnsupportedModel
    ) -> tuple[nn.Module, bool]:
        """Two blocks as one, and whether by least squares: exactly side by side where norms stand before."""
        if isinstance(first, Residual) and isinstance(second, Residual) and first.post_norm and second.post_norm:
            return fitted_pair(self.original, first, second, self.batches), True
        return joined_block(self.original, first, second), False

    def _narrowed(self, stage: str, slot: Slot, block: nn.Module, shape: Sequence[Layer]) -> nn.Module:
        """The joined block at the new shape, by what it does in the original model."""
        others = list_of(self.original, stage)
        placed = [*others[: slot[0]], block, *others[slot[0] + 2 :]]
        located = with_blocks(self.original, {stage: [modules_of(other) for other in placed]})
        layers = stage_of(located, stage).blocks[slot[0]]
        alone = replace(located, stages=[replace(stage_of(located, stage), blocks=[layers])])
        found = moments(located.model, projections(alone), self.batches)
        for layer, wanted in zip(layers, shape, strict=True):
            shape_layer(located.model, layer, wanted, found)
        return list_of(located, stage)[slot[0]]

    def _best_move(self, stage: str, pairs: set[Slot], droppable: set[int], depth: int) -> None:
        """The step that costs least, of those after which the stage can still become as shallow as asked."""
        slots = self.slots[stage]
        options: list[tuple[float, str, Slot, list[Slot]]] = []
        for place, slot in enumerate(slots):
            moves = []
            if slot[0] in droppable:
                moves.append(("drop", slot, [*slots[:place], *slots[place + 1 :]]))
            last = place + 1 == len(slots)
            joined = slot if last else slot + slots[place + 1]
            if not last and joined in pairs:
                moves.append(("pair", joined, [*slots[:place], joined, *slots[place + 2 :]]))
            for move, blocks, after in moves:
                if least_depth(after, pairs, droppable) > depth:
                    continue
                try:
                    options.append((self._damage({**self.slots, stage: after}), move, blocks, after))
                except (UnsupportedModel, ShapeError) as error:
                    self.refused.setdefault(f"{move} {blocks}", str(error))
        if not options:
            reasons = "; ".join(dict.fromkeys(self.refused.values())) or "no further pair can be made"
            raise ShapeError(f"stage {stage!r} cannot lose a block: {reasons}")
        cost, move, blocks, self.slots[stage] = min(options, key=lambda option: option[0])
        self.steps.append(Step(move, stage, blocks, cost, move == "pair" and stage in self.fitted))

    def done(self) -> Carried:
        model = copy.deepcopy(self._with(self.slots).model if self.slots else self.base.model)
        if locate(model).architecture != self.wanted:
            model = surgery.write(model, self.wanted)  # deeper stages repeat their last block
            cost = damage(answers(model, self.held_out), self.teacher)
            self.steps.append(Step("deepen", "", (), cost))
        return Carried(model, self.steps, self.teacher.unit, self.refused)


def least_depth(slots: Sequence[Slot], pairs: Collection[Slot], droppable: Collection[int]) -> int:
    """A depth that can be reached from these slots by pairs alone or by drops alone.

    From the left, every block is paired with the next one where it can be: no other choice makes more pairs of a row.
    """
    made, place = 0, 0
    while place + 1 < len(slots):
        joins = slots[place] + slots[place + 1] in pairs
        made, place = made + joins, place + 1 + joins
    dropped = sum(slot[0] in droppable for slot in slots)
    return min(len(slots) - made, max(1, len(slots) - dropped))


def _at_old_depth(old: Architecture, new: Architecture) -> Architecture:
    """The new heads and units at the old depth."""
    stages = []
    for before, after in zip(old.stages, new.stages, strict=True):
        blocks = tuple(after.blocks[min(i, after.depth - 1)] for i in range(before.depth))
        stages.append(replace(after, blocks=blocks))
    return replace(new, stages=tuple(stages))
