"""A seeded fuzzer of files: what somebody hands over, damaged or made up, and what leanify makes of it.

    python tests/fuzz.py                    300 cases, every kind in turn; prints what failed, each as KIND SEED
    python tests/fuzz.py 10000              more of them
    python tests/fuzz.py 1m                 as many as a minute has, others every day
    python tests/fuzz.py KIND SEED …        these cases again, with their tracebacks

A case is a function of (kind, seed). It runs in a fork of this process, with limits on memory and processor time, and
ends well where it returns or raises LeanifyError. A traceback, an "unexpected error", a hang, more than two gigabytes,
an output folder that is there in part, a byte that changed outside the case's folder, or a lost file of the user's is a
finding.
"""

from __future__ import annotations

import contextlib
import gc
import io
import math
import os
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
from pathlib import Path

from commands import preload
from fuzz_cases import INPUTS, KINDS, OWN_IMAGES, SHRINK, command, read_shape
from fuzz_files import USER_FILE, add_user_files, digest, make_outside
from fuzz_intact import HF, make_intact

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if os.access("/dev/shm", os.W_OK):  # cases copy hundreds of small files
    tempfile.tempdir = "/dev/shm"

SECONDS, WALL = 20, 600  # of the processor, after which a case hangs; and of the clock, for one that only waits
GIGABYTES = 2
COMPLETE_FILES = ("leanify.json", "model.safetensors")  # one of them is in an output that is whole
PRELOADED = ("typer._adapters", "datasets", "pyarrow.parquet", "pydantic", "sklearn.linear_model", "matplotlib.pyplot")
WARM_UP = (  # what fills the libraries' own tables on first use
    "redesign lean-timm --target-params 0.9 --min-depth 1",
    "redesign lean-hf --depth 1",
    "train run --dry-run",
    "train hf --dry-run --set data.path=rows.csv --set data.holdout=0.2",
    "train masked-small --dry-run --set data.path=rows.txt --set data.length=8 --set model.override.depth=1",
    f"{OWN_IMAGES}images",
    "profile lean-hf --no-measure",
    f"shrink hf --data rows.csv {SHRINK} -o whole",
)

# -- running ----------------------------------------------------------------------------------------------------------


def run(kind: str, seed: int, intact: Path, verbose: bool = False) -> str | None:
    """What a case came to: None where it ended well, else what was found."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        for name in INPUTS.get(kind, ()):
            copy = shutil.copytree if (intact / name).is_dir() else shutil.copy
            copy(intact / name, home / name)
        make_outside(home.parent / "outside")
        outside_digest, user_files = digest(home.parent / "outside"), add_user_files(home)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _child(kind, seed, home, writer, verbose)
        os.close(writer)
        finding = _outcome(child, reader)
        if digest(home.parent / "outside") != outside_digest:
            return f"changed bytes outside; {finding}"
        remaining = sum(path.read_bytes() == b"mine" for path in home.rglob(USER_FILE))
        if remaining < user_files:
            return f"lost {user_files - remaining} files of the user's; {finding}"
        return finding or _leftovers(home)


def _child(kind: str, seed: int, home: Path, writer: int, verbose: bool) -> None:
    """Run the case and write what went wrong, if anything, to the pipe; never returns."""
    from leanify.core.errors import LeanifyError
    from leanify.training import memory

    os.setpgid(0, 0)
    space = int(re.findall(r"\d+", Path("/proc/self/statm").read_text())[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + GIGABYTES * 2**30, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    if not verbose:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    finding = ""
    os.chdir(home)
    os.environ |= {"XDG_CACHE_HOME": str(home.parent / "cache"), "HF_HOME": str(home.parent / "hub")}
    os.environ.pop("LEANIFY_PRICES", None)
    if seed % 4:  # three cases of four forgo the trace of a step's memory, which is half of what training costs here
        memory.need = lambda *_, **__: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            KINDS[kind](random.Random(f"{kind} {seed}"), home)
    except LeanifyError as error:
        finding = f"a message of {len(str(error).splitlines())} lines" if "\n" in str(error).strip() else ""
        if verbose:
            print(f"LeanifyError: {error}", file=sys.stderr)
    except BaseException as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        own = [file for file in files if "/leanify/" in file]
        place = "/".join(Path(own[-1]).parts[-2:]) if own else files[-1]
        finding = f"{type(error).__name__}: {str(error)[:100]!r} by {place}"
        if verbose:
            traceback.print_exc()
    os.write(writer, finding.encode(errors="replace")[:2000])
    os._exit(0)


def _outcome(child: int, reader: int) -> str | None:
    """What the case wrote, once it has ended; processes that it left are ended too."""
    process_fd = os.pidfd_open(child)
    hangs = not select.select([process_fd], [], [], WALL)[0]
    os.close(process_fd)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.set_blocking(reader, False)
    finding = ""
    with contextlib.suppress(BlockingIOError):  # it was killed, and a process that it left has not closed the pipe yet
        finding = os.read(reader, 4000).decode(errors="replace")
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if hangs:
        return f"hangs for {WALL} s"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"over {SECONDS} s of the processor"
    return finding or (f"ended with {code}" if code else None)


def _leftovers(home: Path) -> str | None:
    """An output folder that is not whole, or what a command left beside it or in the cache."""
    leftovers = []
    # a folder or file that a command wrote, no pipe that the case put there
    for path in (*home.iterdir(), *(home.parent / "cache").rglob(".*")):
        if path.name.startswith(".") and not path.is_symlink() and (path.is_dir() or path.is_file()):
            leftovers.append(path.name)
    out = [home / "out", home / "out" / "lean"]
    if out[0].exists() and not any((folder / name).is_file() for folder in out for name in COMPLETE_FILES):
        leftovers.append("out")
    return f"left {', '.join(leftovers)}" if leftovers else None


def prepare() -> Path:
    """Import what cases need, make the intact files, and use them once, so that a case pays for nothing but itself."""
    import torch

    preload(PRELOADED)
    home = Path(tempfile.mkdtemp(prefix="fuzz-intact-"))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(home), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        maker = os.fork()  # with a torch that knows GPUs, a process in which autograd ran has no forks in which it runs
        if maker == 0:
            try:
                make_intact(home)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(maker, 0)[1]:
            raise SystemExit("the intact files could not be made")
        for name in HF:
            read_shape(name, overrides=HF[name])
        for line in WARM_UP:
            name, *words = line.split()
            if name not in ("train", "profile") or torch.version.cuda is None:  # these two run autograd
                command(name, *words)
    gc.collect()
    gc.freeze()  # else the collector touches, and so copies, every page in every case
    return home


def main(arguments: list[str]) -> int:
    intact, names = prepare(), list(KINDS)
    began, seconds, failures, count = time.monotonic(), math.inf, 0, 0
    try:
        if len(arguments) > 1:
            cases = [(kind, int(seed)) for kind, seed in zip(arguments[::2], arguments[1::2], strict=True)]
        else:
            amount = arguments[0] if arguments else "300"
            numbers = range(int(amount.removesuffix("m")))
            if amount.endswith("m"):
                seconds, today = 60.0 * len(numbers), int(time.time()) // 86_400
                numbers = range(100_000 * today, 100_000 * (today + 1))
            cases = [(names[number % len(names)], number // len(names)) for number in numbers]
        for kind, seed in cases:
            if time.monotonic() - began > seconds:
                break
            count += 1
            if (finding := run(kind, seed, intact, verbose=len(arguments) > 1)) is not None:
                failures += 1
                print(kind, seed, finding, flush=True)
        print(f"{failures} of {count} cases ended badly")
    finally:
        shutil.rmtree(intact)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
