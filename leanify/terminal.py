"""The terminal: its width, and progress for whoever is watching. Imports rich, and nothing of leanify."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
T = TypeVar("T")


def console() -> Console:
    """Standard output: at most 100 columns wide, colours only on a terminal."""
    from rich.console import Console  # 30 ms, which `--help` does without

    out = Console(highlight=False, markup=False, emoji=False)  # a path may hold [x] and :x:; emoji's names take 10 ms
    out.width = min(out.width, WIDTH) if out.is_terminal else WIDTH
    return out


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, with a progress bar on standard error; silent where stderr is no terminal."""
    length = total if total is not None else len(items) if isinstance(items, Sized) else None
    with progress(what, length) as advance_to:
        for done, item in enumerate(items):
            advance_to(done)
            yield item


_shown: list[Any] = []  # what is drawn now comes last: an inner bar takes the place of the outer one


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that disappears at the end, or a spinner where no total is known.

    Call what it yields with the number of steps done.
    """
    from rich.console import Console

    err = Console(stderr=True, markup=False, emoji=False)
    if not err.is_terminal or os.environ.get("LEANIFY_QUIET"):
        yield lambda done: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    rest = (TimeElapsedColumn(),) if total is None else (BarColumn(bar_width=None), TimeRemainingColumn())
    words = TextColumn("{task.description}", markup=False)
    with drawn(Progress(SpinnerColumn(), words, *rest, console=err, transient=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def drawn(bar: Any) -> Iterator[Any]:
    """Start one of rich's live displays, and stop it; the one that was there before is hidden meanwhile."""
    if _shown:
        _shown[-1].stop()
    _shown.append(bar)
    bar.start()
    try:
        yield bar
    finally:
        bar.stop()
        _shown.pop()
        if _shown:
            _shown[-1].start()
