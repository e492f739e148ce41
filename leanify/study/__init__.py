"""Studies: does trading depth for heads pay, on the user's own data?

`designs` finds and prices what is compared, `plan` is the study as a value, `folder` the same on disk, `worker` one
run, `runner` many; `statistics` and `results` are what can be said of them, `measure` what they cost, `report` the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from leanify import training
from leanify.errors import RecipeError
from leanify.sources.recipe import Recipe
from leanify.study import runner
from leanify.study.designs import Designer
from leanify.study.folder import StudyFolder, is_study
from leanify.study.plan import BASELINE, CONTROL, LEAN, Key, StudyPlan
from leanify.study.results import Study, study_of
from leanify.study.runner import Engine, OnRow
from leanify.training.preparation import check_supported

ALONE = "digits-study"  # the built-in recipe of a study that is not told what of
DESIGNS = (BASELINE, LEAN, CONTROL)


def compare(
    recipe: str | Path | Recipe | None = None,
    output: str | Path | None = None,
    *,
    target_params: float | int | str | None = None,
    seeds: int | Sequence[int] = 3,
    designs: Sequence[str] = DESIGNS,
    sweep: Mapping[str, Sequence[int]] | None = None,
    settings: Sequence[str] = (),
    margin: float | None = None,
    jobs: int = 1,
    engine: Engine | None = None,
    retry: bool = False,
    measure: bool = True,
    on_row: OnRow | None = None,
    on_end: Callable[[Key], None] | None = None,
) -> Study:
    """Train every design with every seed, and say what came of it: the study that ``leanify compare`` prints.

    ``recipe`` is what `leanify.train` takes, or a study's folder, which goes on; by default a study of the built-in
    digits. ``output`` is the study's folder; runs that ended in it are never run again, so that the same call goes on
    where it was interrupted, and one with more seeds or designs adds them. ``seeds`` is a number of them or their list.
    ``engine`` is anything with a ``submit`` like that of `concurrent.futures`; without one ``jobs`` runs at a time
    share this machine. Raises LeanifyError.
    """
    if recipe is not None and not isinstance(recipe, Recipe) and is_study(recipe):
        folder = StudyFolder.open(Path(recipe))
    else:
        plan = planned(recipe, target_params, seeds, designs, sweep or {}, settings, margin, jobs)
        folder = opened(Path(output) if output is not None else new_folder(recipe), plan)
    if retry:
        folder.forget_failures()
    train_all(folder, folder.missing(), jobs, engine, on_row, on_end)
    if measure:
        measure_costs(folder)
    return finished(folder)


def planned(
    recipe: str | Path | Recipe | None,
    target_params: float | int | str | None = None,
    seeds: int | Sequence[int] = 3,
    designs: Sequence[str] = DESIGNS,
    sweep: Mapping[str, Sequence[int]] | None = None,
    settings: Sequence[str] = (),
    margin: float | None = None,
    jobs: int = 1,
) -> StudyPlan:
    """A study as a value: everything resolved and priced, nothing written."""
    chosen = ALONE if recipe is None else recipe
    value = training.resolve(chosen, list(settings))
    check_supported(value)
    if margin is not None and not margin > 0:
        raise RecipeError(f"--margin {margin:g} is not a margin: it is the loss that is still acceptable, above 0")
    budget = "0.5" if target_params is None else str(target_params)
    return StudyPlan(
        title=title_of(chosen),
        recipe=value,
        budget=budget,
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        designs=Designer(value, budget).all(designs, sweep or {}),
        threads=runner.threads_for(jobs),
        margin=margin,
    )


def title_of(recipe: str | Path | Recipe) -> str:
    return "study" if isinstance(recipe, Recipe) else Path(recipe).stem


def new_folder(recipe: str | Path | Recipe | None) -> Path:
    """studies/NAME"""
    return Path("studies") / title_of(ALONE if recipe is None else recipe)


def opened(path: Path, plan: StudyPlan) -> StudyFolder:
    """The study's folder, made with this plan or grown by it. Raises RecipeError where it holds another study."""
    if not is_study(path):
        return StudyFolder.create(path, plan)
    folder = StudyFolder.open(path)
    joined = folder.plan.joined(plan)
    if joined != folder.plan:
        folder.replan(joined)
    return folder


def train_all(
    folder: StudyFolder,
    keys: Sequence[Key],
    jobs: int = 1,
    engine: Engine | None = None,
    on_row: OnRow | None = None,
    on_end: Callable[[Key], None] | None = None,
    stop: int | None = None,
) -> None:
    """Bring runs to their end, or to a step."""
    if not keys:
        return
    if engine is None:
        runner.check_jobs(folder.plan, jobs)
        with runner.Local(folder, min(jobs, len(keys)), on_row) as here:
            return train_all(folder, keys, jobs, here, on_row, on_end, stop)
    for key in runner.run_all(folder, keys, engine, stop):
        if on_end is not None:
            on_end(key)


def measure_costs(folder: StudyFolder) -> None:
    """Measure what the designs cost, where one of them has not been measured yet."""
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
    """The study as it stands, with ``results.json`` and ``report.html`` brought up to date."""
    study = study_of(folder)
    folder.write_results(study.to_json())
    return study


__all__ = ["Study", "StudyFolder", "StudyPlan", "compare"]
