"""Turn whatever upstream raises into a single LeanifyError."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from leanify.errors import LeanifyError, SourceError
from leanify.upstream.libraries import first_line

T = TypeVar("T")


@contextmanager
def wall(asked: str, error: type[LeanifyError] = SourceError) -> Iterator[None]:
    """Turn any exception inside into ``error``, whose message is ``asked`` and the first line of the original.

    LeanifyErrors pass unchanged. Upstream's exceptions come from a dozen libraries (ZeroDivisionError from a
    patch size, ImportError from a quantiser, RecursionError from a nested file), so no list of types would be
    complete. The original is the cause; with ``LEANIFY_DEBUG=1`` the command line prints its traceback.
    """
    try:
        yield
    except (LeanifyError, Warning):  # a warning, if warnings are turned into errors
        raise
    except Exception as caught:
        raise error(f"{asked}: {first_line(caught)}") from caught


def walled(items: Iterable[T], asked: str, error: type[LeanifyError] = SourceError) -> Iterator[T]:
    """Iterate with `wall` around the iterator only, not around the code that consumes the items."""
    with wall(asked, error):
        made = iter(items)
    nothing = object()
    while True:
        with wall(asked, error):
            item = next(made, nothing)
        if item is nothing:
            return
        yield item  # type: ignore[misc]
