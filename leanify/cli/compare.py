"""``leanify compare``"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from leanify.cli.options import Explain, Format, Json
from leanify.cli.output import output_kind, show, typed_without
from leanify.core.errors import LeanifyError
from leanify.core.path_kinds import is_study
from leanify.core.terminal import progress
from leanify.sources.names import check_names

Words = list[str] | None


design_option = partial(typer.Option, rich_help_panel="Designs")
evidence_option = partial(typer.Option, rich_help_panel="Evidence")
study_option = partial(typer.Option, rich_help_panel="Study")


def compare(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE | STUDY",
            help="a recipe (default: the built-in digits), or a study to continue",
            callback=check_names,
        ),
    ] = None,
    target_params: Annotated[
        str | None, design_option(metavar="SHARE|COUNT", help="parameter budget: 0.5, 43M (default: 0.5)")
    ] = None,
    designs: Annotated[
        Words,
        design_option(
            metavar="NAME,…",
            help="baseline, lean, control, narrow, depth-only, mlp-only, split, wide-heads, front:N, a lean "
            "directory, or a shape, small=depth:7,heads:18,mlp:1536 (default: the first four)",
        ),
    ] = None,
    sweep: Annotated[Words, design_option(metavar="AXIS=N,N,…", help="a grid: depth, heads, head_dim or mlp")] = None,
    seeds: Annotated[
        int | None, evidence_option(metavar="N", help="runs of each design (default: 3; without a recipe 4)")
    ] = None,
    margin: Annotated[
        float | None, evidence_option(metavar="X", help="acceptable loss of the metric (default: the task's)")
    ] = None,
    settings: Annotated[
        Words, study_option("--set", metavar="KEY=VALUE", help="change the recipe: schedule.epochs=5")
    ] = None,
    output: Annotated[
        Path | None, study_option("--output", "-o", metavar="STUDY", help="the folder (default: studies/NAME)")
    ] = None,
    weights: Annotated[str | None, design_option(metavar="SOURCE", help="weights from which all designs start")] = None,
    teacher: Annotated[
        str | None, design_option(metavar="SOURCE", help="a trained model to distil into all designs")
    ] = None,
    rates: Annotated[
        str | None,
        evidence_option(
            metavar="X,X,…",
            help="multiples of the recipe's learning rate; each design takes its best, tried on one seed and half "
            "of the schedule (default: 0.5,1,2; 1: no trials)",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        evidence_option(
            metavar="M",
            help="at most this long, the whole study: takes away rates, then seeds, then designs, never steps of a run",
        ),
    ] = None,
    jobs: Annotated[int | None, study_option(metavar="N", help="runs at a time on this machine")] = None,
    engine: Annotated[str, study_option(metavar="local|slurm|ray", help="where runs are started")] = "local",
    dry_run: Annotated[
        bool, study_option("--dry-run", help="price, rank and time the designs on two steps each; write nothing")
    ] = False,
    report: Annotated[bool, study_option("--report", help="show a study as it stands; train nothing")] = False,
    retry: Annotated[bool, study_option("--retry", help="run failed runs again")] = False,
    explain: Explain = False,
    format: Format = None,
    json: Json = False,
) -> None:
    """Train baseline, lean, control and narrow side by side, and decide with statistics whether lean pays off.

    Every design is trained with the same seeds on the same samples in the same order. A study is a folder: after a
    kill, the same command continues, and finished runs are not repeated. To add seeds or designs, ask for them:
    leanify compare STUDY --seeds 5.

    \b
    Examples:
      leanify compare FOLDER --seeds 5
      leanify compare digits --designs baseline,lean,control
    """
    kind = output_kind(format, json)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in the runs; read when torch is imported
    with progress("loading PyTorch", None):
        from leanify.cli import study_tables
        from leanify.comparison import comparing as studies
        from leanify.comparison import planning
        from leanify.comparison.designs import parse_sweep, split_names
        from leanify.comparison.folder import REPORT
        from leanify.comparison.rates import parse
        from leanify.comparison.runner import check_engine, open_engine
        from leanify.training import interrupts

    # the request; the built-in study runs two at a time
    check_engine(engine)
    if jobs is None:
        jobs = 2 if recipe is None else 1
    request = planning.Request(
        recipe=recipe,
        target_params=target_params,
        seeds=seeds,
        designs=None if designs is None else tuple(split_names(designs)),
        sweep=parse_sweep(sweep or []),
        settings=tuple(settings or ()),
        margin=margin,
        jobs=jobs,
        weights=weights,
        teacher=teacher,
        rates=None if rates is None else parse(rates),
        minutes=minutes,
    )
    if report and (recipe is None or not is_study(recipe)):
        raise LeanifyError("--report shows a study: name its folder, leanify compare STUDY --report")

    # predict the cost
    if dry_run:
        with progress("pricing the designs and timing a few steps of each", None):
            prediction = planning.forecast(request)
        command = typed_without("--dry-run")
        return show(kind, prediction, prediction["designs"], lambda: study_tables.render_forecast(prediction, command))

    # train the runs that the folder lacks
    with progress("planning the study", None):
        runs_here = engine == "local" and not report
        folder = planning.open_folder(request, output, runs_here, announces=runs_here)
    if not report:
        if retry:
            folder.forget_failures()
        try:
            with (
                interrupts.raise_interrupts(),
                study_tables.Board(folder) as board,
                open_engine(engine, folder, jobs, board.row) as runs,
            ):
                studies.train_all(folder, runs, board.on_end)
        except KeyboardInterrupt as error:
            line = f"leanify compare {quote(str(folder.path))}"
            number = getattr(error, "code", 130) - 128
            raise interrupts.Interrupted(f"interrupted; continue with: {line}", number) from None
        with progress("measuring latency, throughput and memory", None):
            studies.measure_costs(folder)

    # compare
    with progress("comparing the runs", None):
        study = studies.finish_study(folder)
        page = study.html(folder.path / REPORT)
    data = study.to_json()
    show(kind, data, data["designs"], lambda: study_tables.render_study(study, page, explain))
