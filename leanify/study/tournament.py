"""Many designs of one budget, most of them given up early: successive halving (Jamieson and Talwalkar 2016).

All designs train with one seed for a short share of the schedule, the better half goes on for longer, and the last
three train to the end with every seed. A run that is stopped goes on from its checkpoint, so nothing is trained twice,
and the learning rate is that of the whole schedule all along.

Designs are judged by their mean training loss before the stop: a mean over many steps is less noisy than one evaluation
so early. That loss ranks ten designs as they rank at the end (Spearman's ρ, six tasks, `recipes/results/ranking.md`) at
0.24 on average after 10 % of the schedule, 0.45 after 15 %, 0.65 after 30 %, 0.72 after 40 %, on the worst task at
-0.7, -0.4, 0.1, 0.5. So the first cut only halves the field, the second comes three times as late, and both come as
late as the cost allows. Where the first cut is too early for a task, fewer designs make it later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanify.design import alternatives
from leanify.design.grid import Grid
from leanify.design.plan import Plan
from leanify.design.search import grids_of
from leanify.errors import BudgetError, RecipeError, ShapeError
from leanify.study import runner
from leanify.study.designs import Designer
from leanify.study.folder import Rung, StudyFolder
from leanify.study.plan import CONTROL, LEAN, Key, PlannedDesign, StudyPlan, ranked
from leanify.study.runner import Engine
from leanify.study.surface import of_design, of_grid

COST = 4.0  # trainings of the baseline that a tournament takes at most, where that can be kept
FIRST = (0.1, 0.2)  # of the schedule: the earliest and the latest first cut
LATER = 3  # times as late is the second cut
FINALISTS = 3
SEEDS = 2  # of the finalists, unless more are asked for
SHALLOWEST = 4  # times fewer layers than the baseline: nothing below was ever measured
SPENT = 0.97  # of the budget: what a design of the field uses at least
CHOICE = 2  # times as many designs as are taken are there to choose from, at least
WINDOW = 0.2  # of what was trained, at its end: over so much the training loss is averaged


# -- the field --------------------------------------------------------------------------------------------------------


def field_of(asked: Designer, count: int) -> tuple[PlannedDesign, ...]:
    """``count`` designs that spend the budget: lean, control and depth-only, then those that differ most from them."""
    if count <= FINALISTS:
        raise RecipeError(f"--tournament {count}: the last {FINALISTS} train to the end, so it takes more, 12 say")
    return ranked(tuple(asked.priced(lambda: _field(asked, count))))


def _field(asked: Designer, count: int) -> list[PlannedDesign]:
    plan = shallow(asked.plan)
    found = list(_known(asked, plan))
    points = np.concatenate([of_design(design) for design in found])
    grid, inside = spending(plan, CHOICE * count)
    for place in spread(of_grid(grid)[inside], points, count - len(found)):
        candidate = grid.candidate(int(inside[place]))
        found.append(asked.planned(f"field-{len(found) + 1}", asked.design(candidate)))
    return found


def shallow(plan: Plan) -> Plan:
    """A plan with fewer layers than `redesign` proposes unasked: what trains is measured, and needs no floor."""
    deepest = max(stage.depth for stage in plan.prices.architecture.stages)
    rules = replace(plan.request.constraints, min_depth=math.ceil(deepest / SHALLOWEST))
    return replace(plan, request=replace(plan.request, constraints=rules))


def _known(asked: Designer, plan: Plan) -> Iterator[PlannedDesign]:
    """Those of the named designs that this budget has; one that is another one's shape is left out."""
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
    """The priced designs of a plan, and which of them spend its budget; the largest ``least`` where few do.

    Raises ShapeError for several towers.
    """
    grids = grids_of(plan.prices, plan.request)
    if len(grids) > 1 or plan.request.max_params is None:
        raise ShapeError(f"{plan.source} changes in {len(grids)} towers: name the designs instead, --designs")
    [grid] = grids
    most = plan.request.max_params
    within = np.flatnonzero(grid.params <= most)
    order = within[np.argsort(-grid.params[within], kind="stable")]
    return grid, order[: max(int((grid.params[order] >= SPENT * most).sum()), least)]


def spread(points: NDArray[np.float64], taken: NDArray[np.float64], count: int) -> list[int]:
    """The points farthest from what is taken, one after another (maximin); every axis counts alike."""
    both = np.concatenate([points, taken])
    span = np.ptp(both, axis=0)
    points, taken = points / np.where(span, span, 1), taken / np.where(span, span, 1)
    nearest = np.linalg.norm(points[:, None] - taken[None], axis=-1).min(1)
    chosen: list[int] = []
    for _ in range(min(count, len(points))):
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.linalg.norm(points - points[chosen[-1]], axis=-1))
    return chosen


# -- what it takes ----------------------------------------------------------------------------------------------------


def shares(plan: StudyPlan) -> tuple[float, float]:
    """The shares of the schedule after which designs are given up: as late as `COST` allows."""
    given_up_first, given_up_second = _given_up(plan)
    left = COST / _relative_macs(plan) - FINALISTS * len(plan.seeds)
    first = min(max(left / (given_up_first + LATER * given_up_second), FIRST[0]), FIRST[1])
    first = math.floor(1000 * first) / 1000
    return first, round(LATER * first, 3)


def trainings(plan: StudyPlan) -> float:
    """What it takes, in whole trainings of a design."""
    parts = zip(_given_up(plan), shares(plan), strict=True)
    return sum(number * share for number, share in parts) + FINALISTS * len(plan.seeds)


def _given_up(plan: StudyPlan) -> tuple[int, int]:
    """How many designs are given up at each cut."""
    kept = kept_of(len(plan.designs))
    return len(plan.designs) - kept, kept - FINALISTS


def runs(plan: StudyPlan) -> int:
    """How many runs begin."""
    return len(plan.designs) + FINALISTS * (len(plan.seeds) - 1)


def cost(plan: StudyPlan) -> float:
    """What it takes, in multiples of training the baseline once, by multiply-adds."""
    return _relative_macs(plan) * trainings(plan)


def is_open(plan: StudyPlan) -> bool:
    """Whether the field of a tournament is still to be cut down."""
    return plan.tournament and len(plan.designs) > FINALISTS


def _relative_macs(plan: StudyPlan) -> float:
    """The designs' multiply-adds at their mean, as a share of the baseline's; 1 where these are unknown."""
    if not plan.baseline_macs:
        return 1.0
    return sum(design.macs for design in plan.designs) / len(plan.designs) / plan.baseline_macs


def kept_of(count: int) -> int:
    """How many of a field go on after the first cut."""
    return max(FINALISTS, math.ceil(count / 2))


# -- playing ----------------------------------------------------------------------------------------------------------


def play(folder: StudyFolder, engine: Engine, on_end: Callable[[Key], None] | None = None) -> None:
    """Cut the field down to its finalists; the plan is then a study of these. Goes on where it was interrupted."""
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
    """The designs by their loss, failed ones last."""
    return sorted(losses, key=lambda name: math.inf if (loss := losses[name]) is None else loss)


def loss_before(folder: StudyFolder, key: Key) -> float | None:
    """The mean training loss at the end of what was trained; None for a run that failed."""
    outcome = folder.outcome(key)
    rows = [row for row in folder.rows(key) if row["split"] == "train"]
    if (outcome is not None and outcome.status == "failed") or not rows:
        return None
    first = (1 - WINDOW) * rows[-1]["step"]
    return float(np.mean([row["loss"] for row in rows if row["step"] > first]))
