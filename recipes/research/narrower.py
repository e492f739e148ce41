"""Fewer layers or narrower ones? Four ways to half of the parameters, each at its best learning rate.

    python -m recipes.research.narrower RUNS digits tinystories=DIR fashion-mnist=DIR     about an hour of a core
    python -m recipes.research.narrower RUNS digits tinystories=DIR --seeds 5             goes on with more seeds
    python -m recipes.research.narrower RUNS             the tables of what is done
    python -m recipes.research.narrower RUNS tinystories=DIR --beside recipes/results/ranking-rates.csv
    … --small     a few steps of a small study: whether it runs

baseline   8 layers
lean       fewer layers with twice the heads: 5 of 8, digits 3 of 4
layers     4 layers, half of the depth, with heads and MLP as they were
control    lean's depth with the old heads and a wider MLP
narrow     8 layers, a smaller width: heads in proportion, nearly the MLP's ratio

A ViT on the digits (the recipe of `leanify compare` alone), a byte-level GPT on TinyStories and a ViT on Fashion-MNIST
(by the recipes in `ranking`). All but the baseline have about half of its parameters. Each task is one study of
`leanify compare`: rates are tried over half of the schedule with the first seed, then every seed runs at the best rate,
and the intervals are the study's. Call it again, and it goes on; RUNS/TASK/results.json has everything in JSON.

With --beside, only narrow is trained, at three rates over the whole schedule with the first seed, to stand beside the
rows that `ranking.sweep` keeps of the same recipe: RUNS/TASK.jsonl has a line a run.

Fixed before the runs: does lean beat narrow? Does layers? In which order are the four, and how far apart are they
beside the noise of a run? Where a design's best rate is the lowest or the highest that was tried, the table says so.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from pathlib import Path
from typing import Any

import leanify
from leanify.comparison.rates import USUAL, is_edge_rate
from leanify.core import built_in_recipes
from leanify.core import recipe as recipes

RANKING = Path(__file__).parent / "ranking"
BUDGETS = {"digits": 50_260, "tinystories": 484_800, "fashion-mnist": 205_400}  # parameters
DESIGNS = {
    "digits": ["lean", "layers=depth:4,heads:2,mlp:121", "control"],
    "tinystories": ["lean=depth:5,heads:8,mlp:76", "layers=depth:4,heads:4,mlp:384", "control=depth:5,heads:4,mlp:268"],
    "fashion-mnist": [
        "lean=depth:5,heads:8,mlp:50", "layers=depth:4,heads:4,mlp:256", "control=depth:5,heads:4,mlp:179"
    ],
}  # fmt: skip
SMALL = ["schedule.steps=6", "schedule.warmup=1", "run.eval_batches=2"]


def study(task: str, data: str, runs: Path, seeds: int, is_small: bool) -> None:
    """Train what is missing of a task's study."""
    settings = ["run.keep=1"]
    if data:
        settings += [f"data.path={Path(data).absolute()}", "run.eval_every=100000"]  # that is, at the end only
    settings += SMALL if is_small else []
    recipe = built_in_recipes.find("digits-study") if task == "digits" else RANKING / f"{task}.toml"
    leanify.compare(
        recipe,
        runs / task,
        target_params=BUDGETS[task],
        designs=["baseline", *DESIGNS[task], "narrow"],
        seeds=seeds,
        rates=(1,) if is_small else USUAL,
        settings=settings,
        measure=False,
    )


def narrow_beside(task: str, data: str, runs: Path) -> None:
    """Train narrow at three rates by the recipe of a task of `ranking.sweep`, and keep a line a run."""
    lines = runs / f"{task}.jsonl"
    runs.mkdir(parents=True, exist_ok=True)
    done = [json.loads(text)["factor"] for text in lines.read_text().splitlines()] if lines.exists() else []
    recipe = recipes.load(RANKING / f"{task}.toml")
    plan = leanify.redesign(recipe, target_params=BUDGETS[task], tokens=recipe.data and recipe.data.length)
    narrow = plan.narrow
    assert narrow is not None
    assert recipe.optim is not None
    for factor in (1.0, 2.0, 0.5):  # most likely first
        if factor in done:
            continue
        sizes = ("depth", "heads", "head_dim", "mlp", "width")
        settings = [f"model.{name}={getattr(narrow, name)}" for name in sizes]
        settings += [f"data.path={Path(data).absolute()}", f"optim.lr={recipe.optim.lr * factor:g}", "run.keep=1"]
        settings += ["run.eval_every=100000", "run.seed=0"]
        folder = runs / f"{task}-narrow-{factor:g}"
        shutil.rmtree(folder, ignore_errors=True)
        leanify.train(RANKING / f"{task}.toml", folder, settings=settings)
        rows = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
        last = [row for row in rows if row["split"] == "validation"][-1]
        row = {name: getattr(narrow, name) for name in (*sizes, "params", "macs")}
        with lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"task": task, "factor": factor, "seed": 0, **row, "loss": last["loss"]}) + "\n")


def print_beside(task: str, table: Path, runs: Path) -> None:
    """Losses of the first seed at three rates: rows of the sweep by rates, and narrow's."""
    losses: dict[str, dict[float, float]] = {}
    with table.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["task"] == task and row["seed"] == "0":
                losses.setdefault(row["design"], {})[float(row["rate"])] = float(row["eval_loss"])
    for text in (runs / f"{task}.jsonl").read_text().splitlines():
        line = json.loads(text)
        losses.setdefault("narrow", {})[line["factor"]] = line["loss"]
    print(f"## {task}, one seed\n\n| design | loss at 0.5 | at 1 | at 2 | best |\n|---|---|---|---|---|")
    for design, by_rate in sorted(losses.items(), key=lambda pair: min(pair[1].values())):
        cells = [f"{by_rate[rate]:.3f}" if rate in by_rate else "–" for rate in USUAL]
        print(f"| {design} | {' | '.join(cells)} | {min(by_rate.values()):.3f} |")


def print_tables(task: str, results: dict[str, Any]) -> None:
    """The designs and their differences, as Markdown."""
    print(f"## {task}\n")
    print(
        f"Quality is {results['metric']}. {'Learnt' if results['learnt'] else 'Not learnt'}: {results['learnt_why']}\n"
    )
    print(
        "| design | layers × heads × dim, mlp | width | parameters | MMACs | half runs at each rate | rate | ", end=""
    )
    print("seeds | mean | interval |\n" + "|" + "---|" * 10)
    for design in results["designs"]:
        quality, trials = design["quality"], design["rates"]
        shape = f"{design['depth']} × {design['heads']} × {design['head_dim']}, {design['mlp']}"
        rates = [trial["factor"] for trial in trials]
        best = next((trial["factor"] for trial in trials if trial["rate"] == design["rate"]), None)
        edge = " (edge)" if is_edge_rate(best, rates) else ""
        cells = [design["name"], shape, design["width"], f"{design['params']:,}", f"{design['macs'] / 1e6:.2f}"]
        cells += [", ".join(f"{trial['factor']:g}: {trial['quality']:.3f}" for trial in trials)]
        cells += [f"{design['rate']:g}{edge}", quality["seeds"], f"{quality['mean']:.3f}"]
        cells += [f"{quality['low']:.3f} … {quality['high']:.3f}"]
        print("| " + " | ".join(map(str, cells)) + " |")
    print("\nDifferences; above 0 the first is better.\n\n| | mean | interval | p |\n|---|---|---|---|")
    for pair in results["pairs"]:
        interval = f"{pair['low']:+.3f} … {pair['high']:+.3f}"
        print(f"| {pair['design']} − {pair['against']} | {pair['difference']:+.3f} | {interval} | {pair['p']:.3f} |")
    print()
    for verdict in results["verdicts"]:
        print(f"- {verdict['words']}")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("tasks", nargs="*", metavar="TASK[=DIR]")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="a few steps: whether it runs")
    parser.add_argument("--beside", type=Path, metavar="FILE.csv", help="train only narrow, beside the rows of a sweep")
    options = parser.parse_args()
    for text in options.tasks:
        task, _, data = text.partition("=")
        if options.beside is not None:
            narrow_beside(task, data, options.runs)
            print_beside(task, options.beside, options.runs)
            continue
        study(task, data, options.runs, options.seeds, options.small)
    for task in BUDGETS:
        path = options.runs / task / "results.json"
        if path.exists():
            print_tables(task, json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
