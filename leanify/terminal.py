"""The terminal: console width, messages and progress bars. Imports rich, nothing from leanify."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

WIDTH = 100
ROOM = 4  # columns: ^C twice
GREEN, CYAN, ORANGE, RED = "#008700", "#008787", "#af5f00", "#d70000"  # readable on white and on black alike
BARS = {
    "progress.elapsed": ORANGE,
    "progress.remaining": CYAN,
    "progress.download": GREEN,
    "progress.spinner": GREEN,
}
PADDING = re.compile(" +(?=\n)")
T = TypeVar("T")


def console(stderr: bool = False, width: int = WIDTH) -> Console:
    """A console without markup, with colours on terminals alone; standard output has at most ``width`` columns.

    On standard error it is that of the bar which is shown, if there is one: another would print onto the
    bar's line. With --quiet it prints nothing there.
    """
    if stderr and _shown:
        return _shown[-1].console  # type: ignore[no-any-return]
    from rich.theme import Theme

    made = _console_class()
    out = made(stderr=stderr, theme=Theme(BARS), highlight=False, markup=False, emoji=False)  # paths may contain [x]
    if out.color_system == "standard":  # sixteen colours are as the terminal paints them: yellow and cyan on white
        out.no_color = True
    if not out.is_terminal:
        out.file = cast("IO[str]", _Trimmed(out.file))
    if not stderr:
        out.width = min(out.width, width) if out.is_terminal else width
    elif os.environ.get("LEANIFY_QUIET"):
        out.quiet = True
    return out


class _Trimmed:
    """A text stream without the spaces by which rich fills its lines to one width."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@cache
def _console_class() -> type[Console]:
    from rich.console import Console, RenderableType  # imported late: it takes 30 ms
    from rich.segment import Segment
    from rich.text import Text

    class Visible(Console):
        """Shows the control characters of names and messages instead of sending them to the terminal."""

        def print(self, *objects: Any, **words: Any) -> None:
            """Print while rich's own thread draws no bar: it would go back by the lines of one that is not
            there yet, and leave a stale line, or take one of ours.
            """
            stack = getattr(self, "_live_stack", None) or [getattr(self, "_live", None)]  # rich 13 has one at most
            live = stack[0]
            with nullcontext() if live is None else live._lock:
                super().print(*objects, **words)

        def render_str(self, text: str, **words: Any) -> Text:
            return super().render_str(visible(text), **words)  # before its width is measured

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for part in super().render(renderable, options):
                yield part if part.control else part._replace(text=visible(part.text))

    return Visible


CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}


def visible(text: str) -> str:
    """Control characters as escapes, but for newlines and tabs: a name must not drive the terminal."""
    return text if text.isprintable() else text.translate(CONTROLS)


def note(message: str) -> None:
    """Print a line about a finished step on standard error, beside a bar; nothing with --quiet."""
    lines = wrap(visible(message), columns())
    console(stderr=True).print(lines, style="dim", soft_wrap=True)


COMMAND = re.compile(r"(?:leanify|pip install|--set) [^,;)\n]*")


def say(message: str) -> None:
    """Print a message on standard error; on a terminal, wrap it between words."""
    print(wrap(visible(message), columns()), file=sys.stderr)


def wrap(message: str, width: int | None) -> str:
    """Wrap a message to ``width``, but break no command that fits into one line, so that it can be copied."""
    if width is None:
        return message
    joined = COMMAND.sub(lambda match: match[0].replace(" ", "\0") if len(match[0]) <= width else match[0], message)
    lines = [textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in joined.split("\n")]
    return "\n".join("\n".join(some) for some in lines).replace("\0", " ")


def columns() -> int | None:
    """The width of the terminal on standard error; None if it is not a terminal."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or None if sys.stderr.isatty() else None
    except (OSError, ValueError, AttributeError):
        return None


@contextmanager
def starting(words: str) -> Iterator[None]:
    """Show a line on a terminal while the libraries are imported that draw a spinner and parse options."""
    mute = os.environ.get("LEANIFY_QUIET") or os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    if mute or sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    print(f"  {words}", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a progress bar on standard error; silent if that is not a terminal."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with progress(what, total) as advance_to:
        for done, item in enumerate(items):
            advance_to(done)
            yield item


def bars(out: Console, *columns: Any) -> Any:
    """Rich's progress bars, silent where ``out`` is no terminal, with room for ^C at the right.

    On a full line the terminal would put ^C on a line of its own, and rich would erase that one instead of the bar.
    """
    from rich.constrain import Constrain
    from rich.progress import Progress

    class Bars(Progress):
        def get_renderables(self) -> Iterable[Any]:
            yield Constrain(self.make_tasks_table(self.tasks), max(1, out.width - ROOM))

    return Bars(*columns, console=out, transient=True, disable=not draws(out))


def draws(out: Console) -> bool:
    """Whether bars are drawn: on a terminal, and in a notebook that has ipywidgets."""
    return not out.quiet and (out.is_terminal or (out.is_jupyter and find_spec("ipywidgets") is not None))


_shown: list[Any] = []  # active displays, the visible one last: an inner bar replaces the outer one


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, or a spinner without ``total``; yields the function to advance it."""
    err = console(stderr=True)
    if not draws(err):
        yield lambda done: None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    rest = (TimeElapsedColumn(),) if total is None else (BarColumn(bar_width=None), TimeRemainingColumn())
    words = TextColumn("{task.description}", markup=False)
    with showing(bars(err, SpinnerColumn(), words, *rest)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def showing(bar: Any) -> Iterator[Any]:
    """Run one of rich's live displays; a display that is already running is hidden meanwhile."""
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
