"""``leanify compare``"""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.next_lines import typed_without
from leanify.cli.options import Explain, Format, Json

Words = list[str] | None


def compare(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE | STUDY", help="a recipe (default: the built-in digits), or a study to continue"
        ),
    ] = None,
    target_params: Annotated[
        str | None, typer.Option(metavar="SHARE|COUNT", help="parameter budget: 0.5, 43M (default: 0.5)")
    ] = None,
    designs: Annotated[
        Words,
        typer.Option(
            metavar="NAME,…",
            help="baseline, lean, control, split, depth-only, mlp-only, wide-heads, front:N, a lean directory, or a "
            "shape, narrow=depth:7,heads:18,mlp:1536 (default: the first three)",
        ),
    ] = None,
    sweep: Annotated[Words, typer.Option(metavar="AXIS=N,N,…", help="a grid: depth, heads, head_dim or mlp")] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="runs of each design (default: 3; without a recipe 4)")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(metavar="X", help="acceptable loss of the metric (default: the task's)")
    ] = None,
    settings: Annotated[
        Words, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe: schedule.epochs=5")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="STUDY", help="the folder (default: studies/NAME)")
    ] = None,
    tournament: Annotated[
        int | None,
        typer.Option(metavar="N", help="try N designs, stop the worse ones early, judge the winner by fresh seeds"),
    ] = None,
    more: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="add the N most informative designs to a study")
    ] = None,
    weights: Annotated[str | None, typer.Option(metavar="SOURCE", help="weights from which all designs start")] = None,
    teacher: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="a trained model to distil into all designs")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="X,X,…",
            help="multiples of the recipe's learning rate; each design takes its best, tried on one seed and half "
            "of the schedule (default: 0.5,1,2; in a tournament 1; 1: no trials)",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", help="length of the whole study, which sets the steps of a run (on own data: 15)"),
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="runs at a time on this machine")] = None,
    engine: Annotated[str, typer.Option(metavar="local|slurm|ray", help="where runs are started")] = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="price, rank and time the designs on two steps each; write nothing")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="show a study as it stands; train nothing")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="run failed runs again")] = False,
    explain: Explain = False,
    format: Format = None,
    json: Json = False,
) -> None:
    """Train baseline, lean and control side by side, and decide with statistics whether lean pays off.

    Every design is trained with the same seeds on the same samples in the same order. A study is a folder: after a
    kill, the same command continues, and finished runs are not repeated. To add seeds or designs, ask for them:
    leanify compare STUDY --seeds 5.
    """
    kind = kind_of(format, json)
    from leanify.errors import LeanifyError
    from leanify.terminal import progress

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in the runs; read when torch is imported
    with progress("loading PyTorch", None):
        from leanify.cli import study_tables
        from leanify.cli.board import Board
        from leanify.runs.places import is_study
        from leanify.study import comparing as studies
        from leanify.study.designs import parse_sweep, split_names
        from leanify.study.engines import check_engine, engine_of
        from leanify.study.folder import REPORT
        from leanify.study.forecast import forecast
        from leanify.study.rates import parse

    check_engine(engine)
    usual = 2 if recipe is None else 1
    at_once = usual if jobs is None else jobs
    request = studies.Request(
        recipe=recipe,
        target_params=target_params,
        seeds=seeds,
        designs=None if designs is None else tuple(split_names(designs)),
        sweep=parse_sweep(sweep or []),
        settings=tuple(settings or ()),
        margin=margin,
        jobs=at_once,
        tournament=tournament,
        more=more,
        weights=weights,
        teacher=teacher,
        rates=None if rates is None else parse(rates),
        minutes=minutes,
    )
    if report and (recipe is None or not is_study(recipe)):
        raise LeanifyError("--report shows a study: name its folder, leanify compare STUDY --report")
    if dry_run:
        with progress("pricing the designs and timing two steps of each", None):
            found = forecast(studies.planned(request), at_once)
        again = typed_without("--dry-run")
        return show(kind, found, found["designs"], lambda: study_tables.render_forecast(found, again))
    with progress("planning the study", None):
        folder = studies.folder_of(request, output, here=engine == "local" and not report)
    if not report:
        if retry:
            folder.forget_failures()
        try:
            with Board(folder) as board, engine_of(engine, folder, at_once, board.row) as runs:
                studies.train_all(folder, runs, board.ended)
        except KeyboardInterrupt:
            line = f"leanify compare {quote(str(folder.path))}"
            raise KeyboardInterrupt(f"interrupted; it goes on with: {line}") from None
        with progress("measuring latency, throughput and memory", None):
            studies.measure_costs(folder)
    with progress("comparing the runs", None):
        study = studies.finished(folder)
        page = study.html(folder.path / REPORT)
    data = study.to_json()
    show(kind, data, data["designs"], lambda: study_tables.render_study(study, page, explain))
