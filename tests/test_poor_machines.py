"""Machines that are short of something: few open files, small files, little memory, no shared memory, an odd clock.

A command ends well, or with one message and no part of an output; nothing that the user has is changed.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import commands
import pytest
from runs import SHORT, final_state, make_documents
from studies import NARROW, recipe_file
from test_small_disks import needs_root

COMMANDS = {
    "train": "train r.toml -o out",
    "resume": "train --resume run",
    "plot": "show run --plot out.png",
    "redesign": "redesign run --depth 1 -o out",
    "export": "export run --format timm -o out",
    "condition": "condition run --samples 2",
    "compare": f"compare tiny.toml --designs baseline,{NARROW} --seeds 2 --rates 1 --jobs 2 --set schedule.epochs=1 "
    "--set data.samples=64 -o out",
    "shrink": "shrink old --data reviews --target-params 0.7 --minutes 0 --designs narrow -o out",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, recipes, a sentence encoder and sentences."""
    folder = tmp_path_factory.mktemp("poor")
    (folder / "r.toml").write_text(SHORT.to_toml())
    recipe_file(folder)
    make_documents(folder, sentences="reviews", checkpoint="old")
    assert commands.run("train", "r.toml", "-o", "run", cwd=folder).returncode == 0
    return folder


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))


def little_memory() -> None:
    pages = int(re.findall(r"\d+", Path("/proc/self/statm").read_text())[0])
    space = pages * resource.getpagesize() + (40 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (space, space))


def no_shared_memory() -> None:
    """A namespace of mounts in which /dev/shm cannot be written."""
    library = ctypes.CDLL(None, use_errno=True)
    assert library.unshare(0x00020000) == 0
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/dev/shm"], check=True)


def jumping_clock() -> None:
    """The clock of the day goes a day forth and an hour back at every look."""
    now, jumps = time.time, count()
    time.time = lambda: now() + (86_400 if next(jumps) % 2 else -3_600)


def before_the_epoch() -> None:
    time.time = lambda: -1e9


CONDITIONS = [few_files, small_files, little_memory, no_shared_memory, jumping_clock, before_the_epoch]


SECONDS_EACH = ("compare", "shrink", "export")


@needs_root
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in SECONDS_EACH else pytest.mark.slow) for name in COMMANDS],
)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_poor_machines_end_in_one_message(condition: Callable[[], None], name: str, here: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", *here.iterdir(), str(tmp_path)], check=True)

    def limit() -> None:
        os.environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        condition()

    code, out, err = commands.run_forked(COMMANDS[name].split(), tmp_path, limit, os.pipe(), os.pipe())
    commands.assert_no_bug(out, err)
    messages = [line for line in err.splitlines() if line.startswith("leanify: ") and " wrote " not in line]
    assert code in (0, 2), err
    assert len(messages) == 1 or not code, err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    if code:  # what remains can be gone on with: the same command, or the run that was begun
        again = COMMANDS[name].split()
        if name == "train" and (tmp_path / "out").exists():
            again = ["train", "--resume", "out"]
        done = commands.run(*again, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    if name in ("train", "resume"):
        run = tmp_path / ("out" if name == "train" else "run")
        assert final_state(run) == final_state(here / "run")
