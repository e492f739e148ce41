"""One wall around upstream: whatever it raises becomes one LeanifyError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from leanify.errors import LeanifyError, SourceError
from leanify.upstream.libraries import first_line


@contextmanager
def wall(asked: str, error: type[LeanifyError] = SourceError) -> Iterator[None]:
    """Turn any exception of upstream's building, loading or tokenizing into ``error``: what was asked, what it said.

    Upstream raises from a dozen libraries (ZeroDivisionError from a patch size, ImportError from a quantiser,
    RecursionError from a nested file), so no list of types would do. The original stays the cause;
    ``LEANIFY_DEBUG=1`` makes the command line print its traceback.
    """
    try:
        yield
    except LeanifyError:
        raise
    except Exception as caught:
        raise error(f"{asked}: {first_line(caught)}") from caught
