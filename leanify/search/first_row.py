"""Which design of a plan is listed first, and why: it is what `redesign -o` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leanify.profiling.price_list import PriceList
from leanify.search.design import Design
from leanify.search.families import families_like
from leanify.search.ranking import is_causal
from leanify.search.request import Request

# In decoders the balanced design comes first, since makers' smaller models are such ones; elsewhere lean does.
CAUSAL_ORDER = ("balanced", "plain", "narrow", "lean")
USUAL_ORDER = ("lean", "balanced", "narrow", "plain")


@dataclass(frozen=True)
class FirstRow:
    """The design that a plan lists first: its name, and the reason as a sentence, empty if the user's pins chose it."""

    name: str
    design: Design
    reason: str = ""


def first_row(
    prices: PriceList, request: Request, designs: Mapping[str, Design | None], follows: str, is_own_order: bool
) -> FirstRow | None:
    """Return the first of a plan's designs by name; None if there is none. One above the budget is never first.

    With ``is_own_order`` a ranking of the caller's own decides, so lean comes first.
    """
    present: dict[str, Design] = {}
    for key, design in designs.items():
        if design is not None and all(getattr(design.cost, cost) <= limit for cost, limit in request.limits.items()):
            present[key] = design
    if not request.wants_heads:
        return FirstRow("lean", present["lean"]) if "lean" in present else None
    causal = is_causal(prices) and not is_own_order
    name = next((name for name in (CAUSAL_ORDER if causal else USUAL_ORDER) if name in present), None)
    if name is None:
        return None
    families = ", ".join(dict.fromkeys(family.name for family in families_like(prices)))
    reasons = {
        "lean": f"it follows {follows}",
        "balanced": f"makers of smaller models take from width and depth alike ({families})",
        "narrow": "it keeps every layer, and none can be left out at this budget",
        "plain": "it keeps the baseline's heads, which lost least on causal tasks"
        if causal
        else "it has the old heads",
    }
    return FirstRow(name, present[name], f"{name} is first: {reasons[name]}")
