"""Receive the progress of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from leanify.terminal import progress


class Watcher(Protocol):
    """Receives the progress of a run; of several processes only the first has one.

    ``metric`` names the best evaluation; ``sign`` is 1 if higher is better, −1 if lower is.
    """

    def began(self, words: str, first: int, last: int, metric: str, sign: int) -> None: ...
    def warned(self, words: str) -> None: ...
    def stepped(self, step: int) -> None: ...
    def logged(self, row: Mapping[str, Any]) -> None: ...


class Silent:
    """A watcher that ignores all events."""

    def began(self, words: str, first: int, last: int, metric: str, sign: int) -> None: ...
    def warned(self, words: str) -> None: ...
    def stepped(self, step: int) -> None: ...
    def logged(self, row: Mapping[str, Any]) -> None: ...


class Bar(Silent):
    """A bar while a run is trained from Python, on a terminal or in a notebook; silent elsewhere."""

    def __init__(self) -> None:
        self.stack = ExitStack()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def began(self, words: str, first: int, last: int, metric: str, sign: int) -> None:
        self.stack.close()
        self.advance_to = self.stack.enter_context(progress(words, last))
        self.advance_to(first)

    def stepped(self, step: int) -> None:
        self.advance_to(step)
