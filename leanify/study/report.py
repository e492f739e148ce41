"""A study as one self-contained HTML page with text, tables and figures, from the template ``page.html.j2``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from leanify.errors import DirectoryError
from leanify.runs import writing
from leanify.spectra.report import figures as in_figures
from leanify.spectra.report import known
from leanify.study import efficiency
from leanify.study.figures import figures
from leanify.study.folder import Rung, StudyFolder
from leanify.study.methods import methods
from leanify.study.values import DesignResult, Findings, Pair
from leanify.units import PERCENT, binary, millions, operations, ranged, spread

TEMPLATE = "page.html.j2"


@dataclass(frozen=True)
class Link:
    href: str
    text: str


@dataclass(frozen=True)
class Links:
    """A table cell of links."""

    links: tuple[Link, ...]


@dataclass(frozen=True)
class Table:
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def write(study: Findings, path: Path) -> Path:
    """Write the page. Each run's number links to the run's folder, relative to the study's folder.

    Raises DirectoryError if the page cannot be written.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("leanify.study", "")
    engine = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = engine.get_template(TEMPLATE).render(
        title=study.plan.title,
        about=about(study),
        not_learnt="" if study.learnt else f"{study.learnt_why}.",
        verdicts=study.verdicts,
        methods=methods(study, StudyFolder(study.path)),
        notes=[*describe_fronts(study), *failures(study)],
        tables=tables(study),
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
    where = f"{data.name}, {data.task}" if data else ""
    split = f"{study.metric} of the {study.split} split after training" if study.metric else "no run has finished yet"
    missing = f" · {study.missing} runs to go" if study.missing else ""
    seeds = len(study.plan.seeds)
    return f"{where} · {split} · budget {study.plan.budget} · {len(study.results)} designs × {seeds} seeds{missing}"


def describe_fronts(study: Findings) -> list[str]:
    """A sentence about the Pareto front of each cost."""
    best = {cost: names for cost, names in efficiency.fronts(study).items() if names}
    if not best:
        return []
    fronts = "; ".join(f"by {efficiency.COSTS[cost]}: {', '.join(names)}" for cost, names in best.items())
    return [f"Designs that no other beats in both mean and cost: {fronts}. Costs whose ranges overlap count as equal."]


def failures(study: Findings) -> list[str]:
    return [
        f"{result.name}, seed {run.seed}, failed: {run.reason}"
        for result in study.results
        for run in result.runs
        if run.status == "failed"
    ]


def tables(study: Findings) -> list[Table]:
    designs = Table(
        "Designs",
        (
            "",
            "depth",
            "heads × dim",
            "MLP",
            "parameters",
            f"{study.metric}{' %' if study.metric in PERCENT else ''} (95%)",
            "rate",
            "κ start → end",
            "predicted",
            "runs",
        ),
        (*(_design(result) for result in study.results), *_reference(study)),
    )
    costs = Table(
        "Costs",
        ("", "MACs", "latency", "inference/s", "training/s", "training memory", "predicted"),
        tuple(_costs(result) for result in study.results if result.costs is not None),
    )
    better = "higher" if study.higher_is_better else "lower"
    cuts = [_cut(rung) for rung in study.rungs]
    pairs = Table(
        f"Paired differences; positive means {better} {study.metric}",
        ("", "mean", "95% interval", "p", "seeds"),
        tuple(_pair(pair) for pair in study.pairs),
    )
    return [table for table in (designs, costs, *cuts, pairs) if table.rows]


def _reference(study: Findings) -> list[tuple[Any, ...]]:
    found = study.reference
    if found is None or found.value is None:
        return []
    return [("reference", "", "", "", "", f"{found.value:.4g}", "", "", "", "")]  # the methods say what it is


def _design(result: DesignResult) -> tuple[Any, ...]:
    plan, quality = result.plan, result.quality
    links = Links(tuple(Link(quote(f"{run.path}/"), _value(run.quality)) for run in result.runs))
    mean = "–" if quality.mean is None else f"{quality.mean:.4g}"
    span = "" if quality.low is None else f" ({quality.low:.4g} to {quality.high:.4g})"
    return (
        result.name,
        _sizes(plan.depth),
        f"{_sizes(plan.heads)} × {_sizes(plan.head_dim)}",
        _sizes(plan.mlp),
        millions(plan.params),
        mean + span,
        "–" if result.rate is None else f"{result.rate:.2g}",
        f"{in_figures(result.kappa_begin)} → {known(result.kappa, result.kappa_bounds)}",
        f"rank {plan.rank}",
        links if links.links else "–",
    )


def _costs(result: DesignResult) -> tuple[Any, ...]:
    costs = result.costs
    assert costs is not None
    return (
        result.name,
        operations(result.plan.macs),
        ranged(costs.latency_s, costs.latency_range, 1e3, "ms"),
        ranged(costs.throughput_per_s, costs.throughput_range),
        ranged(costs.train_per_s, costs.train_range),
        binary(costs.train_peak_bytes),
        binary(costs.train_predicted_bytes),
    )


def _cut(rung: Rung) -> Table:
    """A cut of a tournament: who was how far behind the best."""
    known = [loss for loss in rung.losses.values() if loss is not None]
    noise = "" if rung.noise is None else f"; who is behind by more than the noise, {rung.noise:.3g}, goes"
    rows = []
    for name, loss in sorted(rung.losses.items(), key=lambda entry: (entry[1] is None, entry[1])):
        behind = ("failed", "–") if loss is None else (f"{loss:.4g}", f"{loss - min(known):.3g}")
        rows.append((name, *behind, "stays" if name in rung.kept else "dropped"))
    return Table(
        f"Tournament after {rung.share:.0%} of the schedule{noise}", ("", "training loss", "behind", ""), tuple(rows)
    )


def _pair(pair: Pair) -> tuple[Any, ...]:
    mean, span = spread(pair.difference, pair.low, pair.high)
    p = "–" if pair.p is None else "< 0.001" if pair.p < 0.001 else f"{pair.p:.3f}"
    explored = "" if pair.asked else " *"
    return f"{pair.design} − {pair.against}{explored}", mean, span, p, len(pair.seeds)


def _sizes(size: int | tuple[int, ...]) -> str:
    return str(size) if isinstance(size, int) else "/".join(map(str, size))


def _value(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4g}"
