"""Error of the farthest point against points, depth, heads and head_dim: trains, prints a table, draws a picture.

    python tests/benchmarks/farthest_point.py RUNS PICTURE.svg [NUMBER]

A run that RUNS has already is not trained again, so that an interrupted sweep goes on; NUMBER
stops after so many settings. Each is what the command

    leanify train farthest-point --set data.length=N --set schedule.batch_size=B --set model.depth=… --set model.heads=…
        --set model.head_dim=… -o RUNS/NAME

does; B keeps the points of a step at 1,024.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from leanify import loop, training
from leanify.run import Run


class Setting(NamedTuple):
    points: int
    depth: int
    heads: int
    head_dim: int

    @property
    def name(self) -> str:
        return f"{self.points}-points-{self.depth}-layers-{self.heads}x{self.head_dim}"


SHAPES = ((1, 1, 64), (1, 2, 32), (1, 8, 32), (2, 2, 32), (2, 8, 32), (1, 16, 32))  # depth, heads, head_dim
HEADS = [Setting(16, *shape) for shape in SHAPES]
POINTS = [Setting(points, depth, 64 // d, d) for points in (4, 64) for depth in (1, 2) for d in (64, 32)]
SWEEP = [*HEADS, *POINTS]


def error(runs: Path, setting: Setting) -> float:
    """The squared error on 4,096 fresh samples after the last step."""
    run = runs / setting.name
    settings = [f"model.{key}={getattr(setting, key)}" for key in ("depth", "heads", "head_dim")]
    settings += [f"data.length={setting.points}", f"schedule.batch_size={1024 // setting.points}"]
    if run.exists():
        training.train(resume=run, watcher=loop.Silent())
    else:
        training.train("farthest-point", run, settings=settings)
    return float(Run.open(run).rows()[-1]["loss"])


def draw(found: dict[Setting, float], picture: str) -> None:
    """Left: one layer of 16 points, error against heads. Right: heads × head_dim = 64, error against points."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for d, colour in ((64, "C0"), (32, "C1")):
        for depth, style in ((1, "o-"), (2, "s--")):
            by_heads = sorted((s.heads, e) for s, e in found.items() if s[:2] == (16, depth) and s.head_dim == d)
            by_points = sorted(
                (s.points, e) for s, e in found.items() if s.depth == depth and s.heads * d == 64 and s.head_dim == d
            )
            label = f"head_dim {d}, {depth} layer{'s' * (depth > 1)}"
            for axes, rows in ((left, by_heads), (right, by_points)):
                if rows:
                    axes.plot(*zip(*rows, strict=True), style, color=colour, label=label)
    for axes, words in ((left, "heads (16 points)"), (right, "points (heads × head_dim = 64)")):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel=words, ylim=(0, 1.05))
        axes.grid(alpha=0.3)
    left.set_ylabel("squared error (a constant: 1)")
    right.legend(fontsize=8)
    figure.savefig(picture, metadata={"Date": None} if picture.endswith(".svg") else None)


def main(runs: Path, picture: str, number: str = str(len(SWEEP))) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    found = {}
    for setting in SWEEP[: int(number)]:
        found[setting] = error(runs, setting)
        print("| " + " | ".join(map(str, setting)) + f" | {found[setting]:.3f} |", flush=True)
    draw(found, picture)


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    main(Path(sys.argv[1]), *sys.argv[2:])
