"""Train the runs of a study and return its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from shlex import quote

from leanify.comparison import learning, runner, warm_start
from leanify.comparison import rates as learning_rates
from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import Key
from leanify.comparison.planning import Request, open_folder
from leanify.comparison.results import read_study
from leanify.comparison.runner import Engine, OnEnd
from leanify.comparison.values import Study
from leanify.core.errors import DirectoryError, TrainingError
from leanify.core.recipe import Recipe
from leanify.upstream.libraries import reraise_as


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

    recipe         like the argument of `leanify.train`, or a study's folder to continue it; default: a study on the
                   digits
    output         the study's folder; finished runs are kept: the same call resumes, and may add seeds and designs
    target_params  the parameter budget: a share of the baseline (default 0.5) or a count
    seeds          the number of seeds, or a list of them
    designs        names, lean directories or shapes, as for ``--designs``; default: baseline, lean, control and narrow
    sweep          values per axis, ``{"heads": [2, 4]}``; every combination becomes a design
    settings       changes to the recipe: ``["schedule.epochs=5"]``
    margin         the non-inferiority margin in the metric's unit; default: the task's
    weights        a trained model of the recipe's shape from which all designs start
    teacher        a model from which all designs are distilled
    rates          multiples of the recipe's learning rate; each design uses its best one, tried with one seed for half
                   of the schedule; default: (0.5, 1, 2)
    minutes        limit for the whole study: removes the trials of rates, then seeds, then designs, but never steps of
                   a run; default: no limit
    jobs           number of concurrent runs on this machine
    engine         ``"local"``, ``"slurm"``, ``"ray"``, or an object with ``submit`` as in `concurrent.futures`
    retry          run failed runs again
    measure        measure latency, throughput and memory of the designs at the end

    Raises LeanifyError.
    """
    request = Request(
        recipe, target_params, seeds, designs, sweep or {}, settings, margin, jobs, weights, teacher, rates, minutes
    )
    if isinstance(engine, str):
        runner.check_engine(engine)
    folder = open_folder(request, output, runs_here=engine == "local")
    if retry:
        folder.forget_failures()
    engine_context = runner.open_engine(engine, folder, jobs) if isinstance(engine, str) else nullcontext(engine)
    with engine_context as runs:
        train_all(folder, runs)
    if measure:
        measure_costs(folder)
    return finish_study(folder)


def train_all(folder: StudyFolder, engine: Engine, on_end: OnEnd = lambda key: None) -> None:
    """Train every run that has not ended, after the trials of rates."""

    def on_run_end(key: Key) -> None:
        on_end(key)
        abort_if_all_failed(folder)

    warm_start.prepare(folder)
    learning_rates.select_rates(folder, engine, on_end)
    learning.write_reference(folder)
    runner.run_all(folder, folder.plan.runs(), engine, on_run_end)


def abort_if_all_failed(folder: StudyFolder) -> None:
    """Raise TrainingError if a run of every design failed for the same reason, and no run has succeeded."""
    outcomes = folder.outcomes()
    designs = {outcome.design for outcome in outcomes if outcome.status == "failed"}
    reasons = {outcome.reason for outcome in outcomes}
    if len(reasons) == 1 and designs == {design.name for design in folder.plan.designs} and folder.missing():
        raise TrainingError(
            f"all {len(outcomes)} runs so far failed for the same reason: {reasons.pop()}. The others were not "
            f"started; once this is fixed: leanify compare {quote(str(folder.path))} --retry"
        )


def measure_costs(folder: StudyFolder) -> None:
    """Measure the designs' costs, unless all of them have been measured."""
    from leanify.comparison.measure import measure

    study = read_study(folder)
    if all(result.costs is not None for result in study.results):
        return
    costs = measure(folder.plan)
    data = study.to_json()
    for design in data["designs"]:
        design |= vars(costs[design["name"]])
    folder.write_results(data)


def finish_study(folder: StudyFolder) -> Study:
    """Return the study's current results; update ``results.json`` and record that the answers were looked at.

    Raises DirectoryError for a damaged file.
    """
    study = read_study(folder)
    if study.look:
        folder.look(max(len(pair.seeds) for pair in study.pairs if pair.asked))
    with reraise_as(f"a file of {folder.path} is damaged", DirectoryError):
        results = study.to_json()
    folder.write_results(results)
    return study
