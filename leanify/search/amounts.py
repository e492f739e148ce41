"""Parse amounts with units, as users type them. Imports no torch: the command line checks them first."""

from __future__ import annotations

import re
from collections.abc import Mapping

from leanify.core.errors import BudgetError

Budget = float | int | str | None

COUNTS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
EXAMPLES = {"k": "43M or 43000000", "us": "12ms", "kb": "8GB"}  # keys: the first unit of each table
UNITS = {
    "--target-params": COUNTS,
    "--max-params": COUNTS,
    "--max-macs": COUNTS,
    "--max-latency": TIMES,
    "--max-memory": BYTES,
    "--max-kv": BYTES,
}


def parse_budget(name: str, value: float | int | str, baseline: float | None, units: Mapping[str, float]) -> float:
    """Return a budget in absolute units: a share of ``baseline`` (at most 1, or with %), or an amount with its unit.

    Without a baseline, shares are refused. A whole number of at least a thousand needs no unit if it is a count. Raises
    BudgetError.
    """
    # a number and its unit, the longest unit that fits
    text = str(value).strip().lower().replace("_", "").replace(",", "")
    unit = next((unit for unit in sorted([*units, "%"], key=len, reverse=True) if text.endswith(unit)), "")
    forms = f"an amount ({EXAMPLES[next(iter(units))]})"
    forms = f"say {forms}" if baseline is None else f"say a share of the baseline (0.5 or 50%) or {forms}"
    try:
        number = float(text.removesuffix(unit))
    except ValueError:
        raise BudgetError(f"{name} {value!r} is not a valid budget; {forms}") from None
    if not number > 0 or number == float("inf"):
        raise BudgetError(f"{name} {value} is not a valid budget: it must be above zero; {forms}")
    if re.match(r"\s*0,\d", str(value)):
        raise BudgetError(f"{name} {value} has a comma; a fraction has a point, {str(value).replace(',', '.')}")
    # a share of the baseline: with %, or without a unit and at most 1
    share = number / 100 if unit == "%" else number
    if unit in ("%", "") and share <= 1:
        if baseline is None:
            raise BudgetError(f"{name} {value} is a share, and there is no baseline to be a share of; {forms}")
        return share * baseline
    # an amount needs its unit, or at least looks like a count
    if unit == "%" or (not unit and (units is not COUNTS or number < 1000 or number != int(number))):
        alternative = "" if baseline is None else "is above 1 and "
        raise BudgetError(f"{name} {value} {alternative}has no unit; {forms}")
    return number * units.get(unit, 1.0)


def check_budget(name: str, value: Budget) -> None:
    """Raise BudgetError for a budget that is invalid for any baseline; towers: ``encoder=0.75,decoder=20M``."""
    parts = [part.rpartition("=")[2] for part in str(value).split(",")] if "=" in str(value) else [value]
    for part in parts:
        if part is not None:
            parse_budget(name, part, 1.0, UNITS[name])


def amount(name: str, value: str) -> float:
    """Parse an amount with its unit that has no baseline to be a share of. Raises BudgetError."""
    return parse_budget(name, value, None, UNITS[name])
