"""Ctrl-C, as a run takes it."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interrupts:
    """Ctrl-C asks for an end after the step; a second one ends at once."""

    def __enter__(self) -> Interrupts:
        self.asked = False
        self.before = None
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, self._ask)
        return self

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(number, signal.default_int_handler)

    def __exit__(self, *error: Any) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
