"""Forward hooks that last as long as a context: everything here that records what modules take and give uses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def hooked(handles: Iterable[Any]) -> Iterator[None]:
    """Remove these hooks (the handles that ``register_forward_hook`` returns) at the end, whatever happens."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield
