"""Plan a study: what a user asks for, as a recipe, designs, seeds and rates, with prices and a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leanify.comparison import duration, rates
from leanify.comparison.designs import Designer
from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import BASELINE, CONTROL, LEAN, MAX_RUNS, NARROW, StudyPlan
from leanify.core import machine
from leanify.core.errors import BudgetError, RecipeError, ShapeError
from leanify.core.path_kinds import is_study
from leanify.core.recipe import Recipe
from leanify.core.terminal import note
from leanify.core.units import format_forecast
from leanify.sources import find
from leanify.training import default_recipe, start
from leanify.training.preparation import trainable

DEFAULT_RECIPE = "digits-study"  # the default recipe
DESIGNS, SEEDS, BUDGET = (BASELINE, LEAN, CONTROL, NARROW), 3, "0.5"
ALONE_SEEDS = 4  # with three, one repetition in eight was undecided (`recipes/results/demonstration.md`)
ALONE_MARGIN = 2.0  # points: 540 validation digits cannot show less; an answer names the bound of the errors


@dataclass(frozen=True)
class Request:
    """The arguments of a study; None means the default, or the existing study's value when one is continued."""

    recipe: str | Path | Recipe | None = None
    target_params: float | int | str | None = None
    seeds: int | Sequence[int] | None = None
    designs: Sequence[str] | None = None
    sweep: Mapping[str, Sequence[int]] = field(default_factory=dict)
    settings: Sequence[str] = ()
    margin: float | None = None
    jobs: int = 1
    weights: str | Path | None = None
    teacher: str | Path | None = None
    rates: Sequence[float] | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise RecipeError(f"--jobs must be at least 1, not {self.jobs}")

    @property
    def chosen(self) -> str | Path | Recipe:
        return DEFAULT_RECIPE if self.recipe is None else self.recipe

    @property
    def title(self) -> str:
        return "study" if isinstance(self.chosen, Recipe) else Path(self.chosen).stem

    @property
    def has_default_schedule(self) -> bool:
        """Whether the recipe was generated for the user's data, and no setting defines its schedule."""
        if any(text.strip().startswith("schedule.") for text in self.settings):
            return False
        return isinstance(self.recipe, str | Path) and default_recipe.is_data(str(self.recipe))

    @property
    def study(self) -> StudyFolder | None:
        """The existing study to continue, if ``recipe`` is its folder."""
        is_known = not isinstance(self.recipe, Recipe) and self.recipe is not None and is_study(self.recipe)
        return StudyFolder(Path(str(self.recipe))) if is_known else None


def make_plan(request: Request, announces: bool = False) -> StudyPlan:
    """Resolve and price a study without writing anything; ``announces`` prints its duration. Raises LeanifyError."""
    plan = _price_plan(request)
    if request.study is None and (request.minutes is not None or request.has_default_schedule or announces):
        plan, prediction, cuts = _fit_duration(plan, request)
        time = format_forecast(3600 * prediction["hours_predicted"])
        line = f"the study takes {time} here: {prediction['runs']} runs, {prediction['steps']:,} steps each"
        note(". ".join(filter(None, (line, cuts))))
    return plan


def forecast(request: Request) -> dict[str, Any]:
    """Predict the time, memory and disk of a study from a few steps of each design. Raises LeanifyError."""
    _, prediction, cuts = _fit_duration(_price_plan(request), request)
    if cuts:
        note(cuts)
    return prediction


def _price_plan(request: Request) -> StudyPlan:
    """Resolve and price a study, whatever time it takes."""
    # the recipe, from the request or from the study to continue
    if request.minutes is not None and request.study is not None:
        raise RecipeError("--minutes applies to new studies; this one has already begun")
    old = request.study.plan if request.study is not None else None
    settings = list(request.settings)
    if request.teacher is not None:
        settings.append(f"distill.teacher={find.absolute_source(request.teacher)}")
    value = start.resolve(old.recipe if old else request.chosen, settings)
    trainable(value)
    if request.margin is not None and not request.margin > 0:
        raise RecipeError(f"--margin must be above 0, the acceptable loss in the metric's unit; not {request.margin:g}")
    # the usual plan, and the request's changes to it
    designs: Sequence[str] = ()
    if old is not None:
        usual = replace(old, designs=())
    else:
        designs = DESIGNS
        usual = StudyPlan(
            title=request.title,
            recipe=value,
            budget=BUDGET,
            seeds=tuple(range(ALONE_SEEDS if request.recipe is None else SEEDS)),
            designs=(),
            threads=max(1, machine.cores() // request.jobs),
            rates=(1.0,) if request.recipe is None else rates.USUAL,
        )
    plan_fields: dict[str, Any] = {"recipe": value, "margin": request.margin}
    if request.recipe is None and request.margin is None:
        plan_fields["margin"] = ALONE_MARGIN
    if request.target_params is not None:
        plan_fields["budget"] = str(request.target_params)
    if request.seeds is not None:
        if isinstance(request.seeds, int) and request.seeds > MAX_RUNS:  # before a list of that length is made
            raise RecipeError(f"--seeds is {min(request.seeds, 10**300):.9g}; it must be at most {MAX_RUNS:,}")
        plan_fields["seeds"] = tuple(range(request.seeds) if isinstance(request.seeds, int) else request.seeds)
    if request.weights is not None:
        plan_fields["weights"] = find.absolute_source(request.weights)
    if request.rates is not None:
        plan_fields["rates"] = tuple(request.rates)
    if request.designs is not None:
        designs = request.designs
    # resolve and price the designs, then merge with the old study or fit the limit in minutes
    plan = replace(usual, **plan_fields)
    designer = Designer(value, str(plan.budget))
    if request.designs is None and NARROW in designs:
        designs = _usual_designs(request, designer, designs)
    planned_designs = designer.all(designs, request.sweep)
    plan = replace(plan, designs=planned_designs, tokens=designer.tokens, baseline_macs=designer.baseline_macs)
    return plan if old is None else old.merge(plan)


def _fit_duration(plan: StudyPlan, request: Request) -> tuple[StudyPlan, dict[str, Any], str]:
    """Apply the limit in minutes; also return the prediction, and a sentence about what was cut, or ""."""
    # runs on the user's own data are evaluated and logged evenly over the recipe's steps
    evaluations = default_recipe.EVALUATIONS if request.has_default_schedule else None
    timings = duration.time_designs(plan, evaluations)
    if request.has_default_schedule:
        plan = replace(plan, recipe=default_recipe.set_steps(plan.recipe, timings[plan.designs[0].name].steps))

    # the limit removes rates, then seeds, then designs
    sentence = ""
    if request.minutes is not None:
        plan, cuts = duration.fit_minutes(plan, timings, request.minutes, request.jobs)
        if cuts:
            sentence = f"--minutes {request.minutes:g} leaves out {', '.join(cuts)}; no run is shortened"
    return plan, duration.forecast(plan, timings, request.jobs), sentence


def _usual_designs(request: Request, designer: Designer, names: Sequence[str]) -> Sequence[str]:
    """Return the usual designs, without narrow (and with a note) if the model or a recipe cannot have its width."""
    if request.weights is not None:
        note("narrow is left out: trained weights cannot be transferred to another width")
        return [name for name in names if name != NARROW]
    try:
        list(designer.designs_by_name(NARROW))
    except BudgetError:
        return names  # lean fails for the same reason, and its error explains it
    except ShapeError as error:
        note(str(error))
        return [name for name in names if name != NARROW]
    return names


def open_folder(
    request: Request, output: str | Path | None = None, runs_here: bool = False, announces: bool = False
) -> StudyFolder:
    """Create the study's folder, or extend an existing one. Raises RecipeError if it contains a different study.

    ``runs_here`` means that this machine will run it; then too many jobs for its memory raise RecipeError before
    anything is written. ``announces`` says how long a new study takes.
    """
    path = Path("studies") / request.title if output is None else Path(output)
    folder = request.study or (StudyFolder(path) if is_study(path) else None)
    if folder is None:
        plan = make_plan(request, announces)
    elif request.study is not None and request == Request(request.recipe, jobs=request.jobs):
        plan = folder.plan
    elif request.study is not None:
        plan = make_plan(request)  # merged with the study's plan
    elif request.minutes is not None:
        # planned under a limit in minutes, it continues as planned, whatever its steps take today
        old, full = folder.plan, make_plan(replace(request, minutes=None))
        designs = tuple(design for design in full.designs if old.has(design.name))
        plan = old.merge(replace(full, designs=designs, seeds=old.seeds, rates=old.rates))
    else:
        plan = folder.plan.merge(make_plan(request))
    if runs_here:
        duration.check_jobs(plan, request.jobs)
    if folder is None:
        return StudyFolder.create(path, plan)
    if plan != folder.plan:  # a continued study was merged above
        folder.replan(plan)
    return folder
