"""Callbacks: receive the progress of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from leanify.core.terminal import progress


class Callback:
    """Receives the progress of a run. All methods do nothing; subclasses override those that they need.

    Of several processes only the first one calls it.
    """

    def on_train_begin(self, summary: str, first_step: int, last_step: int, metric: str, sign: int) -> None:
        """Called once before the first step. ``metric`` names the best evaluation, the highest or (sign −1) lowest."""

    def on_warning(self, message: str) -> None:
        """Called with one sentence for the user."""

    def on_step_end(self, step: int) -> None:
        """Called after each optimiser step, with the number of steps done."""

    def on_log(self, row: Mapping[str, Any]) -> None:
        """Called with each row of metrics.jsonl."""


class ProgressBar(Callback):
    """A bar while a run is trained from Python, on a terminal or in a notebook; silent elsewhere."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack  # which removes the bar

    def on_train_begin(self, summary: str, first_step: int, last_step: int, metric: str, sign: int) -> None:
        self.advance_to = self.stack.enter_context(progress(summary, last_step))
        self.advance_to(first_step)

    def on_step_end(self, step: int) -> None:
        self.advance_to(step)
