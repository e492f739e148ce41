"""Kill a run, a study and a tournament again and again, and compare their end with that of ones which nobody killed.

    python tests/benchmarks/kills.py            20 kills of a run, 10 of a study, 10 of a tournament, by each signal
    python tests/benchmarks/kills.py 2 1 1      fewer

SIGKILL and SIGTERM go to the whole process group, as `timeout`, scancel and systemd send them: a moment after the log
has grown by some rows. Then the same command goes on. What must be equal are all rows but their speed, and the cuts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from studies import NARROW, RECIPE

CODE = "import sys; sys.argv[0] = 'leanify'; from leanify.cli import main; main()"
COMPARED = {
    "study": ("--designs", f"baseline,{NARROW}", "--seeds", "2", "--jobs", "2"),
    "tournament": ("--tournament", "5", "--seeds", "2", "--rates", "1", "--jobs", "2"),
}
BAD = ("unexpected error", "Traceback", "failed")


def words(kind: str, home: Path) -> list[str]:
    """The command that begins, and that goes on."""
    place = home / kind
    if kind == "run":
        return (
            ["train", "--resume", str(place)] if place.exists() else ["train", str(home / "r.toml"), "-o", str(place)]
        )
    if place.exists():
        return ["compare", str(place), "--jobs", "2"]
    return ["compare", str(home / "r.toml"), "-o", str(place), *COMPARED[kind]]


def started(kind: str, home: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "LEANIFY_QUIET": "1"}
    command = [sys.executable, "-c", CODE, *words(kind, home)]
    log = (home / f"{kind}.err").open("a")
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=log, text=True, start_new_session=True, env=environment, cwd=home
    )


def logs(place: Path) -> list[Path]:
    return sorted([*place.glob("metrics.jsonl"), *place.glob("runs/*/metrics.jsonl")])


def size(place: Path) -> int:
    return sum(file.read_text().count("\n") for file in logs(place))


def outcome(place: Path) -> dict[str, Any]:
    rows = {
        str(file.relative_to(place)): [
            {key: value for key, value in json.loads(line).items() if key != "samples_per_s"}
            for line in file.read_text().splitlines()
        ]
        for file in logs(place)
    }
    ended = {file.name: json.loads(file.read_text())["status"] for file in sorted(place.glob("runs/*.json"))}
    cuts = place / "tournament.json"
    return {"rows": rows, "ended": ended, "cuts": json.loads(cuts.read_text()) if cuts.exists() else None}


def killed(kind: str, home: Path, number: int, kills: int, draw: random.Random) -> int:
    """Kill up to so many times, then let it end. Returns how often it was killed."""
    done = 0
    while done < kills:
        process, before, steps = started(kind, home), size(home / kind), draw.choice([1, 2, 3])
        while process.poll() is None and size(home / kind) < before + steps:
            time.sleep(0.02)
        time.sleep(draw.random() * 0.3)
        if process.poll() is not None:
            break
        os.killpg(process.pid, number)
        process.wait()
        done += 1
        time.sleep(0.2)  # forked runs see that their parent is gone
    if started(kind, home).wait():
        raise SystemExit(f"{kind}: the last command failed: {(home / f'{kind}.err').read_text()[-2000:]}")
    return done


def main(kills: list[int]) -> None:
    wrong = 0
    for kind, count, epochs in zip(("run", "study", "tournament"), kills, (40, 60, 12), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            recipe = RECIPE.replace("epochs = 4", f"epochs = {epochs}")
            (Path(folder) / "r.toml").write_text(recipe)
            if started(kind, Path(folder)).wait():
                raise SystemExit(f"{kind}: {(Path(folder) / f'{kind}.err').read_text()[-2000:]}")
            whole = outcome(Path(folder) / kind)
            for number in (signal.SIGKILL, signal.SIGTERM):
                shutil.rmtree(Path(folder) / kind)
                (Path(folder) / f"{kind}.err").unlink()
                done = killed(kind, Path(folder), number, count, random.Random(count))
                said = (Path(folder) / f"{kind}.err").read_text()
                same = outcome(Path(folder) / kind) == whole
                odd = [word for word in BAD if word in said]
                resumes = said.count("--resume") if kind == "run" else said.count("goes on with")
                wrong += not same or bool(odd)
                print(
                    f"{kind} {number.name}: {done} kills, the same end: {same}, lines that go on: {resumes} {odd}",
                    flush=True,
                )
    raise SystemExit(wrong)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [20, 10, 10])
