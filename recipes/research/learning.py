"""What `leanify train DATA` proposes for own data, typed as it stands: what is learnt, and what it takes.

    python -m recipes.research.learning LOG.jsonl DATA…      folders and files; a line of LOG each, not measured again
    python -m recipes.research.learning LOG.jsonl --table > recipes/results/learning.md

``--set`` is added to each proposed line (schedule.steps=4), for trials in small. Announced: the training time that
`--dry-run` predicts. Used: the time of the whole command, by the clock and by the processor, its workers included; on
one thread, so that both are comparable on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PROPOSED = re.compile(r"^  leanify (train own-.*)$", re.MULTILINE)
READ = re.compile(r"([\d,]+ (?:images|samples|tokens))(?: .*?)? to train and ([\d,]+)")
JUDGED = re.compile(
    r"^((?:not )?learnt): (.+?) (?:against|is no better than) (\S+) of (.+?)(?:\. What helps.*)?$", re.M
)
HEAD = """# Own data: does the proposed line learn?

`leanify train DATA` says what DATA is and proposes a line; here that line is typed as it stands, on one thread of a
busy machine. **trained** and **trivial** are the model and the best trivial model on the same validation samples.
**announced** is the training that `--dry-run` predicts, in minutes of the clock; **clock** and **processor** are the
whole command's: start, training, evaluations and the trivial model. No data of the project's tests are among them.

Written by

    python -m recipes.research.learning LOG.jsonl DATA…
    python -m recipes.research.learning LOG.jsonl --table > recipes/results/learning.md

| data | what was said | samples | trained | trivial | said at the end | announced | clock | processor |
|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    rows = read_log(arguments.log)
    if arguments.table:
        print("\n".join(table(rows)))
        return
    measured = {row["data"] for row in rows}
    for data in arguments.data:
        if data in measured:
            continue
        row = measure(data, [word for setting in arguments.settings for word in ("--set", setting)])
        with arguments.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def read_log(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.is_file() else []


def measure(data: str, more: Sequence[str]) -> dict[str, Any]:
    """What is said about data, and what its proposed line announces, takes and reaches."""
    said = leanify("train", data).stderr
    row: dict[str, Any] = {"data": data, "said": said.removeprefix("leanify: ").partition(". Train a model")[0]}
    proposed = PROPOSED.search(said)
    if proposed is None:
        return row | {"failure": said}
    line = [*shlex.split(proposed[1]), *more]
    row["line"] = shlex.join(["leanify", *line])

    # the announcement
    rehearsal = leanify(*line, "--dry-run", "--json")
    if rehearsal.returncode:
        return row | {"failure": rehearsal.stderr}
    facts = json.loads(rehearsal.stdout)
    row |= {"read": facts["data"], "steps": facts["steps"], "parameters": facts["parameters"]}
    row["announced_minutes"] = 60 * facts["training_hours_predicted"]

    # the run, its trivial model, and its message
    with tempfile.TemporaryDirectory() as folder:
        begin, processor = time.monotonic(), processor_seconds()
        result = leanify(*line, "-o", f"{folder}/run")
        row["clock_minutes"] = (time.monotonic() - begin) / 60
        row["processor_minutes"] = (processor_seconds() - processor) / 60
    if result.returncode:
        return row | {"failure": result.stderr}
    judged = JUDGED.search(result.stdout)
    if judged is not None:
        row |= dict(zip(("learnt", "trained", "trivial", "trivial_model"), judged.groups(), strict=True))
        row["names_weights"] = "pretrained weights: leanify train" in judged[0]
    return row


def leanify(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "leanify", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def processor_seconds() -> float:
    """The processor time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield HEAD
    for row in rows:
        # what was said, without the path in each place
        said = row["said"].replace(row["data"], "…").removeprefix("… is data, not a model: ").replace("|", " ")
        if "failure" in row:
            yield f"| {row['data']} | {said} | {row['failure'].strip()} | | | | | | |"
            continue

        # samples, both models, and the minutes
        read = READ.search(row["read"])
        samples = f"{read[1]} + {read[2]}" if read else row["read"]
        trivial = f"{row['trivial']}, {row['trivial_model']}" if "trivial" in row else "–"
        end = row.get("learnt", "–") + ", and pretrained weights" * row.get("names_weights", False)
        minutes = [f"{row[f'{name}_minutes']:.1f}" for name in ("announced", "clock", "processor")]
        yield f"| {' | '.join([row['data'], said, samples, row.get('trained', '–'), trivial, end, *minutes])} |"

    # how many learnt, and whether the others are told what would help
    learnt = sum(row.get("learnt") == "learnt" for row in rows)
    advised = sum(row.get("names_weights", False) for row in rows)
    yield f"\n{learnt} of {len(rows)} end above the trivial model; {advised} say that pretrained weights would help."


if __name__ == "__main__":
    main()
