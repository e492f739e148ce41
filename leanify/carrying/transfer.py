"""Transfer weights to a given shape: narrow, then drop or pair blocks one by one, each time with the smallest damage.

Every block is first brought to the new heads and hidden units (`narrow`). Then, until the depth is right, the block
is dropped or the two neighbours are paired whose loss changes the outputs least on held-out data. Trials are selected
from the blocks alone: by how far a block moves its input, and how far two neighbours side by side are from running one
after the other. A trial begins at the changed block, because earlier blocks do not change (`calibration`). A pair is
joined from narrowed layers and narrowed again, so that its heads and units are the best of both; post-norm layers,
which no single layer equals side by side, are fitted by least squares (`fit`). Damage is measured against the trained
model after every step (`calibration.RunningDivergence`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from leanify.carrying.blocks import copy_modules, replace_blocks, stage_blocks
from leanify.carrying.calibration import (
    Call,
    CallTrace,
    RunningDivergence,
    drop_padding,
    model_divergence,
    record_trace,
    replay,
    replay_recorded,
    run,
)
from leanify.carrying.join import join_blocks
from leanify.carrying.narrow import narrow_model
from leanify.carrying.teacher import CalibratedTeacher, Slot, keep_depth
from leanify.core.architecture import Architecture, Stage
from leanify.core.errors import ShapeError, UnsupportedModel
from leanify.lens.located import LocatedModel
from leanify.reshaping import surgery
from leanify.upstream.on_disk import deep_copy, place_weights

TRIALS_PER_STEP = {"drop": 3, "pair": 2}  # moves to measure per step: the most promising of each kind


@dataclass(frozen=True)
class Step:
    """A step, and the damage after it."""

    move: str  # narrow, drop, pair or deepen
    stage: str
    blocks: Slot  # original blocks
    damage: float
    fitted: bool = False  # a pair of post-norm blocks, fitted by least squares (`fit`)

    @property
    def description(self) -> str:
        if not self.stage:
            return self.move
        how = ", by least squares" if self.fitted else ""
        return f"{self.move} {self.stage} {' + '.join(map(str, self.blocks))}{how}"


@dataclass(frozen=True)
class TransferResult:
    """A model of the target shape, the steps taken, and the unit of damage."""

    model: nn.Module
    steps: list[Step]
    unit: str

    @property
    def damage(self) -> float:
        return self.steps[-1].damage


def transfer_weights(
    teacher: CalibratedTeacher,
    architecture: Architecture,
    on_step: Callable[[Step], None] = lambda step: None,
    moves: Collection[str] = ("drop", "pair"),
) -> TransferResult:
    """Return a new model of this shape that approximates the teacher's outputs.

    ``on_step`` is called with every step; ``moves`` may omit "pair" or "drop". Raises ShapeError if a stage has to lose
    blocks and its new blocks differ.
    """
    transfer = _TransferState(teacher, architecture, on_step, moves)
    for old, new in zip(teacher.architecture.stages, architecture.stages, strict=True):
        if new.depth < old.depth:
            transfer.shorten(old.name, new)
    return transfer.finish()


@dataclass(frozen=True)
class _Move:
    """A possible step: the position that it changes in the stage, and the slots after it."""

    kind: str
    blocks: Slot
    place: int
    after: list[Slot]


@dataclass
class _TransferState:
    """The state of a transfer: the current slots of each stage, and the narrowed block of every slot."""

    teacher: CalibratedTeacher
    target: Architecture
    on_step: Callable[[Step], None]
    moves: Collection[str]
    slots: dict[str, list[Slot]] = field(default_factory=dict)
    blocks: dict[tuple[str, Slot], nn.Module] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    refused_pairs: set[tuple[str, Slot]] = field(default_factory=set)  # pairs that cannot be made
    fitted_pairs: set[tuple[str, Slot]] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.base = narrow_model(self.teacher, keep_depth(self.teacher.architecture, self.target))
        cost = self._divergence(self.base.model)
        self._take(Step("narrow", "", (), cost))

    def _take(self, step: Step) -> None:
        self.steps.append(step)
        self.on_step(step)

    # -- measuring ----------

    def _divergence(self, model: nn.Module) -> float:
        return model_divergence(model, self.teacher.held_out, self.teacher.outputs, self.teacher.headless)

    def _assemble(self, slots: Mapping[str, Sequence[Slot]]) -> LocatedModel:
        blocks = {}
        for name, several in slots.items():
            blocks[name] = [(slot[0], copy_modules(self.blocks[name, slot])) for slot in several]
        return replace_blocks(self.base, blocks)

    @torch.no_grad()
    def _measure(
        self, stage: str, after: list[Slot], place: int, before: Sequence[Sequence[Call]], limit: float = float("inf")
    ) -> tuple[float, CallTrace] | None:
        """Return the damage and the calls of a stage at these slots; None above ``limit``.

        ``before`` are the calls up to ``place``, which are not made again.
        """
        # the model at these slots; its first ``place`` blocks return their recorded outputs
        model: nn.Module = self._assemble({**self.slots, stage: after}).model
        blocks: list[nn.Module] = list(model.get_submodule(stage).children())
        # batch by batch, until the damage is above the limit
        calls: CallTrace = []
        tally = RunningDivergence(self.teacher.outputs)
        for index, batch in enumerate(self.teacher.held_out):
            recorded_calls = before[index][:place] if before else []
            with (
                replay_recorded(blocks[: len(recorded_calls)], recorded_calls),
                record_trace(blocks[len(recorded_calls) :]) as new_calls,
            ):
                output = run(model, batch, self.teacher.headless)
            if tally.add(output, batch) > limit:
                return None
            is_complete = len(new_calls) == 1 and len(new_calls[0]) == len(blocks) - len(recorded_calls)
            calls.append([*recorded_calls, *new_calls[0]] if is_complete else [])
        return tally.divergence, calls if all(calls) else []

    # -- steps ----------

    def shorten(self, stage: str, new: Stage) -> None:
        """Drop or pair blocks of a stage until it has the target depth."""
        if len(set(new.blocks)) > 1:
            raise ShapeError(
                f"stage {stage!r} would lose blocks and have blocks of several shapes: which of them stays where is "
                "not defined; ask for blocks of one shape"
            )
        blocks = stage_blocks(self.base, stage)
        self.slots[stage] = [(i,) for i in range(len(blocks))]
        self.blocks |= {(stage, (i,)): block for i, block in enumerate(blocks)}
        measured = self._measure(stage, self.slots[stage], 0, [])
        assert measured is not None
        calls = measured[1]
        while len(self.slots[stage]) > new.depth:
            calls = self._best_move(stage, new, calls)

    def _best_move(self, stage: str, new: Stage, calls: CallTrace) -> CallTrace:
        """Take the step with the smallest damage among the most promising ones that allow the target depth.

        Returns the calls of the stage's blocks after it. A trial stops when its damage exceeds the best one so far;
        pairs come first, because they usually cost less.
        """
        best: tuple[float, CallTrace, _Move] | None = None
        for kind in ("pair", "drop"):
            trial_count = 0
            for move in self._moves(stage, kind, calls) if kind in self.moves else ():
                if trial_count == TRIALS_PER_STEP[kind]:
                    break
                if min_depth(move.after, self._pairs(stage), self.moves) > new.depth:
                    continue
                key = stage, move.blocks
                try:
                    if kind == "pair" and key not in self.blocks:
                        self.blocks[key], is_fitted = join_blocks(self.teacher, stage, move.blocks[0], new.blocks[0])
                        place_weights(self.blocks[key])
                        self.fitted_pairs |= {key} if is_fitted else set()
                    limit = best[0] if best else float("inf")
                    measured = self._measure(stage, move.after, move.place, calls, limit)
                except (UnsupportedModel, ShapeError) as error:
                    if kind == "pair":
                        self.refused_pairs.add(key)
                    self.refusals.setdefault(stage if kind == "pair" else f"{kind} {move.blocks}", str(error))
                    continue
                trial_count += 1
                if measured is not None:
                    best = *measured, move
        # take the best one
        if best is None:
            reasons = "; ".join(dict.fromkeys(self.refusals.values())) or "no further pair can be made"
            raise ShapeError(f"stage {stage!r} cannot lose a block: {reasons}")
        damage, calls, move = best
        self.slots[stage] = move.after
        pair = move.kind == "pair" and (stage, move.blocks) in self.fitted_pairs
        self._take(Step(move.kind, stage, move.blocks, damage, pair))
        return calls

    def _pairs(self, stage: str) -> set[Slot]:
        """Return the pairs of original blocks that can still be made."""
        depth = len(stage_blocks(self.base, stage)) if "pair" in self.moves else 0
        pairs: set[Slot] = {(i, i + 1) for i in range(depth - 1)}
        return pairs - {slot for name, slot in self.refused_pairs if name == stage}

    def _moves(self, stage: str, kind: str, calls: CallTrace) -> list[_Move]:
        """Return the moves of a kind, the most promising first."""
        slots, moves = self.slots[stage], []
        for place, slot in enumerate(slots):
            if kind == "drop":
                moves.append(_Move(kind, slot, place, [*slots[:place], *slots[place + 1 :]]))
            elif place + 1 < len(slots) and slot + slots[place + 1] in self._pairs(stage):
                both = slot + slots[place + 1]
                moves.append(_Move(kind, both, place, [*slots[:place], both, *slots[place + 2 :]]))
        if len(moves) <= TRIALS_PER_STEP[kind] or not calls:
            return moves
        return sorted(moves, key=lambda move: self._distance(stage, move, calls[0]))

    @torch.no_grad()
    def _distance(self, stage: str, move: _Move, calls: Sequence[Call]) -> float:
        """Return how far the output at the changed position would move on a batch, relative to its variance."""
        mask = self.teacher.held_out[0].get("attention_mask")
        first_call, last_call = calls[move.place], calls[move.place + (move.kind == "pair")]
        output = first_call.state
        if move.kind == "pair":  # both blocks on the first one's input, side by side
            output = (
                first_call.output
                + replay(self.blocks[stage, move.blocks[1:]], last_call, first_call.state)
                - first_call.state
            )
        if output.shape != last_call.output.shape:
            return float("inf")
        rows, reference = drop_padding(output, mask).double(), drop_padding(last_call.output, mask).double()
        return float(
            (rows - reference).square().sum() / (reference - reference.mean(0)).square().sum().clamp(min=1e-300)
        )

    def finish(self) -> TransferResult:
        final = self._assemble(self.slots) if self.slots else self.base
        model = deep_copy(final.model)
        if final.architecture != self.target:
            model = surgery.write(model, self.target)  # stages that become deeper repeat their last block
            self._take(Step("deepen", "", (), self._divergence(model)))
        return TransferResult(model, self.steps, self.teacher.outputs.unit)


def min_depth(slots: Sequence[Slot], pairs: Collection[Slot], moves: Collection[str]) -> int:
    """Return a reachable depth from these slots: 1 with drops; with pairs only, the number left after pairing.

    From the left, every block is paired with the next one if possible, which gives the largest number of pairs.
    """
    if "drop" in moves:
        return 1
    pair_count, place = 0, 0
    while place + 1 < len(slots):
        joins = slots[place] + slots[place + 1] in pairs
        pair_count, place = pair_count + joins, place + 1 + joins
    return len(slots) - pair_count
