"""A study as one self-contained HTML page with text, tables and figures, from the template ``page.html.j2``."""

from __future__ import annotations

from pathlib import Path

from leanify.errors import DirectoryError
from leanify.runs import writing
from leanify.study import efficiency, tables
from leanify.study.figures import figures
from leanify.study.folder import StudyFolder
from leanify.study.methods import methods
from leanify.study.values import Findings
from leanify.training.overview import data_name

TEMPLATE = "page.html.j2"


def write(study: Findings, path: Path) -> Path:
    """Write the page. Each run's number links to the run's folder, relative to the study's folder.

    Raises DirectoryError if the page cannot be written.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    cuts = [tables.cut(study, rung) for rung in study.rungs]
    found = [tables.designs(study, "page"), tables.costs(study, page=True), *cuts, tables.pairs(study)]
    loader = PackageLoader("leanify.study", "")
    engine = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = engine.get_template(TEMPLATE).render(
        title=study.plan.title,
        about=about(study),
        not_learnt="" if study.learnt else f"{study.learnt_why}.",
        verdicts=study.verdicts,
        methods=methods(study, StudyFolder(study.path)),
        notes=_notes(study),
        tables=[table for table in found if table.rows],
        figures=figures(study, StudyFolder(study.path)),
        command=f"leanify compare {study.path}",
    )
    try:
        writing.write(path, text)
    except OSError as error:
        raise DirectoryError(f"{path} could not be written: {error.strerror or error}") from error
    return path


def about(study: Findings) -> str:
    """One line about the comparison: data, metric, budget, designs and seeds."""
    data = study.plan.recipe.data
    where = f"{data_name(data)}, {data.task}" if data else ""
    split = f"{study.metric} of the {study.split} split after training" if study.metric else "no run has finished yet"
    missing = f" · {study.missing} runs to go" if study.missing else ""
    asked = study.plan.budget or "none"
    budget = f"{int(asked):,} parameters" if asked.isdecimal() else asked
    designs = f"{len(study.results)} designs × {len(study.plan.seeds)} seeds"
    return f"{where} · {split} · budget {budget} · {designs}{missing}"


def _notes(study: Findings) -> list[str]:
    """A tournament's winner, the Pareto front of each cost, and what failed."""
    plan, notes = study.plan, []
    if plan.winner is not None:
        rest = ", ".join(map(str, plan.judging)) or "none yet"
        notes.append(
            f"Winner of the tournament: {plan.winner}, the best of {len(plan.designs)} designs on seed "
            f"{plan.seeds[0]}. That seed chose it, so the others ({rest}) judge it."
        )
    fronts = []
    for cost, names in efficiency.fronts(study).items():
        if names:
            fronts.append(f"by {efficiency.COSTS[cost]}: {', '.join(names)}")
    if fronts:
        notes.append(
            f"Designs that no other beats in both mean and cost: {'; '.join(fronts)}. Costs whose ranges overlap count "
            "as equal."
        )
    for result in study.results:
        for run in result.runs:
            if run.status == "failed":
                notes.append(f"{result.name}, seed {run.seed}, failed: {run.reason}")
    return notes
