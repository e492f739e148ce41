"""The tables of a study as values, for the terminal and for its page. A column is an entry of one of these lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

from leanify.core.units import (
    decimal_places,
    format_bytes,
    format_count,
    format_difference,
    format_digits,
    format_operations,
    format_range,
    format_sizes,
    metric_heading,
)
from leanify.spectra.report import figures, format_kappa

if TYPE_CHECKING:
    from leanify.comparison.values import DesignResult, Pair, Range, Study

Row = TypeVar("Row")
Detail = Literal["brief", "full", "page"]  # as it is printed, with --explain, and on the page
Columns = list[tuple[str, Callable[[Row], Any]]]  # name, and the cell of a row

COSTS: dict[str, str] = {  # names as printed
    "params": "parameters",
    "macs": "multiply-adds",
    "train_seconds": "training time",
    "latency_s": "latency",
}


@dataclass(frozen=True)
class Table:
    """A cell is a text, or a list of links, each an address and a text."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def _table(title: str, columns: Columns[Row], rows: Iterable[Row]) -> Table:
    head = tuple(name for name, _ in columns)
    return Table(title, head, tuple(tuple(cell(row) for _, cell in columns) for row in rows))


def designs(study: Study, detail: Detail = "brief") -> Table:
    """Return shape and quality of every design, and the reference; ``--explain`` and the page have more columns."""
    columns: Columns[DesignResult] = [
        ("", lambda result: result.name),
        ("depth", lambda result: format_sizes(result.plan.depth)),
        ("heads × dim", lambda result: f"{format_sizes(result.plan.heads)} × {format_sizes(result.plan.head_dim)}"),
        ("mlp", lambda result: format_sizes(result.plan.mlp)),
        ("params", lambda result: format_count(result.plan.params)),
        (metric_heading(study.metric or "quality"), quality),
        ("seeds", _seeds),
    ]
    if len({design.width for design in study.plan.designs}) > 1:
        columns.insert(3, ("width", lambda result: format_sizes(result.plan.width)))
    if detail != "brief":
        columns += [
            ("rate", lambda result: "–" if result.rate is None else f"{result.rate:.2g}"),
            ("κ", lambda result: format_kappa(result.kappa, result.kappa_bounds)),
        ]
    if detail == "page":
        columns += [
            ("κ at the start", lambda result: figures(result.kappa_begin)),
            ("predicted", lambda result: f"rank {result.plan.rank}"),
            ("runs", _runs),
        ]
    table = _table("Designs: mean over seeds ± half of its 95% interval", columns, study.results)
    reference = study.reference
    if reference is None or reference.value is None:
        return table
    cells = {"": "reference", metric_heading(study.metric or "quality"): format_digits(reference.value)}
    row = tuple(cells.get(name, "") for name in table.head)
    return Table(table.title, table.head, (*table.rows, row))


def costs(study: Study, page: bool = False) -> Table:
    """Return the measured costs of the designs; no rows if none was measured."""
    columns: Columns[Any] = [
        ("", lambda result: result.name),
        ("MACs", lambda result: format_operations(result.plan.macs)),
        ("latency", lambda result: format_range(result.costs.latency_s, result.costs.latency_range, 1e3, "ms")),
        ("inference/s", lambda result: format_range(result.costs.throughput_per_s, result.costs.throughput_range)),
        ("training/s", lambda result: format_range(result.costs.train_per_s, result.costs.train_range)),
        ("training memory", lambda result: format_bytes(result.costs.train_peak_bytes)),
    ]
    if page:
        columns.append(("predicted", lambda result: format_bytes(result.costs.train_predicted_bytes)))
    return _table("Costs", columns, [result for result in study.results if result.costs is not None])


def pairs(study: Study) -> Table:
    """Return the differences between designs, positive if better; * marks differences without a planned question."""
    better = "more" if study.higher_is_better else "less"
    columns: Columns[Pair] = [
        (
            f"difference ({better} {study.metric} is +)",
            lambda pair: f"{pair.design} − {pair.against}{'' if pair.asked else ' *'}",
        ),
        ("mean", lambda pair: format_difference(pair.difference, pair.low, pair.high)[0]),
        ("95% interval", lambda pair: format_difference(pair.difference, pair.low, pair.high)[1]),
        ("p", probability),
        ("seeds", lambda pair: str(len(pair.seeds))),
    ]
    return _table("Paired differences", columns, study.pairs)


# -- quality against cost ---------------------------------------------------------------------------------------------


def fronts(study: Study) -> dict[str, tuple[str, ...]]:
    """The Pareto front of every cost, cheapest design first: designs that no other beats in both mean quality and cost.

    A design can win on one cost and lose on another. Measured costs have a range over their rounds: one that overlaps
    another is neither lower nor higher.
    """
    sign = 1 if study.higher_is_better else -1
    all_fronts = {}
    for name in COSTS:
        candidates = []
        for result in study.results:
            price = _cost(study, result, name)
            if result.quality.mean is not None and price is not None:
                candidates.append((price, sign * result.quality.mean, result.name))
        front = []
        for (low, _), quality, design in sorted(candidates):
            if not any(better > quality and high <= low for (_, high), better, _ in candidates):
                front.append(design)
        all_fronts[name] = tuple(front)
    return all_fronts


def _cost(study: Study, result: DesignResult, name: str) -> Range | None:
    """The lowest and highest value of a cost, equal if exact, of one run for training; None if it was not measured."""
    if name in ("params", "macs"):
        exact = float(getattr(result.plan, name))
        return exact, exact
    costs = result.costs
    if costs is None:
        return None
    if name == "latency_s":
        return costs.latency_range or (costs.latency_s, costs.latency_s)
    if study.samples is None:
        return None
    slow, fast = costs.train_range or (costs.train_per_s, costs.train_per_s)
    return study.samples / fast, study.samples / slow


def about_rates(study: Study) -> str:
    """Describe the tried rates, the cost of a bad one, and best rates at the edge; "" if none was tried."""
    costs = []
    for result in study.results:
        qualities = [trial.quality for trial in result.trials if trial.quality is not None]
        if len(qualities) > 1:
            costs.append(f"{result.name} {max(qualities) - min(qualities):.3g}")
    if not costs or study.metric is None:
        return ""
    # a rate beyond the lowest or the highest may be better
    rates = study.plan.tried_rates
    edge = [result.name for result in study.results if result.plan.rate in (rates[0], rates[-1])]
    text = f"rate: the best of {len(rates)}, tried on one seed; the worst of them costs, in {study.metric}: "
    text += ", ".join(costs)
    if edge:
        text += f"; at the edge of the tried rates: {', '.join(edge)}"
    return text


# -- cells ------------------------------------------------------------------------------------------------------------


def quality(result: DesignResult) -> str:
    return interval(result.quality.mean, result.quality.low, result.quality.high)


def interval(mean: float | None, low: float | None, high: float | None) -> str:
    """Format a mean ± half of its interval, with two digits of the uncertainty and as many decimals in the mean."""
    if mean is None:
        return "–"
    if low is None or high is None:
        return f"{mean:.4g}"
    if high == low:
        return f"{mean:.4g} ± 0"
    places = decimal_places(low, high)
    return f"{mean:.{places}f} ± {(high - low) / 2:.{places}f}"


def probability(pair: Pair) -> str:
    if pair.low is None or pair.p is None:
        return "–"
    return "< 0.001" if pair.p < 0.001 else f"{pair.p:.3f}"


def _seeds(result: DesignResult) -> str:
    counts = {"failed": result.quality.failed, "diverged": result.quality.diverged}
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{result.quality.seeds} ({', '.join(parts)})" if parts else str(result.quality.seeds)


def _runs(result: DesignResult) -> list[tuple[str, str]] | str:
    """Return every run's quality, as a link to the run's folder."""
    links = []
    for run in result.runs:
        text = "failed" if run.quality is None else f"{run.quality:#.4g}"
        if run.status == "diverged":
            text = f"{text}, diverged"
        links.append((quote(f"{run.path}/"), text))
    return links or "–"
