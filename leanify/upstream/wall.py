"""One wall around upstream: whatever it raises becomes one LeanifyError."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from leanify.errors import LeanifyError, SourceError
from leanify.upstream.libraries import first_line

T = TypeVar("T")


@contextmanager
def wall(asked: str, error: type[LeanifyError] = SourceError) -> Iterator[None]:
    """Turn any exception of upstream's into ``error``: what was asked, and what upstream said.

    Upstream raises from a dozen libraries (ZeroDivisionError from a patch size, ImportError from a quantiser,
    RecursionError from a nested file), so no list of types would do. The original stays the cause;
    ``LEANIFY_DEBUG=1`` makes the command line print its traceback.
    """
    try:
        yield
    except (LeanifyError, Warning):  # a warning, where warnings are errors
        raise
    except Exception as caught:
        raise error(f"{asked}: {first_line(caught)}") from caught


def walled(items: Iterable[T], asked: str, error: type[LeanifyError] = SourceError) -> Iterator[T]:
    """The items, with the wall around what makes them; what is done with one stands outside."""
    with wall(asked, error):
        made = iter(items)
    nothing = object()
    while True:
        with wall(asked, error):
            item = next(made, nothing)
        if item is nothing:
            return
        yield item  # type: ignore[misc]
