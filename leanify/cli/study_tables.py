"""A study on the terminal: its progress while runs are trained, then its tables, which fit 80 columns."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from shlex import join, quote
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from leanify.cli.output import print_next, print_table, table
from leanify.cli.screen import NARROW, format_value
from leanify.comparison import tables
from leanify.comparison.designs import design_argument
from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import Key
from leanify.comparison.values import Study
from leanify.core.terminal import GREEN, ORANGE, RED, SECONDS, bars, console
from leanify.core.units import format_bytes, format_count, format_forecast, format_metric, format_sizes, macs_column
from leanify.training.overview import data_name

STYLES = {"shown": f"bold {GREEN}", "refuted": f"bold {RED}", "undecided": f"bold {ORANGE}"}


class Board:
    """On a terminal, a bar for the study and one per run; otherwise a line per finished run, and every half minute."""

    def __init__(self, folder: StudyFolder) -> None:
        self.folder = folder
        self.console = console(stderr=True)

        # a bar for each task if the terminal is wide enough
        name = TextColumn("{task.description}", markup=False)
        loss = TextColumn("{task.fields[loss]}", markup=False)
        columns = [SpinnerColumn(), name, MofNCompleteColumn(), TimeRemainingColumn(compact=True)]
        if self.console.width >= NARROW:
            columns[2:2] = [BarColumn(bar_width=None)]
            columns.append(loss)
        self.progress = bars(*columns)
        self.tasks: dict[Key, Any] = {}
        self.stack = ExitStack()
        self.last_line = time.monotonic()

    def __enter__(self) -> Board:
        plan = self.folder.plan
        keys = [*plan.runs(), *plan.all_trials()]
        total, self.ended_runs = len(keys), sum(self.folder.outcome(key) is not None for key in keys)

        # what is trained: designs, seeds, trials of rates, steps
        names = ", ".join(design.name for design in plan.designs)
        trials = f", after trials of {len(plan.rates)} learning rates each" if list(plan.trials()) else ""
        text = f"{plan.title} in {self.folder.path}: {names} × {len(plan.seeds)} seeds{trials} = {total} runs"
        if self.ended_runs:
            text += f", {self.ended_runs} done"
        schedule = plan.recipe.schedule
        if schedule is not None and schedule.steps is not None:
            text += f", {schedule.steps:,} steps each"
        self.console.print(text, soft_wrap=not self.console.is_terminal)
        self.stack.enter_context(self.progress)
        self.study = self.progress.add_task("runs", total=total, completed=self.ended_runs, loss="")
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.stack.close()
        if error is None and self.console.is_terminal:
            self.console.print()  # the results follow

    def row(self, key: Key, row: Mapping[str, Any]) -> None:
        """Show that a run is prepared, that it has begun, or a row of its log."""
        if key not in self.tasks:
            self.tasks[key] = self.progress.add_task(str(key), total=None, loss="preparing")
        task = self.tasks[key]

        # the run's first message has its length, the others are rows of its log
        if "began" in row:
            self.progress.reset(task, total=row["steps"], completed=row["step"], loss="")
        elif "loss" in row:
            loss = f"{row['split']} loss {format_value(row['loss'])}"
            self.progress.update(task, completed=row["step"], loss=loss)
            if not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS:
                self._print(f"{key} · step {row['step']:,} · {loss}")
        self._update()

    def on_end(self, key: Key) -> None:
        """Show that a run has finished or failed."""
        if key in self.tasks:
            self.progress.remove_task(self.tasks.pop(key))
        self.ended_runs += 1
        self._update()
        outcome = self.folder.outcome(key)
        if outcome is not None and outcome.status == "failed":
            self._print(f"{key} failed: {outcome.reason}")
        elif outcome is not None and outcome.quality is not None:
            self._print(f"{key} · {format_metric(outcome.metric, outcome.quality)}")

    def _print(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)
        self.last_line = time.monotonic()

    def _update(self) -> None:
        """Count the finished parts of runs, so that the time left is known before the first one ends."""
        running = [task for task in self.progress.tasks if task.id != self.study]
        parts = sum(task.completed / task.total for task in running if task.total)
        total = len([*self.folder.plan.runs(), *self.folder.plan.all_trials()])  # more if the range of rates moves
        self.progress.update(self.study, total=total, completed=self.ended_runs + parts)


# -- the results ------------------------------------------------------------------------------------------------------


def render_study(study: Study, page: Path | None, explain: bool = False) -> None:
    """Print the designs with their quality, and the answers; with ``explain`` also costs, differences and methods."""
    # the title, and whether the baseline has learnt anything
    out = console()
    data, parts = study.plan.recipe.data, [study.describe_missing()]
    if data is not None:
        name = data_name(data)
        parts.insert(0, data.task if name == study.plan.title else f"{name}, {data.task}")
    if study.plan.budget:
        parts.insert(-1, f"budget {study.plan.budget}")
    out.print(Text.assemble((study.plan.title, "bold"), f" · {' · '.join(filter(None, parts))}"))
    if not study.learnt:
        out.print(Text.assemble(("not learnt", STYLES["refuted"]), f"  {study.learnt_why}."))

    # a row per design, and the trivial model's name
    out.print()
    designs = tables.designs(study, "full" if explain else "brief")
    print_table(out, table(designs.head, designs.rows))
    if study.reference is not None:
        out.print(f"\nreference: {study.reference.name}")
    if explain:
        _print_details(study, out)

    # answers and failures, then the page and the commands to type next
    conclusions = list(_conclusions(study, explain))
    if conclusions:
        out.print()
    for conclusion in conclusions:
        out.print(conclusion)
    if page is None:
        return
    out.print(f"\npage  {page}", soft_wrap=True)

    # the rest of an unfinished study, more seeds, or where models have not learnt more steps; and the details
    command = f"leanify compare {quote(str(page.parent))}"
    lines = []
    if study.missing:
        lines.append(command)
    elif study.learnt:
        lines.append(f"{command} --seeds {2 * len(study.plan.seeds)}")
    elif study.suggested_steps is not None:
        lines.append(join(longer_study(study, page.parent, study.suggested_steps)))
    if not explain:
        lines.append(f"{command} --report --explain")
    print_next(*lines)


def longer_study(study: Study, folder: Path, steps: int) -> list[str]:
    """The command for the same study with longer runs, in a new folder; it uses the recipe of a run."""
    plan = study.plan
    runs = chain.from_iterable(result.runs for result in study.results)
    run = next(run for run in runs if run.status == "finished")
    output = f"{re.sub(r'-[0-9]+-steps$', '', str(folder))}-{steps}-steps"
    command = ["leanify", "compare", str(folder / run.path), "-o", output, "--set", f"schedule.steps={steps}"]
    if plan.budget is not None:
        command += ["--target-params", plan.budget]
    command += ["--seeds", str(len(plan.seeds)), "--rates", ",".join(f"{rate:g}" for rate in plan.rates)]
    command += ["--designs", ",".join(design_argument(design) for design in plan.designs)]
    if plan.margin is not None:
        command += ["--margin", f"{plan.margin:g}"]
    if plan.weights is not None:
        command += ["--weights", plan.weights]
    return command


def _print_details(study: Study, out: Console) -> None:
    # how to read the numbers; the learning rates
    out.print(
        f"\n{study.metric or 'quality'}: mean over seeds ± half of its 95% interval; κ: of the concatenated heads"
    )
    if rates_text := tables.about_rates(study):
        out.print(rates_text)
    costs, pairs = tables.costs(study), tables.pairs(study)
    if costs.rows:
        out.print()
        print_table(out, table(costs.head, costs.rows))
    if pairs.rows:
        out.print()
        print_table(out, table(pairs.head, pairs.rows))
        of = f"over seeds and {study.evaluated:,} validation samples" if study.evaluated else "over seeds alone"
        note = f"intervals {of}, by pairs of seeds"
        if study.look:
            note += f", valid for every look at the study (this is number {study.look})"
        if not all(pair.asked for pair in study.pairs):
            note += "; * not asked before: p by Holm, intervals by Bonferroni"
        out.print(f"\n{note}")


def _conclusions(study: Study, explain: bool) -> Iterator[str | Text]:
    no_answer = "Nothing is answered before the baseline has learnt; --report --explain shows the differences."
    verdicts = study.verdicts
    if verdicts and not (study.learnt or explain):
        yield Text.assemble(("undecided", STYLES["undecided"]), f"  {no_answer}")
        verdicts = ()
    for verdict in verdicts:
        yield Text.assemble((verdict.answer, STYLES[verdict.answer]), f"  {verdict.words}")
    for result in study.results:
        for run in result.runs:
            if run.status != "finished":
                yield Text.assemble((run.status, STYLES["refuted"]), f"  {result.name}, seed {run.seed}: {run.reason}")


def render_forecast(forecast: Mapping[str, Any], command: str) -> None:
    """Print the predicted cost of a study, and the command that runs it."""
    # a row per design: its shape, its prices, and the time of a run
    out = console()
    unit, macs = macs_column(max(design["macs"] for design in forecast["designs"]))
    widths = [format_sizes(design["width"]) for design in forecast["designs"]]
    width = ["width"] if len(set(widths)) > 1 else []
    grid = table(("", "depth", "heads × dim", *width, "mlp", "params", unit, "a run"), [])
    for design, cell in zip(forecast["designs"], widths, strict=True):
        grid.add_row(
            design["name"],
            format_sizes(design["depth"]),
            f"{format_sizes(design['heads'])} × {format_sizes(design['head_dim'])}",
            *([cell] if width else []),
            format_sizes(design["mlp"]),
            format_count(design["params"]),
            macs(design["macs"]),
            format_forecast(3600 * design["hours_a_run"]).removeprefix("about "),
        )
    out.print(forecast["data"])
    out.print()
    print_table(out, grid)
    out.print()

    # the cost of the study
    parts = [
        f"{forecast['runs']} runs, {forecast['jobs']} at a time",
        format_forecast(3600 * forecast["hours_predicted"]),
        f"at most {format_bytes(forecast['bytes_predicted'])} of disk",
    ]
    if forecast["memory_predicted_bytes"]:
        parts.append(f"memory {format_bytes(forecast['memory_predicted_bytes'])}")
    out.print(" · ".join(parts))
    print_next(command)
