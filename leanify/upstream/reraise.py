"""Turn any exception of upstream into a LeanifyError."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from leanify.core.errors import LeanifyError, SourceError, memory_message
from leanify.upstream.libraries import first_line

T = TypeVar("T")


@contextmanager
def reraise_as(attempt: str, error: type[LeanifyError] = SourceError) -> Iterator[None]:
    """Turn any exception inside into ``error``, whose message is ``attempt`` and the first line of the original.

    LeanifyErrors pass unchanged. Upstream's exceptions come from a dozen libraries (ZeroDivisionError from a
    patch size, ImportError from a quantiser, RecursionError from a nested file), so no list of types would be
    complete. Where memory ran out, the message says this alone. The original is the cause; with ``LEANIFY_DEBUG=1``
    the command line prints its traceback.
    """
    try:
        yield
    except (LeanifyError, Warning):  # a warning, if warnings are turned into errors
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as caught:  # a panic in a Rust extension does not derive from Exception
        raise error(memory_message(caught) or f"{attempt}: {first_line(caught)}") from caught


def reraise_in_iteration(items: Iterable[T], attempt: str, error: type[LeanifyError] = SourceError) -> Iterator[T]:
    """Iterate with `reraise_as` around the iterator only, not around the code that consumes the items."""
    with reraise_as(attempt, error):
        iterator = iter(items)
    nothing = object()
    while True:
        with reraise_as(attempt, error):
            item = next(iterator, nothing)
        if item is nothing:
            return
        yield item  # type: ignore[misc]
