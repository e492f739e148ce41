"""Error of the farthest point against heads, head_dim, depth and points: trains, prints a table, draws a picture.

    python -m recipes.research.farthest_point RUNS PICTURE.svg [NUMBER]

A run that RUNS has already is not trained again, so that an interrupted sweep goes on; NUMBER is how many settings are
trained. ``--set`` is passed on to every run. Each is what the command

    leanify train farthest-point --set model.depth=… --set model.heads=… --set model.head_dim=… --set schedule.steps=…
        --set data.length=N --set schedule.batch_size=B -o RUNS/NAME

does; B keeps the points of a step at 1,024.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NamedTuple

from leanify.runs.run_directory import RunDirectory
from leanify.training import start as training
from leanify.training.callbacks import Callback

STEPS = 4000


class Setting(NamedTuple):
    depth: int
    heads: int
    head_dim: int
    steps: int = STEPS
    points: int = 16

    @property
    def name(self) -> str:
        long = f"-{self.steps}-steps" if self.steps != STEPS else ""
        return f"{self.points}-points-{self.depth}-layers-{self.heads}x{self.head_dim}{long}"

    @property
    def words(self) -> str:
        long = f", {self.steps:,} steps" if self.steps != STEPS else ""
        return f"{self.depth} layer{'s' * (self.depth > 1)} of {self.heads} × {self.head_dim}{long}"


HEADS = [Setting(1, 1, 64), Setting(1, 2, 32), Setting(1, 8, 32), Setting(2, 2, 32), Setting(2, 2, 32, 12_000)]
MORE = [Setting(2, 8, 32), Setting(1, 16, 32)]
MORE += [Setting(depth, 64 // d, d, points=points) for points in (4, 64) for depth in (1, 2) for d in (64, 32)]
SWEEP = [*HEADS, *MORE]


def train(runs: Path, setting: Setting, more: list[str]) -> RunDirectory:
    """Start or resume the setting's run."""
    path = runs / setting.name
    if path.exists():
        training.train(resume=path, callback=Callback())
    else:
        settings = [f"model.{key}={getattr(setting, key)}" for key in ("depth", "heads", "head_dim")]
        settings += [f"schedule.steps={setting.steps}", f"data.length={setting.points}"]
        settings += [f"schedule.batch_size={1024 // setting.points}"]
        training.train("farthest-point", path, settings=[*settings, *more])
    return RunDirectory.open(path)


def draw(found: dict[Setting, RunDirectory], picture: str) -> None:
    """Of 16 points: left the error after training against heads, right the training loss against steps."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "leanify"
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for place, (setting, run) in enumerate((s, r) for s, r in found.items() if s.points == 16):
        rows = [row for row in run.rows() if row["split"] == "train"]
        style, colour = ("-" if setting.depth == 1 else "--"), f"C{place}"
        left.plot(setting.heads, run.rows()[-1]["loss"], "o" if setting.depth == 1 else "s", color=colour)
        right.plot([r["step"] for r in rows], [r["loss"] for r in rows], style, color=colour, label=setting.words)
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter("{x:g}")
    left.set(xlabel="heads", ylabel="squared error (a constant: 1)", ylim=(0, 1.1))
    right.set(xlabel="step", title="while training")
    left.set(title="on fresh samples at the end (squares: 2 layers)")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(picture, metadata={"Date": None} if picture.endswith(".svg") else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("picture")
    parser.add_argument("number", type=int, nargs="?", default=len(SWEEP))
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    runs = {}
    for setting in SWEEP[: options.number]:
        runs[setting] = train(options.runs, setting, options.settings)
        print(f"| {setting.points} | {setting.words} | {runs[setting].rows()[-1]['loss']:.3f} |", flush=True)
    draw(runs, options.picture)


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    main()
