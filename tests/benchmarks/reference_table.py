"""The trivial reference of recipes and of data of one's own: python -m tests.benchmarks.reference_table SOURCE…

A SOURCE is what `leanify compare` takes, with settings behind it: "masked-small data.path=DIR". One row each: the task,
the best trivial model, its quality on the samples that would judge, their number, and processor seconds.
"""

from __future__ import annotations

import sys
import time

from leanify.study import reference
from leanify.training import start


def main() -> None:
    print("| data | task | reference | its quality | samples | s |\n|---|---|---|---|---|---|")
    for words in sys.argv[1:]:
        source, *settings = words.split()
        recipe = start.resolve(source, settings)
        begun = time.process_time()
        found = reference.computed(recipe, 0)
        task = recipe.data.task if recipe.data is not None else ""
        quality = "–" if found.value is None else f"{found.value:.4g}"
        row = (source, task, found.name, quality, f"{len(found.outcomes):,}", f"{time.process_time() - begun:.1f}")
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
