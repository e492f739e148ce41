"""The trivial reference of recipes and of data of one's own: python -m recipes.research.reference_table SOURCE…

A SOURCE is what `leanify compare` takes, with settings behind it: "masked-small data.path=DIR". One row each: the task,
the best trivial model, its quality on the samples that would judge, their number, and processor seconds.

    python -m recipes.research.reference_table --csv FILE "recipes/research/ranking/enwik8.toml data.path=DIR" …

writes the rows of the ranking study's tasks for its pages.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

from leanify.training import start
from leanify.training.reference import score_reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table with the names of the recipes there")
    told = parser.parse_args()
    rows = []
    print("| data | task | reference | its quality | samples | s |\n|---|---|---|---|---|---|")
    for words in told.sources:
        source, *settings = words.split()
        recipe = start.resolve(source, settings)
        begun = time.process_time()
        found = score_reference(recipe, 0)
        task = recipe.data.task if recipe.data is not None else ""
        quality = "–" if found.value is None else f"{found.value:.4g}"
        row = (source, task, found.name, quality, f"{len(found.outcomes):,}", f"{time.process_time() - begun:.1f}")
        print("| " + " | ".join(row) + " |", flush=True)
        rows.append((Path(source).stem, found.name, found.value, len(found.outcomes)))
    if told.csv is not None:
        with told.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("task", "reference", "value", "samples"), *rows])


if __name__ == "__main__":
    main()
