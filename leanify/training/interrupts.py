"""Signals that end a run: Ctrl-C, SIGTERM (time limits, preemption) and SIGHUP (a closed shell)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from leanify.data.samples import ENDING


class Interrupted(KeyboardInterrupt):
    """Raised when a signal has ended a run and its checkpoint is written; the message names the resuming command."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.code = 128 + number  # the exit code, as shells have it


@contextmanager
def raise_interrupts() -> Iterator[None]:
    """Raise Interrupted for the signals that end a run, SIGTERM as Ctrl-C; those that repeat the first are ignored."""

    def end(number: int, frame: Any) -> None:
        for other in handlers:
            if other != signal.SIGINT:
                signal.signal(other, signal.SIG_IGN)
        raise Interrupted("", number)

    # a signal that the parent ignores stays ignored: nohup does so
    handlers = {number: signal.getsignal(number) for number in ENDING}
    handlers = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in handlers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Interrupts:
    """Records the first signal, which ends the run after its step; Ctrl-C after it ends the process at once.

    `timeout` and a closing shell send their signal twice. Slurm sends SIGUSR1 shortly before the time limit.
    """

    def __enter__(self) -> Interrupts:
        self.signal: int | None = None
        self.handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup, and stays so
                    self.handlers[number] = signal.signal(number, self._record)
        return self

    def _record(self, number: int, frame: Any) -> None:
        self.signal = self.signal or number
        # after Ctrl-C every signal acts at once; after another one only Ctrl-C does
        numbers = [*self.handlers] if number == signal.SIGINT else [signal.SIGINT]
        for other in numbers:
            if self.handlers.get(other) is not None:
                signal.signal(other, self.handlers[other])

    def __exit__(self, *error: Any) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
