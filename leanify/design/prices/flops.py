"""FLOPs of what runs, by torch's own formulas, counted where sizes are answered.

torch's counter asks each operator anew whether it is made of others and keeps a table by module; here that is asked of
an operator once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch.utils.flop_counter import flop_registry

from leanify.design.prices.sizes import Sizes


class Flops(Sizes):  # type: ignore[no-untyped-call]
    """Counts the operators that torch has a formula for in ``total``; one made of others is counted as those."""

    def __init__(self) -> None:
        super().__init__()
        self.total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _made_of_others(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        found = super().__torch_dispatch__(func, types, args, kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=found)
        return found


@cache
def _made_of_others(func: Any) -> bool:
    return bool(func._can_decompose())
