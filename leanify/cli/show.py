"""``leanify show``: one run or model."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.options import Format, Json, complete_source
from leanify.cli.output import output_kind, print_next
from leanify.cli.output import show as show_as
from leanify.cli.screen import is_own
from leanify.core import recipe as recipes
from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError
from leanify.core.path_kinds import is_run, is_study
from leanify.core.terminal import console, progress, say
from leanify.core.units import format_count, format_metric
from leanify.runs.run_directory import RunDirectory
from leanify.spectra import plots
from leanify.training.curves import Curves, curves_figure, read_curves
from leanify.training.overview import overview

if TYPE_CHECKING:
    from leanify.sources.source import ModelSource

LAYER_SIZES = ("width", "heads", "kv_heads", "head_dim", "inner", "mlp")
Facts = dict[str, Any]


@dataclass(frozen=True)
class Page:
    """A page in all formats: printed lines, JSON, rows for CSV, and curves if there are any."""

    lines: Sequence[str]
    json: Facts
    rows: list[Facts]
    curves: Curves | None = None
    title: str = ""
    after: Sequence[str] = ()


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SOURCE", help="a run, a lean directory or any model", autocompletion=complete_source
        ),
    ],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="plot a run's curves: .png or .svg")] = None,
    format: Format = None,
    json: Json = False,
) -> None:
    """Show one run (recipe, shape, best step) or model (shape, weights).

    \b
    Example:
      leanify show RUN --plot curves.png
    """
    # read
    kind = output_kind(format, json)
    with progress(f"reading {what}", None):
        plots.check_plot(plot)
        if is_run(what):
            page = _run(what, plot)
        else:
            _check_is_model(what)
            page = _model(what)

    # plot and print
    if plot is not None:
        curves = page.curves
        if curves is None or not (curves.train or curves.validation):
            raise LeanifyError(f"--plot draws the curves of a run, but {what} has none")
        plots.write(lambda: curves_figure(curves, page.title), plot)
        say(f"leanify: wrote {plot}")
    show_as(kind, page.json, page.rows, lambda: _print(page))


def _check_is_model(what: str) -> None:
    if is_study(what):
        raise LeanifyError(f"{what} is a study; leanify compare {quote(what)} --report shows it")
    if recipes.find(what) is not None or Path(what).suffix == ".toml":
        raise LeanifyError(f"{what} is a recipe; leanify recipes {quote(what)} prints it")
    if Path(what).exists():
        from leanify.layouts.recognition import check_is_no_data

        check_is_no_data(what)


def _run(what: str, plot: Path | None) -> Page:
    # the run's shape and its best evaluation
    run = RunDirectory.open(what)
    facts, recipe, rows, best = overview(run.path), run.recipe, run.rows(), run.best()
    architecture, params = _read_shape(run) or _build(what)[1:]
    quality_text = "no evaluation yet"
    if facts.best is not None and best is None:
        quality_text = "no checkpoint yet"
    elif facts.best is not None and best is not None:
        quality_text = f"best {format_metric(facts.metric, facts.best)} at step {best.step:,}"

    # the commands to type next
    after: list[str] = []
    if facts.state == "interrupted":
        after = [run.resume_line]
    elif facts.state == "done":
        after = [f"leanify profile {quote(what)}"]
        if recipe.data is not None and is_own(recipe.data):
            after.append(f"leanify predict {quote(what)} FILES")
    if rows and plot is None:
        after.append(f"leanify show {quote(what)} --plot curves.png")
    lines = [f"{what} · {facts.state}", f"model  {facts.source} · {architecture} · {format_count(params)} parameters"]
    data, schedule, optim = recipe.data, recipe.schedule, recipe.optim
    if data is not None:
        lines.append(f"data   {data.path or data.name} · {data.task}")
    if schedule is not None and optim is not None:
        unit = next(unit for unit in recipes.LENGTHS if getattr(schedule, unit))
        length = getattr(schedule, unit)
        rate = f"{optim.name}, learning rate {optim.lr:g}, {schedule.kind}"
        duration = f"{length:,g} {unit if length > 1 else unit[:-1]}"
        lines.append(f"train  {duration} · batch {schedule.batch_size} · {rate}")
    return Page(
        [*lines, f"steps  {facts.progress} · {quality_text}"],
        {
            "kind": "run",
            **facts.to_json(),
            "architecture": str(architecture),
            "best_step": best.step if best else None,
            "recipe": recipe.to_dict(),
            "rows": rows,
        },
        rows,
        read_curves(rows, facts.metric),
        f"{what} · {facts.source}",
        after,
    )


def _read_shape(run: RunDirectory) -> tuple[Architecture, int] | None:
    """The shape and its parameters from the run's card, without torch; None for a damaged card."""
    card = run.card()
    try:
        architecture, params = Architecture.from_json(card["architecture"]), card["params"]
    except (LeanifyError, LookupError, TypeError, ValueError, AttributeError):
        return None
    return (architecture, params) if type(params) is int else None


def _model(what: str) -> Page:
    source, architecture, params = _build(what)
    weights = None if source.weights is None else str(source.weights)

    # a row per layer, for JSON and CSV
    layers = []
    for stage in architecture.stages:
        for number, block in enumerate(stage.blocks):
            for layer in block:
                sizes = {size: getattr(layer, size) for size in LAYER_SIZES}
                layers.append({"stage": stage.name, "layer": number, **sizes})
    facts = {"kind": "model", "source": what, "origin": str(source.origin), "params": params, "layers": layers}
    lines = [
        f"{what} · {source.origin}",
        f"model    {architecture} · {format_count(params)} parameters",
        f"weights  {weights or 'none: initialised by upstream'}",
    ]
    after = [f"leanify profile {quote(what)}"]
    if (Path(what) / "report.json").is_file():
        after.append(f"leanify shrink {quote(what)} --report")
    return Page(lines, {**facts, "weights": weights}, layers, after=after)


def _build(what: str) -> tuple[ModelSource, Architecture, int]:
    """A resolved source, with its architecture and its number of parameters on meta."""
    from leanify.profiling.counting import parameters
    from leanify.reshaping.sites import locate
    from leanify.sources import find

    source = find.find(what)
    model = find.build_on_meta(source)
    return source, locate(model).architecture, parameters(model)


def _print(page: Page) -> None:
    out = console()
    first, *others = page.lines
    out.print(first, style="bold", markup=False)
    for line in others:
        # a line too long for the screen continues below its text, not below its label
        label = re.match(r"\S+ {2,}", line)
        indent = " " * (label.end() if label else 0)
        parts = [line]
        if len(line) > out.width:
            parts = textwrap.wrap(
                line, out.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
        for part in parts:
            out.print(part, markup=False)
    print_next(*page.after)
