"""Refuse a model that is larger than the machine's memory before the system kills the process that builds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from leanify import machine
from leanify.errors import LeanifyError, SourceError
from leanify.units import binary

SHARE = 8  # what fits into an eighth of the free memory is built without being weighed first


class _Heavy(LeanifyError):
    """The model being built has passed the limit."""


def built(what: object, build: Callable[[], nn.Module], weigh: Callable[[], nn.Module]) -> nn.Module:
    """``build()``, or SourceError if its parameters take more than the free memory.

    ``weigh`` builds the same model on meta. That costs a part of a second, so it is done only for a model that has been
    seen to be large: then building starts again, from the same random numbers.
    """
    free = machine.free_memory()
    if free is None:
        return build()
    before = torch.get_rng_state()
    try:
        with _at_most(free // SHARE):
            return build()
    except _Heavy:
        check(what, sum(parameter.nbytes for parameter in weigh().parameters()), free)
    torch.set_rng_state(before)
    return build()


def check(what: object, size: int, free: int | None = None) -> None:
    """Raise SourceError if weights of ``size`` bytes do not fit into the free memory."""
    free = machine.free_memory() if free is None else free
    if free is not None and size > free:
        raise SourceError(
            f"the weights of {what} take {binary(size)}, {binary(free)} of memory are free here; what needs "
            "no weights still works: leanify redesign without -o, leanify profile --no-measure"
        )


@contextmanager
def _at_most(limit: int) -> Iterator[None]:
    """Stop with _Heavy as soon as the parameters registered inside take more than ``limit`` bytes."""
    left = limit

    def weigh(_module: nn.Module, _name: str, parameter: Any) -> None:
        nonlocal left
        left -= 0 if parameter is None else parameter.nbytes
        if left < 0:
            raise _Heavy

    hook = register_module_parameter_registration_hook(weigh)
    try:
        yield
    finally:
        hook.remove()
