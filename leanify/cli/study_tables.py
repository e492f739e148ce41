"""Print a study on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from leanify.cli.next_lines import print_next
from leanify.cli.tables import print_table, table
from leanify.study import tables
from leanify.study.tables import sizes
from leanify.terminal import GREEN, ORANGE, RED, console
from leanify.units import about, binary, macs_column, millions, percent

if TYPE_CHECKING:
    from leanify.study.results import Study

STYLES = {"shown": f"bold {GREEN}", "refuted": f"bold {RED}", "undecided": f"bold {ORANGE}"}


def render_study(study: Study, page: Path | None, explain: bool = False) -> None:
    """Print the designs with their quality, and the answers; with ``explain`` also costs, differences and methods."""
    out = console()
    out.print(Text.assemble((study.plan.title, "bold"), f" · {_about(study)}"))
    if not study.learnt:
        out.print(Text.assemble(("not learnt", STYLES["refuted"]), f"  {study.learnt_why}."))
    out.print()
    designs = tables.designs(study, "full" if explain else "brief")
    print_table(out, table(designs.head, designs.rows))
    if study.reference is not None:
        out.print(f"\nreference: {study.reference.name}")
    if explain:
        _print_details(study, out)
    conclusions = list(_conclusions(study, explain))
    if conclusions:
        out.print()
    for conclusion in conclusions:
        out.print(conclusion)
    if page is not None:
        out.print(f"\npage  {page}", soft_wrap=True)
        folder = quote(str(page.parent))
        more = f"leanify compare {folder} --seeds {2 * len(study.plan.seeds)}"
        print_next(more, *([] if explain else [f"leanify compare {folder} --report --explain"]))


def _print_details(study: Study, out: Console) -> None:
    """Print what was tried, costs and differences."""
    out.print(
        f"\n{study.metric or 'quality'}: mean over seeds ± half of its 95% interval; κ: of the concatenated heads"
    )
    if words := about_rates(study):
        out.print(words)
    costs, pairs = tables.costs(study), tables.pairs(study)
    if costs.rows:
        out.print()
        print_table(out, table(costs.head, costs.rows))
    if pairs.rows:
        out.print()
        print_table(out, table(pairs.head, pairs.rows))
        of = f"over seeds and {study.evaluated:,} validation samples" if study.evaluated else "over seeds alone"
        words = f"intervals {of}, noise pooled over all designs"
        if study.look:
            words += f", valid for every look at the study (this is number {study.look})"
        if not all(pair.asked for pair in study.pairs):
            words += "; * not asked before: p by Holm"
        out.print(f"\n{words}")


def _about(study: Study) -> str:
    from leanify.training.overview import data_name

    data = study.plan.recipe.data
    name = f"{data_name(data)}, " if data and data_name(data) != study.plan.title else ""
    parts = [f"{name}{data.task}" if data else "", f"budget {study.plan.budget}"]
    if study.missing:
        parts.append(f"{study.missing} runs to go")
    return " · ".join(parts)


def about_rates(study: Study) -> str:
    """What was tried, how much a bad rate costs, and where the best one lies at the edge; "" if none was tried."""
    from leanify.study.rates import at_the_edge, sensitivity

    worst = {result.name: sensitivity(result.trials) for result in study.results}
    costs = ", ".join(f"{name} {cost:.3g}" for name, cost in worst.items() if cost is not None)
    if not costs:
        return ""
    factors = study.plan.rates
    edge = [result.name for result in study.results if at_the_edge(result.plan.rate, factors)]
    words = f"rate: the best of {len(factors)}, tried on one seed; the worst of them costs, in {study.metric}: {costs}"
    return words + (f"; at the edge of what was tried: {', '.join(edge)}" if edge else "")


def _conclusions(study: Study, explain: bool) -> Iterator[str | Text]:
    yield from about_tournament(study, explain)
    unanswered = "Nothing is answered before the baseline has learnt; --report --explain shows the differences."
    if study.verdicts and not (study.learnt or explain):
        yield Text.assemble(("undecided", STYLES["undecided"]), f"  {unanswered}")
    for verdict in study.verdicts if study.learnt or explain else ():
        yield Text.assemble((verdict.answer, STYLES[verdict.answer]), f"  {verdict.words}")
    for result in study.results:
        for run in result.runs:
            if run.status == "failed":
                yield Text.assemble(("failed", STYLES["refuted"]), f"  {result.name}, seed {run.seed}: {run.reason}")


def about_tournament(study: Study, explain: bool) -> Iterator[str]:
    """By which seeds a tournament's winner was chosen and is judged; with ``explain`` also its cuts."""
    for rung in study.rungs if explain else ():
        best = min((loss for loss in rung.losses.values() if loss is not None), default=0.0)
        behind, failed = [], []
        for name, loss in rung.losses.items():
            if name in rung.kept:
                continue
            if loss is None:
                failed.append(f"{name} failed")
            else:
                behind.append(f"{name} by {loss - best:.3g}")
        noise = "" if rung.noise is None else f" (noise {rung.noise:.3g})"
        words = ", ".join(behind + failed) or "none"
        yield f"dropped after {percent(rung.share)} of the schedule, behind the best training loss{noise}: {words}"
    if study.plan.winner is not None:
        field = len(study.plan.designs)
        yield f"best of {field} designs on seed {study.plan.seeds[0]}: {study.plan.winner}; judged by the other seeds"


def render_predictions(predicted: Mapping[str, Any]) -> None:
    """Print a study's predictions for the designs of a plan."""
    rows = [(name, predicted[name]) for name in ("baseline", "chosen", "control") if predicted[name]]
    rows += [("also", entry) for entry in predicted["candidates"][1:]]
    head = (f"predicted by {predicted['study']}", predicted["metric"] or "", "95% interval")
    span = [(name, f"{p['mean']:.4g}", f"{p['low']:.4g} to {p['high']:.4g}") for name, p in rows]
    out = console()
    out.print()
    print_table(out, table(head, span))


def render_forecast(forecast: Mapping[str, Any], command: str) -> None:
    """Print the predicted cost of a study, and the command that runs it."""
    out = console()
    unit, macs = macs_column(max(design["macs"] for design in forecast["designs"]))
    shown = table(("", "depth", "heads × dim", "mlp", "params", unit, "rank", "a run"), [])
    for design in forecast["designs"]:
        shown.add_row(
            design["name"],
            sizes(design["depth"]),
            f"{sizes(design['heads'])} × {sizes(design['head_dim'])}",
            sizes(design["mlp"]),
            millions(design["params"]),
            macs(design["macs"]),
            str(design["rank"]),
            about(3600 * design["hours_a_run"]).removeprefix("about "),
        )
    out.print(forecast["data"])
    out.print()
    print_table(out, shown)
    out.print()
    memory = f" · memory {binary(forecast['memory_predicted_bytes'])}" if forecast["memory_predicted_bytes"] else ""
    share = forecast["baseline_trainings"]
    cost = ""
    if share:
        cost = f" · {share[0]:.1f} to {share[1]:.1f} × training the baseline once to find the winner, by multiply-adds"
    out.print(
        f"{forecast['runs']} runs, {forecast['jobs']} at a time · {about(3600 * forecast['hours_predicted'])} · "
        f"at most {binary(forecast['bytes_predicted'])} of disk{memory}{cost}"
    )
    print_next(command)
