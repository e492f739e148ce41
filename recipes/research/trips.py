"""How often one command finds, reads, builds, locates and loads a model: calls counted in one process.

    python -m recipes.research.trips [--designs narrow free] [--train]

A run of the digits is trained for some steps, then shrunk with nothing healed; the table has the calls of the second
command, and its processor seconds. ``--train`` counts the first command.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leanify

COUNTED = (
    "leanify.sources.find:find",
    "leanify.runs.run_directory:RunDirectory.open",
    "leanify.upstream.build:build_model",
    "leanify.sources.weights:load",
    "leanify.reshaping.sites:locate",
    "leanify.core.files.reading:read_json",
    "leanify.upstream.origin:get_record",
    "leanify.training.loop:Trainer.__init__",
)
MODULES = ("leanify.shrinking.shrink", "leanify.training.start", "leanify.cli.shrink", "leanify.search.redesign")


def count_calls(names: tuple[str, ...], counts: Counter[str]) -> None:
    """Wrap functions so that their calls are counted, wherever a module has imported them by name."""
    for name in names:
        module_name, _, path = name.partition(":")
        owner: Any = importlib.import_module(module_name)
        *classes, attribute = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        function = getattr(owner, attribute)
        counted = _counted(function, path, counts)
        is_static = isinstance(vars(owner).get(attribute), staticmethod)
        setattr(owner, attribute, staticmethod(counted) if is_static else counted)
        for module in [module for key, module in sys.modules.items() if key.startswith("leanify")]:
            for key in [key for key, value in vars(module).items() if value is function]:
                setattr(module, key, counted)


def _counted(function: Callable[..., Any], name: str, counts: Counter[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return function(*args, **kwargs)

    return call


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--designs", nargs="*", default=[])
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    for module in MODULES:
        importlib.import_module(module)
    counts: Counter[str] = Counter()
    count_calls(COUNTED, counts)

    with tempfile.TemporaryDirectory() as folder:
        settings = ["schedule.epochs=", "schedule.steps=40", "data.samples=400"]
        began = time.process_time()
        run = leanify.train("digits", Path(folder) / "run", settings=settings)
        if not arguments.train:
            counts.clear()
            began = time.process_time()
            leanify.shrink(run, target_params=0.7, minutes=0, output=Path(folder) / "small", designs=arguments.designs)
    for name in COUNTED:
        path = name.partition(":")[2]
        print(f"{path:22} {counts[path]:6,}")
    print(f"{'processor seconds':22} {time.process_time() - began:6.1f}")


if __name__ == "__main__":
    main()
