"""Compare many designs of one budget and stop the worse ones early, as far as the noise of a run allows it.

All designs train on one seed. At a quarter and at half of the schedule, but not before twice the warm-up, a design is
dropped if its training loss is worse than the leader's by more than the noise; the others go on. Baseline, lean and
control run to the end in any case. They also train on a second seed up to the cuts, from which the noise of a run is
pooled (a fit of design + seed, `statistics`). A stopped run is resumed from its checkpoint, so nothing is trained
twice, and the learning rate always follows the full schedule.

The design with the best final quality wins. It was chosen by the first seed, so that seed is left out of what is said
about it: winner, baseline, lean and control train on the other seeds, and only these are compared.

Early losses tell little: their rank correlation with the final quality of ten designs (Spearman's ρ, six tasks,
`recipes/results/ranking.md`) is on average 0.24 after 10% of the schedule, 0.65 after 30% and 0.72 after 40%.
Successive halving and ASHA drop a fixed part of the field at each cut, within the noise of the leader or not. Here the
noise decides, so a tournament costs more where designs are alike, and says by how much each of the others was worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from leanify.design.plan import Plan
from leanify.design.search import alternatives
from leanify.design.search.grid import Grid, grids_of
from leanify.errors import BudgetError, RecipeError, ShapeError
from leanify.study import runner
from leanify.study.designs import Designer
from leanify.study.folder import Rung, StudyFolder
from leanify.study.plan import ALWAYS, BASELINE, Key, PlannedDesign, StudyPlan, ranked
from leanify.study.runner import Engine, OnEnd
from leanify.study.statistics import Noise, Run
from leanify.study.surface import of_design, of_grid

CUTS = (0.25, 0.5)  # shares of the schedule
WARM_UPS = 2  # no cut before this many times the warm-up
CERTAIN = 0.9  # probability that a design which is as good as the leader stays at a cut
SEEDS = 4  # default number of seeds: one that chooses, three that judge
KNOWN = (*ALWAYS, "depth-only")  # designs of every field
MOST = 100  # designs in a field: each is planned, priced and trained to the first cut at least
SHALLOWEST = 4  # a design has at least 1/SHALLOWEST of the baseline's layers; shallower ones were never measured
SPENT = 0.97  # share of the budget that a design must use
CHOICE = 2  # choose from at least this many times the number of designs taken
WINDOW = 0.2  # the training loss is averaged over this last share of the steps so far


# -- the field --------------------------------------------------------------------------------------------------------


def field_of(asked: Designer, count: int) -> tuple[PlannedDesign, ...]:
    """Choose ``count`` designs: baseline, lean, control, depth-only, and others of the budget that differ most.

    Raises RecipeError if ``count`` leaves no room for others or is above ``MOST``.
    """
    if count <= len(KNOWN):
        raise RecipeError(f"--tournament must be above {len(KNOWN)}, the designs of every field; it is {count}")
    if count > MOST:
        raise RecipeError(f"--tournament tries at most {MOST} designs; it is {count}")
    plan = shallow(asked.plan)
    found: list[PlannedDesign] = []
    architectures = []
    for name in KNOWN:
        try:
            design = asked.baseline if name == BASELINE else alternatives.named(plan, name)
        except (BudgetError, ShapeError):  # there is none under this budget
            continue
        if design.architecture not in architectures:
            architectures.append(design.architecture)
            found.append(asked.planned(name, design))
    points = np.concatenate([of_design(design) for design in found])
    grid, inside = spending(plan, CHOICE * count)
    for place in spread(of_grid(grid)[inside], points, count - len(found)):
        shape = grid.shape_at(int(inside[place]))
        found.append(asked.planned(f"field-{len(found) + 1}", asked.design(shape)))
    return ranked(tuple(found))


def shallow(plan: Plan) -> Plan:
    """Lower a plan's minimum depth below `redesign`'s default, which is not needed for designs that will be trained."""
    deepest = max(stage.depth for stage in plan.prices.architecture.stages)
    options = replace(plan.request.options, min_depth=math.ceil(deepest / SHALLOWEST))
    return replace(plan, request=replace(plan.request, options=options))


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


def shares(plan: StudyPlan) -> tuple[float, ...]:
    """The shares of the schedule at which designs may be dropped."""
    schedule = plan.recipe.schedule
    assert schedule is not None
    whole = schedule.epochs or schedule.steps or schedule.tokens or 1
    earliest = WARM_UPS * schedule.warmup / whole
    found = {round(max(cut, earliest), 3) for cut in CUTS}
    return tuple(sorted(share for share in found if share < 1))


def cost(plan: StudyPlan) -> tuple[float, float]:
    """The least and the most that finding the winner costs, in trainings of the baseline, by multiply-adds.

    The least if every design that may go is dropped at the first cut, the most if none is. All are trained to the end
    where the schedule is too short to drop any.
    """
    cuts = shares(plan)
    sizes = {design.name: design.macs / (plan.baseline_macs or design.macs) for design in plan.kept}
    fixed = sum(size for name, size in sizes.items() if name in ALWAYS)
    others = sum(sizes.values()) - fixed
    if not cuts:
        return fixed + others, fixed + others
    first, last = cuts[0], cuts[-1]
    return fixed + fixed * first + others * first, fixed + fixed * last + others


def is_open(plan: StudyPlan) -> bool:
    """Whether a tournament has no winner yet."""
    return plan.tournament and plan.winner is None


# -- playing ----------------------------------------------------------------------------------------------------------


def play(folder: StudyFolder, engine: Engine, on_end: OnEnd) -> None:
    """Find the winner and write it into the plan. Goes on where it was interrupted, and where designs were added."""
    for share in shares(folder.plan):
        _cut(folder, engine, share, on_end)
    plan = folder.plan
    keys = [Key(design.name, plan.seeds[0]) for design in plan.kept]
    runner.run_all(folder, keys, engine, on_end)
    qualities: dict[str, float] = {}
    for key in keys:
        ended = folder.outcome(key)
        if ended is not None and ended.quality is not None:
            qualities[key.design] = ended.sign * ended.quality
    winner = max(qualities, key=qualities.__getitem__, default=None)
    if winner is not None and winner != plan.winner:
        folder.replan(replace(plan, winner=winner))


def _cut(folder: StudyFolder, engine: Engine, share: float, on_end: OnEnd) -> None:
    """Train the designs that have not been at this cut up to it, and drop those that are worse than the leader."""
    plan, rungs = folder.plan, {rung.share: rung for rung in folder.rungs() if rung.step}
    rung = rungs.get(share, Rung(share, {}, ()))
    names = [design.name for design in plan.kept if design.name not in rung.losses]
    if not names:
        return
    first, second = plan.seeds[:2]
    keys = [Key(name, first) for name in names] + [Key(name, second) for name in names if name in ALWAYS]
    runner.run_all(folder, keys, engine, on_end, share)
    logged = [rung.step]
    for key in keys if not rung.step else ():
        logged += [row["step"] for row in folder.rows(key) if row["split"] == "train"]
    step = max(logged)
    losses, again = dict(rung.losses), dict(rung.again)
    for name in names:
        losses[name] = loss_before(folder, Key(name, first), step)
        if name in ALWAYS:
            again[name] = loss_before(folder, Key(name, second), step)
    noise = noise_of(losses, again)
    best = min((loss for loss in losses.values() if loss is not None), default=0.0)
    dropped = set()
    for name in names:
        loss = losses[name]
        may_go = name not in ALWAYS and folder.outcome(Key(name, first)) is None
        if may_go and noise is not None and (loss is None or loss - best > noise):
            dropped.add(name)
    kept = tuple(name for name in losses if name not in dropped)
    rungs[share] = Rung(share, losses, kept, step, noise, again)
    folder.write_rungs([rungs[one] for one in sorted(rungs)])
    designs = [replace(one, dropped=True) if one.name in dropped else one for one in plan.designs]
    folder.replan(replace(plan, designs=tuple(designs)))


def noise_of(losses: Mapping[str, float | None], again: Mapping[str, float | None]) -> float | None:
    """How far behind the leader a design that is as good may be, from losses on two seeds; None if that is unknown."""
    runs = []
    for seed, column in enumerate((losses, again)):
        runs += [Run(name, seed, loss) for name, loss in column.items() if loss is not None]
    noise = Noise(runs).between
    if noise is None:
        return None
    return float(stats.t.ppf(CERTAIN, noise.freedom)) * math.sqrt(2 * noise.variance)


def loss_before(folder: StudyFolder, key: Key, step: int) -> float | None:
    """The mean training loss over the last WINDOW of a run's first ``step`` steps; None if it failed."""
    outcome = folder.outcome(key)
    rows = [row for row in folder.rows(key) if row["split"] == "train" and row["step"] <= step]
    if (outcome is not None and outcome.status == "failed") or not rows:
        return None
    first = (1 - WINDOW) * rows[-1]["step"]
    return float(np.mean([row["loss"] for row in rows if row["step"] > first]))
