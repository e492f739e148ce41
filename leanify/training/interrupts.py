"""Signals that end a run: Ctrl-C, SIGTERM (time limits, preemption) and SIGHUP (a closed shell)."""

from __future__ import annotations

import signal
import threading
from typing import Any

from leanify.data.samples import ENDING


class Interrupted(KeyboardInterrupt):
    """A run that a signal ended, once its checkpoint is written; the message says how to go on with it."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.code = 128 + number  # the exit code, as shells have it


class Interrupts:
    """The first signal asks for an end after the step; Ctrl-C after it ends the process at once.

    `timeout` and a closing shell send theirs twice. SIGUSR1 is Slurm's warning that the time is nearly over.
    """

    def __enter__(self) -> Interrupts:
        self.asked: int | None = None
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                    self.before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = self.asked or number
        again = self.before if number == signal.SIGINT else {signal.SIGINT: self.before.get(signal.SIGINT)}
        for one, handler in again.items():
            if handler is not None:
                signal.signal(one, handler)

    def __exit__(self, *error: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
