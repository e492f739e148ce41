"""Fewer layers or narrower ones? Four ways to half of the parameters, each at its best learning rate.

    python -m recipes.research.narrower RUNS digits tinystories=DIR fashion-mnist=DIR     about an hour of a core
    python -m recipes.research.narrower RUNS digits tinystories=DIR --seeds 5             goes on with more seeds
    python -m recipes.research.narrower RUNS             the tables of what is done
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

Fixed before the runs: does lean beat narrow? Does layers? In which order are the four, and how far apart are they
beside the noise of a run? Where a design's best rate is the lowest or the highest that was tried, the table says so.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import leanify
from leanify.comparison.rates import USUAL, is_edge_rate
from leanify.core import built_in_recipes

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
    options = parser.parse_args()
    for text in options.tasks:
        task, _, data = text.partition("=")
        study(task, data, options.runs, options.seeds, options.small)
    for task in BUDGETS:
        path = options.runs / task / "results.json"
        if path.exists():
            print_tables(task, json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
