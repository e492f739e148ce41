"""``leanify shrink``"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import join
from typing import Annotated, Any

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.next_lines import print_next, typed_without
from leanify.cli.options import Format, Json, Push, pushed

Words = list[str] | None


LONGEST = 20  # characters of a reference's name in the table


def shrink(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="a model with weights: a folder, a hub id")],
    data: Annotated[Path, typer.Option(metavar="DIR", help="what it is for: texts, labelled texts, images")],
    target_params: Annotated[str, typer.Option(metavar="SHARE|COUNT", help="parameter budget: 0.6, 43M")] = "0.6",
    count: Annotated[
        str, typer.Option(metavar="all|body", help="what the budget counts; body: no embeddings, no classifier")
    ] = "all",
    minutes: Annotated[float, typer.Option(metavar="N", help="what healing may take; 0 heals nothing")] = 30.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="the folder (default: NAME-lean)")
    ] = None,
    shape: Annotated[
        str, typer.Option(metavar="uniform|free", help="free: also a candidate whose blocks differ in shape")
    ] = "uniform",
    designs: Annotated[
        Words, typer.Option(metavar="NAME,…", help="heads, control, narrow, dropped, paired, free (default: all)")
    ] = None,
    rates: Annotated[
        str | None, typer.Option(metavar="X,…", help="learning rates to choose from (default: by the task)")
    ] = None,
    settings: Annotated[
        Words, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe: data.length=256")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="price the candidates, take two steps, write nothing")
    ] = False,
    push: Push = None,
    format: Format = None,
    json: Json = False,
) -> None:
    """Make a checkpoint smaller so that it keeps what it knew: carry its weights into several shapes, heal the best.

    Half of the validation samples choose, the others judge. After a kill the same command goes on. The result is a
    folder that the model's own library opens, with report.json beside it.
    """
    kind = kind_of(format, json)
    from leanify.errors import LeanifyError
    from leanify.terminal import progress

    with progress("loading PyTorch", None):
        from leanify.study import shrink as shrinking

    names = [name.strip() for name in ",".join(designs or []).split(",") if name.strip()]
    try:
        several = [float(rate) for rate in (rates or "").split(",") if rate.strip()]
    except ValueError:
        raise LeanifyError(f"--rates takes numbers, 1e-4,5e-4; found {rates!r}") from None
    try:
        found = shrinking.shrink(
            checkpoint,
            data,
            target_params,
            minutes,
            output,
            count=count,
            shape=shape,
            designs=names,
            rates=several,
            settings=settings or [],
            dry_run=dry_run,
        )
    except KeyboardInterrupt as error:
        error.args = ("interrupted; the same command goes on where it was stopped",)
        raise
    if push is not None and found.directory is not None:
        pushed(str(found.directory), push)
    rows = []
    for one in found.report["candidates"]:
        row = {key: one.get(key) for key in ("name", "depth", "heads", "mlp", "params", "macs")}
        if one.get("latency_s"):
            row["latency_s"] = one["latency_s"]
        for how in ("carried", "healed"):
            row[how] = (one.get(how) or {}).get("quality")
        rows.append(row)
    show(kind, found.to_json(), rows, lambda: _render(found.report, rows))


def _render(report: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    """A table of the candidates between the original and the trivial model, and a sentence; of a rehearsal, prices."""
    from leanify.cli.tables import print_table, table
    from leanify.terminal import console
    from leanify.units import macs_column, measured, millions, seconds

    out, name, original = console(), report.get("metric"), report["original"]
    rehearsed = report.get("directory") is None
    unit, macs = macs_column(original["macs"])

    def quality(value: float | None) -> str:
        return "–" if value is None or name is None else measured(name, value)

    def line(called: str, shape: str, of: Mapping[str, Any], *qualities: str) -> tuple[str, ...]:
        prices = (called, shape, millions(of["params"] or 0), macs(of["macs"] or 0))
        return prices if rehearsed else (*prices, seconds(of.get("latency_s")), *qualities)

    lines = [line("original", "", original, quality(original.get("quality")), "")]
    for row in rows:
        shape = f"{row['depth']} × {row['heads']}, {row['mlp']}"
        if row["heads"] is None or row["name"] == "free":
            shape = "a shape a block"
        chosen = " *" if row["name"] == report.get("chosen") else ""
        lines.append(line(row["name"] + chosen, shape, row, quality(row["carried"]), quality(row["healed"])))
    if report.get("reference"):
        reference = report["reference"]
        called = reference["name"] if len(reference["name"]) <= LONGEST else "reference"  # the sentence below names it
        lines.append((called, "", "", "", "", quality(reference["value"]), ""))
    heads = ("", "depth × heads, mlp", "params", unit, "latency", "carried", "healed")
    print_table(out, table(heads[: len(lines[0])], lines))
    out.print(f"\n{_sentence(report)}", soft_wrap=not out.is_terminal)
    profile = ["leanify", "profile", report["source"], report.get("directory")]
    print_next(typed_without("--dry-run") if rehearsed else join(profile))


def _sentence(report: Mapping[str, Any]) -> str:
    """What came out, how much smaller it is, and what it kept beside the original and the trivial model."""
    from leanify.units import about, measured, millions, percent

    if report.get("directory") is None:
        time = about(3600 * report["hours_predicted"])
        return f"nothing was written: healing would take {report['steps_predicted']:,} steps, {time}"
    name, original, reference = report["metric"], report["original"], report.get("reference")
    made = next(one for one in report["candidates"] if one["name"] == report["chosen"])
    healed = report.get("healed", made["healed"] is not None)  # reports of earlier versions lack it and the quality
    quality = report.get("quality", made["healed" if healed else "carried"]["quality"])
    how = "healed" if healed else "carried and not healed"
    beside = [f"the original {measured(name, original['quality'])}"]
    if reference:
        beside.append(f"{reference['name']} {measured(name, reference['value'])}")
    words = (
        f"{report['directory']} is {made['name']}, {how}: {millions(made['params'])} parameters, "
        f"{percent(1 - made['params'] / original['params'])} fewer; {name} {measured(name, quality)}, "
        f"{', '.join(beside)} ({report['judged_on']})"
    )
    if reference and (quality - reference["value"]) * (original["quality"] - reference["value"]) <= 0:
        words += f". It is no better than {reference['name']}: a larger budget or more --minutes may help"
    return words
