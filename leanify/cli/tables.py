"""Values → what people read: tables that fit 100 columns, and JSON. Knows no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from leanify.terminal import console
from leanify.units import binary, gigas, kappa, millions, seconds

if TYPE_CHECKING:
    from leanify.design.plan import Design, Plan
    from leanify.design.profiling import Profile
    from leanify.training.glue_table import Report, Score


def print_json(data: dict[str, Any]) -> None:
    """Exactly one JSON object on standard output."""
    print(json.dumps(data, indent=2, allow_nan=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """A plain table: the first ``left`` columns to the left, numbers to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 1))
    for i, name in enumerate(columns):
        made.add_column(name, justify="left" if i < left else "right", header_style="dim", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


# -- redesign -----------------------------------------------------------------------------------------------------


def render_plan(plan: Plan) -> None:
    """The plan of a redesign, as people read it."""
    out = console()
    library = plan.found.origin.library
    out.print(
        Text.assemble(
            (plan.found.origin.name, "bold"),
            f" · {library} · {plan.tokens} tokens · {plan.budget} · "
            f"{plan.searched:,} design{'s' * (plan.searched != 1)} priced in {plan.seconds:.2f} s",
        ),
    )
    out.print()
    rows = [("baseline", plan.baseline, ""), ("lean", plan.chosen, "bold green")]
    if plan.control is not None:
        rows.append(("control", plan.control, "cyan"))
    rows += [("also" if i == 0 else "", other, "dim") for i, other in enumerate(plan.candidates[1:])]
    shown = table(("", "depth", "heads × dim", "inner", "mlp", "params", "body", "GMACs", "κ predicted"), [])
    for name, design, style in rows:
        shown.add_row(*_design_row(name, design), style=style)
    out.print(shown)
    out.print()
    if len(plan.chosen.architecture.stages) > 1:
        out.print(f"a line a stage: {', '.join(stage.name for stage in plan.chosen.architecture.stages)}")
    for line in _plan_words(plan):
        out.print(line)
    for warning in plan.warnings:
        out.print(Text.assemble(("warning ", "yellow"), warning))
    if plan.directory:
        out.print(f'written to {plan.directory}; leanify.load("{plan.directory}") loads it')


def _design_row(name: str, design: Design) -> tuple[str, ...]:
    """One design; where its stages differ, a line a stage."""
    count = len(design.architecture.stages)
    depth, heads, head_dim, inner, mlp = (
        value if isinstance(value, list) else [value] * count
        for value in (design.depth, design.heads, design.head_dim, design.inner, design.mlp)
    )
    shapes = list(zip(depth, heads, head_dim, inner, mlp, strict=True))
    shown = shapes if len(set(shapes)) > 1 else shapes[:1]
    return (
        name,
        "\n".join(str(d) for d, *_ in shown),
        "\n".join(f"{h} × {c}" for _, h, c, *_ in shown),
        "\n".join(str(i) for *_, i, _ in shown),
        "\n".join(str(m) for *_, m in shown),
        millions(design.params),
        millions(design.params_body),
        gigas(design.macs),
        kappa(design.kappa_predicted),
    )


def _plan_words(plan: Plan) -> Iterable[str]:
    if plan.control is not None:
        yield "control: same depth and parameters as lean, the old heads, a wider mlp"
    params, macs = (
        1 - new / old
        for new, old in ((plan.chosen.params, plan.baseline.params), (plan.chosen.macs, plan.baseline.macs))
    )
    yield (
        f"lean: {_less(params)} parameters, {_less(macs)} MACs. Whether it keeps its quality only training beside the "
        "control shows: the paper's evidence has no control."
    )


def _less(share: float) -> str:
    return f"{share:.1%} fewer" if share >= 0 else f"{-share:.1%} more"


# -- profile ------------------------------------------------------------------------------------------------------


def render_profiles(profiles: Sequence[Profile]) -> None:
    """One column a source; with more than one, each number's ratio to the first beside it."""
    out = console()
    first = profiles[0]
    shown = table(("", *(profile.source for profile in profiles)), [])
    for column in shown.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for name, unit, get in _PROFILE_ROWS:
        values = [get(profile) for profile in profiles]
        if all(value is None for value in values):
            continue
        cells = [
            unit(value) + (f" ×{value / values[0]:.3f}" if i and value and values[0] else "")
            for i, value in enumerate(values)
        ]
        shown.add_row(name, *cells)
    out.print(shown)
    out.print()
    out.print(f"device: {first.device} · {first.dtype} · training and throughput at batch {first.batch_size}")
    for profile in profiles:
        name = f"{profile.source}: " if len(profiles) > 1 else ""
        out.print(f"{name}MACs: {profile.cross_check}; neither counts {', '.join(profile.uncounted) or 'nothing else'}")


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} /s"


_PROFILE_ROWS: tuple[tuple[str, Any, Any], ...] = (
    ("parameters", millions, lambda p: p.params),
    ("  in the blocks", millions, lambda p: p.params_body),
    ("MACs a sample", millions, lambda p: p.macs),
    ("FLOPs (2 × MACs)", millions, lambda p: p.flops),
    ("weights", binary, lambda p: p.weights_bytes),
    ("latency, batch 1", seconds, lambda p: p.latency_s),
    ("throughput", _rate, lambda p: p.throughput_per_s),
    ("forward peak", binary, lambda p: p.memory.forward_peak_bytes),
    ("  reserved", binary, lambda p: p.memory.forward_reserved_bytes),
    ("training peak", binary, lambda p: p.memory.train_peak_bytes),
    ("  reserved", binary, lambda p: p.memory.train_reserved_bytes),
    ("training, predicted", binary, lambda p: p.memory.train_predicted_bytes),
    ("device used (NVML)", binary, lambda p: p.memory.nvml_used_bytes),
)


# -- glue ---------------------------------------------------------------------------------------------------------


def render_glue(found: Report) -> None:
    """One task a line: the median over seeds of the metric that counts, its span, and the other metrics' medians."""
    out = console()
    shown = table(("task", "metric", "median", "lowest–highest", "seeds", "other medians"), [], left=2)
    shown.columns[-1].justify = "left"
    for score in found.scores:
        values = score.values[score.metric]
        span = f"{min(values):.2f}–{max(values):.2f}" if len(values) > 1 else ""
        shown.add_row(score.title, score.metric, f"{score.median:.2f}", span, str(len(values)), _others(score))
    out.print(Text.assemble((found.source, "bold"), f" · runs in {found.directory}"))
    out.print()
    out.print(shown)
    out.print()
    missing = f"; without {', '.join(found.missing)}" if found.missing else ""
    out.print(f"average of {len(found.scores)} task{'s' * (len(found.scores) != 1)}: {found.average:.2f}{missing}")


def _others(score: Score) -> str:
    medians = score.to_json()["metrics"]
    return ", ".join(f"{name} {facts['median']:.2f}" for name, facts in medians.items() if name != score.metric)
