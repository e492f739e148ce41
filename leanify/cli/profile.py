"""``leanify profile``"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.options import Explain, Format, Json, ModelClass, Override, Tokens, sources_argument
from leanify.cli.output import output_kind, print_next, show, table, typed_without
from leanify.core.errors import LeanifyError
from leanify.core.terminal import console, progress, say, track
from leanify.core.units import format_bytes, format_count, format_operations, format_seconds
from leanify.sources.names import parse_overrides

if TYPE_CHECKING:
    from leanify.profiling.profile import Profile


Limit = str | None
UNITS: Mapping[str, Callable[[Any], str]] = {
    "--max-params": format_count,
    "--max-macs": format_operations,
    "--max-latency": format_seconds,
}

measure_option = partial(typer.Option, rich_help_panel="Measurement")
limit_option = partial(typer.Option, rich_help_panel="Limits")


def profile(
    sources: Annotated[list[str], sources_argument(help="one column each; ratios are to the first")],
    batch_size: Annotated[int, measure_option(min=1, metavar="N", help="for throughput and training")] = 8,
    device: Annotated[str | None, measure_option(metavar="DEVICE", help="cuda, cpu, … (default: a GPU if any)")] = None,
    dtype: Annotated[str, measure_option(metavar="TYPE", help="float32, bfloat16, float16")] = "float32",
    tokens: Tokens = None,
    img_size: Annotated[int | None, measure_option(metavar="N", help="side of the input image in pixels")] = None,
    repeats: Annotated[int, measure_option(min=1, metavar="N", help="forward passes; latency is their median")] = 10,
    measure: Annotated[bool, measure_option("--measure/--no-measure", help="run the model, or only count")] = True,
    max_params: Annotated[Limit, limit_option(metavar="COUNT", help="exit 1 if a model has more: 43M")] = None,
    max_macs: Annotated[Limit, limit_option(metavar="COUNT", help="exit 1 if a sample needs more: 9G")] = None,
    max_latency: Annotated[Limit, limit_option(metavar="TIME", help="exit 1 if batch 1 takes longer: 12ms")] = None,
    override: Override = None,
    model_class: ModelClass = None,
    explain: Explain = False,
    format: Format = None,
    json: Json = False,
) -> None:
    """Count parameters, MACs and memory of models, and measure latency, throughput and peaks on the device.

    With --max-params, --max-macs or --max-latency the exit code is 1 if a model exceeds a limit.

    \b
    Examples:
      leanify profile vit_base lean
      leanify profile lean --no-measure --max-params 43M
    """
    from leanify.search.options import amount

    # the limits, refused before torch is imported
    kind = output_kind(format, json)
    limit_texts = {"--max-params": max_params, "--max-macs": max_macs, "--max-latency": max_latency}
    limits = {name: amount(name, value) for name, value in limit_texts.items() if value is not None}
    if "--max-latency" in limits and not measure:
        raise LeanifyError("--max-latency is about what is measured: leave out --no-measure")
    overrides = parse_overrides(override or [])
    if img_size is not None:
        overrides |= {"img_size": img_size}
    with progress("loading PyTorch", None):
        from leanify.profiling import profile as profiling

    # profile each source
    options: dict[str, Any] = {"batch_size": batch_size, "device": device, "dtype": dtype, "tokens": tokens}
    options |= {"repeats": repeats, "measure": measure, "overrides": overrides, "cls": model_class}
    profiles = [profiling.profile(source, **options) for source in track(sources, "profiling")]
    rows = [model_profile.to_json() for model_profile in profiles]

    # every cost above its limit
    excesses: list[dict[str, Any]] = []
    for model in profiles:
        costs = {"--max-params": model.params, "--max-macs": model.macs, "--max-latency": model.latency_s}
        if "--max-latency" in limits and model.latency_s is None:
            raise LeanifyError(f"--max-latency has nothing to limit: of {model.source}, {model.not_measured}")
        for name, limit in limits.items():
            cost = costs[name]
            if cost is not None and cost > limit:
                excesses.append({"source": model.source, "limit": name, "value": cost})
    output: dict[str, Any] = {"models": rows}
    if limits:
        output |= {"limits": limits, "passed": not excesses, "exceeded": excesses}
    show(kind, output, rows, lambda: _render(profiles, explain))

    # name every exceeded limit, then exit with code 1
    for over in excesses:
        unit = UNITS[over["limit"]]
        say(f"leanify: {over['source']} has {unit(over['value'])}, above {over['limit']} {unit(limits[over['limit']])}")
    if excesses:
        raise typer.Exit(1)


def _render(profiles: Sequence[Profile], explain: bool) -> None:
    from leanify.profiling.profile import COUNTERS_AGREE

    out = console()
    first = profiles[0]
    grid = table(("", *(profile.source for profile in profiles)), [])
    for column in grid.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for costs in zip(*(profile.costs() for profile in profiles), strict=True):
        label, unit, _ = costs[0]
        values = [value for _, _, value in costs]
        if all(value is None for value in values):
            continue
        if unit in (format_bytes, format_seconds):  # one unit for the row
            unit = partial(unit, reference=next(value for value in values if value is not None))
        cells = [unit(values[0])]
        for value in values[1:]:
            is_comparable = all(isinstance(number, int | float) and number for number in (value, values[0]))
            ratio = f" ×{value / values[0]:.3f}" if is_comparable else ""
            cells.append(f"{unit(value)}{ratio}")
        grid.add_row(label, *cells)
    out.print(grid)
    out.print()

    # the setting of the measurements, and notes on models
    at_batch = "training" if first.throughput_per_s is None else "training and throughput"
    out.print(f"device: {first.device} · {first.dtype} · {at_batch} at batch {first.batch_size}")
    for profile in profiles:
        name = f"{profile.source}: " if len(profiles) > 1 else ""
        uncounted_text = f"; neither counts {', '.join(profile.uncounted)}" if profile.uncounted else ""
        if explain or profile.cross_check != COUNTERS_AGREE:
            out.print(f"{name}MACs: {profile.cross_check}{uncounted_text}")
        if profile.not_measured:
            out.print(f"{name}{profile.not_measured}")
    if "--no-measure" in sys.argv:
        print_next(typed_without("--no-measure"))
