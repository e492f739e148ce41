"""The terminal: consoles, messages and progress bars, which are rich's. Imports nothing from leanify."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.progress import Progress

WIDTH = 100
LONGEST = 5_000  # characters of a message
COMMAND = re.compile(r"\b(?:leanify [a-z]+|pip install) .*?(?=[;,.)](?:\s|$)|$)")
SECONDS = 30.0  # between progress lines without a terminal
GREEN, CYAN, ORANGE, RED = "#008700", "#008787", "#af5f00", "#d70000"  # readable on white and on black alike
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
# marks that turn the direction of what follows, end a line or cannot be seen: a name would read as another one
HIDDEN = (0x61C, 0x200B, *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF, 0xFFFE, 0xFFFF)
CONTROLS |= {code: f"\\u{code:04x}" for code in HIDDEN} | {code: f"\\U{code:08x}" for code in range(0xE0000, 0xE0080)}
T = TypeVar("T")


def console(stderr: bool = False, width: int = WIDTH) -> Console:
    """A console without markup, with colours on terminals only; standard output has at most ``width`` columns.

    Standard error has one console, so that rich prints above its bars; with --quiet it prints nothing.
    """
    if stderr:
        error_console().quiet = bool(os.environ.get("LEANIFY_QUIET"))
        return error_console()
    out = _console_class()(highlight=False, markup=False, emoji=False)  # paths may contain [x]
    out.width = min(out.width, width) if out.is_terminal else width
    out.no_color |= out.color_system == "standard"  # whose yellow and cyan may be unreadable on white
    return out


@cache
def error_console() -> Console:
    return _console_class()(stderr=True, highlight=False, markup=False, emoji=False)


@cache
def _console_class() -> type[Console]:
    from rich.console import Console, RenderableType  # imported late: it takes 30 ms
    from rich.segment import Segment

    class VisibleConsole(Console):
        """Shows the control characters of names and messages instead of sending them to the terminal."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for part in super().render(renderable, options):
                yield part if part.control else part._replace(text=visible(part.text))

        def on_broken_pipe(self) -> None:
            raise  # the BrokenPipeError, of which rich makes exit code 1

    return VisibleConsole


def visible(text: str) -> str:
    """Control and hidden characters as escapes, but for newlines and tabs: a name must not drive the terminal."""
    return text if text.isprintable() else text.translate(CONTROLS)


def shorten(message: str) -> str:
    """A message without the middle of a name that fills a screen, and without what follows five thousand characters."""
    words = re.sub(r"\S{1000,}", lambda word: f"{word[0][:200]}…{word[0][-100:]}", message)
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"


def fold(message: str, width: int | None = None) -> str:
    """A message folded between words at ``width``, by default the terminal's; a command stays whole, to be copied."""
    if width is None and not sys.stderr.isatty():
        return message
    lines, width = message.splitlines(), width or shutil.get_terminal_size().columns
    lines = [COMMAND.sub(lambda command: command[0].replace(" ", "\0"), line) for line in lines]
    lines = [textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in lines]
    return "\n".join(lines).replace("\0", " ")


def show_controls_in_logs() -> None:
    """Make the messages that libraries log visible, whichever handler prints them."""

    class VisibleRecord(logging.LogRecord):
        def getMessage(self) -> str:
            return visible(super().getMessage())

    logging.setLogRecordFactory(VisibleRecord)


def say(message: str) -> None:
    """Print a message on standard error, also with --quiet."""
    print(fold(visible(shorten(message))), file=sys.stderr)


def note(message: str) -> None:
    """Print a line about a finished step on standard error, above a bar; nothing with --quiet."""
    console(stderr=True).print(fold(visible(shorten(message))), style="dim", soft_wrap=True)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Iterate, and show the progress on standard error as `progress` does."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with progress(what, total) as advance_to:
        for count, item in enumerate(items):
            advance_to(count)
            yield item


def bars(*columns: Any) -> Progress:
    """Progress bars on standard error: drawn on a terminal, and in a notebook that has ipywidgets."""
    from rich.progress import Progress

    err = console(stderr=True)
    is_drawn = err.is_terminal or (err.is_jupyter and find_spec("ipywidgets") is not None)
    return Progress(*columns, console=err, transient=True, disable=err.quiet or not is_drawn)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, or a spinner without ``total``; yields the function to advance it.

    Without a terminal, a line is printed every half minute, even if the step does not advance.
    """
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    times = (TimeElapsedColumn(),) if total is None else (BarColumn(), TimeRemainingColumn())
    began = last_line = time.monotonic()
    count, end = 0, threading.Event()

    def print_line() -> None:
        nonlocal last_line
        last_line = time.monotonic()
        state = f"{count:,}" if count else f"{last_line - began:.0f} s"
        if total:
            state = f"{count:,} of {total:,}"
        console(stderr=True).print(f"{what}: {state}", soft_wrap=True)

    def advance_to(new_count: int) -> None:
        nonlocal count
        count = new_count
        bar.update(task, completed=count)
        if bar.disable and time.monotonic() - last_line > SECONDS:
            print_line()

    def print_when_silent() -> None:
        while not end.wait(SECONDS):
            if time.monotonic() - last_line >= SECONDS:
                print_line()

    with bars(SpinnerColumn(), TextColumn("{task.description}", markup=False), *times) as bar:
        task = bar.add_task(what, total=total)
        # a thread prints, as a long step may not advance for minutes
        printer = threading.Thread(target=print_when_silent, daemon=True) if bar.disable else None
        if printer is not None:
            printer.start()
        try:
            yield advance_to
        finally:
            end.set()
            if printer is not None:
                printer.join()
