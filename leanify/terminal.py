"""The terminal: its width, and progress for whoever is watching. Imports rich, and nothing of leanify."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console

WIDTH = 100
T = TypeVar("T")


def console() -> Console:
    """Standard output: at most 100 columns wide, colours only on a terminal."""
    out = Console(highlight=False)
    out.width = min(out.width, WIDTH) if out.is_terminal else WIDTH
    return out


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, with a progress bar on standard error; silent where stderr is no terminal."""
    length = total if total is not None else len(items) if isinstance(items, Sized) else None
    with progress(what, length) as advance_to:
        for done, item in enumerate(items):
            advance_to(done)
            yield item


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that disappears at the end; call what it yields with the number of steps done."""
    err = Console(stderr=True)
    if not err.is_terminal or os.environ.get("LEANIFY_QUIET"):
        yield lambda done: None
        return
    from rich.progress import Progress  # costs 10 ms to import

    with Progress(console=err, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
