"""Try many designs of one budget by successive halving (Jamieson and Talwalkar 2016), then judge the winner separately.

All designs train on one seed. At a quarter and at half of the schedule, but not before twice the warm-up, the half with
the higher training loss is dropped. Baseline, lean and control run to the end in any case. A stopped run resumes from
its checkpoint, so nothing is trained twice, and the learning rate always follows the full schedule. Early losses are
weak predictors: their rank correlation with the final quality of ten designs is on average 0.24 after 10% of the
schedule, 0.65 after 30% and 0.72 after 40% (Spearman's ρ, six tasks, `recipes/results/ranking.md`).

The design with the best final quality wins. The first seed chose it, so that seed is excluded from its evaluation:
winner, baseline, lean and control train with the other seeds, and only these are compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leanify.comparison import runner
from leanify.comparison.designs import Designer
from leanify.comparison.folder import StudyFolder, read_content
from leanify.comparison.plan import ALWAYS, BASELINE, Key, PlannedDesign, StudyPlan, rank_designs
from leanify.comparison.runner import Engine, OnEnd
from leanify.comparison.tables import Table
from leanify.core.errors import BudgetError, RecipeError, ShapeError
from leanify.core.files import writing
from leanify.core.units import format_share, format_sizes
from leanify.search import alternatives
from leanify.search.grid import Grid, make_grids

if TYPE_CHECKING:
    from leanify.comparison.values import Findings

FILE = "tournament.json"
CUTS = (0.25, 0.5)  # shares of the schedule
WARM_UPS = 2  # no cut before this many times the warm-up
SEEDS = 4  # default number of seeds: one that chooses, three that judge
FIXED_DESIGNS = (*ALWAYS, "depth-only")  # designs of every field
MAX_DESIGNS = 100  # each is planned, priced and trained to the first cut at least
MIN_DEPTH = 0.25  # share of the baseline's layers; shallower designs were never measured
MIN_SPENT = 0.97  # share of the budget that a design must use


@dataclass(frozen=True)
class Round:
    """One cut: the training loss of each design up to ``step`` (None if it failed), and the designs that stay."""

    share: float
    losses: dict[str, float | None]
    kept: tuple[str, ...]
    step: int = 0  # 0 in studies of the first version

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Round:
        """Create a round from JSON; the estimate of noise that earlier versions stored is ignored."""
        return Round(entry["share"], dict(entry["losses"]), tuple(entry["kept"]), entry.get("step", 0))


def rounds(folder: StudyFolder) -> tuple[Round, ...]:
    """The cuts so far. Raises DirectoryError if their file is damaged."""
    remedy = "the designs will be compared again"
    return read_content(folder.path / FILE, lambda data: tuple(Round.from_json(entry) for entry in data), (), remedy)


# -- candidates -------------------------------------------------------------------------------------------------------


def candidates(designer: Designer, count: int) -> tuple[PlannedDesign, ...]:
    """Choose ``count`` designs: baseline, lean, control, depth-only, and others of the budget that differ most.

    Raises RecipeError if ``count`` leaves no room for others or is above ``MAX_DESIGNS``.
    """
    if count <= len(FIXED_DESIGNS):
        raise RecipeError(f"--tournament must be above {len(FIXED_DESIGNS)}, the designs of every field; it is {count}")
    if count > MAX_DESIGNS:
        raise RecipeError(f"--tournament tries at most {MAX_DESIGNS} designs; it is {count}")
    plan = designer.plan
    deepest = max(stage.depth for stage in plan.prices.architecture.stages)
    # designs that will be trained need not meet the bounds of redesign's proposals
    options = replace(
        plan.request.options, min_depth=math.ceil(MIN_DEPTH * deepest), min_mlp=0.5, max_mlp=10.0, max_heads=3.0
    )
    plan = replace(plan, request=replace(plan.request, options=options))

    designs: dict[Any, PlannedDesign] = {}  # keys: architectures, because two names may have the same one
    for name in FIXED_DESIGNS:
        try:
            design = designer.baseline if name == BASELINE else alternatives.named_design(plan, name)
        except (BudgetError, ShapeError):  # this budget allows no such design
            continue
        designs.setdefault(design.architecture, designer.plan_design(name, design))
    chosen = list(designs.values())

    # the rest: designs that use the budget, each the farthest from all chosen ones
    max_params = plan.request.limits.get(plan.request.params_cost)
    grids = make_grids(plan.prices, plan.request)
    if len(grids) > 1 or max_params is None:
        raise ShapeError(f"{plan.source} changes in {len(grids)} towers; name the designs with --designs instead")
    [grid] = grids
    rows = largest_within(grid, max_params, 2 * count)
    chosen_points = np.stack([design_features(design) for design in chosen])
    for place in farthest_points(grid_features(grid)[rows], chosen_points, count - len(chosen)):
        design = designer.design(grid.get_shape(int(rows[place])))
        chosen.append(designer.plan_design(f"field-{len(chosen) + 1}", design))
    return rank_designs(tuple(chosen))


def largest_within(grid: Grid, max_params: float, min_count: int) -> NDArray[np.int64]:
    """Return indices of designs that use the budget, largest first; at least ``min_count`` if there are enough."""
    fitting = np.flatnonzero(grid.params <= max_params)
    order = fitting[np.argsort(-grid.params[fitting], kind="stable")]
    return order[: max(int((grid.params[order] >= MIN_SPENT * max_params).sum()), min_count)]


def farthest_points(points: NDArray[np.float64], chosen_points: NDArray[np.float64], count: int) -> list[int]:
    """Return indices of points (n, 4), picked greedily farthest from ``chosen_points`` (maximin), with scaled axes."""
    span = np.ptp(np.concatenate([points, chosen_points]), axis=0)
    points, chosen_points = points / np.where(span, span, 1), chosen_points / np.where(span, span, 1)
    distance = np.linalg.norm(points[:, None] - chosen_points[None], axis=-1).min(1)  # (n,) to the nearest chosen point
    chosen: list[int] = []
    for _ in range(min(count, len(points))):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=-1))
    return chosen


def grid_features(grid: Grid) -> NDArray[np.float64]:
    """Return features (n, 4) of a grid's designs: log depth, log inner, log head_dim, log MLP."""
    columns = [grid.depth, grid.heads * grid.head_dim, grid.head_dim, np.maximum(grid.mlp, 1)]
    return np.log(np.stack(columns, axis=1).astype(np.float64))


def design_features(design: PlannedDesign) -> NDArray[np.float64]:
    """Return features (4,) of a design; with several stages, the largest value of each size counts."""
    depth, heads, head_dim, mlp = (np.max(size) for size in (design.depth, design.heads, design.head_dim, design.mlp))
    return np.log(np.array([depth, heads * head_dim, head_dim, max(mlp, 1)], np.float64))


# -- cost -------------------------------------------------------------------------------------------------------------


def is_open(plan: StudyPlan) -> bool:
    """Whether a tournament has no winner yet."""
    return plan.tournament and plan.winner is None


def shares(plan: StudyPlan) -> tuple[float, ...]:
    """Return the shares of the schedule at which designs are dropped."""
    schedule = plan.recipe.schedule
    assert schedule is not None
    length = schedule.epochs or schedule.steps or schedule.tokens or 1
    earliest = WARM_UPS * schedule.warmup / length
    cuts = {round(max(cut, earliest), 3) for cut in CUTS}
    return tuple(sorted(share for share in cuts if share < 1))


def field_sizes(plan: StudyPlan) -> list[int]:
    """Return the number of designs that train in each part of the schedule: up to the first cut, …, to the end."""
    fixed_count = sum(design.name in ALWAYS for design in plan.remaining)
    others = len(plan.remaining) - fixed_count
    counts = [fixed_count + others]
    for _ in shares(plan):
        others = math.ceil(others / 2)
        counts.append(fixed_count + others)
    return counts


def cost(plan: StudyPlan) -> float:
    """Return the cost of finding the winner, in trainings of the baseline, by multiply-adds.

    The surviving designs are unknown in advance, so each design that may be dropped counts as their mean.
    """
    relative_macs = {design.name: design.macs / (plan.baseline_macs or design.macs) for design in plan.remaining}
    fixed_sizes = [size for name, size in relative_macs.items() if name in ALWAYS]
    others = [size for name, size in relative_macs.items() if name not in ALWAYS]
    parts = np.diff([0.0, *shares(plan), 1.0])
    trained_share = sum(part * (count - len(fixed_sizes)) for part, count in zip(parts, field_sizes(plan), strict=True))
    if not others:
        return sum(fixed_sizes)
    return sum(fixed_sizes) + float(trained_share * np.mean(others))


def run_counts(folder: StudyFolder) -> tuple[int, int]:
    """Return how often runs of an open tournament end in total, counting each part of the schedule, and so far."""
    plan = folder.plan
    counts, ended_rounds = field_sizes(plan), len([one for one in rounds(folder) if one.step])
    judging_runs = (len(ALWAYS) + 1) * len(plan.judging)
    return sum(counts) + judging_runs, sum(counts[:ended_rounds])


# -- running ----------------------------------------------------------------------------------------------------------


def run_tournament(folder: StudyFolder, engine: Engine, on_end: OnEnd) -> None:
    """Find the winner and store it in the plan. Continues interrupted tournaments, and those with added designs."""
    for share in shares(folder.plan):
        _run_round(folder, engine, share, on_end)
    plan = folder.plan
    keys = [Key(design.name, plan.seeds[0]) for design in plan.remaining]
    runner.run_all(folder, keys, engine, on_end)
    qualities: dict[str, float] = {}
    for key in keys:
        outcome = folder.outcome(key)
        if outcome is not None and outcome.quality is not None:
            qualities[key.design] = outcome.sign * outcome.quality
    winner = max(qualities, key=qualities.__getitem__, default=None)
    if winner is not None and winner != plan.winner:
        folder.replan(replace(plan, winner=winner))


def _run_round(folder: StudyFolder, engine: Engine, share: float, on_end: OnEnd) -> None:
    """Train the designs up to this cut that have not reached it, and drop the worse half of all."""
    plan = folder.plan
    by_share = {one.share: one for one in rounds(folder) if one.step}
    before = by_share.get(share, Round(share, {}, ()))
    fresh = [design.name for design in plan.remaining if design.name not in before.losses]
    if not fresh:
        return
    keys = [Key(name, plan.seeds[0]) for name in fresh]
    runner.run_all(folder, keys, engine, on_end, share)

    # losses of all designs up to the last step that all of them logged
    step = before.step
    if not step:
        logged_steps = []
        for key in keys:
            rows = [row for row in folder.rows(key) if row["split"] == "train"]
            logged_steps += [row["step"] for row in rows[-1:]]
        step = min(logged_steps, default=0)
    losses = before.losses | {key.design: training_loss(folder, key, step) for key in keys}

    # keep the better half and designs already past this cut; failed runs stay in the report
    survivors = better_half(losses)
    for key in keys:
        if key.design in ALWAYS or folder.outcome(key) is not None:
            survivors.add(key.design)
    losers = set(fresh) - survivors
    stay = tuple(name for name in losses if name not in losers and (name in fresh or name in before.kept))
    by_share[share] = Round(share, losses, stay, step)
    text = json.dumps([asdict(by_share[one]) for one in sorted(by_share)], indent=2)
    writing.write(folder.path / FILE, text + "\n")
    designs = []
    for design in plan.designs:
        designs.append(replace(design, dropped=design.dropped or design.name in losers))
    folder.replan(replace(plan, designs=tuple(designs)))


def better_half(losses: Mapping[str, float | None]) -> set[str]:
    """Return the half with the lower loss among the designs that may be dropped; designs without a loss come last."""
    others = [name for name in losses if name not in ALWAYS]
    others.sort(key=lambda name: _rank_value(losses[name]))
    return set(others[: math.ceil(len(others) / 2)])


def _rank_value(loss: float | None) -> float:
    return math.inf if loss is None else loss


def training_loss(folder: StudyFolder, key: Key, step: int) -> float | None:
    """Return the mean training loss at the end of a run's first ``step`` steps; None if it failed."""
    outcome = folder.outcome(key)
    if outcome is not None and outcome.status == "failed":
        return None
    return folder.training_loss(key, step)


# -- text -------------------------------------------------------------------------------------------------------------


def summary(plan: StudyPlan) -> str:
    """Return one line about an open tournament: its designs, cuts, cost and judging seeds."""
    cuts = " and ".join(format_share(share) for share in shares(plan))
    cut_text = f"after {cuts} of the schedule the worse half goes" if cuts else "the schedule is too short to drop any"
    seeds = f"{len(plan.judging)} other seed{'s' * (len(plan.judging) != 1)}"
    return (
        f"{len(plan.designs)} designs; {cut_text}: about {cost(plan):.1f} × the multiply-adds of training the baseline "
        f"once; then the winner is judged by {seeds}"
    )


def winner_line(plan: StudyPlan) -> str:
    """Describe the seeds that chose the winner and those that judge it; "" before there is one."""
    if plan.winner is None:
        return ""
    judges = ", ".join(map(str, plan.judging)) or "none yet"
    return (
        f"Winner of the tournament: {plan.winner}, the best of {len(plan.designs)} designs on seed {plan.seeds[0]}. "
        f"That seed chose it, so the others ({judges}) judge it."
    )


def tables(study: Findings) -> list[Table]:
    """Return a table per cut: each design's shape, training loss, distance to the best, and whether it stays."""
    return [_table(study.plan, one) for one in study.rounds]


def _table(plan: StudyPlan, cut: Round) -> Table:
    best = min(map(_rank_value, cut.losses.values()), default=0.0)
    rows = []
    for name, loss in sorted(cut.losses.items(), key=lambda entry: _rank_value(entry[1])):
        shape: Sequence[str] = ("–", "–", "–")  # of a design that an earlier version did not keep
        if plan.has(name):
            design = plan.design(name)
            shape = (
                format_sizes(design.depth),
                f"{format_sizes(design.heads)} × {format_sizes(design.head_dim)}",
                format_sizes(design.mlp),
            )
        numbers = ("–", "–") if loss is None else (f"{loss:.4f}", f"{loss - best:.4f}")
        rows.append((name, *shape, *numbers, "stays" if name in cut.kept else "dropped"))
    title = f"Tournament after {format_share(cut.share)} of the schedule"
    return Table(title, ("", "depth", "heads × dim", "mlp", "training loss", "behind", ""), tuple(rows))
