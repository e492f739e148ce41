"""Ten repetitions of the demonstration, `leanify compare` alone, each with seeds of its own.

    python -m recipes.research.demonstration RUNS [--repetitions 10]
    python -m recipes.research.demonstration RUNS --table
    … --set schedule.epochs=1      is passed on

Repetition r has the seeds 1000 + 10 r and the three after it; the recipe, its margin and its length were fixed on
other seeds, by the baseline alone. Two runs at a time, as the command does. Seconds are those of the processor,
user and system together, of the study and all of its workers; on a machine that others use they are upper bounds. Call
it again, and it goes on with the next repetition.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

SEEDS = 4
STUDY = """
import json, sys, leanify
leanify.compare(None, sys.argv[1], seeds=json.loads(sys.argv[2]), jobs=2, settings=sys.argv[3:])
"""


def repeat(number: int, runs: Path, settings: list[str]) -> None:
    """Run one repetition and keep its processor seconds beside its study."""
    seeds = [1000 + 10 * number + seed for seed in range(SEEDS)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", STUDY, str(runs / str(number)), json.dumps(seeds), *settings]
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    (runs / f"{number}.seconds").write_text(f"{seconds:.1f}\n", encoding="utf-8")


def row_of(number: int, runs: Path) -> list[Any]:
    found = json.loads((runs / str(number) / "results.json").read_text(encoding="utf-8"))
    quality = {design["name"]: design["quality"]["mean"] for design in found["designs"]}
    pairs = {pair["against"]: pair for pair in found["pairs"] if pair["design"] == "lean"}
    cells: list[Any] = [number, (runs / f"{number}.seconds").read_text().strip(), "yes" if found["learnt"] else "no"]
    cells += [f"{quality[name]:.2f}" for name in ("baseline", "lean", "control", "narrow")]
    for verdict, against in zip(found["verdicts"], ("baseline", "control", "narrow"), strict=True):
        pair = pairs[against]
        cells += [f"{pair['difference']:+.2f} ({pair['low']:+.2f} … {pair['high']:+.2f})", verdict["answer"]]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--table", action="store_true", help="print the table of what is done, run nothing")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    told = parser.parse_args()
    told.runs.mkdir(parents=True, exist_ok=True)
    for number in range(told.repetitions):
        if not (told.runs / f"{number}.seconds").exists() and not told.table:
            repeat(number, told.runs, told.settings)
    print(
        "| | processor s | learnt | baseline % | lean | control | narrow | lean − baseline | answer | lean − control | "
        "answer | lean − narrow | answer |"
    )
    print("|" + "---|" * 13)
    for number in range(told.repetitions):
        if (told.runs / f"{number}.seconds").exists():
            print("| " + " | ".join(map(str, row_of(number, told.runs))) + " |")


if __name__ == "__main__":
    main()
