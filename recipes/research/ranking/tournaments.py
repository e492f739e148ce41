"""Tournaments on four tasks of the sweep: their winner against the sweep's best design, on seeds that chose neither.

    python -m recipes.research.ranking.tournaments RUNS --fashion-mnist DIR --enwik8 DIR --tinystories DIR
    python -m recipes.research.ranking.tournaments RUNS --page recipes/results/tournaments.md
    … --small --only enwik8     ten steps, five designs, two fresh seeds: whether it runs

For every task: ``leanify compare TASK.toml --target-params BUDGET --tournament 9 --seeds 2 --rates 1``, with the
parameters of the sweep's designs as its budget. Then the baseline, the winner and the sweep's best design, each with
the seeds 10, 11 and 12, which neither the tournament nor the sweep has seen. Run it again and it goes on.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import leanify

from .sweep import HERE, KNOWN, recipe

TASKS = ("fashion-mnist", "enwik8", "listops", "tinystories-masked")
DESIGNS = 9
FRESH = (10, 11, 12)
SMALL_STEPS = 10
AXES = ("depth", "heads", "head_dim", "mlp")
SWEEP = HERE.parents[1] / "results" / "ranking.csv"


def sweep(task: str) -> tuple[dict[str, int], int]:
    """The shape of the sweep's best design, by its mean loss over the seeds that all designs have; its parameters."""
    with SWEEP.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == task and row["design"] != "baseline"]
    seeds = set.intersection(*({r["seed"] for r in rows if r["design"] == d} for d in {r["design"] for r in rows}))
    losses: dict[str, list[float]] = {}
    for row in rows:
        if row["seed"] in seeds:
            losses.setdefault(row["design"], []).append(float(row["eval_loss"]))
    best = min(losses, key=lambda design: float(np.mean(losses[design])))
    [row, *_] = [row for row in rows if row["design"] == best]
    budget = max(int(row["params"]) for row in rows)
    return {axis: int(row[axis]) for axis in AXES}, budget


def settings_of(task: str, data: str | None, small: bool) -> list[str]:
    steps = SMALL_STEPS if small else recipe(task)["schedule"]["steps"]
    settings = [f"run.log_every={max(1, steps // 50)}", f"run.eval_every={steps}"]
    if data is not None:
        settings.append(f"data.path={data}")
    if small:
        settings += [f"schedule.steps={steps}", "schedule.warmup=2", "run.eval_batches=2"]
    return settings


def tournament(task: str, place: Path, data: str | None, small: bool) -> None:
    words = ["--tournament", str(5 if small else DESIGNS), "--seeds", "2", "--rates", "1"]
    words += ["--target-params", str(sweep(task)[1])]
    for setting in settings_of(task, data, small):
        words += ["--set", setting]
    command = [sys.executable, "-m", "leanify", "compare", HERE / f"{task}.toml", *words, "-o", place]
    subprocess.run(command, check=True)


def played(place: Path) -> dict[str, Any]:
    """What a tournament's folder says: its cuts, the winner's shape, and what finding it cost.

    The winner is the best design under the budget: the baseline, which is above it, may win the tournament itself.
    """
    from leanify.comparison.folder import StudyFolder
    from leanify.comparison.plan import Key
    from leanify.comparison.tournament import rounds
    from leanify.core import recipe as recipes

    folder = StudyFolder.open(place)
    plan, first = folder.plan, folder.plan.seeds[0]
    ended = {design.name: folder.outcome(Key(design.name, first)) for design in plan.remaining}
    qualities = {name: end.quality for name, end in ended.items() if end is not None and end.quality is not None}
    small = [name for name in qualities if name != "baseline"]
    winner = max(small, key=lambda name: ended[name].sign * qualities[name])
    model = recipes.load(place / "runs" / f"{winner}-{first}" / "recipe.toml").model
    steps = plan.recipe.schedule.steps
    macs = {design.name: design.macs for design in plan.designs}
    cuts = rounds(folder)
    cost = 0.0
    for design in plan.designs:
        rows = folder.rows(Key(design.name, first))
        cost += macs[design.name] * max(row["step"] for row in rows) / steps
    return {
        "winner": winner,
        "tournament_winner": plan.winner,
        "shape": {axis: getattr(model, axis) for axis in AXES},
        "cuts": [f"{cut.share:.0%}: {len(cut.losses)} → {len(cut.kept)}" for cut in cuts],
        "cost": cost / macs["baseline"],
    }


def fresh(task: str, place: Path, data: str | None, small: bool) -> dict[str, list[float]]:
    """Validation losses of the baseline, the winner and the sweep's best design on the fresh seeds."""
    shapes = {"baseline": None, "winner": played(place)["shape"], "sweep": sweep(task)[0]}
    losses: dict[str, list[float]] = {}
    for seed in FRESH[:2] if small else FRESH:
        for name, shape in shapes.items():
            run = place.with_name(f"{task}-fresh") / f"{name}-{seed}"
            if not (run / "done.json").exists():
                settings = [f"run.seed={seed}", "run.keep=1", *settings_of(task, data, small)]
                settings += [f"model.{axis}={value}" for axis, value in (shape or {}).items()]
                shutil.rmtree(run, ignore_errors=True)
                leanify.train(HERE / f"{task}.toml", run, settings=settings)
                rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
                (run / "done.json").write_text(json.dumps([row for row in rows if row["split"] == "validation"][-1]))
                print(run, flush=True)
            losses.setdefault(name, []).append(json.loads((run / "done.json").read_text(encoding="utf-8"))["loss"])
    return losses


def interval(differences: list[float]) -> tuple[float, float, float]:
    """The mean of paired differences and its 95% t interval."""
    mean, error = float(np.mean(differences)), float(stats.sem(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return mean, mean - half, mean + half


def written(shape: dict[str, int]) -> str:
    return "{depth} × {heads} × {head_dim}, {mlp}".format(**shape)


def work(task: str, runs: Path, data: str | None, small: bool) -> None:
    kept = runs / f"{task}.json"
    if kept.exists():
        return
    place = runs / task
    tournament(task, place, data, small)
    found = {"task": task, **played(place), "sweep": sweep(task)[0], "losses": fresh(task, place, data, small)}
    kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found), flush=True)


PAGE = """# What a tournament finds, beside the best design of a whole sweep

    python -m recipes.research.ranking.tournaments RUNS --fashion-mnist DIR --enwik8 DIR --tinystories DIR
    python -m recipes.research.ranking.tournaments RUNS --page recipes/results/tournaments.md

Four tasks of [ranking.md](ranking.md). On each, `leanify compare TASK.toml --tournament 9 --seeds 2 --rates 1` with the
parameters of the sweep's designs as its budget; baseline (twice the parameters in its blocks), lean, control and
depth-only are among the nine. The sweep trained ten designs to the end on two seeds or more, and its best was chosen by
them. Both, and the baseline, were then trained on the seeds 10, 11 and 12, which chose neither.
Two rows are of recipes that ranking.md no longer trusts: Fashion-MNIST was judged on enlarged pictures, the baseline
of masked words is no better than bigrams. That a tournament finds the best design of *its* losses is what they show.
Designs are written
depth × heads × head_dim, MLP; losses are validation losses in nats, means over the three seeds; the interval is a
paired t interval of 95%. Cost: multiply-adds of all that was trained on the first seed to find the winner, in
trainings of the baseline.

{table}

{words}
"""


def page(runs: Path, target: Path) -> None:
    lines = [
        "| task | cuts (share: designs before → after) | winner | the sweep's best | loss of the winner "
        "| of the sweep's best | of the baseline | winner − sweep's best | cost |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    better, worse, costs = [], [], []
    for task in TASKS:
        kept = runs / f"{task}.json"
        if not kept.exists():
            continue
        one = json.loads(kept.read_text(encoding="utf-8")) | played(runs / task)
        losses = one["losses"]
        differences = [mine - best for mine, best in zip(losses["winner"], losses["sweep"], strict=True)]
        mean, low, high = interval(differences)
        if high < 0:
            better.append(task)
        if low > 0:
            worse.append(task)
        costs.append(one["cost"])
        means = " | ".join(f"{np.mean(losses[name]):.4f}" for name in ("winner", "sweep", "baseline"))
        cells = [
            task,
            "; ".join(one["cuts"]),
            f"{one['winner']}: {written(one['shape'])}",
            written(one["sweep"]),
            means,
        ]
        lines.append(
            "| " + " | ".join([*cells, f"{mean:+.4f} ({low:+.4f} … {high:+.4f})", f"{one['cost']:.1f}"]) + " |"
        )
    told = [
        f"On these seeds the winner is better than the sweep's best on {', '.join(better) or 'no task'}, worse on",
        f"{', '.join(worse) or 'no task'}; on the other {len(costs) - len(better) - len(worse)} of {len(costs)} tasks",
        "three seeds do not tell the two apart.",
        f"Finding a winner cost {min(costs):.1f} to {max(costs):.1f} trainings of the baseline on the first seed.",
    ]
    target.write_text(PAGE.format(table="\n".join(lines), words=" ".join(told)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    for option in sorted({KNOWN[task].data for task in TASKS} - {None}, key=str):
        parser.add_argument(f"--{option}", metavar="DIR")
    parser.add_argument("--only", default=",".join(TASKS), metavar="TASK,…")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the page of what is done, train nothing")
    parser.add_argument("--small", action="store_true", help="few steps of few designs: whether it runs")
    told = vars(parser.parse_args())
    if told["page"] is not None:
        page(told["runs"], told["page"])
        return
    for task in told["only"].split(","):
        option = KNOWN[task].data
        work(task, told["runs"], None if option is None else told[option.replace("-", "_")], told["small"])


if __name__ == "__main__":
    main()
