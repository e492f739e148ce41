"""Where time goes before anything trains: python tests/benchmarks/speed.py [PART…] -o recipes/results/speed.md

Whole processes in turn with what they are compared to, by the processor time that the kernel counts for each: other
programs on the machine hardly change it. Every number is the median of the pairs, with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

LEANIFY = "import sys; sys.argv[0] = 'leanify'; from leanify.cli import main; main()"
LIBRARIES = "import typer, rich"
BUILT = "import leanify, timm; timm.create_model('vit_base_patch16_224')"
COUNT = {"LEANIFY_PRICES": "off"}
LARGE = ("hf/deepseek_v3", "hiera_huge_224", "hf/zamba2")


@dataclass(frozen=True)
class Figure:
    """What was measured, what it is to be at most, and the values: ratios, or seconds."""

    what: str
    goal: float
    values: Sequence[float]
    unit: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def row(self) -> str:
        spread = f"{min(self.values):.2f} – {max(self.values):.2f}"
        met = "yes" if self.median <= self.goal else "**no**"
        return f"| {self.what} | {self.median:.2f}{self.unit} | {spread} | {self.goal:g}{self.unit} | {met} |"


def cpu(*arguments: str, **environment: str) -> float:
    """Processor seconds of a Python process, start and end included. Raises CalledProcessError."""
    command = [sys.executable, "-c", *arguments]
    child = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return usage.ru_utime + usage.ru_stime


def ratios(one: Sequence[str], other: Sequence[str], pairs: int, **environment: str) -> list[float]:
    """one/other for each of the pairs, after a run of each to warm up."""
    ours, theirs = partial(cpu, *one, **environment), partial(cpu, *other, **environment)
    ours(), theirs()
    return [ours() / theirs() for _ in range(pairs)]


def start_up(pairs: int = 11) -> Iterator[Figure]:
    """What needs no torch, beside the import of the two libraries that every command line has."""
    for words in ("--help", "redesign --help", "recipes", "train --list"):
        yield Figure(f"`leanify {words}` / `{LIBRARIES}`", 1.5, ratios([LEANIFY, *words.split()], [LIBRARIES], pairs))


def redesigns(pairs: int = 2) -> Iterator[Figure]:
    """A plan beside building the model that it is about; counted, and repeated."""
    asked = [LEANIFY, "redesign", "vit_base", "--target-params", "0.5"]
    other = [LEANIFY, "redesign", "vit_base", "--override", "img_size=256", "--target-params", "0.5"]
    with tempfile.TemporaryDirectory() as home:
        yield Figure("`redesign vit_base`, counted / timm builds it", 1.0, ratios(asked, [BUILT], pairs, **COUNT))
        repeated = ratios(other, [BUILT], pairs, XDG_CACHE_HOME=home)
        yield Figure("`redesign vit_base` at 256 pixels, repeated / timm builds it", 0.15, repeated)


def large(runs: int = 3) -> Iterator[Figure]:
    for name in LARGE:
        asked = (LEANIFY, "redesign", name, "--target-params", "0.7")
        found = [cpu(*asked, **COUNT) for _ in range(runs)]
        yield Figure(f"`redesign {name} --target-params 0.7`, counted", 8, found, " s")


def checkpoints(runs: int = 10) -> Iterator[Figure]:
    """ViT-B with AdamW's moments: a copy, files and checksums, beside torch.save of the same; both synced.

    They take turns in being the first, because fresh pages of the file cache cost up to what everything else does.
    """
    import torch

    import leanify
    from leanify.runs import checkpoint_writing as files
    from leanify.training.saver import Saver

    model = leanify.load("vit_base")
    moments = {name: {"exp_avg": torch.rand_like(x), "exp_avg_sq": torch.rand_like(x)}
               for name, x in model.state_dict().items()}  # fmt: skip
    weights, state, saver = {name: x.detach() for name, x in model.state_dict().items()}, {"state": moments}, Saver()
    facts = {"step": 1, "rows": 0, "score": None, "metrics": {}}

    def theirs(home: Path) -> None:
        with (home / "whole.pt").open("wb") as file:
            torch.save({"weights": weights, **state}, file)
            file.flush()
            os.fsync(file.fileno())

    def copied(_: Path) -> Any:
        return saver._copied("", {"tensors": weights, "state": state})

    def ours(home: Path) -> None:
        copy = copied(home)
        files.write(home / "step", copy["tensors"], copy["state"], facts)

    work, waits = [], []
    for run in range(runs + 2):
        took = {}
        for act in ((theirs, ours, copied), (ours, theirs, copied))[run % 2]:
            with tempfile.TemporaryDirectory() as home:
                began = time.process_time()
                act(Path(home))
                took[act] = time.process_time() - began
        if run > 1:  # the first ones fill the saver's buffers
            work.append(took[ours] / took[theirs])
            waits.append(took[copied] / took[theirs])
    yield Figure("a checkpoint of ViT-B with moments, all work / torch.save and fsync", 1.2, work)
    yield Figure("the part that training waits for / torch.save and fsync", 1.2, waits)


def latencies(runs: int = 5) -> list[str]:
    """The same limit asked for again and again: the design, and what it was measured at."""
    lines = ["| run | depth × heads, MLP | predicted | measured | of the limit | noise |", "|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as home:
        for run in range(1, runs + 1):
            command = [sys.executable, "-c", LEANIFY, "redesign", "vit_small", "--max-latency", "0.5", "--top", "1"]
            environment = {**os.environ, "XDG_CACHE_HOME": home, "OMP_NUM_THREADS": "1"}
            text = subprocess.run([*command, "--json"], env=environment, capture_output=True, check=True).stdout
            plan = json.loads(text)
            chosen, timing = plan["chosen"], plan["timing"]
            base, took = plan["baseline"]["latency_s"], chosen["latency_s"]
            lines.append(
                f"| {run} | {chosen['depth']} × {chosen['heads']}, {chosen['mlp']} "
                f"| {chosen['latency_predicted_s'] / base:.3f} | {took / base:.3f} "
                f"| {took / timing['limit_s']:.3f} | {timing['noise']:.1%} |"
            )
    return [*lines, "", "Times are in those of the baseline, a pass at batch 1 on one thread."]


def page(parts: dict[str, list[str]]) -> str:
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "timm", "transformers", "typer"))
    head = [
        "# Start-up, planning, latency",
        "",
        "Written by `python tests/benchmarks/speed.py -o recipes/results/speed.md`. Processor time of whole processes,",
        f"in turn with what they are compared to; medians of the runs. Python {sys.version.split()[0]}, {libraries}.",
    ]
    return "\n".join([*head, *(line for title, lines in parts.items() for line in ("", f"## {title}", "", *lines)), ""])


def table(figures: Iterator[Figure]) -> list[str]:
    return ["| | median | least – most | goal | met |", "|---|---|---|---|---|", *(figure.row() for figure in figures)]


PARTS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "startup": ("Start-up", lambda: table(start_up())),
    "redesign": ("A redesign", lambda: table(redesigns())),
    "large": ("Large models", lambda: table(large())),
    "checkpoint": ("A checkpoint", lambda: table(checkpoints())),
    "latency": ("`--max-latency 0.5` on vit_small", latencies),
}


def written(path: Path) -> dict[str, list[str]]:
    """The parts that a page has, by their titles."""
    sections = path.read_text(encoding="utf-8").split("\n## ")[1:] if path.exists() else []
    return {title: body.strip().splitlines() for title, _, body in (section.partition("\n") for section in sections)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    parts = written(given.output)
    for name in given.parts or PARTS:
        title, measure = PARTS[name]
        parts[title] = measure()
        titles = [title for title, _ in PARTS.values() if title in parts]
        given.output.write_text(page({title: parts[title] for title in titles}), encoding="utf-8")


if __name__ == "__main__":
    main()
