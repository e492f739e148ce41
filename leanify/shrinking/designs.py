"""The candidate shapes for a checkpoint's weights, all under one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from leanify.core.architecture import Architecture
from leanify.core.errors import BudgetError, LeanifyError, ShapeError
from leanify.core.terminal import note
from leanify.core.units import format_count, format_share
from leanify.lens import surgery
from leanify.lens.sites import locate
from leanify.profiling.counting import body_parameters, parameters
from leanify.search.design import Design, design_of_architecture
from leanify.search.narrow_shape import WidthScale
from leanify.search.plan import Plan
from leanify.search.redesign import redesign
from leanify.shrinking.rotation import rotated_architecture, untie_head
from leanify.sources import find
from leanify.sources.describe import describe

BOTH = ("drop", "pair")
# The bounds of proposals do not apply to the other candidates: data decides about them.
NO_BOUNDS: Mapping[str, Any] = {"min_depth": 1, "min_mlp": 0.25}
MEANING = {
    "heads": "fewer layers, more heads",
    "control": "fewer layers, the old heads, wider MLPs",
    "narrow": "all layers, narrower MLPs",
    "dropped": "fewer layers as they were, the others dropped",
    "paired": "half as many layers fewer, neighbours paired",
    "rotated": "a narrower residual stream, in its principal components (by name)",
    "free": "every block its own shape (--shape free)",
}


@dataclass(frozen=True)
class Shape:
    """A candidate: its name, its plan's design, and the allowed moves to remove layers.

    A candidate with free blocks has no design in advance; it gets at most ``max_params`` parameters.
    """

    name: str
    design: Design | None
    moves: tuple[str, ...] = BOTH
    max_params: int = 0

    def to_json(self) -> dict[str, Any]:
        facts = {"params": self.max_params} if self.design is None else self.design.to_json()
        return {"name": self.name, **facts}


def plan_shapes(
    source: str, target_params: float | int | str, count: str, names: Sequence[str] = (), kind: str = "uniform"
) -> tuple[Plan, list[Shape]]:
    """Return a plan that prices the candidates of a budget, and the candidates, or only the named ones.

    ``kind`` "free" adds a candidate whose blocks differ; "plain" removes shapes that the model's own library cannot
    build. A note names shapes that need more than that library before any work begins.

    If no design with more heads fits the budget, the other candidates are used, with a note. Raises BudgetError if no
    candidate fits, and LeanifyError for a name that is not a candidate's.
    """
    if unknown := [name for name in names if name not in MEANING]:
        raise LeanifyError(f"--designs {unknown[0]!r} is not one of {', '.join(MEANING)}")
    # plans within the budget, their designs, and the moves that remove layers
    plans = _plans(source, {"target_params": target_params, "count": count})
    plan = next(iter(plans.values()))
    shapes_seen: set[tuple[Architecture, tuple[str, ...]]] = set()  # the same shape and moves give the same model
    shapes = []
    designs = {name: plan_found.chosen for name, plan_found in plans.items() if name != "heads"}
    if "heads" in plans and plans["heads"].lean is not None:
        designs["heads"] = plans["heads"].lean
    control = _control(plans)
    if control is not None:
        designs["control"] = control
    if "rotated" in names:
        designs["rotated"] = _rotated(source, plan)
    moves = {"dropped": ("drop",), "paired": ("pair",), "rotated": ("rotate",)}
    # one candidate per shape that differs from the baseline and from earlier ones
    for name in MEANING:
        if name not in designs or (names and name not in names):
            continue
        shape = Shape(name, designs[name], moves.get(name, BOTH))
        architecture = designs[name].architecture
        if architecture != plan.baseline.architecture and (architecture, shape.moves) not in shapes_seen:
            shapes_seen.add((architecture, shape.moves))
            shapes.append(shape)
    # shapes that the model's own library cannot build; free shapes are always such
    needs_more = set()
    for shape in shapes:
        if shape.design and not _opens_alone(source, shape.design.architecture):
            needs_more.add(shape.name)
    if kind == "plain":
        shapes = [shape for shape in shapes if shape.name not in needs_more]
    if kind != "plain" and ("free" in names or (kind == "free" and not names)):
        limit, baseline = plan.request.limits[plan.request.params_cost], plan.baseline
        baseline_params = baseline.params if count == "all" else baseline.params_body
        shapes.append(Shape("free", None, (), limit + baseline.params - baseline_params))
        needs_more.add("free")
    if count == "all":
        _note_fixed_part(plan)
    if shapes and needs_more and kind != "plain":
        _note_openers(source, [shape.name for shape in shapes if shape.name in needs_more])
    if not shapes:
        raise BudgetError(f"no candidate of {', '.join(names or MEANING)} has a separate shape at this budget")
    return plan, shapes


def _opens_alone(source: str, architecture: Architecture) -> bool:
    """Whether the model's own library builds the shape, without leanify and without code stored with the weights."""
    model = surgery.write(find.build_on_meta(find.find(source)), architecture)
    description = describe(model)
    return description.architecture is None and "attn_layer" not in description.origin.options


def _note_openers(source: str, names: Sequence[str]) -> None:
    """Note how to open shapes that the model's own library cannot build."""
    listing, plural = ", ".join(names), "s" * (len(names) == 1)
    library = find.find(source).origin.library
    if library == "hf":
        how = "in transformers with trust_remote_code=True, with the code stored next to the weights"
    elif library == "timm":
        how = "in timm after `import leanify` alone"
    else:
        return
    note(f"{listing} open{plural} {how}; --shape plain gives a model that opens anywhere")


def _note_fixed_part(plan: Plan) -> None:
    """Note that a small encoder is mostly embeddings, so that a share of the whole leaves little for its blocks."""
    all_params, blocks = plan.baseline.params, plan.baseline.params_body
    block_params = plan.request.limits[plan.request.params_cost] - (all_params - blocks)
    if 2 * block_params * all_params < blocks * (block_params + all_params - blocks):
        note(
            f"{format_count(all_params - blocks)} of the {format_count(all_params)} parameters are embeddings and "
            f"heads and "
            f"stay, so the "
            f"blocks keep {format_share(block_params / blocks)} of theirs; --count body applies the budget to the "
            f"blocks alone"
        )


def _plans(source: str, budget: Mapping[str, Any]) -> dict[str, Plan]:
    """Return the plans of a budget by candidate: with more heads, and with some of the original's sizes pinned."""
    plans: dict[str, Plan] = {}
    reason: BudgetError | None = None
    try:
        plans["heads"] = redesign(source, **budget)
    except BudgetError as error:
        reason = error
    # sizes of the original that the other candidates keep
    old = surgery.read(find.build_on_meta(find.find(source))).stages
    heads = [stage.primary and stage.primary.heads for stage in old]
    mlp = [stage.primary and stage.primary.mlp for stage in old]

    def pin(name: str, **sizes: list[Any]) -> None:
        pins: dict[str, Any] = {}
        for key, value in sizes.items():
            pins[key] = value[0] if len(value) == 1 else value
        with suppress(BudgetError, ShapeError):
            plans[name] = redesign(source, **budget, **NO_BOUNDS, **pins)

    has_lean = "heads" in plans and plans["heads"].lean is not None
    if not has_lean:  # a plan with more heads already contains a control
        pin("control", heads=heads)
    pin("narrow", depth=[stage.depth for stage in old], heads=heads)
    pin("dropped", heads=heads, mlp=mlp)
    shorter = _control(plans)
    if shorter is not None:
        stages = zip(old, shorter.architecture.stages, strict=True)
        pin("paired", depth=[-(-(was.depth + new.depth) // 2) for was, new in stages], heads=heads)
    if not plans:
        assert reason is not None
        raise BudgetError(f"{str(reason).rstrip('.')}. A larger budget helps, and so does --shape free")
    if not has_lean:
        note("no design with more heads fits the budget; the other candidates are used")
    return plans


def _rotated(source: str, plan: Plan) -> Design:
    """Return the widest shape within the budget with all blocks, heads and hidden units. Raises LeanifyError.

    Embeddings that are the output's, too, count twice: a rotation gives the output a matrix of its own.
    """
    model, baseline = find.build_on_meta(find.find(source)), plan.baseline.architecture
    untie_head(model)
    limit, cost = plan.request.limits[plan.request.params_cost], plan.request.params_cost

    def size(shape: Architecture) -> int:
        written = locate(surgery.write(model, shape))
        return parameters(written.model) if cost == "params" else body_parameters(written)

    # the widest first; upstream cannot build some of them
    scale = WidthScale.read(baseline)
    full_width, full_size = baseline.stages[0].primaries[0].width, size(baseline)
    slope, refusal = 0.0, None  # parameters a channel: heads and MLPs stay, so they are a line in the width
    for unit in scale.units_below():
        width = scale.width(unit)
        if slope and full_size - slope * (full_width - width) > limit:
            continue
        shape = rotated_architecture(baseline, width)
        try:
            params = size(shape)
        except ShapeError as error:
            refusal = error
            continue
        if params <= limit:
            return design_of_architecture(plan.prices, shape)
        slope = (full_size - params) / (full_width - width)
    if refusal is not None and not slope:
        raise refusal
    raise BudgetError(f"rotated: no width has at most {format_count(limit)} parameters")


def _control(plans: Mapping[str, Plan]) -> Design | None:
    if "heads" in plans and plans["heads"].lean is not None:
        return plans["heads"].control
    return plans["control"].chosen if "control" in plans else None
