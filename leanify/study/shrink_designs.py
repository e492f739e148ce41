"""The shapes that a checkpoint is carried to, all under one budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from leanify.architecture import Architecture
from leanify.design.plan import Plan
from leanify.design.redesign import redesign
from leanify.design.search.design import Design
from leanify.errors import BudgetError, LeanifyError, ShapeError

BOTH = ("drop", "pair")
MEANING = {
    "heads": "fewer layers, more heads",
    "control": "fewer layers, the old heads, wider MLPs",
    "narrow": "all layers, narrower MLPs",
    "dropped": "fewer layers as they were, the others dropped",
    "paired": "fewer layers, neighbours paired",
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


def shapes_of(plan: Plan, names: Sequence[str] = (), free: bool = False) -> list[Shape]:
    """The candidates of a plan's budget, or those named. Raises LeanifyError for a name that is none of them."""
    if unknown := [name for name in names if name not in MEANING]:
        raise LeanifyError(f"--designs {unknown[0]!r} is none of {', '.join(MEANING)}")
    known: set[tuple[Architecture, tuple[str, ...]]] = set()  # the same shape by the same moves is the same model
    found = []
    for shape in _every(plan):
        assert shape.design is not None
        architecture = shape.design.architecture
        if (names and shape.name not in names) or architecture == plan.baseline.architecture:
            continue
        if (architecture, shape.moves) not in known:
            known.add((architecture, shape.moves))
            found.append(shape)
    if (free and not names) or "free" in names:
        limit, whole = plan.request.limits[plan.request.params_cost], plan.baseline
        counted = whole.params if plan.options.count == "all" else whole.params_body
        found.append(Shape("free", None, (), limit + whole.params - counted))
    if not found:
        raise BudgetError(f"no candidate of {', '.join(names or MEANING)} has a shape of its own at this budget")
    return found


def _every(plan: Plan) -> Iterator[Shape]:
    yield Shape("heads", plan.chosen)
    if plan.control is not None:
        yield Shape("control", plan.control)
    old = plan.baseline.architecture.stages
    heads = [stage.primary and stage.primary.heads for stage in old]
    mlp = [stage.primary and stage.primary.mlp for stage in old]
    pinned: dict[str, dict[str, list[Any]]] = {
        "narrow": {"depth": [stage.depth for stage in old], "heads": heads},
        "dropped": {"heads": heads, "mlp": mlp},
    }
    for name, pins in pinned.items():
        found = _pinned(plan, pins)
        if found is not None:
            yield Shape(name, found, ("drop",) if name == "dropped" else BOTH)
    shorter = plan.control or plan.chosen
    half = all(2 * new.depth >= was.depth for new, was in zip(shorter.architecture.stages, old, strict=True))
    if half and any(new.depth < was.depth for new, was in zip(shorter.architecture.stages, old, strict=True)):
        yield Shape("paired", shorter, ("pair",))


def _pinned(plan: Plan, pins: dict[str, list[Any]]) -> Design | None:
    """The best design of the same budget with some sizes pinned; None where there is none."""
    given: dict[str, Any] = {name: value[0] if len(value) == 1 else value for name, value in pins.items()}
    try:
        return redesign(plan.given, plan.options, **given).chosen
    except (BudgetError, ShapeError):
        return None
