"""Compare many designs of one budget and stop most of them early: successive halving (Jamieson and Talwalkar 2016).

All designs train with one seed for a short share of the schedule, the better half trains longer, and the last three
train to the end with every seed. A stopped run is resumed from its checkpoint, so nothing is trained twice, and the
learning rate always follows the full schedule.

Designs are ranked by their mean training loss before the stop, which is less noisy than a single early evaluation. Its
rank correlation with the final quality of ten designs (Spearman's ρ, six tasks, `recipes/results/ranking.md`) is on
average 0.24 after 10 % of the schedule, 0.45 after 15 %, 0.65 after 30 % and 0.72 after 40 %; on the worst task −0.7,
−0.4, 0.1 and 0.5. Therefore the first cut only halves the field, the second is three times as late, and both are as
late as the cost allows. If the first cut is too early for a task, a smaller field makes it later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanify.design.plan import Plan
from leanify.design.search import alternatives
from leanify.design.search.grid import Grid, grids_of
from leanify.errors import BudgetError, RecipeError, ShapeError
from leanify.study import runner
from leanify.study.designs import Designer
from leanify.study.folder import Rung, StudyFolder
from leanify.study.plan import CONTROL, LEAN, Key, PlannedDesign, StudyPlan, ranked
from leanify.study.runner import Engine
from leanify.study.surface import of_design, of_grid

COST = 4.0  # target cost of a tournament, in trainings of the baseline; exceeded if FIRST requires it
FIRST = (0.1, 0.2)  # earliest and latest first cut, as shares of the schedule
LATER = 3  # the second cut is this many times as late as the first
FINALISTS = 3
SEEDS = 2  # default number of seeds for the finalists
SHALLOWEST = 4  # a design has at least 1/SHALLOWEST of the baseline's layers; shallower ones were never measured
SPENT = 0.97  # share of the budget that a design must use
CHOICE = 2  # choose from at least this many times the number of designs taken
WINDOW = 0.2  # the training loss is averaged over this last share of the steps so far


# -- the field --------------------------------------------------------------------------------------------------------


def field_of(asked: Designer, count: int) -> tuple[PlannedDesign, ...]:
    """Choose ``count`` designs that use the budget: lean, control, depth-only, and those that differ most from them.

    Raises RecipeError if ``count`` is not above the number of finalists.
    """
    if count <= FINALISTS:
        raise RecipeError(f"--tournament must be above its {FINALISTS} finalists, for instance 12; it is {count}")
    return ranked(tuple(asked.priced(lambda: _field(asked, count))))


def _field(asked: Designer, count: int) -> list[PlannedDesign]:
    plan = shallow(asked.plan)
    found = list(_known(asked, plan))
    points = np.concatenate([of_design(design) for design in found])
    grid, inside = spending(plan, CHOICE * count)
    for place in spread(of_grid(grid)[inside], points, count - len(found)):
        shape = grid.shape_at(int(inside[place]))
        found.append(asked.planned(f"field-{len(found) + 1}", asked.design(shape)))
    return found


def shallow(plan: Plan) -> Plan:
    """Lower a plan's minimum depth below `redesign`'s default, which is not needed for designs that will be trained."""
    deepest = max(stage.depth for stage in plan.prices.architecture.stages)
    options = replace(plan.request.options, min_depth=math.ceil(deepest / SHALLOWEST))
    return replace(plan, request=replace(plan.request, options=options))


def _known(asked: Designer, plan: Plan) -> Iterator[PlannedDesign]:
    """The named designs that exist under this budget, without duplicates of the same shape."""
    seen: list[Any] = []
    for name in (LEAN, CONTROL, "depth-only"):
        try:
            design = alternatives.named(plan, name)
        except (BudgetError, ShapeError):
            continue
        if design.architecture not in seen:
            seen.append(design.architecture)
            yield asked.planned(name, design)


def spending(plan: Plan, least: int) -> tuple[Grid, NDArray[np.int64]]:
    """Return a plan's priced designs and the indices of those that use its budget, largest first.

    If fewer than ``least`` use it, the ``least`` largest within the budget. Raises ShapeError for several towers.
    """
    grids = grids_of(plan.prices, plan.request)
    most = plan.request.limits.get(plan.request.params_cost)
    if len(grids) > 1 or most is None:
        raise ShapeError(f"{plan.source} changes in {len(grids)} towers; name the designs with --designs instead")
    [grid] = grids
    within = np.flatnonzero(grid.params <= most)
    order = within[np.argsort(-grid.params[within], kind="stable")]
    return grid, order[: max(int((grid.params[order] >= SPENT * most).sum()), least)]


def spread(points: NDArray[np.float64], taken: NDArray[np.float64], count: int) -> list[int]:
    """Indices of points (n, 4) chosen greedily to be farthest from those taken (maximin), with axes scaled alike."""
    both = np.concatenate([points, taken])
    span = np.ptp(both, axis=0)
    points, taken = points / np.where(span, span, 1), taken / np.where(span, span, 1)
    nearest = np.linalg.norm(points[:, None] - taken[None], axis=-1).min(1)
    chosen: list[int] = []
    for _ in range(min(count, len(points))):
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.linalg.norm(points - points[chosen[-1]], axis=-1))
    return chosen


# -- cost -------------------------------------------------------------------------------------------------------------


def shares(plan: StudyPlan) -> tuple[float, float]:
    """The shares of the schedule at which the two cuts take place: as late as `COST` allows, within `FIRST`."""
    dropped_first, dropped_second = _dropped(plan)
    left = COST / _relative_macs(plan) - FINALISTS * len(plan.seeds)
    first = min(max(left / (dropped_first + LATER * dropped_second), FIRST[0]), FIRST[1])
    first = math.floor(1000 * first) / 1000
    return first, round(LATER * first, 3)


def trainings(plan: StudyPlan) -> float:
    """The tournament's cost in full trainings of a design."""
    parts = zip(_dropped(plan), shares(plan), strict=True)
    return sum(number * share for number, share in parts) + FINALISTS * len(plan.seeds)


def _dropped(plan: StudyPlan) -> tuple[int, int]:
    """The number of designs dropped at each cut."""
    kept = kept_of(len(plan.designs))
    return len(plan.designs) - kept, kept - FINALISTS


def runs(plan: StudyPlan) -> int:
    """The number of runs, including those stopped early."""
    return len(plan.designs) + FINALISTS * (len(plan.seeds) - 1)


def cost(plan: StudyPlan) -> float:
    """The tournament's cost in trainings of the baseline, by multiply-adds."""
    return _relative_macs(plan) * trainings(plan)


def is_open(plan: StudyPlan) -> bool:
    """Whether a tournament's field has not yet been reduced to its finalists."""
    return plan.tournament and len(plan.designs) > FINALISTS


def _relative_macs(plan: StudyPlan) -> float:
    """The designs' mean multiply-adds as a share of the baseline's; 1 if those are unknown."""
    if not plan.baseline_macs:
        return 1.0
    return sum(design.macs for design in plan.designs) / len(plan.designs) / plan.baseline_macs


def kept_of(count: int) -> int:
    """The number of designs kept at the first cut."""
    return max(FINALISTS, math.ceil(count / 2))


# -- playing ----------------------------------------------------------------------------------------------------------


def play(folder: StudyFolder, engine: Engine, on_end: Callable[[Key], None] | None = None) -> None:
    """Reduce the field to its finalists, which then form the study's plan. Resumes where it was interrupted."""
    plan, rungs = folder.plan, list(folder.rungs())
    if not is_open(plan):
        return
    names = [design.name for design in plan.designs]
    for number, share in enumerate(shares(plan)):
        if number < len(rungs):
            names = list(rungs[number].kept)
            continue
        keys = [Key(name, plan.seeds[0]) for name in names]
        for key in runner.run_all(folder, [key for key in keys if folder.outcome(key) is None], engine, share):
            if on_end is not None:
                on_end(key)
        losses = {key.design: loss_before(folder, key) for key in keys}
        names = best(losses)[: kept_of(len(names)) if number == 0 else FINALISTS]
        rungs.append(Rung(share, losses, tuple(names)))
        folder.write_rungs(rungs)
    folder.replan(replace(plan, designs=ranked(tuple(plan.design(name) for name in names))))


def best(losses: Mapping[str, float | None]) -> list[str]:
    """Design names sorted by loss, failed ones last."""
    return sorted(losses, key=lambda name: math.inf if (loss := losses[name]) is None else loss)


def loss_before(folder: StudyFolder, key: Key) -> float | None:
    """The mean training loss over the last WINDOW of a run's steps so far; None if it failed."""
    outcome = folder.outcome(key)
    rows = [row for row in folder.rows(key) if row["split"] == "train"]
    if (outcome is not None and outcome.status == "failed") or not rows:
        return None
    first = (1 - WINDOW) * rows[-1]["step"]
    return float(np.mean([row["loss"] for row in rows if row["step"] > first]))
