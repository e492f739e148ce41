"""``leanify condition``: spectra and κ of the concatenated heads, as tables, JSON or plots."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.options import (
    Format,
    Json,
    ModelClass,
    Override,
    Tokens,
    output_option,
    source_option,
    sources_argument,
)
from leanify.cli.output import fit, output_kind, print_next, show, typed_without
from leanify.core.errors import SourceError
from leanify.core.terminal import console, progress, say
from leanify.sources.names import parse_overrides
from leanify.spectra import plots, report
from leanify.spectra.results import Probe

if TYPE_CHECKING:
    from torch import nn

    from leanify.data.probe_inputs import Feed


LAST = ("heads, in order", "σ min", "σ max", "eff.", "stable", "25–75%")  # columns to drop on a narrow terminal
DEFAULT = "vit_tiny_patch16_224"  # small enough to probe in seconds


@dataclass(frozen=True)
class ProbeOptions:
    """Options for every source: to find it, to feed it, and to choose the output."""

    source: dict[str, Any]
    feed: dict[str, Any]
    parts: dict[str, bool]


@dataclass(frozen=True)
class Result:
    """The command's result: JSON, tables, and a function that draws it."""

    models: list[dict[str, Any]]  # as JSON
    tables: list[Any]
    draw: Callable[[], Any]
    rows: list[dict[str, Any]]
    warnings: list[str]


input_option = partial(typer.Option, rich_help_panel="Input")
model_option = partial(typer.Option, rich_help_panel="Several")


def condition(
    sources: Annotated[
        list[str] | None, sources_argument(help=f"models: names, directories, checkpoints; without one, {DEFAULT}")
    ] = None,
    data: Annotated[
        Path | None,
        input_option(
            metavar="DATA", help="a folder of images, a .txt, or a .csv, .tsv, .jsonl of texts; else random input"
        ),
    ] = None,
    samples: Annotated[int, input_option(metavar="N", help="number of samples")] = 16,
    batch_size: Annotated[
        int, input_option(min=1, metavar="N", help="samples at a time; only this affects memory")
    ] = 8,
    tokens: Tokens = None,
    heads: Annotated[
        str | None,
        model_option(metavar="N,…", help="re-initialise with other numbers of heads, 2,4,8, grown and split"),
    ] = None,
    checkpoints: Annotated[Path | None, model_option(metavar="RUN", help="follow a run during training")] = None,
    theory: Annotated[bool, output_option("--theory", help="show the Gaussian prediction too")] = False,
    per_head: Annotated[bool, output_option("--per-head", help="κ of every A_i too")] = False,
    weights: Annotated[bool, output_option("--weights", help="show κ of each head's W_q, W_k, W_v, W_o too")] = False,
    plot: Annotated[Path | None, output_option(metavar="FILE", help="write a plot: .png or .svg")] = None,
    seed: Annotated[int, input_option(metavar="N", help="of random input, of image order, and of fresh weights")] = 0,
    seeds: Annotated[int, model_option(min=1, metavar="N", help="with --heads: fresh models averaged a point")] = 3,
    override: Override = None,
    model_class: ModelClass = None,
    pretrained: Annotated[bool, source_option("--pretrained", help="fetch upstream's pretrained weights")] = False,
    device: Annotated[str, input_option(metavar="DEVICE", help="cpu, cuda, cuda:1, mps")] = "cpu",
    format: Format = None,
    as_json: Json = False,
) -> None:
    """Singular values and condition number κ of every layer's concatenated heads A = [A_1 … A_h].

    A is the input of the output projection, tokens × inner, per sample. κ = σ_max/σ_min over min(tokens, inner)
    singular values; infinite if A lacks full rank at its own precision.

    \b
    Examples:
      leanify condition vit_tiny --data FOLDER
      leanify condition RUN --plot kappa.svg
    """
    kind = output_kind(format, as_json)

    # mistakes that need no torch to be found
    plots.check_plot(plot)
    if heads is not None and checkpoints is not None:
        raise SourceError("--heads initialises new models and --checkpoints reads trained ones; use only one of them")
    for option, value in (("--heads", heads), ("--checkpoints", checkpoints)):
        if value is not None and sources is not None and len(sources) > 1:
            raise SourceError(f"{option} takes one SOURCE; {len(sources)} were given")
    counts = [] if heads is None else [part.strip() for part in heads.split(",")]
    if heads is not None and not all(re.fullmatch("-?[0-9]{1,9}", count) for count in counts):
        raise SourceError(f"--heads takes whole numbers with commas between (2,4,8); {heads[:80]!r} was given")
    probe_options = ProbeOptions(
        {"overrides": parse_overrides(override or []), "cls": model_class, "pretrained": pretrained},
        {"data": data, "samples": samples, "batch_size": batch_size, "tokens": tokens, "seed": seed, "device": device},
        {"theory": theory, "per_head": per_head, "weights": weights},
    )

    # probe
    with progress("loading PyTorch", None):
        import torch  # noqa: F401
    if heads is not None:
        result = _probe_heads(sources[0] if sources else DEFAULT, list(map(int, counts)), seeds, probe_options)
    elif checkpoints is not None:
        result = _probe_training(sources[0] if sources else str(checkpoints), checkpoints, probe_options)
    else:
        result = _probe_models(sources or [DEFAULT], probe_options)

    # plot and print; warnings go to standard error
    if plot is not None:
        plots.write(result.draw, plot)
    output = {"models": result.models, "warnings": result.warnings}
    show(kind, output, result.rows, lambda: _print(result.tables))
    for warning in result.warnings:
        say(f"leanify: {warning}")
    if plot is not None:
        say(f"leanify: wrote {plot}")
    if kind == "table" and data is None:
        print_next(f"{typed_without()} --data DATA")


def _open_source(source: str, options: ProbeOptions) -> tuple[nn.Module, Feed, bool]:
    """Build a source's model and its input; returns both, and whether its weights are fresh."""
    from leanify.core.machine import parse_device
    from leanify.data.probe_inputs import feed
    from leanify.sources.find import find
    from leanify.sources.weights import load

    model_source = find(source, **options.source)
    model = load(model_source).to(parse_device(options.feed["device"]))

    # the folder that may have the model's tokenizer
    directory, path = None, Path(source).expanduser()
    if path.exists():
        directory = path if path.is_dir() else path.parent
    return model, feed(model, directory=directory, **options.feed), model_source.weights is None


def _print(tables: list[Any]) -> None:
    out = console()
    for number, table in enumerate(tables):
        if number and not isinstance(table, str):
            out.print()
        out.print(table if isinstance(table, str) else fit(table, out, LAST))


def _probe_models(sources: Sequence[str], options: ProbeOptions) -> Result:
    import torch

    from leanify.spectra.measure import condition as probe_model

    probes: dict[str, Probe] = {}
    models, tables, warnings = [], [], []
    rows: list[dict[str, Any]] = []
    samples = options.feed["samples"]
    for source in sources:
        # singular values of the heads on the samples, in batches
        torch.manual_seed(options.feed["seed"])
        model, feed, fresh = _open_source(source, options)
        with progress(f"probing {source}", samples) as tick:
            probe = probe_model(model, feed.batches, per_head=options.parts["per_head"], weights=True, on_batch=tick)
        del model
        probes[source] = probe

        # the same numbers as JSON, tables and rows
        answer = report.model_json(source, probe, feed.description) | {"fresh_weights": fresh}
        models.append(answer)
        title = f"{source} · fresh weights" if fresh else source
        tables += report.layer_tables(title, probe, feed.description, **options.parts)
        for layer in answer["layers"]:
            name = {"source": source} if len(sources) > 1 else {}
            rows.append({**name, **report.layer_row(layer)})
        warnings += [f"{source}: {note}" for note in (*feed.notes, *report.cautions(probe, samples))]
    description = models[0]["data"]
    return Result(
        models,
        [*tables, report.CAPTION],
        lambda: plots.layers_figure(probes, description, options.parts["theory"]),
        rows,
        warnings,
    )


def _probe_heads(source: str, heads: list[int], seeds: int, options: ProbeOptions) -> Result:
    """The paper's Figure 2 for any model: κ against heads at initialisation."""
    from leanify.spectra import sweep

    # fresh models of each number of heads, all fed the same inputs
    model, feed, _ = _open_source(source, options)
    inputs = list(feed.batches)
    shapes, left_out = sweep.shapes(model, heads)
    with progress(f"re-initialising {source}", len(shapes) * seeds) as tick:
        points = sweep.over_heads(model, inputs, shapes, seed=options.feed["seed"], seeds=seeds, on_model=tick)
    notes = sweep.verdict(points)
    output = {
        "source": source,
        "heads": [report.point_json(point) for point in points],
        "seeds": seeds,
        "samples": sum(len(next(iter(batch.values()))) for batch in inputs),
        "data": feed.description,
        "verdict": notes,
    }
    return Result(
        [output],
        [report.heads_table(source, points, feed.description), *notes],
        lambda: plots.heads_figure(source, points, feed.description, options.parts["theory"]),
        [report.point_row(point) for point in points],
        [*feed.notes, *(f"left out: {what}" for what in left_out)],
    )


def _probe_training(source: str, run: Path, options: ProbeOptions) -> Result:
    from leanify.spectra import sweep

    checkpoints = sweep.checkpoints(run)
    model, feed, _ = _open_source(source, options)
    steps: list[tuple[int, Probe]] = []
    models, rows, warnings = [], [], list(feed.notes)
    with progress(f"following {run}", len(checkpoints)) as tick:
        for step, probe in sweep.over_training(model, list(feed.batches), checkpoints):
            steps.append((step, probe))
            answer = report.model_json(source, probe, feed.description) | {"step": step}
            models.append(answer)
            rows += [{"step": step, **report.layer_row(layer)} for layer in answer["layers"]]
            warnings += [f"step {step}: {note}" for note in report.cautions(probe, options.feed["samples"])]
            tick(len(steps))
    return Result(
        models,
        [report.training_table(source, steps, feed.description)],
        lambda: plots.training_figure(source, steps, feed.description),
        rows,
        warnings,
    )
