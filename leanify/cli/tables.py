"""Tables that fit 100 columns. Does not import torch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from leanify.design.measure.counted import AGREED
from leanify.terminal import console
from leanify.units import binary, millions, operations, seconds

if TYPE_CHECKING:
    from leanify.design.measure.counted import Profile
    from leanify.paper.glue_table import Report


WIDE = 100  # columns that a table with sentences needs
FOLDED = 12  # columns that words get at least where they are folded
GAP = 2  # columns between two of a table
WIDEST = 1000  # columns: the width of a table without limits


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """A plain table: the first ``left`` columns are words, folded where they do not fit; the others are numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 1))
    for i, name in enumerate(columns):
        made.add_column(name, header_style="dim", no_wrap=i >= left, justify="left" if i < left else "right")
        made.columns[i].overflow = "fold" if i < left else "ellipsis"
    for row in rows:
        made.add_row(*row)
    return made


def entries(rows: Iterable[tuple[str, str]], width: int) -> str:
    """What a narrow terminal gets in place of a table: each first text in a line, the second one indented below it."""
    lines = []
    for first, second in rows:
        lines.append(first)
        lines += textwrap.wrap(
            second, width, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def shortened(text: str, room: int) -> str:
    """A path or name in ``room`` characters, by leaving out of its middle: its end tells it from others."""
    if len(text) <= room:
        return text
    end = room * 2 // 3
    return f"{text[: room - end - 1]}…{text[-end:]}"


def fit(made: Any, out: Console, last: Sequence[str]) -> Any:
    """Drop the table's ``last`` columns, one by one, until it fits the terminal."""
    for name in last:
        if Measurement.get(out, out.options.update(width=WIDEST), made).maximum <= out.width:
            break
        made = _of(made, [column for column in made.columns if str(column.header) != name])
    return made


def _of(made: Any, columns: Sequence[Any]) -> Any:
    """A table with these columns of another; rich pads a column by its number."""
    part = copy(made)
    part.columns = [replace(column, _index=number) for number, column in enumerate(columns)]
    return part


def print_table(out: Console, made: Any) -> None:
    """Print a table; where its numbers would be cut, in several parts, the first column in each."""
    first, *others = made.columns
    groups: list[list[Any]] = [[first]]
    for column in others:
        if len(groups[-1]) > 1 and _needed(out, made, [*groups[-1], column]) > out.width:
            groups.append([first])
        groups[-1].append(column)
    for number, columns in enumerate(groups):
        if number:
            out.print()
        out.print(_of(made, columns))


def _needed(out: Console, made: Any, columns: list[Any]) -> int:
    """The columns of the terminal that these columns of a table take at least: numbers whole, words folded."""
    needed = GAP * (len(columns) - 1)
    for column in columns:
        width = Measurement.get(out, out.options.update(width=WIDEST), _of(made, [column])).maximum
        needed += width if column.no_wrap else min(width, FOLDED)
    return needed


# -- profile ------------------------------------------------------------------------------------------------------

AS_GIVEN = {"MACs a sample": "MACs of the example", "latency, batch 1": "latency of the example"}


def render_profiles(profiles: Sequence[Profile], explain: bool = False) -> None:
    """Print one column per source and, with several, each number's ratio to the first.

    How MACs were counted is said with ``explain``, and where two counters differ.
    """
    out = console()
    first = profiles[0]
    shown = table(("", *(profile.source for profile in profiles)), [])
    for column in shown.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for name, unit, get in _PROFILE_ROWS:
        values = [get(profile) for profile in profiles]
        if all(value is None for value in values):
            continue
        if unit in (binary, seconds):
            unit = partial(unit, least=min(value for value in values if value is not None))
        cells = [unit(value) + (_ratio(value, values[0]) if place else "") for place, value in enumerate(values)]
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


def _ratio(value: Any, first: Any) -> str:
    """A number's ratio to the first source's; of what is no number, nothing."""
    numbers = all(isinstance(one, int | float) and one for one in (value, first))
    return f" ×{value / first:.3f}" if numbers else ""


def _kernels(calls: Mapping[str, int] | None) -> str:
    if calls is None:
        return "–"
    return ", ".join(f"{times} × {name.removesuffix('_attention')}" for name, times in calls.items()) or "none seen"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} /s"


_PROFILE_ROWS: tuple[tuple[str, Any, Any], ...] = (
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


# -- glue ---------------------------------------------------------------------------------------------------------


def render_glue(found: Report) -> None:
    """Print one line per task: the main metric's median over seeds, its range, and the other metrics' medians."""
    out = console()
    shown = table(("task", "metric", "median", "lowest–highest", "seeds", "other medians"), [], left=2)
    shown.columns[-1].justify = "left"
    for score in found.scores:
        values = score.values[score.metric]
        span = f"{min(values):.2f}–{max(values):.2f}" if len(values) > 1 else ""
        medians = {name: facts["median"] for name, facts in score.to_json()["metrics"].items()}
        del medians[score.metric]
        others = ", ".join(f"{name} {median:.2f}" for name, median in medians.items())
        shown.add_row(score.title, score.metric, f"{score.median:.2f}", span, str(len(values)), others)
    out.print(Text.assemble((found.source, "bold"), f" · runs in {found.directory}"))
    out.print()
    print_table(out, shown)
    out.print()
    missing = f"; without {', '.join(found.missing)}" if found.missing else ""
    out.print(f"average of {len(found.scores)} task{'s' * (len(found.scores) != 1)}: {found.average:.2f}{missing}")
