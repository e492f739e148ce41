"""``leanify profile``"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.options import Explain, Format, Json, ModelClass, Override, Tokens, complete_source
from leanify.terminal import say
from leanify.units import binary, millions, operations, seconds

if TYPE_CHECKING:
    from leanify.design.measure.counted import Profile


DEFAULT = "vit_base"
Limit = str | None
UNITS: Mapping[str, Callable[[Any], str]] = {
    "--max-params": millions,
    "--max-macs": operations,
    "--max-latency": seconds,
}


def profile(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE…",
            help=f"one column each; ratios are to the first (default: the newest model here and its baseline, "
            f"else {DEFAULT})",
            autocompletion=complete_source,
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="for throughput and training")] = 8,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="cuda, cpu, … (default: a GPU if any)")] = None,
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="float32, bfloat16, float16")] = "float32",
    tokens: Tokens = None,
    img_size: Annotated[int | None, typer.Option(metavar="N", help="side of the input image in pixels")] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="forward passes; latency is their median")] = 10,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="run the model, or only count")] = True,
    max_params: Annotated[Limit, typer.Option(metavar="COUNT", help="exit 1 if a model has more: 43M")] = None,
    max_macs: Annotated[Limit, typer.Option(metavar="COUNT", help="exit 1 if a sample needs more: 9G")] = None,
    max_latency: Annotated[Limit, typer.Option(metavar="TIME", help="exit 1 if batch 1 takes longer: 12ms")] = None,
    override: Override = None,
    model_class: ModelClass = None,
    explain: Explain = False,
    format: Format = None,
    json: Json = False,
) -> None:
    """Count parameters, MACs and memory of models, and measure latency, throughput and peaks on the device.

    With --max-params, --max-macs or --max-latency the exit code is 1 if a model exceeds a limit.
    """
    from leanify.design.search.amounts import amount
    from leanify.errors import LeanifyError
    from leanify.terminal import progress, track

    kind = kind_of(format, json)
    given = {"--max-params": max_params, "--max-macs": max_macs, "--max-latency": max_latency}
    limits = {name: amount(name, value) for name, value in given.items() if value is not None}
    if "--max-latency" in limits and not measure:
        raise LeanifyError("--max-latency is about what is measured: leave out --no-measure")
    from leanify.sources.overrides import parse_overrides

    overrides = parse_overrides(override or [])
    if img_size is not None:
        overrides |= {"img_size": img_size}
    about = {"batch_size": batch_size, "device": device, "dtype": dtype, "tokens": tokens, "overrides": overrides}
    asked: Sequence[Any] = sources or []
    if not asked:
        with progress("loading PyTorch", None):
            from leanify.sources.newest import with_baseline
        asked = with_baseline() or [DEFAULT]
    profiles = [_one(source, measure, repeats, {**about, "cls": model_class}) for source in track(asked, "profiling")]
    rows = [facts.to_json() for facts in profiles]
    show(kind, {"models": rows, **({"limits": limits} if limits else {})}, rows, lambda: _render(profiles, explain))
    if "--max-latency" in limits and (unknown := [facts for facts in profiles if facts.latency_s is None]):
        raise LeanifyError(f"--max-latency {max_latency}: of {unknown[0].source}, {unknown[0].not_measured}")
    exceeded = False
    for facts in profiles:
        costs = {"--max-params": facts.params, "--max-macs": facts.macs, "--max-latency": facts.latency_s}
        for name, limit in limits.items():
            cost, shown = costs[name], UNITS[name]
            if cost is not None and cost > limit:
                exceeded = True
                say(f"leanify: {facts.source} has {shown(cost)}, above {name} {shown(limit)}")
    if exceeded:
        raise typer.Exit(1)


def _one(source: Any, measure: bool, repeats: int, about: Mapping[str, Any]) -> Profile:
    """One model's costs: what was counted before, where nothing is to be measured, without loading torch."""
    from leanify.design.measure import counted
    from leanify.terminal import progress

    if not measure and isinstance(source, str):
        before = counted.kept(counted.CountKey(source, **about))
        if before is not None:
            return before
    with progress("loading PyTorch", None):
        from leanify.design.measure import profiling
    return profiling.profile(source, repeats=repeats, measure=measure, **about)


def _render(profiles: Sequence[Profile], explain: bool) -> None:
    """Print one column per source and, with several, each number's ratio to the first.

    How MACs were counted is said with ``explain``, and where two counters differ.
    """
    from leanify.cli.next_lines import after_profile, print_next
    from leanify.cli.tables import table
    from leanify.design.measure.counted import AGREED
    from leanify.terminal import console

    out = console()
    first = profiles[0]
    shown = table(("", *(profile.source for profile in profiles)), [])
    for column in shown.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for name, unit, get in ROWS:
        values = [get(profile) for profile in profiles]
        if all(value is None for value in values):
            continue
        if unit in (binary, seconds):
            unit = partial(unit, least=min(value for value in values if value is not None))
        cells = [unit(values[0])]
        for value in values[1:]:
            numbers = all(isinstance(one, int | float) and one for one in (value, values[0]))
            cells.append(f"{unit(value)} ×{value / values[0]:.3f}" if numbers else unit(value))
        shown.add_row(AS_GIVEN.get(name, name) if first.as_given else name, *cells)
    out.print(shown)
    out.print()
    at_batch = "training" if first.throughput_per_s is None else "training and throughput"
    out.print(f"device: {first.device} · {first.dtype} · {at_batch} at batch {first.batch_size}")
    for profile in profiles:
        name = f"{profile.source}: " if len(profiles) > 1 else ""
        left = f"; neither counts {', '.join(profile.uncounted)}" if profile.uncounted else ""
        if explain or profile.cross_check != AGREED:
            out.print(f"{name}MACs: {profile.cross_check}{left}")
        if profile.not_measured:
            out.print(f"{name}{profile.not_measured}")
    print_next(*after_profile([profile.source for profile in profiles]))


def _kernels(calls: Mapping[str, int] | None) -> str:
    if calls is None:
        return "–"
    return ", ".join(f"{times} × {name.removesuffix('_attention')}" for name, times in calls.items()) or "none seen"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} /s"


ROWS: tuple[tuple[str, Any, Any], ...] = (
    ("parameters", millions, lambda p: p.params),
    ("  in the blocks", millions, lambda p: p.params_body),
    ("MACs a sample", operations, lambda p: p.macs),
    ("FLOPs (2 × MACs)", operations, lambda p: p.flops),
    ("weights", binary, lambda p: p.weights_bytes),
    ("latency, batch 1", seconds, lambda p: p.latency_s),
    ("throughput", _rate, lambda p: p.throughput_per_s),
    ("attention kernels", _kernels, lambda p: p.attention_kernels),
    ("forward peak", binary, lambda p: p.memory.forward_peak_bytes),
    ("  reserved", binary, lambda p: p.memory.forward_reserved_bytes),
    ("training peak", binary, lambda p: p.memory.train_peak_bytes),
    ("  reserved", binary, lambda p: p.memory.train_reserved_bytes),
    ("training, predicted", binary, lambda p: p.memory.train_predicted_bytes),
    ("device used (NVML)", binary, lambda p: p.memory.nvml_used_bytes),
)
AS_GIVEN = {"MACs a sample": "MACs of the example", "latency, batch 1": "latency of the example"}
