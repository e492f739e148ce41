"""``leanify condition``: spectra and κ of the concatenated heads, as tables, JSON or plots."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.next_lines import print_next, typed_without
from leanify.cli.options import Format, Json, ModelClass, Override, Tokens, complete_source
from leanify.errors import SourceError
from leanify.terminal import console, progress, say

if TYPE_CHECKING:
    from torch import nn

    from leanify.data.probe_inputs import Feed
    from leanify.spectra.results import Probe


LAST = ("heads, in order", "σ min", "σ max", "eff.", "stable", "25–75%")  # columns to drop on a narrow terminal
DEFAULT = "vit_tiny_patch16_224"  # small enough to probe in seconds


@dataclass(frozen=True)
class Asked:
    """What applies to every source: how it is found, what it is fed, what is shown, and how often it is drawn anew."""

    source: dict[str, Any]
    feed: dict[str, Any]
    parts: dict[str, bool]
    seeds: int


def condition(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE…",
            help=f"models: names, directories, checkpoints; without one, {DEFAULT}",
            autocompletion=complete_source,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA", help="a folder of images, a .txt, or a .csv, .tsv, .jsonl of texts; else random input"
        ),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", help="number of samples")] = 16,
    batch_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="samples at a time; only this affects memory")
    ] = 8,
    tokens: Tokens = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="N,…", help="re-initialise with so many heads (2,4,8), grown and split"),
    ] = None,
    checkpoints: Annotated[Path | None, typer.Option(metavar="RUN", help="follow a run during training")] = None,
    theory: Annotated[bool, typer.Option("--theory", help="show the Gaussian prediction too")] = False,
    per_head: Annotated[bool, typer.Option("--per-head", help="κ of every A_i too")] = False,
    weights: Annotated[bool, typer.Option("--weights", help="show κ of each head's W_q, W_k, W_v, W_o too")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="write a plot: .png, .svg or .html")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="of random input, of image order, and of fresh weights")] = 0,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="with --heads: fresh models averaged a point")] = 3,
    override: Override = None,
    model_class: ModelClass = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="fetch upstream's pretrained weights")] = False,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, mps")] = "cpu",
    format: Format = None,
    as_json: Json = False,
) -> None:
    """Singular values and condition number κ of every layer's concatenated heads A = [A_1 … A_h].

    A is the input of the output projection, tokens × inner, per sample. κ = σ_max/σ_min over min(tokens, inner)
    singular values; infinite if A lacks full rank at its own precision.
    """
    kind = kind_of(format, as_json)
    with progress("loading PyTorch", None):
        from leanify.sources.overrides import parse_overrides
        from leanify.spectra.plots import check_plot

    check_plot(plot)
    if heads is not None and checkpoints is not None:
        raise SourceError("--heads initialises new models and --checkpoints reads trained ones; use only one of them")
    asked = Asked(
        {"overrides": parse_overrides(override or []), "cls": model_class, "pretrained": pretrained},
        {"data": data, "samples": samples, "batch_size": batch_size, "tokens": tokens, "seed": seed, "device": device},
        {"theory": theory, "per_head": per_head, "weights": weights},
        seeds,
    )
    if heads is not None:
        source = _single(sources, "--heads")
        parts = [part.strip() for part in heads.split(",")]
        if not all(re.fullmatch("-?[0-9]{1,9}", part) for part in parts):
            raise SourceError(f"--heads takes whole numbers with commas between (2,4,8); {heads[:80]!r} was given")
        result = _over_heads(source, list(map(int, parts)), asked)
    elif checkpoints is not None:
        result = _over_training(_single(sources or [str(checkpoints)], "--checkpoints"), checkpoints, asked)
    else:
        result = _models(sources or [DEFAULT], asked)
    if plot is not None:
        from leanify.spectra.plots import write

        command = f"Made by: leanify {shlex.join(sys.argv[1:])}"
        rows = [{key: value for key, value in row.items() if theory or key != "kappa_theory"} for row in result.rows]
        write(result.draw, plot, result.title, rows, [result.caption, *result.notes, *result.warnings, command])
    found = {"models": result.models, "warnings": result.warnings}
    show(kind, found, result.rows, lambda: _print(result.tables))
    for warning in result.warnings:
        say(f"leanify: {warning}")
    if plot is not None:
        say(f"leanify: wrote {plot}")
    if kind == "table" and data is None:
        print_next(f"{typed_without()} --data DATA")


@dataclass
class Result:
    """The command's result: JSON, tables, and a function that draws it."""

    title: str
    caption: str  # what the picture shows
    models: list[dict[str, Any]]  # as JSON
    tables: list[Any]
    draw: Callable[[], Any]
    rows: list[dict[str, Any]]
    notes: list[str]
    warnings: list[str]


def _single(sources: list[str] | None, option: str) -> str:
    found = sources or [DEFAULT]
    if len(found) != 1:
        raise SourceError(f"{option} takes one SOURCE; {len(found)} were given")
    return found[0]


def _opened(source: str, asked: Asked) -> tuple[nn.Module, Feed, bool]:
    """A source's model, what it is fed, and whether its weights are fresh."""
    from leanify.data.probe_inputs import feed
    from leanify.machine import device_of
    from leanify.sources.find import find
    from leanify.sources.weights import load

    found = find(source, **asked.source)
    model = load(found).to(device_of(asked.feed["device"]))
    path = Path(source).expanduser()
    directory = path if path.is_dir() else path.parent if path.is_file() else None
    return model, feed(model, directory=directory, **asked.feed), found.weights is None


def _print(tables: list[Any]) -> None:
    from leanify.cli.tables import fit

    out = console()
    for number, table in enumerate(tables):
        if number and not isinstance(table, str):
            out.print()
        out.print(table if isinstance(table, str) else fit(table, out, LAST))


# -- the three kinds of probe -----------------------------------------------------------------------------------------


def _models(sources: Sequence[str], asked: Asked) -> Result:
    """Probe each source: a table of layers."""
    import torch

    from leanify.spectra import report
    from leanify.spectra.measure import condition as probe_model
    from leanify.spectra.plots import layers_figure

    probes: dict[str, Probe] = {}
    models, tables, warnings, notes = [], [], [], []
    rows: list[dict[str, Any]] = []
    samples = asked.feed["samples"]
    for source in sources:
        torch.manual_seed(asked.feed["seed"])
        model, feed, fresh = _opened(source, asked)
        with progress(f"probing {source}", samples) as tick:
            probe = probe_model(model, feed.batches, per_head=asked.parts["per_head"], weights=True, on_batch=tick)
        del model
        probes[source] = probe
        answer = report.model_json(source, probe, feed.description) | {"fresh_weights": fresh}
        models.append(answer)
        title = f"{source} · fresh weights" if fresh else source
        tables += report.layer_tables(title, probe, feed.description, **asked.parts)
        for layer in answer["layers"]:
            name = {"source": source} if len(sources) > 1 else {}
            rows.append({**name, **report.layer_row(layer)})
        notes.append(f"{source}: {answer['samples']} samples, {feed.description}.")
        warnings += [f"{source}: {note}" for note in (*feed.notes, *report.cautions(probe, samples))]
    description = models[0]["data"]
    return Result(
        "κ of the concatenated heads, layer by layer",
        "Left: κ of each layer, its mean over samples, with bars from the first to the third quartile. "
        "Right: the singular values of each layer, as shares of its largest.",
        models,
        [*tables, report.CAPTION],
        lambda: layers_figure(probes, description, asked.parts["theory"]),
        rows,
        notes,
        warnings,
    )


def _over_heads(source: str, heads: list[int], asked: Asked) -> Result:
    """The paper's Figure 2 for any model: κ against heads at initialisation."""
    from leanify.spectra import report, sweep
    from leanify.spectra.plots import heads_figure

    model, feed, _ = _opened(source, asked)
    inputs = list(feed.batches)
    shapes, left_out = sweep.shapes(model, heads)
    with progress(f"re-initialising {source}", len(shapes) * asked.seeds) as tick:
        points = sweep.over_heads(model, inputs, shapes, seed=asked.feed["seed"], seeds=asked.seeds, on_model=tick)
    notes = sweep.verdict(points)
    found = {
        "source": source,
        "heads": [report.point_json(point) for point in points],
        "seeds": asked.seeds,
        "samples": sum(len(next(iter(batch.values()))) for batch in inputs),
        "data": feed.description,
        "verdict": notes,
    }
    return Result(
        f"κ against heads at initialisation: {source}",
        "Each point is the median κ of the model with so many heads, new weights and the same inputs; the band lies "
        "between the quartiles.",
        [found],
        [report.heads_table(source, points, feed.description), *notes],
        lambda: heads_figure(source, points, feed.description, asked.parts["theory"]),
        [report.point_row(point) for point in points],
        notes,
        [*feed.notes, *(f"left out: {what}" for what in left_out)],
    )


def _over_training(source: str, run: Path, asked: Asked) -> Result:
    """κ at every checkpoint of a run."""
    from leanify.spectra import report, sweep
    from leanify.spectra.plots import training_figure

    found = sweep.checkpoints(run)
    model, feed, _ = _opened(source, asked)
    steps: list[tuple[int, Probe]] = []
    models, rows, warnings = [], [], list(feed.notes)
    with progress(f"following {run}", len(found)) as tick:
        for step, probe in sweep.over_training(model, list(feed.batches), found, weights=True):
            steps.append((step, probe))
            answer = report.model_json(source, probe, feed.description) | {"step": step}
            models.append(answer)
            rows += [{"step": step, **report.layer_row(layer)} for layer in answer["layers"]]
            warnings += [f"step {step}: {note}" for note in report.cautions(probe, asked.feed["samples"])]
            tick(len(steps))
    return Result(
        f"κ over training: {source}",
        "Each thin line is the κ of one layer at the run's checkpoints, its mean over samples; the thick one is the "
        "mean over layers.",
        models,
        [report.training_table(source, steps, feed.description)],
        lambda: training_figure(source, steps, feed.description),
        rows,
        [f"{run}: {len(steps)} checkpoints, {steps[0][1].samples} samples, {feed.description}."],
        warnings,
    )
