"""Where time goes before anything trains.

    python -m recipes.research.speed -o recipes/results/speed.md
    python -m recipes.research.speed startup -o FILE      this part alone
    … --small      once, on small models: whether it runs

Whole processes in turn with what they are compared to, by the processor time that the kernel counts for each: other
programs on the machine hardly change it. Every number is the median of the pairs, with the least and the most.
Exit 1 where a figure misses its goal by more than a third: what fails is not the noise.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

LEANIFY = "import sys; sys.argv[0] = 'leanify'; from leanify.cli import main; main()"
LIBRARIES = "import typer, rich"
COUNT = {"LEANIFY_PRICES": "off"}
SLACK = 4 / 3  # what is missed by less is noise
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


def start_up(pairs: int) -> Iterator[Figure]:
    """What needs no torch, beside the import of the two libraries that every command line has."""
    for words in ("--help", "redesign --help", "recipes", "train --list"):
        yield Figure(f"`leanify {words}` / `{LIBRARIES}`", 1.5, ratios([LEANIFY, *words.split()], [LIBRARIES], pairs))


def redesigns(pairs: int, model: str) -> Iterator[Figure]:
    """A plan beside building the model that it is about; counted, and repeated."""
    build = [f"import leanify, timm; timm.create_model('{model}_patch16_224')"]
    plan = [LEANIFY, "redesign", model, "--target-params", "0.5"]
    larger = [LEANIFY, "redesign", model, "--override", "img_size=256", "--target-params", "0.5"]
    with tempfile.TemporaryDirectory() as home:
        yield Figure(f"`redesign {model}`, counted / timm builds it", 1.0, ratios(plan, build, pairs, **COUNT))
        repeated = ratios(larger, build, pairs, XDG_CACHE_HOME=home)
        yield Figure(f"`redesign {model}` at 256 pixels, repeated / timm builds it", 0.15, repeated)


def large(runs: int, models: Sequence[str]) -> Iterator[Figure]:
    for name in models:
        plan = (LEANIFY, "redesign", name, "--target-params", "0.7")
        seconds = [cpu(*plan, **COUNT) for _ in range(runs)]
        yield Figure(f"`redesign {name} --target-params 0.7`, counted", 8, seconds, " s")


def checkpoints(runs: int, name: str) -> Iterator[Figure]:
    """A model with AdamW's moments: a copy, files and checksums, beside torch.save of the same; both synced.

    They take turns in being the first, because fresh pages of the file cache cost up to what everything else does.
    """
    import torch

    import leanify
    from leanify.runs import checkpoint_writing as files
    from leanify.training.state import Saver

    model = leanify.load(name)
    moments = {name: {"exp_avg": torch.rand_like(x), "exp_avg_sq": torch.rand_like(x)}
               for name, x in model.state_dict().items()}  # fmt: skip
    weights, state, saver = {name: x.detach() for name, x in model.state_dict().items()}, {"state": moments}, Saver()
    facts: dict[str, Any] = {"step": 1, "rows": 0, "score": None, "metrics": {}}

    def theirs(home: Path) -> None:
        with (home / "whole.pt").open("wb") as file:
            torch.save({"weights": weights, **state}, file)
            file.flush()
            os.fsync(file.fileno())

    def copied(_: Path) -> Any:
        copy: list[Any] = []
        saver.save(lambda *parts: copy.extend(parts), weights, {"state": state})
        saver.wait()
        return copy

    def ours(home: Path) -> None:
        tensors, rest = copied(home)
        files.write(home / "step", tensors, rest, facts)

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
    yield Figure(f"a checkpoint of {name} with moments, all work / torch.save and fsync", 1.2, work)
    yield Figure("the part that training waits for / torch.save and fsync", 1.2, waits)


def latencies(runs: int, model: str) -> list[str]:
    """The same limit asked for again and again: the design, and what it was measured at."""
    lines = ["| run | depth × heads, MLP | measured | of the limit | noise |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as home:
        for run in range(1, runs + 1):
            command = [sys.executable, "-c", LEANIFY, "redesign", model, "--max-latency", "0.5", "--top", "1"]
            environment = {**os.environ, "XDG_CACHE_HOME": home, "OMP_NUM_THREADS": "1"}
            text = subprocess.run([*command, "--json"], env=environment, capture_output=True, check=True).stdout
            plan = json.loads(text)
            chosen, timing = plan["chosen"], plan["timing"]
            base, took = plan["baseline"]["latency_s"], chosen["latency_s"]
            lines.append(
                f"| {run} | {chosen['depth']} × {chosen['heads']}, {chosen['mlp']} "
                f"| {took / base:.3f} "
                f"| {took / timing['limit_s']:.3f} | {timing['noise']:.1%} |"
            )
    return [*lines, "", "Times are in those of the baseline, a pass at batch 1 on one thread."]


def page(parts: dict[str, list[str]]) -> str:
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "timm", "transformers", "typer"))
    head = [
        "# Start-up, planning, latency",
        "",
        "Written by `python -m recipes.research.speed -o recipes/results/speed.md`. Processor time of whole processes,",
        f"in turn with what they are compared to; medians of the runs. Python {sys.version.split()[0]}, {libraries}.",
    ]
    return "\n".join([*head, *(line for title, lines in parts.items() for line in ("", f"## {title}", "", *lines)), ""])


def table(figures: Sequence[Figure]) -> list[str]:
    return ["| | median | least – most | goal | met |", "|---|---|---|---|---|", *(figure.row() for figure in figures)]


PARTS: dict[str, tuple[str, Callable[[bool], Iterable[Figure | str]]]] = {  # a title, and what measures, small or not
    "startup": ("Start-up", lambda small: start_up(1 if small else 11)),
    "redesign": ("A redesign", lambda small: redesigns(1, "vit_tiny") if small else redesigns(2, "vit_base")),
    "large": ("Large models", lambda small: large(1, LARGE[:1]) if small else large(3, LARGE)),
    "checkpoint": ("A checkpoint", lambda small: checkpoints(1, "vit_tiny") if small else checkpoints(10, "vit_base")),
    "latency": (
        "`--max-latency 0.5` on vit_small",
        lambda small: latencies(1, "vit_tiny") if small else latencies(5, "vit_small"),
    ),
}


def read_parts(path: Path) -> dict[str, list[str]]:
    """The parts that a page has, by their titles."""
    sections = path.read_text(encoding="utf-8").split("\n## ")[1:] if path.exists() else []
    return {title: body.strip().splitlines() for title, _, body in (section.partition("\n") for section in sections)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--small", action="store_true", help="one run of each on small models; no goal is judged")
    options = parser.parse_args()
    parts = read_parts(options.output)
    missed = []
    for name in options.parts or PARTS:
        title, measure = PARTS[name]
        rows = list(measure(options.small))
        figures = [row for row in rows if isinstance(row, Figure)]
        parts[title] = table(figures) if figures else [str(row) for row in rows]
        missed += [figure.what for figure in figures if figure.median > SLACK * figure.goal]
        titles = [title for title, _ in PARTS.values() if title in parts]
        options.output.write_text(page({title: parts[title] for title in titles}), encoding="utf-8")
    if missed and not options.small:
        raise SystemExit(f"goals are missed by more than a third: {', '.join(missed)}")


if __name__ == "__main__":
    main()
