"""From a trained model to a given shape: narrow, then drop or pair blocks one by one, each time what costs least.

Every block is first brought to the new heads and hidden units (`narrow`). Then, until the depth is right, the
block is dropped or the two neighbours are paired whose loss moves the outputs least on held-out data. Which
are tried, the blocks alone say: how far a block moves its input, and how far two neighbours side by side are
from one after the other. A trial begins at the changed place, as nothing before it changes (`tape`). A pair
is joined from narrowed layers and narrowed again, so that its heads and units are the best of both; of
post-norm layers, which no layer equals side by side, it is fitted by least squares (`fit`). Damage is
measured against the trained model, after every step (`calibration.damage`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from leanify.architecture import Architecture, Stage
from leanify.errors import ShapeError, UnsupportedModel
from leanify.lens import surgery
from leanify.lens.located import LocatedModel
from leanify.lens.sites import locate
from leanify.warm.blocks import list_of, modules_of, with_blocks
from leanify.warm.calibration import Tally, answers, counted, damage, run
from leanify.warm.donor import Donor, Slot, at_old_depth
from leanify.warm.join import joined
from leanify.warm.narrow import narrowed
from leanify.warm.tape import Call, recording, replay, resumed

TRIED = {"drop": 3, "pair": 2}  # moves of a step that are measured: the likeliest of each kind


@dataclass(frozen=True)
class Step:
    """A step, and the damage after it."""

    move: str  # narrow, drop, pair or deepen
    stage: str
    blocks: Slot  # the original ones
    damage: float
    fitted: bool = False  # a pair of post-norm blocks, by least squares (`fit`)

    @property
    def words(self) -> str:
        if not self.stage:
            return self.move
        how = ", by least squares" if self.fitted else ""
        return f"{self.move} {self.stage} {' + '.join(map(str, self.blocks))}{how}"


@dataclass(frozen=True)
class Carried:
    """A model of the wanted shape, the steps that led there, the unit of damage, and why no pair was made."""

    model: nn.Module
    steps: list[Step]
    unit: str
    refused: dict[str, str]

    @property
    def damage(self) -> float:
        return self.steps[-1].damage

    def to_json(self) -> dict[str, object]:
        steps = [{**vars(step), "blocks": list(step.blocks)} for step in self.steps]
        return {"unit": self.unit, "steps": steps, "not_paired": self.refused}


def carry(
    donor: Donor,
    architecture: Architecture,
    heard: Callable[[Step], None] = lambda step: None,
    moves: Collection[str] = ("drop", "pair"),
) -> Carried:
    """A new model of this shape that computes what the donor does, as nearly as these steps can.

    ``heard`` is told of every step; ``moves`` may lack "pair" or "drop". Raises ShapeError where a stage is
    to lose blocks and its new blocks differ.
    """
    found = _Carrier(donor, architecture, heard, moves)
    for old, new in zip(donor.architecture.stages, architecture.stages, strict=True):
        if new.depth < old.depth:
            found.shorten(old.name, new)
    return found.done()


@dataclass(frozen=True)
class _Measured:
    """A model at slots of blocks: its damage, and the calls of the stage's blocks on the held-out batches."""

    damage: float
    calls: list[list[Call]]


@dataclass(frozen=True)
class _Move:
    """A step that could be taken: the place where it changes the stage, and the slots after it."""

    kind: str
    blocks: Slot
    place: int
    after: list[Slot]


@dataclass
class _Carrier:
    """The state of `carry`: which slots each stage has now, and the narrowed block of every slot."""

    donor: Donor
    wanted: Architecture
    heard: Callable[[Step], None]
    moves: Collection[str]
    slots: dict[str, list[Slot]] = field(default_factory=dict)
    blocks: dict[tuple[str, Slot], nn.Module] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    unpaired: set[tuple[str, Slot]] = field(default_factory=set)  # slots that cannot be made
    fitted: set[tuple[str, Slot]] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.base = locate(narrowed(self.donor, at_old_depth(self.donor.architecture, self.wanted)))
        cost = damage(answers(self.base.model, self.donor.held_out, self.donor.headless), self.donor.teacher)
        self._take(Step("narrow", "", (), cost))

    def _take(self, step: Step) -> None:
        self.steps.append(step)
        self.heard(step)

    # -- measuring ----------

    def _with(self, slots: Mapping[str, Sequence[Slot]]) -> LocatedModel:
        blocks = {}
        for name, several in slots.items():
            blocks[name] = [modules_of(self.blocks[name, slot]) for slot in several]
        return with_blocks(self.base, blocks)

    @torch.no_grad()
    def _measured(
        self, stage: str, after: list[Slot], place: int, before: Sequence[Sequence[Call]], most: float = float("inf")
    ) -> _Measured | None:
        """A stage at these slots, up to ``place`` with what ``before`` has; None above ``most``."""
        model: nn.Module = self._with({**self.slots, stage: after}).model
        blocks: list[nn.Module] = list(model.get_submodule(stage).children())
        asked = getattr(model, "base_model", model) if self.donor.headless else model
        calls: list[list[Call]] = []
        tally = Tally(self.donor.teacher)
        for index, batch in enumerate(self.donor.held_out):
            known = before[index][:place] if before else []
            with resumed(blocks[: len(known)], known), recording(blocks[len(known) :]) as found:
                output = run(asked, batch)
            if tally.add(output, batch) > most:
                return None
            whole = len(found) == 1 and len(found[0]) == len(blocks) - len(known)
            calls.append([*known, *found[0]] if whole else [])
        return _Measured(max(0.0, tally.damage), calls if all(calls) else [])

    # -- steps ----------

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
        now = self._measured(stage, self.slots[stage], 0, [])
        assert now is not None
        while len(self.slots[stage]) > new.depth:
            now = self._best_move(stage, new, now.calls)

    def _best_move(self, stage: str, new: Stage, calls: list[list[Call]]) -> _Measured:
        """Take the step that costs least, of the likeliest ones that leave the stage able to become shallow enough.

        A trial ends where it has cost more than the best one so far; pairs come first, as they mostly cost
        less.
        """
        best: tuple[_Measured, _Move] | None = None
        for kind in ("pair", "drop"):
            tried = 0
            for move in self._moves(stage, kind, calls) if kind in self.moves else ():
                if tried == TRIED[kind]:
                    break
                if least_depth(move.after, self._pairs(stage), self.moves) > new.depth:
                    continue
                made = stage, move.blocks
                try:
                    if kind == "pair" and made not in self.blocks:
                        self.blocks[made], fitted = joined(self.donor, stage, move.blocks[0], new.blocks[0])
                        self.fitted |= {made} if fitted else set()
                    most = best[0].damage if best else float("inf")
                    found = self._measured(stage, move.after, move.place, calls, most)
                except (UnsupportedModel, ShapeError) as error:
                    if kind == "pair":
                        self.unpaired.add(made)
                    self.refused.setdefault(stage if kind == "pair" else f"{kind} {move.blocks}", str(error))
                    continue
                tried += 1
                if found is not None:
                    best = found, move
        if best is None:
            reasons = "; ".join(dict.fromkeys(self.refused.values())) or "no further pair can be made"
            raise ShapeError(f"stage {stage!r} cannot lose a block: {reasons}")
        found, move = best
        self.slots[stage] = move.after
        pair = move.kind == "pair" and (stage, move.blocks) in self.fitted
        self._take(Step(move.kind, stage, move.blocks, found.damage, pair))
        return found

    def _pairs(self, stage: str) -> set[Slot]:
        """The pairs of original blocks that may still be made."""
        depth = len(list_of(self.base, stage)) if "pair" in self.moves else 0
        every: set[Slot] = {(i, i + 1) for i in range(depth - 1)}
        return every - {slot for name, slot in self.unpaired if name == stage}

    def _moves(self, stage: str, kind: str, calls: list[list[Call]]) -> list[_Move]:
        """The moves of a kind, the likeliest first."""
        slots, moves = self.slots[stage], []
        for place, slot in enumerate(slots):
            if kind == "drop":
                moves.append(_Move(kind, slot, place, [*slots[:place], *slots[place + 1 :]]))
            elif place + 1 < len(slots) and slot + slots[place + 1] in self._pairs(stage):
                both = slot + slots[place + 1]
                moves.append(_Move(kind, both, place, [*slots[:place], both, *slots[place + 2 :]]))
        if len(moves) <= TRIED[kind] or not calls:
            return moves
        return sorted(moves, key=lambda move: self._distance(stage, move, calls[0]))

    @torch.no_grad()
    def _distance(self, stage: str, move: _Move, calls: Sequence[Call]) -> float:
        """How far the output at the changed place would move, in units of its variance, on a batch."""
        mask = self.donor.held_out[0].get("attention_mask")
        here, last = calls[move.place], calls[move.place + (move.kind == "pair")]
        given = here.state
        if move.kind == "pair":  # both on the first one's input, side by side
            given = here.output + replay(self.blocks[stage, move.blocks[1:]], last, here.state) - here.state
        if given.shape != last.output.shape:
            return float("inf")
        rows, wanted = counted(given, mask).double(), counted(last.output, mask).double()
        return float((rows - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum().clamp(min=1e-300))

    def done(self) -> Carried:
        model = copy.deepcopy(self._with(self.slots).model if self.slots else self.base.model)
        if locate(model).architecture != self.wanted:
            model = surgery.write(model, self.wanted)  # deeper stages repeat their last block
            cost = damage(answers(model, self.donor.held_out, self.donor.headless), self.donor.teacher)
            self._take(Step("deepen", "", (), cost))
        return Carried(model, self.steps, self.donor.teacher.unit, self.refused)


def least_depth(slots: Sequence[Slot], pairs: Collection[Slot], moves: Collection[str]) -> int:
    """A depth that can be reached from these slots: 1 by drops, by pairs alone what the row allows.

    From the left, every block is paired with the next one where it can be: that makes the most pairs.
    """
    if "drop" in moves:
        return 1
    made, place = 0, 0
    while place + 1 < len(slots):
        joins = slots[place] + slots[place + 1] in pairs
        made, place = made + joins, place + 1 + joins
    return len(slots) - made
