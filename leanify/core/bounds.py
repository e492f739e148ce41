"""One bound on the memory and time that strangers' tokenizers and pictures take.

Whatever reads them runs where the kernel holds the bound (RLIMIT_DATA, RLIMIT_CPU): Rust, which ends a process whose
memory runs out, in a fork of this one; Pillow and numpy, which raise MemoryError, in this process. So no rule about a
format has to be complete. Linux alone holds such limits; elsewhere readers run without them.
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import math
import os
import pickle
import re
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import torch

from leanify.core import machine
from leanify.core.errors import DataError, LeanifyError, memory_message
from leanify.core.units import format_bytes

if sys.platform != "win32":
    import resource

VARIABLE = "LEANIFY_MEMORY"
SHARE = 0.5  # of the machine's free memory
UNLIMITED = 1 << 62  # bytes, where the system does not report its memory
SECONDS = 15.0  # of processor time; the largest tokenizer.json in use takes 2
WAITS = 5  # times as long by the clock: the machine may be busy
SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1) if sys.platform == "linux" else ()
T = TypeVar("T")


def memory() -> int:
    """The bound in bytes: LEANIFY_MEMORY, or half of the memory that is free now. Raises LeanifyError.

    Processes that a launcher started share that half.
    """
    text = os.environ.get(VARIABLE) or str(SHARE)
    match = SIZE.fullmatch(text)
    if match is None or not float(match[1]):
        raise LeanifyError(f"{VARIABLE}={text[:40]} is no amount of memory; write 4G or 512M, or a share such as 0.5")
    number, unit = float(match[1]), match[2].upper()
    if number > 1 or unit:
        return int(number * 1024 ** " KMGT".index(unit or " "))
    free = machine.available_memory(torch.device("cpu"))
    return UNLIMITED if free is None else int(number * free)


def check(size: float, what: object) -> None:
    """Raise DataError if something of ``size`` bytes is beyond the bound of this process."""
    if size > own_bound():
        raise DataError(f"{what} needs {format_bytes(size)}, {_beyond()}")


def _beyond() -> str:
    return f"over the bound of {format_bytes(own_bound())} on its memory; {VARIABLE}=8G sets another one"


# -- in this process -------------------------------------------------------------------------------------------------

_LOCK = threading.Lock()
_holders: list[Any] = []  # the limits before the first of the threads that hold the bound now; None for the others
_in_process: list[int] = []  # the bound of this process's own reading, which is worked out once


def divide(readers: int) -> None:
    """Let this process, one of several readers, hold only its part of the bound."""
    _in_process[:] = [memory() // max(1, readers)]


@contextmanager
def held(what: object) -> Iterator[None]:
    """Limit what this process allocates meanwhile to the bound. Raises DataError, which names ``what``."""
    if sys.platform != "linux":
        yield
        return
    with _LOCK:
        _holders.append(resource.getrlimit(resource.RLIMIT_DATA) if not _holders else None)
        if len(_holders) == 1:
            _limit(resource.RLIMIT_DATA, (machine.status("VmData") or 0) + own_bound())
    try:
        yield
    except Exception as error:
        if memory_message(error) is None:
            raise
        raise DataError(f"{what} goes {_beyond()}") from error
    finally:
        with _LOCK:
            if len(_holders) == 1:
                resource.setrlimit(resource.RLIMIT_DATA, _holders[0])
                _holders.clear()
            else:
                _holders.pop()


def own_bound() -> int:
    """The bound of what this process reads itself."""
    if not _in_process:
        _in_process.append(memory())
    return _in_process[0]


def _limit(kind: int, maximum: int) -> None:
    """Limit this process to ``maximum`` bytes or seconds, or to less where a lower limit is set already."""
    soft, hard = resource.getrlimit(kind)
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(maximum, UNLIMITED, *limits), hard))


# -- in a fork -------------------------------------------------------------------------------------------------------


def call(function: Callable[[], T], what: object, seconds: float = SECONDS) -> T:
    """The value of a function, called in a fork of this process that is limited in memory and processor time.

    Raises DataError, which begins with ``what``, if the fork does not end well. The value is pickled.
    """
    if sys.platform != "linux":
        return function()
    bound = memory()
    messages = os.memfd_create("said")  # what Rust prints before it ends the process
    reader, writer = os.pipe()
    try:
        with warnings.catch_warnings():  # Python's, where this process has threads: the child uses none of them
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
    except OSError as error:
        for handle in (messages, reader, writer):
            os.close(handle)
        raise DataError(f"{what} could not be read in a process of its own: {error.strerror}") from error
    if child == 0:
        _run(function, what, writer, messages, bound, seconds)
    os.close(writer)
    is_reaped = False
    try:
        answer, status = _receive(reader, bound // 2, time.monotonic() + WAITS * seconds)
        if not status:
            status, is_reaped = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), True
        words = os.pread(messages, 1000, 0).decode(errors="replace").strip()
    finally:
        if not is_reaped:  # it still runs: too long, too much, or this process was interrupted
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(reader)
        os.close(messages)
    if status:
        raise DataError(_reason(what, status, words, seconds))
    is_success, value = pickle.loads(answer)  # noqa: S301  of this program's own fork
    if not is_success:
        raise DataError(f"{what} goes {_beyond()}" if value is None else value)
    return value  # type: ignore[no-any-return]


def _receive(reader: int, maximum: int, deadline: float) -> tuple[bytearray, int]:
    """The fork's output until it ends; and the status that it is due if the output is too long, or takes too long."""
    answer = bytearray()
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reader, 1 << 20)
        answer += part
        if not part or len(answer) > maximum:
            return answer, -signal.SIGKILL if part else 0
    return answer, -signal.SIGXCPU


def _reason(what: object, status: int, words: str, seconds: float) -> str:
    """Why a fork ended without an answer; ``status`` is its exit code, or the negative number of a signal."""
    if "memory allocation" in words or status == -signal.SIGKILL:
        return f"{what} goes {_beyond()}"
    if status == -signal.SIGXCPU:
        return f"{what} takes over {seconds:,.0f} s of processor time, or {WAITS} times as long by the clock"
    end = signal.Signals(-status).name if status < 0 else f"code {status}"
    reason = f": {words.splitlines()[-1][:300]}" if words else ""
    return f"{what} ends the process that reads it ({end}){reason}"


def _run(function: Callable[[], Any], what: object, writer: int, messages: int, bound: int, seconds: float) -> NoReturn:
    """Run the function in the fork, and write its answer; never returns."""
    try:
        # nothing of the parent's is used: its signals, its streams, whose locks another thread may have held
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        faulthandler.disable()
        os.dup2(messages, 1)
        os.dup2(messages, 2)
        sys.stdout = sys.stderr = io.StringIO()
        # the limits
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _limit(resource.RLIMIT_CPU, math.ceil(seconds))
        _limit(resource.RLIMIT_DATA, (machine.status("VmData") or 0) + bound)
        # the answer, or one line about what went wrong
        try:
            answer = pickle.dumps((True, function()))
        except BaseException as error:  # also a panic of Rust
            is_memory = any(memory_message(caught) for caught in (error, error.__cause__) if caught is not None)
            reason = f"{type(error).__name__}: {error}"
            text = str(error) if isinstance(error, LeanifyError) else f"{what} cannot be read: {reason[:300]!r}"
            answer = pickle.dumps((False, None if is_memory else text))
        with suppress(BrokenPipeError), os.fdopen(writer, "wb") as file:
            file.write(answer)
        os._exit(0)
    finally:
        os._exit(1)
