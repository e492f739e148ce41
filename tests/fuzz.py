"""A seeded fuzzer of files: what somebody hands over, damaged or made up, and what leanify makes of it.

    python tests/fuzz.py                    300 cases, every kind in turn; prints what failed, each as KIND SEED
    python tests/fuzz.py 10000              more of them
    python tests/fuzz.py 3000-10000         those of them
    python tests/fuzz.py KIND SEED …        these cases again, with their tracebacks

A case is a function of (kind, seed). It runs in a fork of this process, with limits on memory and processor time, and
ends well where it returns or raises LeanifyError. A traceback, an "unexpected error", a hang, more than two gigabytes,
an output folder that is there in part, a byte that changed outside the case's folder, or a lost file of the user's is a
finding.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import pkgutil
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from fuzz_cases import KINDS, NEEDED, SHALLOW, looked_at
from fuzz_commands import SHRINK, command
from fuzz_intact import HF, samples_in
from fuzz_links import MINE, digest, mark, outside

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SECONDS, WALL = 10, 600  # of the processor, after which a case hangs; and of the clock, for one that only waits
GIGABYTES = 2
WHOLE = ("leanify.json", "model.safetensors")  # one of them is in an output that is whole
LAZY = (
    "typer._adapters",
    "peft",
    "datasets",
    "pyarrow.parquet",
    "pydantic",
    "sklearn.linear_model",
    "matplotlib.pyplot",
)
ONCE = (  # what fills the libraries' own tables on first use
    ("redesign", "lean-timm", "--target-params", "0.9", "--min-depth", "1"),
    ("redesign", "lean-hf", "--depth", "1"),
    ("train", "run", "--dry-run"),
    ("train", "hf", "--dry-run", "--set", "data.path=rows.csv", "--set", "data.holdout=0.2"),
    ("train", "masked-small", "--dry-run", "--set", "data.path=rows.txt", "--set", "data.length=8", *SHALLOW["masked"]),
    ("train", "own-images", "--dry-run", "--set", "data.path=images", *SHALLOW["images"]),
    ("profile", "lean-hf", "--no-measure"),
    ("condition", "adapter", "--samples", "2"),
    ("shrink", "hf", "--data", "rows.csv", *SHRINK, "-o", "whole"),
)

# -- running ----------------------------------------------------------------------------------------------------------


def run(kind: str, seed: int, intact: Path, shown: bool = False) -> str | None:
    """What a case came to: None where it ended well, else what was found."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        for name in NEEDED.get(kind, ()):
            copy = shutil.copytree if (intact / name).is_dir() else shutil.copy
            copy(intact / name, home / name)
        outside(home.parent / "outside")
        before, mine = digest(home.parent / "outside"), mark(home)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _child(kind, seed, home, writer, shown)
        os.close(writer)
        found = _outcome(child, reader)
        if digest(home.parent / "outside") != before:
            return f"changed bytes outside; {found}"
        kept = sum(path.read_bytes() == b"mine" for path in home.rglob(MINE))
        return f"lost {mine - kept} files of the user's; {found}" if kept < mine else found or _partial(home)


def _child(kind: str, seed: int, home: Path, writer: int, shown: bool) -> None:
    """Run the case and write what went wrong, if anything, to the pipe; never returns."""
    from leanify.errors import LeanifyError

    os.setpgid(0, 0)
    space = int(re.findall(r"\d+", Path("/proc/self/statm").read_text())[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + GIGABYTES * 2**30, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    if not shown:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    found = ""
    os.chdir(home)
    os.environ |= {"XDG_CACHE_HOME": str(home.parent / "cache"), "HF_HOME": str(home.parent / "hub")}
    os.environ.pop("LEANIFY_PRICES", None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            KINDS[kind](random.Random(f"{kind} {seed}"), home)
    except LeanifyError as error:
        found = f"a message of {len(str(error).splitlines())} lines" if "\n" in str(error).strip() else ""
        if shown:
            print(f"LeanifyError: {error}", file=sys.stderr)
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        ours = [entry for entry in traceback.extract_tb(error.__traceback__) if "/leanify/" in entry.filename]
        place = "/".join(Path(ours[-1].filename).parts[-2:]) if ours else frame.filename
        found = f"{type(error).__name__}: {str(error)[:100]!r} by {place}"
        if shown:
            traceback.print_exc()
    os.write(writer, found.encode(errors="replace")[:2000])
    os._exit(0)


def _outcome(child: int, reader: int) -> str | None:
    """What the case wrote, once it has ended; processes that it left are ended too."""
    ended = os.pidfd_open(child)
    hangs = not select.select([ended], [], [], WALL)[0]
    os.close(ended)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.set_blocking(reader, False)
    found = ""
    with contextlib.suppress(BlockingIOError):  # it was killed, and a process that it left has not closed the pipe yet
        found = os.read(reader, 4000).decode(errors="replace")
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if hangs:
        return f"hangs for {WALL} s"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"over {SECONDS} s of the processor"
    return found or (f"ended with {code}" if code else None)


def _partial(home: Path) -> str | None:
    """An output folder that is not whole, or what a command left beside it or in the cache."""
    places = [*home.iterdir(), *(home.parent / "cache").rglob(".*")]
    left = [path.name for path in places if path.name.startswith(".") and not path.is_symlink() and _is_written(path)]
    out = [home / "out", home / "out" / "lean"]
    if out[0].exists() and not any((folder / name).is_file() for folder in out for name in WHOLE):
        left.append("out")
    return f"left {', '.join(left)}" if left else None


def _is_written(path: Path) -> bool:
    """Whether a command wrote this, or a case put it there as a pipe."""
    return path.is_dir() or path.is_file()


def _in_a_fork(action: Callable[[], object]) -> Callable[[], None]:
    """Begin an action in a fork; what is returned waits for its end.

    With a torch that knows GPUs, a process in which autograd ran has no forks in which it runs.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)

    def ended() -> None:
        if os.waitpid(child, 0)[1]:
            raise SystemExit("the intact files could not be made")

    return ended


def warm() -> Path:
    """Import what cases need, make the intact files, and use them once, so that a case pays for nothing but itself."""
    import torch

    import leanify
    from leanify.upstream.libraries import import_timm, import_transformers

    torch.set_num_threads(1)
    import_timm(), import_transformers()
    for module in pkgutil.walk_packages(leanify.__path__, "leanify."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    home = Path(tempfile.mkdtemp(prefix="fuzz-intact-"))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(home), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended = _in_a_fork(lambda: samples_in(home))
        for name in LAZY:
            importlib.import_module(name)
        ended()
        for name in HF:
            looked_at(name, overrides=HF[name])
        for words in ONCE:
            if words[0] not in ("train", "profile") or torch.version.cuda is None:  # these two run autograd
                command(*words)
    gc.collect()
    gc.freeze()  # else the collector touches, and so copies, every page in every case
    return home


def _shared(cases: range, intact: Path, workers: int) -> list[int]:
    """The findings of each worker: a fork a core, and every worker its share of the cases."""
    began, ends = time.monotonic(), []
    for worker in range(workers):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(KeyboardInterrupt):
                os.write(writer, str(_cases(cases[worker::workers], intact, began)).encode())
                code = 0
            sys.stdout.flush()
            os._exit(code)
        os.close(writer)
        ends.append((child, reader))
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, _ in ends]
    if any(codes):
        raise SystemExit(f"a worker ended with {max(codes)}")
    return [int(os.read(reader, 100)) for _, reader in ends]


def _cases(cases: range, intact: Path, began: float) -> int:
    """How many of these cases ended badly; each is printed, and how far it is."""
    names, found = list(KINDS), 0
    spent = dict.fromkeys(names, 0.0)
    for done, number in enumerate(cases, 1):
        kind, seed = names[number % len(names)], number // len(names)
        start = time.monotonic()
        if (words := run(kind, seed, intact)) is not None:
            found += 1
            print(kind, seed, words, flush=True)
        spent[kind] += time.monotonic() - start
        if done % 500 == 0:
            slow = ", ".join(f"{name} {spent[name]:.0f}" for name in sorted(names, key=spent.__getitem__)[-5:])
            print(f"{done} of {len(cases)} cases, {time.monotonic() - began:.0f} s; {slow}", flush=True)
    return found


def main(arguments: list[str]) -> None:
    intact = warm()
    try:
        if len(arguments) > 1:
            for kind, seed in zip(arguments[::2], arguments[1::2], strict=True):
                print(kind, seed, run(kind, int(seed), intact, shown=True) or "well", flush=True)
            return
        first, dash, last = (arguments or ["300"])[0].partition("-")
        cases = range(int(first), int(last)) if dash else range(int(first))
        found = sum(_shared(cases, intact, len(os.sched_getaffinity(0))))
        print(f"{found} of {len(cases)} cases ended badly")
    finally:
        shutil.rmtree(intact)


if __name__ == "__main__":
    main(sys.argv[1:])
