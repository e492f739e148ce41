"""Commands as real processes with streams of their own, without paying for the imports each time.

`start` asks a server for a fork: a process, one for all tests of a worker, that has imported torch, timm and
transformers and done nothing else (torch with CUDA refuses autograd in forks of a process that used it). `run` gives a
command to it; ``fresh=True`` starts Python anew, where start-up itself is under test. Whoever runs a command here is
told of an unexpected error: no test may accept one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CODE = "import sys; sys.argv[0] = 'leanify'; from leanify.cli import main; main()"
UNEXPECTED = ("Traceback (most recent call last)", "unexpected error")
IMPORTED = ("accelerate", "sklearn.datasets", "torch.distributed.checkpoint", "torch.distributed.fsdp", "timm.data")
Ends = tuple[int, int]  # of a pipe or terminal: to read from, to write to


@dataclass(frozen=True)
class Done:
    """What a command came to; ``returncode`` is negative where a signal ended it."""

    returncode: int
    stdout: str
    stderr: str


def expected(*words: str) -> None:
    """Fail where a command met what nothing expected: a bug, whatever else the test looks at."""
    for text in words:
        assert not any(one in text for one in UNEXPECTED), text


def run(
    *arguments: str, where: Path | None = None, fresh: bool = False, before: str = "pass", **environment: str
) -> Done:
    """A command in the folder ``where``, with these variables of the environment beside those of the tests.

    ``fresh`` starts Python anew; ``before`` is what it runs first.
    """
    variables = {"COLUMNS": "100", "OMP_NUM_THREADS": "1", **environment}
    if fresh:
        told = subprocess.run(
            [sys.executable, "-c", f"{before}\n{CODE}", *arguments],
            capture_output=True, text=True, cwd=where, env={**os.environ, **variables},
        )  # fmt: skip
        done = Done(told.returncode, told.stdout, told.stderr)
    else:
        done = start("commands:command", *arguments, where=where, **variables).end()
    expected(done.stdout, done.stderr)
    return done


def typed(line: str, capsys: Any) -> tuple[int, str, str]:
    """The exit code of a command that is called in this process, and what it printed."""
    before, sys.argv = sys.argv, ["leanify", *shlex.split(line)]
    try:
        code = called()
    finally:
        sys.argv = before
    out, err = capsys.readouterr()
    return code, out, err


def called() -> int:
    """The exit code of the command that ``sys.argv`` asks for, in this process."""
    from leanify.cli import main

    try:
        main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


# -- the server -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A fork of the server, which writes to the files ``out`` and ``err``."""

    pid: int
    out: Path
    err: Path

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> Done:
        """Wait for its end."""
        return Done(_ask({"wait": self.pid}), self.printed(self.out), self.printed(self.err))

    def until(self, begun: str) -> None:
        """Wait for a line on standard error that begins so."""
        while not any(line.startswith(begun) for line in self.printed(self.err).splitlines()):
            assert _ask({"runs": self.pid}), self.printed(self.err)
            time.sleep(0.02)

    def printed(self, file: Path) -> str:
        return file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""


def start(entry: str, *arguments: str, where: Path | None = None, **environment: str) -> Process:
    """Call a function, named ``module:function``, with these arguments in a process of its own; it returns a code."""
    folder = Path(tempfile.mkdtemp(dir=_folder()))
    out, err = folder / "out", folder / "err"
    asked = {
        "entry": entry, "arguments": arguments, "where": str(where or Path.cwd()), "out": str(out), "err": str(err),
        "environment": {**os.environ, **environment},
    }  # fmt: skip
    return Process(_ask(asked), out, err)


def command(*arguments: str) -> int:
    """The command line in a process that is to end with it."""
    sys.argv = ["leanify", *arguments]
    return ended()


@cache
def _folder() -> str:
    made = tempfile.TemporaryDirectory(prefix="commands-")
    atexit.register(made.cleanup)
    return made.name


@cache
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(server.communicate)  # whose end is that of its input
    return server


def _ask(asked: dict[str, Any]) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, "the server of commands has ended"
    return int(answer)


def _serve() -> None:
    """Fork for each line that asks for it; other lines ask whether a fork still runs, or wait for its end."""
    import torch

    import leanify
    from leanify.upstream.libraries import import_timm, import_transformers

    torch.set_num_threads(1)
    import_timm(), import_transformers()
    for module in pkgutil.walk_packages(leanify.__path__, "leanify."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the collector touches, and so copies, every page in every fork
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)
        elif "runs" in asked:
            ended = os.waitid(os.P_PID, asked["runs"], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            print(int(ended is None), flush=True)
        elif child := os.fork():
            print(child, flush=True)
        else:
            code = 70
            try:
                code = _forked(asked)
            except BaseException:
                importlib.import_module("traceback").print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)


def _forked(asked: dict[str, Any]) -> int:
    for number, mode, path in ((0, os.O_RDONLY, os.devnull), (1, 577, asked["out"]), (2, 577, asked["err"])):
        os.dup2(os.open(path, mode), number)
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),  # which a shell ignores for what it runs in the background
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["where"])
    write_as("utf-8")
    module, _, function = asked["entry"].partition(":")
    return int(getattr(importlib.import_module(module), function)(*asked["arguments"]) or 0)


# -- forks of the tests' own process ----------------------------------------------------------------------------------


def forked(
    arguments: Sequence[str], folder: Path, change: Callable[[], None], out: Ends, err: Ends, reader: bool = True
) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command in a fork after ``change``. Without ``reader`` nobody reads."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(out[1], 1), os.dup2(err[1], 2)
            for end in {*out, *err}:
                os.close(end)
            write_as("utf-8")
            warnings.resetwarnings()  # pytest's, under which each is an error
            warnings.simplefilter("ignore")
            os.chdir(folder)
            change()
            code = command(*arguments)
        finally:
            os._exit(code)
    for end in {out[1], err[1]}:
        os.close(end)
    if not reader:
        os.close(out[0])
    said = _read([err[0], out[0]] if reader else [err[0]])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, said.get(out[0], b"").decode(errors="surrogateescape"), said[err[0]].decode(errors="surrogateescape")


def write_as(encoding: str) -> None:
    """Streams as the interpreter makes them at its start."""
    sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding=encoding, closefd=False) for n in (1, 2))


def ended() -> int:
    """The exit code of the command; 120 where the interpreter could not write what is left at its end."""
    code = called()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # closed, and so None
            try:
                stream.flush()
            except OSError:
                code = 120
    return code


def _read(ends: list[int]) -> dict[int, bytes]:
    """What comes out of pipes until they are closed."""
    found = dict.fromkeys(ends, b"")
    left = set(ends)
    while left:
        for end in select.select(list(left), [], [])[0]:
            try:
                piece = os.read(end, 1 << 16)
            except OSError:  # a terminal whose other end is closed
                piece = b""
            found[end] += piece
            if not piece:
                left.discard(end)
                os.close(end)
    return found


if __name__ == "__main__":
    _serve()
