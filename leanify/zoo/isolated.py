"""Run a function over many names in a child process, so that a crash or an endless loop becomes a result."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import TypeVar

Result = TypeVar("Result")


def each(
    function: Callable[[str], Result], names: Sequence[str], seconds: float, failed: Callable[[str, str], Result]
) -> Iterator[Result]:
    """Yield function(name) for each name in order, or ``failed(name, why)`` if a call timed out or crashed.

    One child process works through all names; after a failure, a new child continues with the next name.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(names)
    while waiting:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(function, waiting, sender))
        child.start()
        sender.close()
        why = ""
        while waiting and not why:
            try:
                if receiver.poll(seconds):
                    result = receiver.recv()
                    waiting.pop(0)
                    yield result
                else:
                    why = f"over {seconds:.0f} s"
            except EOFError:
                child.join()
                why = f"the process ended with code {child.exitcode}"
        child.kill()
        child.join()
        if why:
            yield failed(waiting.pop(0), why)


def _work(function: Callable[[str], Result], names: list[str], sender: Connection) -> None:
    for name in list(names):
        sender.send(function(name))
        gc.collect()
