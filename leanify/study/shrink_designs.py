"""The shapes that a checkpoint is carried to, all under one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from leanify.architecture import Architecture
from leanify.design.plan import Plan
from leanify.design.redesign import redesign
from leanify.design.search.design import Design
from leanify.errors import BudgetError, LeanifyError, ShapeError
from leanify.lens import surgery
from leanify.sources import find
from leanify.terminal import note
from leanify.units import millions, percent

BOTH = ("drop", "pair")
MEANING = {
    "heads": "fewer layers, more heads",
    "control": "fewer layers, the old heads, wider MLPs",
    "narrow": "all layers, narrower MLPs",
    "dropped": "fewer layers as they were, the others dropped",
    "paired": "half as many layers fewer, neighbours paired",
    "free": "every block its own shape (--shape free)",
}


@dataclass(frozen=True)
class Shape:
    """A candidate: its name, its plan's design, and the moves by which it loses layers.

    One whose blocks are free has no design before it is made, and ``most`` parameters.
    """

    name: str
    design: Design | None
    moves: tuple[str, ...] = BOTH
    most: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **({} if self.design is None else self.design.to_json())}


def shapes_of(
    source: str, target_params: float | int | str, count: str, names: Sequence[str] = (), free: bool = False
) -> tuple[Plan, list[Shape]]:
    """The candidates of a budget, or those named, and a plan that prices them.

    A budget that no design with more heads is within is one for the others, and that is said. Raises BudgetError where
    there is none at all, and LeanifyError for a name that is no candidate's.
    """
    if unknown := [name for name in names if name not in MEANING]:
        raise LeanifyError(f"--designs {unknown[0]!r} is none of {', '.join(MEANING)}")
    plans = _plans(source, {"target_params": target_params, "count": count})
    plan = next(iter(plans.values()))
    known: set[tuple[Architecture, tuple[str, ...]]] = set()  # the same shape by the same moves is the same model
    found = []
    designs = {name: each.chosen for name, each in plans.items()}
    control = _control(plans)
    if control is not None:
        designs["control"] = control
    moves = {"dropped": ("drop",), "paired": ("pair",)}
    for name in MEANING:
        if name not in designs or (names and name not in names):
            continue
        shape = Shape(name, designs[name], moves.get(name, BOTH))
        architecture = designs[name].architecture
        if architecture != plan.baseline.architecture and (architecture, shape.moves) not in known:
            known.add((architecture, shape.moves))
            found.append(shape)
    if (free and not names) or "free" in names:
        limit, whole = plan.request.limits[plan.request.params_cost], plan.baseline
        counted = whole.params if count == "all" else whole.params_body
        found.append(Shape("free", None, (), limit + whole.params - counted))
    if count == "all":
        _say_what_stays(plan)
    if not found:
        raise BudgetError(f"no candidate of {', '.join(names or MEANING)} has a shape of its own at this budget")
    return plan, found


def _say_what_stays(plan: Plan) -> None:
    """A small encoder is mostly embeddings, so that a share of the whole leaves little of its blocks."""
    whole, blocks = plan.baseline.params, plan.baseline.params_body
    kept = plan.request.limits[plan.request.params_cost] - (whole - blocks)
    if 2 * kept * whole < blocks * (kept + whole - blocks):
        note(
            f"{millions(whole - blocks)} of the {millions(whole)} parameters are embeddings and heads and stay, so the "
            f"blocks keep {percent(kept / blocks)} of theirs; --count body applies the budget to the blocks alone"
        )


def _plans(source: str, budget: Mapping[str, Any]) -> dict[str, Plan]:
    """The plans of a budget by candidate: with more heads, and with sizes of the original pinned."""
    plans: dict[str, Plan] = {}
    reason: BudgetError | None = None
    try:
        plans["heads"] = redesign(source, **budget)
    except BudgetError as error:
        reason = error
    old = surgery.read(find.build_on_meta(find.find(source))).stages
    heads = [stage.primary and stage.primary.heads for stage in old]
    mlp = [stage.primary and stage.primary.mlp for stage in old]

    def pin(name: str, **sizes: list[Any]) -> None:
        given: dict[str, Any] = {key: value[0] if len(value) == 1 else value for key, value in sizes.items()}
        with suppress(BudgetError, ShapeError):
            plans[name] = redesign(source, **budget, **given)

    if reason is not None:  # a plan with more heads has its own control
        pin("control", heads=heads)
    pin("narrow", depth=[stage.depth for stage in old], heads=heads)
    pin("dropped", heads=heads, mlp=mlp)
    shorter = _control(plans)
    if shorter is not None:
        stages = zip(old, shorter.architecture.stages, strict=True)
        pin("paired", depth=[-(-(was.depth + new.depth) // 2) for was, new in stages], heads=heads)
    if not plans:
        assert reason is not None
        raise reason
    if reason is not None:
        note("no design with more heads is within the budget; the other candidates compete")
    return plans


def _control(plans: Mapping[str, Plan]) -> Design | None:
    if "heads" in plans:
        return plans["heads"].control
    return plans["control"].chosen if "control" in plans else None
