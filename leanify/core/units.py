"""Format numbers for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

SMALL_MACS = 10**8  # below it, a column in units of 10⁹ has at most one digit that tells designs apart


def format_count(count: int) -> str:
    """86567656 → "86.57 M"; thousands below 10⁶, billions from 10⁹."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return str(count)


def format_operations(count: int) -> str:
    """MACs or FLOPs: 17563600000 → "17.56 G"; other than parameters they are not counted in billions."""
    return f"{count / 1e9:,.2f} G" if count >= 1e9 else format_count(count)


def format_gigas(count: int) -> str:
    """In units of 10⁹, with two decimals or two significant digits; from 10¹² without decimals."""
    if count >= 1e12:
        return f"{count / 1e9:,.0f}"
    return f"{count / 1e9:,.2f}" if count >= 1e7 else f"{count / 1e9:.2g}"


def macs_column(baseline: int) -> tuple[str, Callable[[int], str]]:
    """The heading of a column of MACs and the format of its cells: in units of 10⁹, or of 10⁶ for a small baseline."""
    if baseline >= SMALL_MACS:
        return "GMACs", format_gigas
    return "MMACs", lambda count: format_gigas(1000 * count)


def format_bytes(size: float | None, reference: float | None = None) -> str:
    """Bytes: 171442176 → "163.50 MiB"; in the unit of ``reference``, so that two values of one row share a unit."""
    if size is None:
        return "–"
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if (reference or size) >= 1 << power:
            return f"{size / (1 << power):,.2f} {unit}"
    return f"{size:.0f} B"


def format_seconds(value: float | None, reference: float | None = None) -> str:
    """A time: 0.0121 → "12.1 ms"; in the unit of ``reference``."""
    if value is None:
        return "–"
    return f"{value:.2f} s" if (reference or value) >= 1 else f"{value * 1e3:,.1f} ms"


def format_forecast(seconds: float) -> str:
    """A forecast, in two digits: 43.34 → "about 43 s", 754 → "about 13 minutes", 8640 → "about 2.4 hours"."""
    size, unit = 1, "s"
    if seconds >= 7200:
        size, unit = 3600, "hours"
    elif seconds >= 120:
        size, unit = 60, "minutes"
    value = float(f"{max(seconds, 0.1) / size:.2g}")
    return f"about {value:,.0f} {unit}" if value >= 10 else f"about {value:g} {unit}"


def format_share(share: float) -> str:
    """A share, to a tenth of a percent at most: 0.5 → "50%", 0.8833 → "88.3%"."""
    return f"{100 * share:,.1f}".removesuffix(".0") + "%"


def format_digits(value: float) -> str:
    """Four digits, zeros too; from a thousand on whole: 0.7967, 0.2290, 9,838, 11,640."""
    if abs(value) >= 999.95:
        return f"{value:,.0f}"
    return f"{value:#.4g}" if abs(value) >= 1e-4 else f"{value:.4g}"


PERCENT = ("top1", "top5", "accuracy", "majority", "f1", "macro_f1")


def metric_heading(name: str) -> str:
    """A metric's name above its values: "top1 %", "loss"."""
    return f"{name} %" if name in PERCENT else name


def format_metric(name: str, value: float) -> str:
    """A metric's name and value, with its unit: "top1 95.28%", "loss 0.3433"."""
    return f"{name} {format_metric_value(name, value)}"


def format_metric_value(name: str, value: float) -> str:
    """The value of a metric of this name, with its unit: "95.28%", "0.3433"."""
    return f"{value:.2f}%" if name in PERCENT else format_digits(value)


def format_metric_cell(name: str, value: float | None) -> str:
    """The value of a metric in a column with `metric_heading`: "95.28", "0.3433"."""
    return "–" if value is None else format_metric_value(name, value).removesuffix("%")


def format_sizes(size: int | Sequence[int] | None, separator: str = "/") -> str:
    """One number, or one for each stage: 4/4/8/2."""
    if size is None:
        return "–"
    return str(size) if isinstance(size, int) else separator.join(map(str, size))


def format_names(names: Sequence[str], count: int = 3) -> str:
    """The first names: a, b, c and 5 more."""
    rest = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + rest


def short_paths(names: Sequence[str]) -> tuple[list[str], str]:
    """Dotted names without their common ends, and their pattern: (["0", "1"], "blocks.*.attn")."""
    if len(names) < 2:
        return list(names), ""
    paths, before, after = [name.split(".") for name in names], [], []
    while all(len(path) > 1 for path in paths) and len({path[0] for path in paths}) == 1:
        before += [path.pop(0) for path in paths][:1]
    while all(len(path) > 1 for path in paths) and len({path[-1] for path in paths}) == 1:
        after += [path.pop() for path in paths][:1]
    return [".".join(path) for path in paths], ".".join([*before, "*", *reversed(after)])


def format_damage(value: float) -> str:
    """The damage of transferring weights, in three digits; small values are "below 0.0001"."""
    return f"{value:.3g}" if value >= 1e-4 or not value else "below 0.0001"


def decimal_places(low: float, high: float) -> int:
    """Decimal places that show two digits of an interval's half width."""
    half = (high - low) / 2
    return max(0, 1 - math.floor(math.log10(half))) if half > 0 else 3


def format_difference(mean: float, low: float | None, high: float | None) -> tuple[str, str]:
    """A difference and its interval, in one precision: 0.679, -7.5, 8.86 → "+0.68", "-7.50 to +8.86"."""
    if low is None or high is None:
        return f"{mean:+.3g}", "–"
    places = decimal_places(low, high) + 1  # an end that is near zero must show on which side it is
    return f"{mean:+.{places}f}", f"{low:+.{places}f} to {high:+.{places}f}"


def format_range(value: float, span: tuple[float, float] | None, factor: float = 1.0, unit: str = "") -> str:
    """A measured value with the range of its rounds: 0.0014, (0.0012, 0.0019), 1e3, "ms" → "1.4 (1.2–1.9) ms"."""
    values = [factor * number for number in (value, *(span or ()))]
    texts = [f"{number:,.0f}" if abs(number) >= 99.5 else f"{number:.2g}" for number in values]
    text = f"{texts[0]} ({texts[1]}–{texts[2]})" if span else texts[0]
    return f"{text} {unit}".strip()
