"""``leanify show``: one run, study, recipe or model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.formats import kind_of
from leanify.cli.formats import show as show_as
from leanify.cli.next_lines import print_next
from leanify.cli.options import Format, Json, complete_source
from leanify.errors import LeanifyError

if TYPE_CHECKING:
    from leanify.runs.recipe import Recipe
    from leanify.runs.run_directory import RunDirectory
    from leanify.training.curves import Curves

Facts = dict[str, Any]
ROWS_OF_A_PLOT, SMALLEST = 13, 9  # four of them are the frame; a curve of fewer than five is none
AROUND = 5  # rows: a title, two blank ones, what `--plot` wrote, the shell's next prompt


@dataclass(frozen=True)
class Page:
    """What is shown: printed lines, JSON, rows for CSV, and curves if there are any."""

    lines: Sequence[str]
    json: Facts
    rows: list[Facts]
    curves: Curves | None = None
    title: str = ""
    after: Sequence[str] = field(default=())


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|STUDY|RECIPE|SOURCE",
            help="a run, a study, a recipe, a lean directory or any model",
            autocompletion=complete_source,
        ),
    ],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="plot a run's curves: .png, .svg or .html")] = None,
    format: Format = None,
    json: Json = False,
) -> None:
    """Show one run (recipe, shape, curves), study, recipe, lean directory or model."""
    from leanify.terminal import progress, say

    kind = kind_of(format, json)
    with progress(f"reading {what}", None):
        from leanify.runs.places import is_study
        from leanify.spectra.plots import check_plot

        study = is_study(what)
        if plot is not None and study:
            raise LeanifyError(f"--plot is for runs; write a study's page with leanify compare {quote(what)} --report")
        check_plot(plot)
        page = None if study else _page(what)
    if page is None:
        from leanify.cli.compare import compare

        return compare(what, report=True, format=kind)
    if plot is not None:
        from leanify.spectra.plots import write
        from leanify.training.curves import figure

        curves = page.curves
        if curves is None or not (curves.train or curves.validation):
            raise LeanifyError(f"--plot draws the curves of a run, but {what} has none")
        write(lambda: figure(curves, page.title), plot, page.title, page.rows, page.lines)
        say(f"leanify: wrote {plot}")
    show_as(kind, page.json, page.rows, lambda: _print(page))


def _page(what: str) -> Page:
    from leanify.data.unrecognised import check_is_no_data
    from leanify.runs import recipe as recipes
    from leanify.runs.places import is_run

    if is_run(what):
        return _run(what)
    if recipes.find(what) is not None or Path(what).suffix == ".toml":
        return _recipe(what, recipes.load(what))
    if Path(what).exists():
        check_is_no_data(what)
    return _model(what)


def _run(what: str) -> Page:
    from leanify.cli.screen import is_own
    from leanify.runs.run_directory import RunDirectory
    from leanify.training.curves import curves_of
    from leanify.training.overview import overview
    from leanify.units import metric

    run = RunDirectory.open(what)
    facts, recipe, rows, best = overview(run.path), run.recipe, run.rows(), run.best()
    shape, params = _noted(run) or _shape(what)
    found = "no evaluation yet"
    if facts.best is not None:
        found = f"best {metric(facts.metric, facts.best)} at step {best.step:,}" if best else "no checkpoint yet"
    after: list[str] = []
    if facts.state == "interrupted":
        after = [run.resume_line]
    elif facts.state == "done":
        after = [f"leanify profile {quote(what)}"]
        if recipe.data is not None and is_own(recipe.data):
            after.append(f"leanify predict {quote(what)} FILES")
    lines = [f"{what} · {facts.state}", f"model  {facts.source} · {shape} · {params}"]
    return Page(
        [*lines, *_about(recipe), f"steps  {facts.done} · {found}"],
        {
            "kind": "run",
            **facts.to_json(),
            "architecture": shape,
            "best_step": best.step if best else None,
            "recipe": recipe.to_dict(),
            "rows": rows,
        },
        rows,
        curves_of(rows, facts.metric),
        f"{what} · {facts.source}",
        after,
    )


def _noted(run: RunDirectory) -> tuple[str, str] | None:
    """`_shape` as the run's card has it, without torch; None for an older run or a damaged card."""
    from leanify.architecture import Architecture
    from leanify.units import millions

    card = run.card()
    try:
        shape, params = Architecture.from_json(card["architecture"]), card["params"]
    except (LeanifyError, LookupError, TypeError, ValueError, AttributeError):
        return None
    return (str(shape), f"{millions(params)} parameters") if type(params) is int else None


def _recipe(what: str, recipe: Recipe) -> Page:
    from leanify.runs.run_directory import leaves

    shape, params = _shape(what)
    lines = [f"{what} · recipe", f"model  {recipe.model.source} · {shape} · {params}", *_about(recipe)]
    rows = [{"key": key, "value": value} for key, value in leaves(recipe.to_dict())]
    after = [f"leanify train {quote(what)}", f"leanify recipes {quote(what)}"]
    return Page(lines, {"kind": "recipe", "architecture": shape, "recipe": recipe.to_dict()}, rows, after=after)


def _about(recipe: Recipe) -> list[str]:
    """Data and schedule, one line each."""
    from leanify.runs.recipe import LENGTHS

    lines = []
    data, schedule, optim = recipe.data, recipe.schedule, recipe.optim
    if data is not None:
        lines.append(f"data   {data.path or data.name} · {data.task}")
    if schedule is not None and optim is not None:
        unit = next(unit for unit in LENGTHS if getattr(schedule, unit))
        length = getattr(schedule, unit)
        rate = f"{optim.name}, learning rate {optim.lr:g}, {schedule.kind}"
        words = f"{length:,g} {unit if length > 1 else unit[:-1]}"
        lines.append(f"train  {words} · batch {schedule.batch_size} · {rate}")
    return lines


def _model(what: str) -> Page:
    from leanify.design.measure.described import described
    from leanify.units import millions

    model = described(what)
    facts = {"kind": "model", "source": what, "origin": model.origin, "params": model.params, "layers": model.layers}
    lines = [
        f"{what} · {model.origin}",
        f"model    {model.shape} · {millions(model.params)} parameters",
        f"weights  {model.weights or 'none: initialised by upstream'}",
    ]
    after = [f"leanify profile {quote(what)}"]
    return Page(lines, {**facts, "weights": model.weights}, model.layers, after=after)


def _shape(what: str) -> tuple[str, str]:
    """Describe a source's architecture and its parameter count."""
    from leanify.design.measure.described import described
    from leanify.units import millions

    model = described(what)
    return model.shape, f"{millions(model.params)} parameters"


def _print(page: Page) -> None:
    from leanify.terminal import console

    out = console()
    first, *others = page.lines
    out.print(first, style="bold", markup=False)
    for line in others:
        out.print(line, markup=False)
    text = ""
    if page.curves is not None:
        from leanify.training.curves import SIDE_BY_SIDE, in_text

        above = sum(len(out.render_lines(line)) for line in page.lines)
        stacked = 2 if page.curves.quality and out.width < SIDE_BY_SIDE else 1
        rows = max(SMALLEST, (out.height - above - len(page.after) - AROUND) // stacked)
        text = in_text(page.curves, out.width, min(ROWS_OF_A_PLOT, rows))
    if text:
        out.print(f"\n{text}", soft_wrap=True)
    print_next(*page.after)
