"""``leanify redesign`` after parsing: plan, write and print every source at every budget. Does not import torch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from leanify.cli.output import fit, print_next, print_table, table
from leanify.core import recipe
from leanify.core.path_kinds import is_bare_checkpoint, is_run, unused_path
from leanify.core.terminal import CYAN, GREEN, ORANGE, console, progress
from leanify.core.units import (
    format_bytes,
    format_count,
    format_gigas,
    format_seconds,
    format_share,
    macs_column,
    short_paths,
)

if TYPE_CHECKING:
    from leanify.search.design import Design
    from leanify.search.options import Options
    from leanify.search.plan import Plan

STYLES = {  # yellow is hard to read on white
    "lean": GREEN, "control": CYAN, "narrow": "blue", "balanced": ORANGE, "plain": "magenta", "also": "dim",
}  # fmt: skip
Column = tuple[str, Callable[["Design"], str]]


def plan_all(
    sources: Sequence[str],
    requests: Sequence[Options],
    overrides: Sequence[str],
    output: Path | None,
    *,
    weights: str | None,
    pretrained: bool,
    control: bool,
    choose: str | None,
) -> Iterator[tuple[Plan, Sequence[str]]]:
    """Plan every source under all requests, and write the design; yields plans with the commands to type next.

    ``overrides`` are the typed ones. Raises for an output that cannot be written before anything is planned.
    """
    with _rare_garbage_collection():
        from leanify.search.redesign import redesign

    if output is not None:
        from leanify.core.files.writing import check_new_directory

        check_new_directory(output)
    for source, options in product(sources, requests):
        with progress(f"planning {source}", None), _rare_garbage_collection():
            plan = redesign(source, options)

        # write the design, which is trained next; unknown weights are refused even if nothing is written
        lines: Sequence[str] = ()
        if output is not None:
            with progress(f"writing {output}", None):
                plan = plan.save(output, weights, pretrained=pretrained, control=control, choose=choose)
            lines = next_lines(plan, weights, pretrained, overrides)
        else:
            if weights is not None:
                from leanify.sources.find import absolute_source

                absolute_source(weights)
            if len(sources) * len(requests) == 1:
                lines = write_lines(None if plan.lean else plan.first)
        yield plan, lines


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect garbage less often: imports and counts leave few cycles, and it took 8–13% of the time."""
    before = gc.get_threshold()
    gc.set_threshold(20_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def render(results: Sequence[tuple[Plan, Sequence[str]]]) -> None:
    """Print each plan: its designs side by side, remarks, warnings, and last the commands to type next."""
    out = console()
    for number, (plan, lines) in enumerate(results):
        if number:
            print()
        out.print(Text.assemble((plan.name, "bold"), f" · {plan.inputs} · {plan.budget}"))
        out.print()
        print_table(out, fit(_table(plan), out, ("inner", "GMACs", "MMACs")))
        out.print()

        # what lean follows, and what would show which design keeps its quality
        if plan.reason:
            lean = f" lean follows {plan.follows}." if plan.lean is not None and plan.first != "lean" else ""
            out.print(f"{plan.reason}.{lean} Only training shows which design keeps its quality: leanify compare.")
        else:
            share = 1 - plan.chosen.params / plan.baseline.params
            change = f"{format_share(share)} fewer" if share >= 0 else f"{format_share(-share)} more"
            out.print(f"{plan.first}: {change} parameters. Only training it beside the control shows what it keeps.")
        for remark in plan.remarks:
            if remark != plan.reason:
                out.print(remark)

        # the measured time, and the cost of serving
        timing, latency = plan.timing, plan.chosen.latency_s
        if timing is not None and latency is not None:
            out.print(
                f"latency: {timing.clock.setting}, {len(timing.pairs)} designs beside the baseline; {plan.first} takes "
                f"{format_share(latency / timing.limit_s)} of the limit; timings scatter by "
                f"{format_share(timing.noise(plan.chosen))}"
            )
        for line in _serving(plan):
            out.print(line)
        if plan.directory:
            lean = f"{plan.directory}/lean" if plan.with_control else plan.directory
            out.print(f'written to {plan.directory}; leanify.load("{lean}") loads it')
        print_warnings(plan)
        print_next(*lines)


def _table(plan: Plan) -> Table:
    # the columns: a design's name, the stage if stages differ, sizes and costs
    parts = _parts(plan)
    shapes = list(_shape(plan.baseline, 0))
    if not any(layer.experts for layer in plan.baseline.architecture.layers()):
        shapes.remove("experts")
    if plan.narrow is None and plan.balanced is None:
        shapes.remove("width")
    costs = _columns(plan)
    stage = ["stage"] if len(parts) > 1 else []
    grid = table(("", *stage, *shapes, *(name for name, _ in costs)), [], left_columns=1 + len(stage))

    # a design's sizes take a line per stage; a repeated name is shown once
    shapes_seen = set()
    for name, design in plan.designs():
        style = STYLES.get(name.partition(",")[0], "")
        if design is plan.chosen:
            style = f"bold {style}"
        cells = ["\n".join(part for _, part in parts)] * len(stage)
        stages = [_shape(design, i) for i, _ in parts]
        for column in shapes:
            cells.append("\n".join(sizes[column] for sizes in stages))
        shown_name = "" if name in shapes_seen else name
        grid.add_row(shown_name, *cells, *(show(design) for _, show in costs), style=style)
        shapes_seen.add(name)
    return grid


def table_rows(plan: Plan) -> list[dict[str, str]]:
    """The rows of the printed table by column, for Markdown; sizes of several stages are divided by slashes."""
    grid = _table(plan)
    names = [str(column.header) or "design" for column in grid.columns]
    cells = []
    for column in grid.columns:
        cells.append([str(cell).replace("\n", " / ").rstrip(" /") for cell in column.cells])
    cells[0] = [name for name, _ in plan.designs()]  # the table shows a repeated name once
    return [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]


def print_warnings(plan: Plan) -> None:
    """Print warnings on standard error, one line each."""
    err = console(stderr=True)
    for warning in plan.warnings:
        err.print(Text.assemble(("warning ", ORANGE), warning), soft_wrap=not err.is_terminal)


def _columns(plan: Plan) -> list[Column]:
    """Columns of costs, including active parameters and caches if the model has them."""
    columns: list[Column] = [("params", lambda design: format_count(design.params))]
    if plan.options.count == "body":
        columns.append(("body", lambda design: format_count(design.params_body)))
    if plan.baseline.params_active != plan.baseline.params:
        columns.append(("active", lambda design: format_count(design.params_active)))
    unit, macs = macs_column(plan.baseline.macs)
    columns.append((unit, lambda design: macs(design.macs)))
    if plan.timing is not None:
        columns.append(("latency", lambda design: format_seconds(design.latency_s)))
    if plan.baseline.serving is not None:
        columns.append(("KV/token", lambda d: format_bytes(d.serving.kv_bytes_per_token) if d.serving else "–"))
    return columns


def _parts(plan: Plan) -> list[tuple[int, str]]:
    """Indices of the stages that need their own line, with distinct labels."""
    names = [stage.name for stage in plan.baseline.architecture.stages]
    shapes = []
    for stage in range(len(names)):
        shapes.append([_shape(design, stage) for _, design in plan.designs()])
    if all(shape == shapes[0] for shape in shapes):
        return [(0, "")]
    return list(enumerate(short_paths(names)[0]))


def _shape(design: Design, stage: int) -> dict[str, str]:

    def size(name: str) -> Any:
        value = getattr(design, name)
        return value[stage] if isinstance(value, list) else value

    experts, active = size("experts"), size("active_experts")
    return {
        "depth": str(size("depth")),
        "heads × dim": f"{size('heads')} × {size('head_dim')}",
        **{name: str(size(name)) for name in ("width", "inner", "mlp")},
        "experts": f"{active} of {experts}" if active else str(experts or "–"),
    }


def _serving(plan: Plan) -> Iterator[str]:
    """The cost of serving, if the user sets a limit on caches or a context."""
    serving, before = plan.chosen.serving, plan.baseline.serving
    if serving is None or before is None or (plan.options.max_kv is None and plan.options.context is None):
        return
    yield (
        f"serving at {serving.context:,} tokens of context, 2 bytes a number: "
        f"{_describe_serving(plan.first, plan.chosen)}"
    )
    others = [_describe_serving("baseline", plan.baseline)]
    if plan.control:
        others.append(_describe_serving("control", plan.control))
    yield f"  {'; '.join(others)}"
    if plan.prices.base.prefill:
        yield (
            "  prefill: the encoder reads the context (a sound or an image as it is), the decoder its first token; "
            "decode: one more of its tokens"
        )


def _describe_serving(name: str, design: Design) -> str:
    serving = design.serving
    assert serving is not None
    text = f"{name} {format_bytes(serving.kv_bytes_per_token * serving.context)} of cache"
    if serving.prefill_macs is None or serving.decode_macs is None:
        return text
    return f"{text}, prefill {format_gigas(serving.prefill_macs)}, decode {format_gigas(serving.decode_macs)} GMACs"


# -- the commands to type next ----------------------------------------------------------------------------------------


def next_lines(plan: Plan, weights: str | None, pretrained: bool, overrides: Sequence[str]) -> list[str]:
    """The commands that compare the design with its baseline and train it alone, with capitals for unknown values.

    A design with transferred weights is healed first. A source that is a recipe or a run names its data. A module of
    the user's own that takes neither token ids nor images is trained by their script, and only its costs are compared.
    """
    # the common arguments: designs, weights and overrides
    designs = [f"{plan.directory}/lean", f"{plan.directory}/control"] if plan.with_control else [str(plan.directory)]
    if not _is_trained_here(plan):
        return [join(["leanify", "profile", plan.source, *designs])]
    rivals = []
    if plan.written == "lean" and plan.control is not None and not plan.with_control:
        rivals.append("control")
    if plan.written == "lean" and plan.narrow is not None:
        rivals.append("narrow")
    compare = ["leanify", "compare", plan.source]
    train = ["leanify", "train", designs[0]]
    if weights is not None:
        compare += ["--weights", weights]
        if not is_bare_checkpoint(Path(weights)):  # which does not name its model, as a teacher must
            train += ["--teacher", weights]
    # a recipe or a run names its data
    path = Path(plan.source) / "recipe.toml" if is_run(plan.source) else recipe.find(plan.source)
    if path is None and plan.source.endswith(".toml"):
        path = Path(plan.source)
    has_data = path is not None and recipe.load(path).data is not None
    if not has_data:
        compare += ["--set", "data.path=DATA"]
        train += ["--set", "data.path=DATA"]
    for pair in overrides:
        key = "model" if pair.startswith("class=") else "model.override"
        compare += ["--set", f"{key}.{pair}"]
    directories = [name if "/" in name else f"./{name}" for name in designs]  # a bare name would be a design's
    names = [Path(name).name for name in designs]  # of the designs in the study; each name counts once
    rivals = [rival for rival in rivals if rival not in names]
    compare += ["--designs", ",".join(["baseline", *directories, *rivals])]

    # training alone needs a recipe of its own; a study's weights come from a directory or a checkpoint
    if has_data:
        return [join(compare)]
    if pretrained:
        return [join(train)]
    return [join(train), join(compare)] if weights else [join(compare), join(train)]


def write_lines(choice: str | None) -> list[str]:
    """The typed command with a new folder, and the design to write if one must be named; nothing from Python."""
    arguments = sys.argv[1:]
    if arguments[:1] != ["redesign"] or "--" in arguments:
        return []
    chosen = [] if choice is None else ["--choose", choice]
    return [join(["leanify", *arguments, *chosen, "-o", str(unused_path(Path("lean")))])]


def _is_trained_here(plan: Plan) -> bool:
    """Whether `leanify train` has data for the model's head, and its inputs: token ids by name, or images."""
    source = plan.model_source
    from leanify.sources import find, heads
    from leanify.upstream import user_modules
    from leanify.upstream.inputs import example_inputs

    if heads.OTHER_HEADS.search(source.origin.cls) and source.origin.library == "hf":
        return False
    if not user_modules.is_user_module(source.origin):
        return True
    inputs = example_inputs(find.build_on_meta(source), 1, device="meta")
    return "input_ids" in inputs or next(iter(inputs.values())).dim() == 4
