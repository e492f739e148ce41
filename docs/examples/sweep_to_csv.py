"""Price a model at several budgets and write the designs as a table.

python sweep_to_csv.py vit_base designs.csv
"""

import csv
import sys
from pathlib import Path

import leanify

source, file = sys.argv[1:]
with Path(file).open("w", newline="", encoding="utf-8") as out:
    writer = csv.writer(out)
    writer.writerow(["budget", "design", "depth", "heads", "head_dim", "mlp", "params", "macs"])
    for budget in (0.9, 0.75, 0.6, 0.5):
        try:
            plan = leanify.redesign(source, target_params=budget)
        except leanify.BudgetError as error:
            print(f"{budget:g}: {error}", file=sys.stderr)
            continue
        for name, design in (("lean", plan.chosen), ("control", plan.control)):
            if design is not None:
                shape = (design.depth, design.heads, design.head_dim, design.mlp)
                writer.writerow([budget, name, *shape, design.params, design.macs])
