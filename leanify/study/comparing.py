"""Plan a study, train its runs and return its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from leanify.errors import DirectoryError, RecipeError, TrainingError
from leanify.runs.places import is_study
from leanify.runs.recipe import Recipe
from leanify.sources import find
from leanify.study import duration, engines, reference, runner, warm_start
from leanify.study import rates as learning_rates
from leanify.study import tournament as tournaments
from leanify.study.designs import Designer
from leanify.study.folder import StudyFolder
from leanify.study.plan import BASELINE, CONTROL, LEAN, Key, PlannedDesign, StudyPlan, ranked
from leanify.study.results import Study, study_of
from leanify.study.runner import Engine, OnEnd
from leanify.study.tournament import field_of
from leanify.terminal import note
from leanify.training import defaults, start
from leanify.training.preparation import trainable
from leanify.upstream.wall import wall

ALONE = "digits-study"  # the default recipe
DESIGNS, SEEDS, BUDGET = (BASELINE, LEAN, CONTROL), 3, "0.5"
ALONE_SEEDS = 4  # three left one repetition in eight unanswered (`recipes/results/demonstration.md`)
ALONE_MARGIN = 2.0  # points: 540 digits to validate on cannot answer for 5% of so few errors


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
    tournament: int | None = None
    more: int | None = None
    weights: str | Path | None = None
    teacher: str | Path | None = None
    rates: Sequence[float] | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise RecipeError(f"--jobs must be at least 1, not {self.jobs}")

    @property
    def chosen(self) -> str | Path | Recipe:
        return ALONE if self.recipe is None else self.recipe

    @property
    def title(self) -> str:
        return "study" if isinstance(self.chosen, Recipe) else Path(self.chosen).stem

    @property
    def usual_seeds(self) -> int:
        if self.tournament is not None:
            return tournaments.SEEDS
        return ALONE_SEEDS if self.recipe is None else SEEDS

    @property
    def length(self) -> float | None:
        """The minutes of the whole study: as asked, or the usual ones on own data; None keeps the recipe's schedule."""
        if self.minutes is not None:
            if self.study is not None:
                raise RecipeError("--minutes sets the schedule of a new study; this one has begun")
            return self.minutes
        scheduled = any(text.strip().startswith("schedule.") for text in self.settings)
        own = isinstance(self.recipe, str | Path) and self.study is None and defaults.is_data(str(self.recipe))
        return duration.USUAL if own and not scheduled else None

    @property
    def study(self) -> StudyFolder | None:
        """The existing study to continue, if ``recipe`` is its folder."""
        known = not isinstance(self.recipe, Recipe) and self.recipe is not None and is_study(self.recipe)
        return StudyFolder(Path(str(self.recipe))) if known else None


def compare(
    recipe: str | Path | Recipe | None = None,
    output: str | Path | None = None,
    *,
    target_params: float | int | str | None = None,
    seeds: int | Sequence[int] | None = None,
    designs: Sequence[str] | None = None,
    sweep: Mapping[str, Sequence[int]] | None = None,
    settings: Sequence[str] = (),
    margin: float | None = None,
    tournament: int | None = None,
    more: int | None = None,
    weights: str | Path | None = None,
    teacher: str | Path | None = None,
    rates: Sequence[float] | None = None,
    minutes: float | None = None,
    jobs: int = 1,
    engine: str | Engine = "local",
    retry: bool = False,
    measure: bool = True,
) -> Study:
    """Train every design with every seed, and return the study that ``leanify compare`` prints.

    recipe         what `leanify.train` takes, or a study's folder to continue it; default: a study on the digits
    output         the study's folder; finished runs are kept, so the same call resumes, and more seeds or designs add
    target_params  the parameter budget: a share of the baseline (default 0.5) or a count
    seeds          the number of seeds, or a list of them
    designs        names, lean directories or shapes, as ``--designs`` takes them; default: baseline, lean, control
    sweep          values per axis, ``{"heads": [2, 4]}``; every combination becomes a design
    settings       changes of the recipe: ``["schedule.epochs=5"]``
    margin         the non-inferiority margin in the metric's unit; default: the task's
    tournament     try this many designs within the budget, drop those that are worse than the best by more than the
                   noise, and judge the winner by fresh seeds
    more           add this many designs, those expected to be most informative about all others
    weights        a trained model of the recipe's shape from which all designs start
    teacher        a model from which all designs are distilled
    rates          multiples of the recipe's learning rate of which each design takes its best, tried on one seed and
                   half of the schedule; default: (0.5, 1, 2), in a tournament (1,)
    minutes        the length of the whole study, which sets the steps of a run; default: 15 on own data
    jobs           runs at a time on this machine
    engine         ``"local"``, ``"slurm"``, ``"ray"``, or an object with ``submit`` as in `concurrent.futures`
    retry          run failed runs again
    measure        measure latency, throughput and memory of the designs at the end

    Raises LeanifyError.
    """
    request = Request(
        recipe, target_params, seeds, designs, sweep or {}, settings, margin, jobs, tournament, more,
        weights, teacher, rates, minutes,
    )  # fmt: skip
    if isinstance(engine, str):
        engines.check_engine(engine)
    folder = folder_of(request, output, here=engine == "local")
    if retry:
        folder.forget_failures()
    opened = engines.engine_of(engine, folder, jobs) if isinstance(engine, str) else nullcontext(engine)
    with opened as runs:
        train_all(folder, runs)
    if measure:
        measure_costs(folder)
    return finished(folder)


def planned(request: Request) -> StudyPlan:
    """Resolve and price a study without writing anything. Raises LeanifyError."""
    old = request.study.plan if request.study is not None else None
    settings = list(request.settings)
    if request.teacher is not None:
        settings.append(f"distill.teacher={find.located(request.teacher)}")
    value = start.resolve(request.chosen if old is None else old.recipe, settings)
    trainable(value)
    if request.margin is not None and not request.margin > 0:
        raise RecipeError(f"--margin must be above 0, the acceptable loss in the metric's unit; not {request.margin:g}")
    designs: Sequence[str] = ()
    if old is not None:
        usual = replace(old, designs=())
    else:
        designs = DESIGNS
        usual = StudyPlan(
            title=request.title,
            recipe=value,
            budget=BUDGET,
            seeds=tuple(range(request.usual_seeds)),
            designs=(),
            threads=runner.threads_for(request.jobs),
            tournament=request.tournament is not None,
            rates=(1.0,) if request.recipe is None or request.tournament is not None else learning_rates.USUAL,
        )
    given: dict[str, Any] = {"recipe": value, "margin": request.margin}
    if request.recipe is None and request.margin is None:
        given["margin"] = ALONE_MARGIN
    if request.target_params is not None:
        given["budget"] = str(request.target_params)
    if request.seeds is not None:
        given["seeds"] = tuple(range(request.seeds) if isinstance(request.seeds, int) else request.seeds)
    if request.weights is not None:
        given["weights"] = find.located(request.weights)
    if request.rates is not None:
        given["rates"] = tuple(request.rates)
    if request.designs is not None:
        designs = request.designs
    plan = replace(usual, **given)
    designer = Designer(value, str(plan.budget))
    made = _designs(request, designer, designs)
    plan = replace(plan, designs=made, tokens=designer.tokens, baseline_macs=designer.baseline_macs)
    if request.length is not None:
        plan = duration.fitted(plan, request.length, request.jobs)
        note(f"the whole study takes at most about {request.length:g} minutes here; --minutes sets that")
    return plan if old is None else old.joined(plan)


def _designs(request: Request, designer: Designer, names: Sequence[str]) -> tuple[PlannedDesign, ...]:
    """The requested designs: by name and sweep, by a tournament, or as the most informative ones."""
    if request.tournament is not None and (request.designs is not None or request.sweep):
        raise RecipeError("--tournament chooses its own designs; it cannot be combined with --designs or --sweep")
    if request.more is not None:
        if request.study is None:
            raise RecipeError("--more adds designs to an existing study: leanify compare STUDY --more 4")
        return _telling(study_of(request.study), designer, request.more)
    if request.tournament is not None:
        return field_of(designer, request.tournament)
    return designer.all(names, request.sweep)


def _telling(study: Study, designer: Designer, count: int) -> tuple[PlannedDesign, ...]:
    """``count`` designs within the study's budget that are most informative about the others, by its surface."""
    from leanify.study.surface import of_grid, surface_of

    surface = surface_of(study)
    grid, inside = tournaments.spending(designer.plan, tournaments.CHOICE * count)
    begun = sum(design.name.startswith("more-") for design in study.plan.designs)
    found = []
    for place, row in enumerate(surface.most_telling(of_grid(grid)[inside], count), begun + 1):
        design = designer.design(grid.shape_at(int(inside[row])))
        found.append(designer.planned(f"more-{place}", design))
    return ranked(tuple(found))


def folder_of(request: Request, output: str | Path | None = None, here: bool = False) -> StudyFolder:
    """Create the study's folder, or extend an existing one. Raises RecipeError if it contains a different study.

    ``here`` means that this machine will run it; then too many jobs for its memory raise RecipeError before anything is
    written.
    """
    path = Path("studies") / request.title if output is None else Path(output)
    folder = request.study or (StudyFolder(path) if is_study(path) else None)
    if folder is not None and request.study is not None and request == Request(request.recipe, jobs=request.jobs):
        return folder
    plan = planned(request) if folder is None else folder.plan.joined(planned(request))
    if here:
        runner.check_jobs(plan, request.jobs)
    if folder is None:
        return StudyFolder.create(path, plan)
    if plan != folder.plan:  # a continued study has been joined above
        folder.replan(plan)
    return folder


def train_all(folder: StudyFolder, engine: Engine, on_end: OnEnd = lambda key: None) -> None:
    """Train every run that has not ended; in a tournament, first find the winner."""

    def ended(key: Key) -> None:
        on_end(key)
        _check_hope(folder)

    warm_start.prepare(folder)
    if folder.plan.tournament:
        tournaments.play(folder, engine, on_end)
    learning_rates.settle(folder, engine, on_end)
    reference.prepare(folder)
    runner.run_all(folder, folder.plan.runs(), engine, ended)


def _check_hope(folder: StudyFolder) -> None:
    """Raise TrainingError if a run of every design has failed for one reason, and no run has ended well."""
    found = folder.outcomes()
    designs = {outcome.design for outcome in found if outcome.status == "failed"}
    reasons = {outcome.reason for outcome in found}
    if len(reasons) == 1 and designs == {design.name for design in folder.plan.designs} and folder.missing():
        raise TrainingError(
            f"all {len(found)} runs so far failed for the same reason: {reasons.pop()}. The others are left; once this "
            f"is mended: leanify compare {quote(str(folder.path))} --retry"
        )


def measure_costs(folder: StudyFolder) -> None:
    """Measure the designs' costs, unless all of them have been measured."""
    from leanify.study.measure import measure

    study = study_of(folder)
    if all(result.costs is not None for result in study.results):
        return
    costs = measure(folder.plan)
    data = study.to_json()
    for design in data["designs"]:
        design |= vars(costs[design["name"]])
    folder.write_results(data)


def finished(folder: StudyFolder) -> Study:
    """Return the study's current results; update ``results.json`` and note that its answers were looked at.

    Raises DirectoryError for a damaged file.
    """
    study = study_of(folder)
    if study.look:
        folder.look(max(len(pair.seeds) for pair in study.pairs if pair.asked))
    with wall(f"a file of {folder.path} is damaged", DirectoryError):
        found = study.to_json()
    folder.write_results(found)
    return study
