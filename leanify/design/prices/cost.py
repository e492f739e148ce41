"""The cost of a model, as a value. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, sub
from typing import Any


@dataclass(frozen=True)
class Cost:
    """What a model costs; every number may be an array, one entry a design.

    params       all parameters
    params_body  those of the blocks alone
    macs         multiply-adds of one forward pass of one sample
    active       parameters used per token: of the experts only those that it is routed to
    kv           bytes of the key/value cache at the context that was asked for, at two bytes a number
    ns           nanoseconds by a fitted line (`latency`); 0 where nothing was timed
    prefill      multiply-adds of an encoder-decoder's prompt at that context (`counting.generation`), else 0
    decode       those of one more of its tokens
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

    def _with(self, other: Cost, join: Callable[[Any, Any], Any]) -> Cost:
        return Cost(*map(join, self.numbers, other.numbers))
