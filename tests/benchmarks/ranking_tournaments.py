"""Tournaments on four tasks of the sweep: their winner against the sweep's best design, on seeds that chose neither.

    python tests/benchmarks/ranking_tournaments.py RUNS --fashion-mnist DIR --enwik8 DIR --tinystories DIR
    python tests/benchmarks/ranking_tournaments.py RUNS --page recipes/results/tournaments.md

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
from ranking_sweep import HERE, KNOWN, recipe
from scipy import stats

import leanify

TASKS = ("fashion-mnist", "enwik8", "listops", "tinystories-masked")
DESIGNS = 9
FRESH = (10, 11, 12)
AXES = ("depth", "heads", "head_dim", "mlp")
SWEEP = HERE.parents[2] / "recipes" / "results" / "ranking.csv"


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


def tournament(task: str, place: Path, data: str | None) -> None:
    steps, budget = recipe(task)["schedule"]["steps"], sweep(task)[1]
    words = ["--tournament", str(DESIGNS), "--seeds", "2", "--rates", "1", "--target-params", str(budget)]
    words += ["--set", f"run.log_every={steps // 50}", "--set", f"run.eval_every={steps}"]
    if data is not None:
        words += ["--set", f"data.path={data}"]
    program = Path(sys.executable).with_name("leanify")
    subprocess.run([program, "compare", HERE / f"{task}.toml", *words, "-o", place], check=True)


def played(place: Path) -> dict[str, Any]:
    """What a tournament's folder says: its cuts, the winner's shape, and what finding it cost.

    The winner is the best design under the budget: the baseline, which is above it, may win the tournament itself.
    """
    from leanify.runs import recipe as recipes
    from leanify.study.folder import StudyFolder
    from leanify.study.plan import Key

    folder = StudyFolder.open(place)
    plan, first = folder.plan, folder.plan.seeds[0]
    ended = {design.name: folder.outcome(Key(design.name, first)) for design in plan.kept}
    qualities = {name: end.quality for name, end in ended.items() if end is not None and end.quality is not None}
    small = [name for name in qualities if name != "baseline"]
    winner = max(small, key=lambda name: folder.sign * float(qualities[name] or 0))
    model = recipes.load(place / "runs" / f"{winner}-{first}" / "recipe.toml").model
    steps = plan.recipe.schedule.steps
    macs = {design.name: design.macs for design in plan.designs}
    last = max((rung.step for rung in folder.rungs()), default=0)
    cost, again = 0.0, 0.0
    for design in plan.designs:
        rows = folder.rows(Key(design.name, first))
        cost += macs[design.name] * max(row["step"] for row in rows) / steps
        second = folder.rows(Key(design.name, plan.seeds[1]))
        again += macs[design.name] * min(last, max((row["step"] for row in second), default=0)) / steps
    return {
        "winner": winner,
        "tournament_winner": plan.winner,
        "shape": {axis: getattr(model, axis) for axis in AXES},
        "cuts": [f"{rung.share:.0%}: {len(rung.losses)} → {len(rung.kept)}" for rung in folder.rungs()],
        "cost": cost / macs["baseline"],
        "second_seeds": again / macs["baseline"],
    }


def fresh(task: str, place: Path, data: str | None) -> dict[str, list[float]]:
    """Validation losses of the baseline, the winner and the sweep's best design on the fresh seeds."""
    steps = recipe(task)["schedule"]["steps"]
    shapes = {"baseline": None, "winner": played(place)["shape"], "sweep": sweep(task)[0]}
    losses: dict[str, list[float]] = {}
    for seed in FRESH:
        for name, shape in shapes.items():
            run = place.with_name(f"{task}-fresh") / f"{name}-{seed}"
            if not (run / "done.json").exists():
                settings = [f"run.seed={seed}", f"run.log_every={steps // 50}", f"run.eval_every={steps}", "run.keep=1"]
                settings += [] if data is None else [f"data.path={data}"]
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


def work(task: str, runs: Path, data: str | None) -> None:
    kept = runs / f"{task}.json"
    if kept.exists():
        return
    place = runs / task
    tournament(task, place, data)
    found = {"task": task, **played(place), "sweep": sweep(task)[0], "losses": fresh(task, place, data)}
    kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found), flush=True)


PAGE = """# What a tournament finds, beside the best design of a whole sweep

    python tests/benchmarks/ranking_tournaments.py RUNS --fashion-mnist DIR --enwik8 DIR --tinystories DIR
    python tests/benchmarks/ranking_tournaments.py RUNS --page recipes/results/tournaments.md

Four tasks of [ranking.md](ranking.md). On each, `leanify compare TASK.toml --tournament 9 --seeds 2 --rates 1` with the
parameters of the sweep's designs as its budget; baseline (twice the parameters in its blocks), lean, control and
depth-only are among the nine. The sweep trained ten designs to the end on two seeds or more, and its best was chosen by
them. Both, and the baseline, were then trained on the seeds 10, 11 and 12, which chose neither.
Two rows are of recipes that ranking.md no longer trusts: Fashion-MNIST was judged on enlarged pictures, the baseline
of masked words is no better than bigrams. That a tournament finds the best design of *its* losses is what they show.
Designs are written
depth × heads × head_dim, MLP; losses are validation losses in nats, means over the three seeds; the interval is a
paired t interval of 95%. Cost: multiply-adds of all that was trained on the first seed to find the winner, in
trainings of the baseline, and after the + what baseline, lean and control took on the second seed up to the cuts. Those
runs say how noisy a run is, and go on afterwards to judge the winner.

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
            "| "
            + " | ".join(
                [*cells, f"{mean:+.4f} ({low:+.4f} … {high:+.4f})", f"{one['cost']:.1f} + {one['second_seeds']:.1f}"]
            )
            + " |"
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
    told = vars(parser.parse_args())
    if told["page"] is not None:
        page(told["runs"], told["page"])
        return
    for task in told["only"].split(","):
        option = KNOWN[task].data
        work(task, told["runs"], None if option is None else told[option.replace("-", "_")])


if __name__ == "__main__":
    main()
