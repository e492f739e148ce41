"""Forward hooks that last as long as a context, and the mode of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


@contextmanager
def remove_on_exit(handles: Iterable[Any]) -> Iterator[None]:
    """Remove these hooks (the handles that ``register_forward_hook`` returns) at the end, also after an exception."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


def in_mode(model: Module, training: bool = False) -> Module:
    """The model in evaluation or training mode; the ``train`` of many a module returns nothing."""
    model.train(training)
    return model
