"""``leanify shrink``"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import join, quote
from typing import Annotated, Any

import typer

from leanify.cli.options import Format, Json, output_option, spare_busy_cores
from leanify.cli.output import Kind, output_kind, print_next, print_table, show, table, typed_without
from leanify.core.errors import DirectoryError, LeanifyError
from leanify.core.terminal import console, progress
from leanify.core.units import (
    format_count,
    format_forecast,
    format_metric_value,
    format_seconds,
    format_share,
    macs_column,
)
from leanify.sources.names import check_names

Words = list[str] | None
LONGEST = 20  # characters of a reference's name in the table

purpose_option = partial(typer.Option, rich_help_panel="Purpose")
budget_option = partial(typer.Option, rich_help_panel="Budget")
candidate_option = partial(typer.Option, rich_help_panel="Candidates")
healing_option = partial(typer.Option, rich_help_panel="Healing")


def shrink(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="a model with weights: a folder, a hub id", callback=check_names)
    ],
    data: Annotated[
        Path | None,
        purpose_option(metavar="DIR", help="what it is for: texts, labelled texts, images (a run: its own data)"),
    ] = None,
    target_params: Annotated[str, budget_option(metavar="SHARE|COUNT", help="parameter budget: 0.6, 43M")] = "0.6",
    count: Annotated[
        str, budget_option(metavar="all|body", help="what the budget counts; body: no embeddings, no classifier")
    ] = "all",
    vocabulary: Annotated[
        str,
        budget_option(metavar="auto|keep|N", help="tokens that stay; auto: as many as do least damage (all with body)"),
    ] = "auto",
    multiple: Annotated[int, budget_option(metavar="N", help="round the tokens down to a multiple, such as 64")] = 1,
    minutes: Annotated[float, healing_option(metavar="N", help="time for the whole command; 0 heals nothing")] = 30.0,
    output: Annotated[
        Path | None, output_option("--output", "-o", metavar="OUT", help="the folder (default: NAME-lean)")
    ] = None,
    shape: Annotated[
        str, candidate_option(metavar="free|plain", help="free: also blocks that differ; plain: what opens anywhere")
    ] = "free",
    designs: Annotated[
        Words,
        candidate_option(
            metavar="NAME,…",
            help="vocabulary, heads, control, narrow, dropped, paired, free, rotated "
            "(default: vocabulary, narrow, free)",
        ),
    ] = None,
    rates: Annotated[
        str | None, healing_option(metavar="X,…", help="learning rates to choose from (default: by the task)")
    ] = None,
    seeds: Annotated[
        int, healing_option(metavar="N", help="heal the best candidate N times, and show what chance does")
    ] = 1,
    settings: Annotated[
        Words, purpose_option("--set", metavar="KEY=VALUE", help="change the recipe: data.length=256")
    ] = None,
    dry_run: Annotated[
        bool, output_option("--dry-run", help="price the candidates, take two steps, write nothing")
    ] = False,
    report: Annotated[
        bool, output_option("--report", help="show the report of a folder that shrink wrote; do nothing else")
    ] = False,
    explain: Annotated[bool, output_option("--explain", help="each step of carrying, with its damage")] = False,
    format: Format = None,
    json: Json = False,
) -> None:
    """Make a checkpoint smaller and keep its knowledge: transfer its weights into several shapes, heal the best.

    Half of the validation samples choose, the others judge. After a kill, the same command continues. The result is a
    folder for the model's own library, with a report.json; shapes that the library cannot build come with their code.

    \b
    Examples:
      leanify shrink CHECKPOINT --data FOLDER --target-params 0.6 -o lean
      leanify shrink runs/digits -o lean
    """
    kind = output_kind(format, json)
    if report:
        return _show_report(Path(checkpoint), kind)
    spare_busy_cores()
    with progress("loading PyTorch", None):
        from leanify.shrinking import shrink as shrinking

    names = [name.strip() for name in ",".join(designs or []).split(",") if name.strip()]
    try:
        rate_list = [float(rate) for rate in (rates or "").split(",") if rate.strip()]
    except ValueError:
        raise LeanifyError(f"--rates takes numbers, 1e-4,5e-4; found {rates!r}") from None
    try:
        result = shrinking.shrink(
            checkpoint,
            data,
            target_params,
            minutes,
            output,
            count=count,
            vocabulary=vocabulary,
            multiple=multiple,
            shape=shape,
            designs=names,
            rates=rate_list,
            seeds=seeds,
            settings=settings or [],
            dry_run=dry_run,
            explain=explain,
        )
    except KeyboardInterrupt as error:
        error.args = ("interrupted; the same command continues from here",)
        raise

    rows = _candidate_rows(result.report)
    show(kind, result.to_json(), rows, lambda: _render(result.report, rows))


def _show_report(folder: Path, kind: Kind) -> None:
    """Print what `leanify shrink` reported of the model in this folder. Raises DirectoryError."""
    from leanify.core.files.reading import read_json

    file = folder / "report.json"
    if not file.is_file():
        raise DirectoryError(f"{folder} has no report.json of leanify shrink; name the folder that it wrote")
    try:
        report = read_json(file)
        rows = _candidate_rows(report)
        shown_report = {**report, "directory": str(folder)}  # it may have moved since
        show(kind, report, rows, lambda: _render(shown_report, rows))
    except (LeanifyError, LookupError, TypeError, ValueError, AttributeError, StopIteration):
        raise DirectoryError(f"{file} is damaged, or no report of leanify shrink") from None


def _candidate_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for one in report["candidates"]:
        row = {key: one.get(key) for key in ("name", "tokens", "depth", "heads", "mlp", "params", "macs")}
        if one["name"] == "rotated":
            row["width"] = one.get("width")
        if one.get("latency_s"):
            row |= {"latency_s": one["latency_s"], "latency_range": one.get("latency_range")}
        for how in ("carried", "healed"):
            row[how] = (one.get(how) or {}).get("quality")
        if (one.get("healed") or {}).get("seeds"):
            row |= {key: one["healed"][key] for key in ("seeds", "low", "high")}
        final = one.get("healed") or one.get("carried") or {}
        if final.get("neighbours") is not None:
            row["neighbours"] = final["neighbours"]
        rows.append(row)
    return rows


def _render(report: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    """Print a table of the original, the candidates and the trivial model, and a sentence; for a rehearsal, prices."""
    lines = _table_lines(report, rows)
    is_rehearsal = report.get("directory") is None
    left_out = [] if report["original"].get("tokens") else ["tokens"]
    if is_rehearsal:
        left_out += ["latency", "carried", "healed"]
    if is_rehearsal or not any("neighbours" in row for row in rows):
        left_out.append("neighbours")
    columns = [name for name in lines[0] if name not in left_out]
    out = console()
    print_table(out, table(columns, [[line[name] for name in columns] for line in lines]))
    # the result in a sentence, and what to type next
    out.print(f"\n{result_sentence(report)}")
    if is_rehearsal:
        print_next(typed_without("--dry-run"))
        return
    profile = ["leanify", "profile", report["source"], report["directory"]]
    if report.get("tokens"):  # the length for which the table has MACs
        profile += ["--tokens", str(report["tokens"])]
    print_next(join(profile), f"leanify show {quote(report['directory'])}")


def _table_lines(report: Mapping[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    name, original, reference = report.get("metric"), report["original"], report.get("reference")
    unit, macs = macs_column(original["macs"])

    def quality(value: float | None) -> str:
        return "–" if value is None or name is None else format_metric_value(name, value)

    def cells(title: str, of: Mapping[str, Any], carried: float | None, healed: str) -> dict[str, str]:
        # depth, heads and hidden units, where all blocks have the same
        shape = "a shape a block"
        if title.partition(" ")[0] != "free" and isinstance(of["heads"], int) and not isinstance(of["mlp"], list):
            width = f", {of['width']} wide" if of.get("width") else ""
            shape = f"{of['depth']} × {of['heads']}, {of['mlp']}{width}"

        # the middle half of the rounds of latency: two ranges that overlap are not told apart
        low, high = map(format_seconds, of.get("latency_range") or (None, of.get("latency_s")))
        latency = high
        if of.get("latency_range"):
            is_one_unit = low.partition(" ")[2] == high.partition(" ")[2]
            latency = f"{low.partition(' ')[0] if is_one_unit else low}–{high}"
        return {
            "": title,
            "tokens": f"{of['tokens']:,}" if of.get("tokens") else "–",
            "depth × heads, mlp": shape,
            "params": format_count(of["params"] or 0),
            unit: macs(of["macs"]) if of["macs"] else "–",
            "latency": latency,
            "carried": quality(carried),
            "healed": healed,
            "neighbours": format_share(of["neighbours"]) if of.get("neighbours") is not None else "",
        }

    lines = [cells("original", {**original, "neighbours": 1.0}, original.get("quality"), "")]
    for row in rows:
        title = row["name"] + " *" * (row["name"] == report.get("chosen"))
        healed = quality(row["healed"])
        if "low" in row:  # of several seeds
            healed = f"{quality(row['low'])}–{quality(row['high'])}"
        lines.append(cells(title, row, row["carried"], healed))
    if reference:  # the sentence below the table has a long name
        title = reference["name"] if len(reference["name"]) <= LONGEST else "reference"
        lines.append(dict.fromkeys(lines[0], "") | {"": title, "carried": quality(reference["value"])})
    return lines


def result_sentence(report: Mapping[str, Any]) -> str:
    """The chosen candidate, its size, and its quality against the original and the trivial model."""
    from leanify.vocabulary.facts import describe_vocabulary

    if report.get("directory") is None:
        time = format_forecast(3600 * report["hours_predicted"])
        return f"nothing was written: healing would take {report['steps_predicted']:,} steps, {time}"
    name, original, reference = report["metric"], report["original"], report.get("reference")

    # the quality of the result
    chosen = next(candidate for candidate in report["candidates"] if candidate["name"] == report["chosen"])
    quality = report["quality"]
    treatment = "healed" if report["healed"] else "carried and not healed"
    comparisons = [f"the original {format_metric_value(name, original['quality'])}"]
    if reference:
        comparisons.append(f"{reference['name']} {format_metric_value(name, reference['value'])}")
    if report.get("neighbours") is not None:
        crowd = f" among {report['neighbours_among']:,}" if report.get("neighbours_among") else ""
        comparisons.append(f"{format_share(report['neighbours'])} of the 10 nearest neighbours{crowd} stay")
    basis = report["judged_on"] + (f"; MACs of {report['tokens']:,} tokens" if report.get("tokens") else "")
    sentence = (
        f"{report['directory']} is {chosen['name']}, {treatment}: {format_count(chosen['params'])} parameters, "
        f"{format_share(1 - chosen['params'] / original['params'])} fewer; {name} "
        f"{format_metric_value(name, quality)}, {', '.join(comparisons)} ({basis})"
    )
    if report.get("vocabulary"):
        sentence += f". {describe_vocabulary(report['vocabulary'])}"
    if reference and (quality - reference["value"]) * (original["quality"] - reference["value"]) <= 0:
        sentence += f". It is no better than {reference['name']}: a larger budget or more --minutes may help"
    return sentence
