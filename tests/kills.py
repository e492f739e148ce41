"""Kills of every command that works for long: the same command goes on, and its result is that of an undisturbed one.

    python tests/kills.py            15 kills of each kind: a run, a study, a shrink
    python tests/kills.py 3 run      3 of the kind `run`
    python tests/kills.py pause      each kind beside eight busy loops, and stopped for a minute in its middle

A kill is SIGKILL or SIGTERM in turn, to the whole process group, at a random moment of the time that an undisturbed
command takes. A subject that ends before its next kill is compared and followed by another.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commands
from runs import DIGITS, final_state, make_documents
from studies import NARROW, outcomes, recipe_file

CLOCK_KEYS = {"seconds", "latency_s", "latency_range", "directory", "minutes", "samples_per_s"}


def command_in_group(*arguments: str) -> int:
    """A command in a process group of its own; entry of `commands.start`."""
    os.setpgid(0, 0)
    return commands.command(*arguments)


# -- what is killed ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A command: its arguments for an output, those that go on with it, and what must be equal in the end."""

    start: tuple[str, ...]
    resume: tuple[str, ...]
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


KINDS = {"run": make_run, "study": make_study, "shrink": make_shrink}

# -- killing ----------------------------------------------------------------------------------------------------------


def start(words: tuple[str, ...], out: Path) -> commands.Process:
    variables = {"COLUMNS": "80", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return commands.start(
        "kills:command_in_group", *(word.replace("{out}", str(out)) for word in words), cwd=out.parent, **variables
    )


def ends_within(process: commands.Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not commands._send_request({"runs": process.pid}):
            return True
        time.sleep(0.02)
    return False


def signal_group(group: int, number: int) -> bool:
    """Whether a process of the group is left that heard the signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def empties_within(group: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not signal_group(group, 0):
            return True
        time.sleep(0.05)
    return False


def run_undisturbed(kind: str, home: Path) -> tuple[Subject, float, Any]:
    """A subject of a kind, the seconds that it takes, and its result."""
    subject, began = KINDS[kind](home), time.monotonic()
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


def kill_often(kind: str, kills: int, home: Path) -> dict[str, Any]:
    """Kill subjects of a kind this often. Every subject is then brought to its end and compared; counts of both."""
    draw = random.Random(f"{kind} {kills}")
    subject, seconds, expected = run_undisturbed(kind, home)
    counts: dict[str, Any] = {"kills": 0, "SIGKILL": 0, "SIGTERM": 0, "subjects": 0, "equal": 0, "bad": []}
    while counts["kills"] < kills:
        out = home / f"killed-{counts['subjects']}"
        while True:
            resumes = any((out / name).exists() for name in ("recipe.toml", "study.toml")) or kind == "shrink"
            process = start(subject.resume if resumes else subject.start, out)
            last = counts["kills"] >= kills
            if last or ends_within(process, draw.uniform(0, 0.6 * seconds)):
                done = process.wait()
                if done.returncode:
                    counts["bad"].append(f"exit code {done.returncode}: {done.stderr[-300:]}")
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
            if signal_group(process.pid, 0) and not empties_within(process.pid, 20):
                counts["bad"].append(f"{number.name}: left a process")
                signal_group(process.pid, signal.SIGKILL)
            if done.returncode == 0:
                break
        counts["subjects"] += 1
        counts["equal"] += done.returncode == 0 and subject.result(out) == expected
    return counts


def main(arguments: list[str]) -> int:
    failures = 0
    kills = int(arguments[0]) if arguments and arguments[0] != "pause" else 15
    for kind in arguments[1:] or KINDS:
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            began = time.monotonic()
            counts = pause(kind, Path(folder)) if "pause" in arguments else kill_often(kind, kills, Path(folder))
            print(kind, json.dumps(counts), f"{time.monotonic() - began:.0f} s", flush=True)
            failures += bool(counts.get("bad")) or counts.get("equal", 0) < counts.get("subjects", 0)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
