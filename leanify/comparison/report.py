"""A study as one self-contained HTML page with text, tables and figures, from the template ``page.html.j2``."""

from __future__ import annotations

from pathlib import Path

from leanify.comparison import efficiency, tables
from leanify.comparison.figures import figures
from leanify.comparison.methods import methods
from leanify.comparison.values import Findings
from leanify.core.errors import DirectoryError
from leanify.core.files import writing
from leanify.training.overview import data_name

TEMPLATE = "page.html.j2"


def write(study: Findings, path: Path) -> Path:
    """Write the page. Raises DirectoryError if it cannot be written."""
    try:
        writing.write(path, render(study))
    except OSError as error:
        raise DirectoryError(f"{path} could not be written: {error.strerror or error}") from error
    return path


def render(study: Findings) -> str:
    """The page as HTML. Each run's number links to the run's folder, relative to the study's folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    page_tables = [tables.designs(study, "page"), tables.costs(study, page=True), tables.pairs(study)]
    loader = PackageLoader("leanify.comparison", "")
    engine = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return engine.get_template(TEMPLATE).render(
        title=study.plan.title,
        about=about(study),
        not_learnt="" if study.learnt else f"{study.learnt_why}.",
        verdicts=study.verdicts,
        methods=methods(study),
        notes=_notes(study),
        tables=[table for table in page_tables if table.rows],
        figures=figures(study),
        command=f"leanify compare {study.path}",
    )


def about(study: Findings) -> str:
    """One line about the comparison: data, metric, budget, designs and seeds."""
    data = study.plan.recipe.data
    where = f"{data_name(data)}, {data.task}" if data else ""
    split = f"{study.metric} of the {study.split} split after training" if study.metric else "no run has finished yet"
    missing = f" · {study.describe_missing()}" if study.missing else ""
    budget_text = study.plan.budget or "none"
    budget = f"{int(budget_text):,} parameters" if budget_text.isdecimal() else budget_text
    designs = f"{len(study.results)} designs × {len(study.plan.seeds)} seeds"
    return f"{where} · {split} · budget {budget} · {designs}{missing}"


def _notes(study: Findings) -> list[str]:
    """The Pareto front of each cost, and runs that failed or diverged."""
    notes = []
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
            if run.status != "finished":
                notes.append(f"{result.name}, seed {run.seed}, {run.status}: {run.reason}")
    return notes
