"""Kills of every command that writes: the same command goes on, and its result is that of an undisturbed one.

    python tests/kills.py            15 kills of each kind: a run, a study, a shrink, a redesign, exports
    python tests/kills.py 3 run      3 of the kind `run`
    python tests/kills.py 5m         each kind in turn, for five minutes in all
    python tests/kills.py pause      each kind beside eight busy loops, and stopped for a minute in its middle

A kill is SIGKILL or SIGTERM in turn, to the whole process group, at a random moment of the time that an undisturbed
command takes. A subject that ends before its next kill is compared and followed by another. Nothing half written may be
left in the end, in its output or beside it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import commands
from fuzz_intact import TIMM
from runs import DIGITS, final_state, make_documents
from studies import NARROW, outcomes, recipe_file

import leanify

CLOCK_KEYS = {"seconds", "latency_s", "latency_range", "directory", "minutes", "samples_per_s"}


def command_in_group(*arguments: str) -> int:
    """A command in a process group of its own; entry of `commands.start`."""
    os.setpgid(0, 0)
    return commands.command(*arguments)


# -- what is killed ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A command: its arguments for an output, those that go on with it if that is there, and what must be equal.

    A command that cannot go on writes its output at once: what is there is whole.
    """

    start: tuple[str, ...]
    resume: tuple[str, ...] | None
    result: Any


def make_run(home: Path) -> Subject:
    recipe = home / "run.toml"
    recipe.write_text(DIGITS.replace("epochs = 3", "epochs = 12"))
    return Subject(("train", str(recipe), "-o", "{out}"), ("train", "--resume", "{out}"), final_state)


def make_study(home: Path) -> Subject:
    words = ("compare", str(recipe_file(home)), "--designs", f"baseline,{NARROW}", "--seeds", "2", "--rates", "1")
    words += ("--jobs", "2", "-o", "{out}")
    return Subject(words, words, outcomes)


def make_shrink(home: Path) -> Subject:
    make_documents(home, sentences="reviews", checkpoint="old")
    words = ("shrink", str(home / "old"), "--data", str(home / "reviews"), "--target-params", "0.7", "--rates", "1e-4")
    words += ("--designs", "control,narrow", "--set", "schedule.steps=40", "--set", "schedule.batch_size=8")
    words += ("-o", "{out}")
    return Subject(words, words, shrink_result)


def make_redesign(home: Path) -> Subject:
    leanify.save(leanify.load("vit_tiny_patch16_224", overrides=TIMM), home / "old")
    words = ("redesign", str(home / "old"), "--target-params", "0.9", "--min-depth", "1", "-o", "{out}")
    return Subject(words, None, file_digests)


def make_export(home: Path, format: str = "hf") -> Subject:
    make_documents(home, checkpoint="old")
    return Subject(("export", str(home / "old"), "--format", format, "-o", "{out}"), None, file_digests)


def file_digests(out: Path) -> dict[str, str]:
    """Every file of a folder but its README, which has the folder's name; or the file."""
    files = sorted(path for path in out.rglob("*") if path.is_file()) if out.is_dir() else [out]
    digests = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {name: digest for name, digest in digests.items() if name != "README.md"}


def shrink_result(out: Path) -> Any:
    """The report without what a clock says, and the bytes of the tensors and configurations.

    work/ may keep a candidate that was written when the kill came and was not noted yet: it may be the user's.
    """
    files = {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}
    report = without_clock(json.loads(files.pop("report.json")))
    for name in ("README.md", "shrink.json"):  # the text and the state have seconds
        files.pop(name, None)
    left = [path.name for path in (out / "work").glob("*") if ".kept-" not in path.name]
    return report, files, left


def without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in CLOCK_KEYS}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


KINDS = {
    "run": make_run, "study": make_study, "shrink": make_shrink, "redesign": make_redesign, "export": make_export,
    "program": partial(make_export, format="onnx"),
}  # fmt: skip

# -- killing ----------------------------------------------------------------------------------------------------------


def start(words: tuple[str, ...], out: Path) -> commands.Process:
    variables = {"COLUMNS": "80", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    words = tuple(word.replace("{out}", str(out)) for word in words)
    return commands.start("kills:command_in_group", *words, cwd=out.parent, **variables)


def comes_within(seconds: float, is_there: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_there():
            return True
        time.sleep(0.02)
    return False


def ends_within(process: commands.Process, seconds: float) -> bool:
    return comes_within(seconds, lambda: not process.runs())


def signal_group(group: int, number: int) -> bool:
    """Whether a process of the group is left that heard the signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def run_undisturbed(kind: str, home: Path) -> tuple[Subject, float, Any]:
    """A subject of a kind, the seconds that it takes, and its result."""
    subject = KINDS[kind](home)
    start(("recipes",), home).wait()  # the server of commands has imported all that it imports
    began = time.monotonic()
    done = start(subject.start, home / "whole").wait()
    assert done.returncode == 0, done.stderr
    return subject, time.monotonic() - began, subject.result(home / "whole")


def pause(kind: str, home: Path) -> dict[str, Any]:
    """What comes of a command beside eight busy loops that is stopped for a minute in its middle."""
    subject, seconds, expected = run_undisturbed(kind, home)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        began = time.monotonic()
        process = start(subject.start, home / "paused")
        if not ends_within(process, seconds):  # about its middle, as it is slower now
            signal_group(process.pid, signal.SIGSTOP)
            time.sleep(60)
            signal_group(process.pid, signal.SIGCONT)
        done = process.wait()
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    times = {"seconds": round(time.monotonic() - began), "undisturbed": round(seconds)}
    if done.returncode:
        return {"code": done.returncode, "said": done.stderr[-300:], **times}
    return {"code": 0, "equal": subject.result(home / "paused") == expected, **times}


def kill_often(kind: str, kills: int, home: Path, deadline: float = math.inf) -> dict[str, Any]:
    """Kill subjects of a kind this often. Every subject is then brought to its end and compared; counts of both."""
    draw = random.Random(f"{kind} {kills}")
    subject, seconds, expected = run_undisturbed(kind, home)
    counts: dict[str, Any] = {"kills": 0, "SIGKILL": 0, "SIGTERM": 0, "subjects": 0, "equal": 0, "bad": []}
    while counts["kills"] < kills and time.monotonic() < deadline:
        out = home / f"killed-{counts['subjects']}"
        while subject.resume is not None or not out.exists():
            resumes = out.exists() and subject.resume is not None
            process = start(subject.resume if resumes else subject.start, out)
            last = counts["kills"] >= kills or time.monotonic() > deadline
            if last or ends_within(process, draw.uniform(0, (0.6 if subject.resume else 1) * seconds)):
                done = process.wait()
                if done.returncode:
                    counts["bad"].append(f"exit code {done.returncode}: {done.stderr[-300:]}")
                elif left := [str(path.relative_to(home)) for path in home.rglob(".*.leanify-*")]:
                    counts["bad"].append(f"left {left}")
                break
            number = [signal.SIGKILL, signal.SIGTERM][counts["kills"] % 2]
            signal_group(process.pid, number)
            done = process.wait()
            if number == signal.SIGTERM and done.returncode not in (0, 143, -signal.SIGTERM):
                counts["bad"].append(f"{number.name}: exit code {done.returncode}: {done.stderr[-300:]}")
            if "Traceback" in done.stderr:
                counts["bad"].append(f"{number.name}: {done.stderr[-600:]}")
            if done.returncode:
                counts["kills"] += 1
                counts[number.name] += 1
            if not comes_within(20, lambda group=process.pid: not signal_group(group, 0)):
                counts["bad"].append(f"{number.name}: left a process")
                signal_group(process.pid, signal.SIGKILL)
            if done.returncode == 0:
                break
        counts["subjects"] += 1
        counts["equal"] += out.exists() and subject.result(out) == expected
    return counts


def main(arguments: list[str]) -> int:
    amount, kinds = arguments[0] if arguments else "15", arguments[1:] or list(KINDS)
    is_timed = amount.endswith("m")
    deadline = time.monotonic() + 60 * int(amount[:-1]) if is_timed else math.inf
    failures = 0
    for kind in itertools.cycle(kinds) if is_timed else kinds:
        began = time.monotonic()
        if began > deadline:
            break
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            if amount == "pause":
                counts = pause(kind, Path(folder))
            else:
                counts = kill_often(kind, 3 if is_timed else int(amount), Path(folder), deadline)
        print(kind, json.dumps(counts), f"{time.monotonic() - began:.0f} s", flush=True)
        failures += bool(counts.get("bad")) or counts.get("equal", 0) < counts.get("subjects", 1)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
