"""Forward hooks that last as long as a context, for every recording of modules' inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def remove_on_exit(handles: Iterable[Any]) -> Iterator[None]:
    """Remove these hooks (the handles that ``register_forward_hook`` returns) at the end, also after an exception."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield
