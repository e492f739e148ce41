"""Commands as real processes with streams of their own, without paying for the imports each time.

`start` asks a server for a fork: a process, one for all tests of a worker, that has imported torch, timm and
transformers and done nothing else (torch with CUDA refuses autograd in forks of a process that used it). `run` gives a
command to it; ``new_interpreter`` starts Python anew, where start-up itself is under test. Whoever runs one here is
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
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CODE = "import sys; sys.argv[0] = 'leanify'; from leanify.cli import main; main()"
BUG_MESSAGES = ("Traceback (most recent call last)", "unexpected error")
PRELOADED = ("accelerate", "sklearn.datasets", "torch.distributed.checkpoint", "torch.distributed.fsdp", "timm.data")
Pipe = tuple[int, int]  # of a pipe or terminal: to read from, to write to


@dataclass(frozen=True)
class Result:
    """What a command came to; ``returncode`` is negative where a signal ended it."""

    returncode: int
    stdout: str
    stderr: str


def assert_no_bug(*texts: str) -> None:
    """Fail where a command met what nothing expected: a bug, whatever else the test looks at."""
    for text in texts:
        assert not any(one in text for one in BUG_MESSAGES), text


def run(
    *arguments: str, cwd: Path | None = None, new_interpreter: bool = False, setup: str = "pass", **environment: str
) -> Result:
    """A command in a folder, with these variables beside the tests' own; a new interpreter runs ``setup`` first."""
    variables = {"COLUMNS": "100", "OMP_NUM_THREADS": "1", **environment}
    if new_interpreter:
        process = subprocess.run(
            [sys.executable, "-c", f"{setup}\n{CODE}", *arguments],
            capture_output=True, text=True, cwd=cwd, env={**os.environ, **variables},
        )  # fmt: skip
        result = Result(process.returncode, process.stdout, process.stderr)
    else:
        result = start("commands:command", *arguments, cwd=cwd, **variables).wait()
    assert_no_bug(result.stdout, result.stderr)
    return result


def typed(line: str) -> int:
    """The exit code of a command that is called in this process."""
    before, sys.argv = sys.argv, ["leanify", *shlex.split(line)]
    try:
        return exit_code_of_main()
    finally:
        sys.argv = before


def run_here(line: str, capsys: Any) -> tuple[int, str, str]:
    """The same with what it printed."""
    code = typed(line)
    out, err = capsys.readouterr()
    return code, out, err


def exit_code_of_main() -> int:
    """The exit code of the command that ``sys.argv`` asks for, in this process."""
    from leanify.cli import main

    try:
        main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def on_terminal(monkeypatch: Any, width: int) -> None:
    """Let what is printed in this process go to a terminal of this width."""
    for name, value in (("TTY_COMPATIBLE", 1), ("TTY_INTERACTIVE", 1), ("COLUMNS", width)):
        monkeypatch.setenv(name, str(value))


def plain(printed: str) -> list[str]:
    """The lines of what a terminal was sent, without its escapes; a redrawn line counts each time."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).replace("\r", "\n").splitlines()


# -- the server -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A fork of the server, which writes to the files ``out`` and ``err``."""

    pid: int
    out: Path
    err: Path

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Result:
        return Result(_send_request({"wait": self.pid}), self.read_output(self.out), self.read_output(self.err))

    def runs(self) -> bool:
        return bool(_send_request({"runs": self.pid}))

    def wait_for_line(self, prefix: str) -> None:
        """Wait for a line on standard error that begins so."""
        while not any(line.startswith(prefix) for line in self.read_output(self.err).splitlines()):
            assert self.runs(), self.read_output(self.err)
            time.sleep(0.02)

    def read_output(self, file: Path) -> str:
        return file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""


def start(entry: str, *arguments: str, cwd: Path | None = None, **environment: str) -> Process:
    """Call a function, named ``module:function``, with these arguments in a process of its own; it returns a code."""
    folder = Path(tempfile.mkdtemp(dir=_output_folder()))
    out, err = folder / "out", folder / "err"
    request = {
        "entry": entry, "arguments": arguments, "where": str(cwd or Path.cwd()), "out": str(out), "err": str(err),
        "environment": {**os.environ, **environment},
    }  # fmt: skip
    return Process(_send_request(request), out, err)


def command(*arguments: str) -> int:
    """The command line in a process that is to end with it; 120 where what is left at its end cannot be written."""
    sys.argv = ["leanify", *arguments]
    code = exit_code_of_main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # closed, and so None
            try:
                stream.flush()
            except OSError:
                code = 120
    return code


@cache
def _output_folder() -> str:
    directory = tempfile.TemporaryDirectory(prefix="commands-")
    atexit.register(directory.cleanup)
    return directory.name


@cache
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(server.communicate)  # whose end is that of its input
    return server


def _send_request(request: dict[str, Any]) -> int:
    server = _server()
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, "the server of commands has ended"
    return int(answer)


def preload(names: Sequence[str]) -> None:
    """Import leanify with all its modules, and these, so that forks pay for no import."""
    import torch

    import leanify
    from leanify.upstream.libraries import import_timm, import_transformers

    torch.set_num_threads(1)
    import_timm(), import_transformers()
    for module in pkgutil.walk_packages(leanify.__path__, "leanify."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in names:
        importlib.import_module(name)


def _serve() -> None:
    """Fork for each line that asks for it; other lines ask whether a fork still runs, or wait for its end."""
    preload(PRELOADED)
    gc.collect()
    gc.freeze()  # else the collector touches, and so copies, every page in every fork
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
        elif "runs" in request:
            status = os.waitid(os.P_PID, request["runs"], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            print(int(status is None), flush=True)
        elif child := os.fork():
            print(child, flush=True)
        else:
            code = 70
            try:
                code = _run_request(request)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)


def _run_request(request: dict[str, Any]) -> int:
    for number, mode, path in ((0, os.O_RDONLY, os.devnull), (1, 577, request["out"]), (2, 577, request["err"])):
        os.dup2(os.open(path, mode), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores for what runs in its background
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["where"])
    reopen_streams("utf-8")
    module, _, function = request["entry"].partition(":")
    return int(getattr(importlib.import_module(module), function)(*request["arguments"]) or 0)


# -- forks of the tests' own process ----------------------------------------------------------------------------------


def run_forked(
    arguments: Sequence[str], folder: Path, change: Callable[[], None], out: Pipe, err: Pipe, reader: bool = True
) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command in a fork after ``change``. Without ``reader`` nobody reads."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(out[1], 1), os.dup2(err[1], 2)
            for end in {*out, *err}:
                os.close(end)
            reopen_streams("utf-8")
            warnings.resetwarnings()  # pytest's, under which each is an error
            warnings.simplefilter("ignore")
            os.chdir(folder)
            _use_one_core()
            change()
            code = command(*arguments)
        finally:
            os._exit(code)
    for end in {out[1], err[1]}:
        os.close(end)
    if not reader:
        os.close(out[0])
    outputs = _read_pipes([err[0], out[0]] if reader else [err[0]])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said, complained = (outputs.get(end, b"").decode(errors="surrogateescape") for end in (out[0], err[0]))
    return code, said, complained


def _use_one_core() -> None:
    """Keep a fork from using several threads: where a test has, OpenMP's threads are missing in its forks."""
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {cores[worker % len(cores)]})


def reopen_streams(encoding: str) -> None:
    """Streams as the interpreter makes them at its start."""
    sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding=encoding, closefd=False) for n in (1, 2))


def _read_pipes(ends: list[int]) -> dict[int, bytes]:
    """What comes out of pipes until they are closed."""
    outputs = dict.fromkeys(ends, b"")
    open_ends = set(ends)
    while open_ends:
        for end in select.select(list(open_ends), [], [])[0]:
            try:
                piece = os.read(end, 1 << 16)
            except OSError:  # a terminal whose other end is closed
                piece = b""
            outputs[end] += piece
            if not piece:
                open_ends.discard(end)
                os.close(end)
    return outputs


if __name__ == "__main__":
    _serve()
