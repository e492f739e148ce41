"""The tables of a study as values, for the terminal and for its page. A column is an entry of one of these lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from leanify.spectra.report import figures, known
from leanify.study.folder import Rung
from leanify.study.plan import Sizes
from leanify.study.values import DesignResult, Findings, Pair
from leanify.units import binary, digits, heading, millions, operations, percent, places_of, ranged, spread

Row = TypeVar("Row")
Detail = Literal["brief", "full", "page"]  # as it is printed, with --explain, and on the page
Columns = list[tuple[str, Callable[[Row], Any]]]  # name, and the cell of a row


@dataclass(frozen=True)
class Links:
    """A table cell of links: address and text of each."""

    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def _table(title: str, columns: Columns[Row], rows: Iterable[Row]) -> Table:
    head = tuple(name for name, _ in columns)
    return Table(title, head, tuple(tuple(cell(row) for _, cell in columns) for row in rows))


def designs(study: Findings, detail: Detail = "brief") -> Table:
    """Shape and quality of every design, and the reference; ``--explain`` and the page have more columns."""
    columns: Columns[DesignResult] = [
        ("", lambda result: result.name),
        ("depth", lambda result: sizes(result.plan.depth)),
        ("heads × dim", lambda result: f"{sizes(result.plan.heads)} × {sizes(result.plan.head_dim)}"),
        ("mlp", lambda result: sizes(result.plan.mlp)),
        ("params", lambda result: millions(result.plan.params)),
        (heading(study.metric or "quality"), quality),
        ("seeds", _seeds),
    ]
    if detail != "brief":
        columns += [
            ("rate", lambda result: "–" if result.rate is None else f"{result.rate:.2g}"),
            ("κ", lambda result: known(result.kappa, result.kappa_bounds)),
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
    cells = {"": "reference", heading(study.metric or "quality"): digits(reference.value)}
    row = tuple(cells.get(name, "") for name in table.head)
    return Table(table.title, table.head, (*table.rows, row))


def costs(study: Findings, page: bool = False) -> Table:
    """What was measured of the designs; no rows if nothing was."""
    columns: Columns[Any] = [
        ("", lambda result: result.name),
        ("MACs", lambda result: operations(result.plan.macs)),
        ("latency", lambda result: ranged(result.costs.latency_s, result.costs.latency_range, 1e3, "ms")),
        ("inference/s", lambda result: ranged(result.costs.throughput_per_s, result.costs.throughput_range)),
        ("training/s", lambda result: ranged(result.costs.train_per_s, result.costs.train_range)),
        ("training memory", lambda result: binary(result.costs.train_peak_bytes)),
    ]
    if page:
        columns.append(("predicted", lambda result: binary(result.costs.train_predicted_bytes)))
    return _table("Costs", columns, [result for result in study.results if result.costs is not None])


def pairs(study: Findings) -> Table:
    """The differences between designs, positive if better; * marks those that were not asked about before."""
    better = "more" if study.higher_is_better else "less"
    columns: Columns[Pair] = [
        (
            f"difference ({better} {study.metric} is +)",
            lambda pair: f"{pair.design} − {pair.against}{'' if pair.asked else ' *'}",
        ),
        ("mean", lambda pair: spread(pair.difference, pair.low, pair.high)[0]),
        ("95% interval", lambda pair: spread(pair.difference, pair.low, pair.high)[1]),
        ("p", lambda pair: "–" if pair.low is None else probability(pair.p)),
        ("seeds", lambda pair: str(len(pair.seeds))),
    ]
    return _table("Paired differences", columns, study.pairs)


def cut(study: Findings, rung: Rung) -> Table:
    """A cut of a tournament: every design of the field, and how far it was behind the best."""
    noise = "" if rung.noise is None else f"; who is behind by more than the noise, {rung.noise:.2g}, goes"
    places = 4 if rung.noise is None else places_of(-rung.noise, rung.noise)
    best = min((loss for loss in rung.losses.values() if loss is not None), default=0.0)
    failed = {result.name for result in study.results if result.quality.failed}
    rows = []
    for name, loss in sorted(rung.losses.items(), key=lambda entry: (entry[1] is None, entry[1])):
        shape = ("–", "–", "–")  # a study of an earlier version may not have kept the shapes of its field
        if study.plan.has(name):
            design = study.plan.design(name)
            shape = (sizes(design.depth), f"{sizes(design.heads)} × {sizes(design.head_dim)}", sizes(design.mlp))
        stays = "stays" if name in rung.kept else "dropped"
        if loss is None:
            training, behind = "failed" if name in failed or name not in rung.kept else "not logged", "–"
        else:
            training, behind = f"{loss:.{places}f}", f"{loss - best:.{places}f}"
            if name in rung.kept and rung.noise is not None and loss - best > rung.noise:
                stays = "stays, as it is compared in any case"
        rows.append((name, *shape, training, behind, stays))
    title = f"Tournament after {percent(rung.share)} of the schedule{noise}"
    return Table(title, ("", "depth", "heads × dim", "mlp", "training loss", "behind", ""), tuple(rows))


# -- cells ------------------------------------------------------------------------------------------------------------


def sizes(size: Sizes) -> str:
    """One number, or one for each stage: 4/4/8/2."""
    return str(size) if isinstance(size, int) else "/".join(map(str, size))


def quality(result: DesignResult) -> str:
    found = result.quality
    return interval(found.mean, found.low, found.high)


def interval(mean: float | None, low: float | None, high: float | None) -> str:
    """A mean ± half of its interval, with two digits of the uncertainty and as many places of the mean."""
    if mean is None:
        return "–"
    if low is None or high is None:
        return f"{mean:.4g}"
    if high == low:
        return f"{mean:.4g} ± 0"
    places = places_of(low, high)
    return f"{mean:.{places}f} ± {(high - low) / 2:.{places}f}"


def probability(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _seeds(result: DesignResult) -> str:
    failed = f" ({result.quality.failed} failed)" if result.quality.failed else ""
    return f"{result.quality.seeds}{failed}"


def _runs(result: DesignResult) -> Links | str:
    """Every run's quality, as a link to the run's folder."""
    links = []
    for run in result.runs:
        links.append((quote(f"{run.path}/"), "failed" if run.quality is None else f"{run.quality:#.4g}"))
    return Links(tuple(links)) if links else "–"
