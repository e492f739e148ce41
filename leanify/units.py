"""Format numbers for people."""

from __future__ import annotations

import math


def millions(count: int) -> str:
    """86567656 → "86.57 M"; thousands below 10⁶, billions from 10⁹."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return str(count)


def operations(count: int) -> str:
    """MACs or FLOPs: 17563600000 → "17.56 G"; other than parameters they are not counted in billions."""
    return f"{count / 1e9:,.2f} G" if count >= 1e9 else millions(count)


def gigas(count: int) -> str:
    """In units of 10⁹, with two decimals or two significant digits; from 10¹² without decimals."""
    if count >= 1e12:
        return f"{count / 1e9:,.0f}"
    return f"{count / 1e9:,.2f}" if count >= 1e7 else f"{count / 1e9:.2g}"


def binary(size: int | None) -> str:
    if size is None:
        return "–"
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):,.2f} {unit}"
    return f"{size} B"


def kilobytes(size: float) -> str:
    """Bytes in binary units with four significant digits: 131072 → "128 KiB"."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):,.4g} {unit}"
    return f"{size:.0f} B"


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def digits(value: float) -> str:
    """Four digits; from ten thousand on whole: 0.7967, 9,838, 11,640."""
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


PERCENT = ("top1", "top5", "accuracy", "majority", "f1", "f1_micro", "f1_macro", "exact", "precision", "recall")


def heading(name: str) -> str:
    """A metric's name above its values: "top1 %", "loss"."""
    return f"{name} %" if name in PERCENT else name


def metric(name: str, value: float) -> str:
    """A metric's name and value, with its unit: "top1 95.28 %", "loss 0.3433"."""
    return f"{name} {digits(value)}{' %' if name in PERCENT else ''}"


def kappa(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.2f}"


def places_of(low: float, high: float) -> int:
    """Decimal places that show two digits of an interval's half width."""
    half = (high - low) / 2
    return max(0, 1 - math.floor(math.log10(half))) if half > 0 else 3


def spread(mean: float, low: float | None, high: float | None) -> tuple[str, str]:
    """A difference and its interval, in one precision: 0.679, -7.5, 8.86 → "+0.68", "-7.50 to +8.86"."""
    if low is None or high is None:
        return f"{mean:+.3g}", "–"
    places = places_of(low, high) + 1  # an end that is near zero must show on which side it is
    return f"{mean:+.{places}f}", f"{low:+.{places}f} to {high:+.{places}f}"


def ranged(value: float, span: tuple[float, float] | None, factor: float = 1.0, unit: str = "") -> str:
    """A measured value with the range of its rounds: 0.0014, (0.0012, 0.0019), 1e3, "ms" → "1.4 (1.2–1.9) ms"."""
    known = [factor * one for one in (value, *(span or ()))]
    shown = [f"{one:,.0f}" if abs(one) >= 100 else f"{one:.2g}" for one in known]
    words = f"{shown[0]} ({shown[1]}–{shown[2]})" if span else shown[0]
    return f"{words} {unit}".strip()
