"""The terminal: how wide it is, and whether somebody looks. Imports rich, and nothing of leanify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console

WIDTH = 100
T = TypeVar("T")


def console() -> Console:
    """Standard output: at most 100 columns wide, colours only where somebody looks."""
    out = Console(highlight=False)
    out.width = min(out.width, WIDTH) if out.is_terminal else WIDTH
    return out


def track(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, with progress on standard error while somebody looks; quiet in a pipe."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield from items
        return
    from rich.progress import Progress

    with Progress(console=err, transient=True) as progress:
        yield from progress.track(items, description=what)
