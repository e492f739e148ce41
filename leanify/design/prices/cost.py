"""The cost of a model, as a value. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, sub
from typing import Any


@dataclass(frozen=True)
class Cost:
    """What a model costs. Every number may be an array with one entry for each design.

    params       all parameters
    params_body  parameters of the blocks
    macs         multiply-adds of a forward pass of one sample
    active       parameters that one token uses; of a mixture, only the experts that it is sent to
    kv           bytes of the key/value cache at the given context, two bytes a number
    ns           nanoseconds by a fitted line (`latency`); 0 if nothing was timed
    prefill      multiply-adds of an encoder-decoder's prompt at that context (`counting.generation`), else 0
    decode       MACs of one decoded token behind it
    """

    params: Any
    params_body: Any
    macs: Any
    active: Any = 0
    kv: Any = 0
    ns: Any = 0
    prefill: Any = 0
    decode: Any = 0

    @property
    def numbers(self) -> tuple[Any, ...]:
        """All of them, in this order."""
        return tuple(vars(self).values())

    def __add__(self, other: Cost) -> Cost:
        return self._with(other, add)

    def __sub__(self, other: Cost) -> Cost:
        return self._with(other, sub)

    def __mul__(self, times: int) -> Cost:
        return Cost(*(number * times for number in self.numbers))

    def _with(self, other: Cost, combine: Callable[[Any, Any], Any]) -> Cost:
        return Cost(*map(combine, self.numbers, other.numbers))
