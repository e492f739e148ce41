"""Print a plan: tables that fit 80 columns, and warnings. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from leanify.cli.tables import fit, print_table, table
from leanify.terminal import CYAN, GREEN, ORANGE, console
from leanify.units import binary, damage, gigas, kappa, macs_column, millions, percent, seconds

if TYPE_CHECKING:
    from leanify.design.plan import Plan
    from leanify.design.search.design import Design
    from leanify.warm.plan import Carrying

KAPPA = "κ random"
STYLES = {"lean": GREEN, "control": CYAN, "plain": "magenta", "also": "dim"}  # yellow is hard to read on white
Column = tuple[str, Callable[["Design"], str]]


def render_plan(plan: Plan, explain: bool = False, carried: Carrying | None = None) -> None:
    """Print baseline, lean, control and alternatives side by side; with ``explain`` also why, and how it was found.

    Where weights were ``carried`` over, what they kept is the result.
    """
    out = console()
    out.print(Text.assemble((plan.name, "bold"), f" · {plan.inputs} · {plan.budget}"))
    out.print()
    print_table(out, fit(_table(plan, explain), out, ("inner", KAPPA, "GMACs", "MMACs")))
    out.print()
    out.print(_sentence(plan, carried, "" if explain else " (--explain)"))
    if explain:
        for line in _notes(plan):
            out.print(line)
    if plan.directory:
        lean = f"{plan.directory}/lean" if plan.with_control else plan.directory
        out.print(f'written to {plan.directory}; leanify.load("{lean}") loads it')


def render_steps(carried: Carrying) -> None:
    """Print the damage after each step of carrying weights over, per design, and what was not paired and why."""
    out = console()
    for name, found in carried.results.items():
        shown = table((f"{name}: steps", found.unit), [(step.words, damage(step.damage)) for step in found.steps])
        out.print()
        print_table(out, shown)
    out.print()
    out.print(f"{carried.words}; damage against the source, before any training")
    reasons: dict[str, None] = {}
    for found in carried.results.values():
        reasons |= dict.fromkeys(found.refused.values())
    for why in list(reasons)[:3]:
        out.print(f"not paired: {why}", style="dim")


def _table(plan: Plan, explain: bool) -> Table:
    parts = _parts(plan)
    shapes = list(_shape(plan.baseline, 0))
    if not any(layer.experts for layer in plan.baseline.architecture.layers()):
        shapes.remove("experts")
    costs = [cost for cost in _columns(plan) if explain or cost[0] != KAPPA]
    stage = ["stage"] if len(parts) > 1 else []
    shown = table(("", *stage, *shapes, *(name for name, _ in costs)), [], left=1 + len(stage))
    for name, design, style in _rows(plan):
        cells = ["\n".join(part for _, part in parts)] * len(stage)
        stages = [_shape(design, i) for i, _ in parts]
        for column in shapes:
            cells.append("\n".join(sizes[column] for sizes in stages))
        shown.add_row(name, *cells, *(show(design) for _, show in costs), style=style)
    return shown


def print_warnings(plan: Plan) -> None:
    """Print warnings on standard error, one line each."""
    err = console(stderr=True)
    for warning in plan.warnings:
        err.print(Text.assemble(("warning ", ORANGE), warning), soft_wrap=not err.is_terminal)


def _rows(plan: Plan) -> Iterator[tuple[str, Design, str]]:
    seen = set()
    for name, design in plan.designs():
        style = STYLES.get(name.partition(",")[0], "")
        is_recommended = plan.recommended.design in name.split(", ")
        yield "" if name in seen else name, design, f"bold {style}" if is_recommended else style
        seen.add(name)


def _columns(plan: Plan) -> list[Column]:
    """Columns of costs, including active parameters and caches if the model has them."""
    columns: list[Column] = [("params", lambda design: millions(design.params))]
    if plan.options.count == "body":
        columns.append(("body", lambda design: millions(design.params_body)))
    if plan.baseline.params_active != plan.baseline.params:
        columns.append(("active", lambda design: millions(design.params_active)))
    unit, macs = macs_column(plan.baseline.macs)
    columns.append((unit, lambda design: macs(design.macs)))
    if plan.timing is not None:
        columns.append(("latency", lambda design: seconds(design.latency_s)))
    if plan.baseline.token_latency_s is not None:
        columns.append(("a token", lambda design: seconds(design.token_latency_s)))
    if plan.baseline.serving is not None:
        columns.append(("KV/token", lambda d: binary(d.serving.kv_bytes_per_token) if d.serving else "–"))
    return [*columns, (KAPPA, lambda design: kappa(design.kappa_predicted))]


def _parts(plan: Plan) -> list[tuple[int, str]]:
    """Indices of the stages that need their own line, with labels that distinguish them."""
    names = [stage.name for stage in plan.baseline.architecture.stages]
    first, *others = [[_shape(design, i) for _, design in plan.designs()] for i in range(len(names))]
    if all(other == first for other in others):
        return [(0, "")]
    return list(enumerate(_short(names)))


def _short(names: list[str]) -> list[str]:
    """Paths without their common prefix and suffix."""
    paths = [name.split(".") for name in names]
    while all(len(path) > 1 for path in paths) and len({path[0] for path in paths}) == 1:
        paths = [path[1:] for path in paths]
    while all(len(path) > 1 for path in paths) and len({path[-1] for path in paths}) == 1:
        paths = [path[:-1] for path in paths]
    return [".".join(path) for path in paths]


def _shape(design: Design, stage: int) -> dict[str, str]:
    """The cells of one stage's sizes, by column."""
    sizes = []
    for name in ("depth", "heads", "head_dim", "inner", "mlp", "experts", "active_experts"):
        value = getattr(design, name)
        sizes.append(value[stage] if isinstance(value, list) else value)
    depth, heads, head_dim, inner, mlp, experts, active = sizes
    return {
        "depth": str(depth),
        "heads × dim": f"{heads} × {head_dim}",
        "inner": str(inner),
        "mlp": str(mlp),
        "experts": f"{active} of {experts}" if active else str(experts or "–"),
    }


def _sentence(plan: Plan, carried: Carrying | None, why: str) -> str:
    """What is recommended, how strong the evidence is and how to see ``why``, and what would show more.

    Where weights were ``carried`` over: how much smaller the design is, and what they keep in it.
    """
    share = 1 - plan.chosen.params / plan.baseline.params
    saved = f"{percent(share)} fewer" if share >= 0 else f"{percent(-share)} more"
    if carried is not None:
        return f"lean: {saved} parameters; {carried.sentence}. Training may change the order{why}."
    if not plan.request.wants_heads:
        return f"lean: {saved} parameters. Only training it beside the control shows what it keeps."
    grounds = "by a ranking of your own" if plan.recommended.regret is None else f"on weak evidence{why}"
    name = plan.recommended.design
    return f"{name} is recommended, {grounds}. Only training lean beside the control shows what heads are worth."


def _notes(plan: Plan) -> Iterator[str]:
    """How the designs were found, priced and ranked, a paragraph each."""
    yield ""
    yield (
        f"searched: {plan.searched:,} design{'s' * (plan.searched != 1)} of {plan.prices.facts.library}, priced in "
        f"{plan.seconds:.2f} s at {plan.tokens} tokens"
    )
    if plan.request.wants_heads:
        yield f"why {plan.recommended.design}: {plan.recommended.evidence}"
    yield "control: lean's depth and parameters, the old heads; plain: the best design without more heads"
    yield "κ random: of heads of Gaussian noise; leanify condition measures κ and explains it"
    yield from _timed(plan)
    yield from _serving(plan)


def _timed(plan: Plan) -> Iterator[str]:
    timing, chosen = plan.timing, plan.chosen
    if timing is not None and chosen.latency_s is not None:
        share = chosen.latency_s / timing.limit_s if chosen.latency_s else 0.0
        yield (
            f"latency: {timing.setting}, beside the baseline; lean was predicted at "
            f"{seconds(chosen.latency_predicted_s)} and measured at {seconds(chosen.latency_s)}, {percent(share)} of "
            f"the limit; timings scatter by {percent(timing.noise)}, the line misses its {timing.shapes} shapes by "
            f"up to {percent(timing.error)}"
        )


def _serving(plan: Plan) -> Iterator[str]:
    served, before = plan.chosen.serving, plan.baseline.serving
    if served is None or before is None:
        return
    yield f"serving at {served.context:,} tokens of context, 2 bytes a number: {_served('lean', plan.chosen)}"
    yield f"  {_served('baseline', plan.baseline)}" + (f"; {_served('control', plan.control)}" if plan.control else "")
    if plan.prices.base.prefill:
        yield (
            "  prefill: the encoder reads the context (a sound or an image as it is), the decoder its first token; "
            "decode: one more of its tokens"
        )


def _served(name: str, design: Design) -> str:
    served = design.serving
    assert served is not None
    text = f"{name} {binary(served.kv_bytes_per_token * served.context)} of cache"
    if served.prefill_macs is None or served.decode_macs is None:
        return text
    return f"{text}, prefill {gigas(served.prefill_macs)}, decode {gigas(served.decode_macs)} GMACs"
