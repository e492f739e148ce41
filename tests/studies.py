"""Small studies for tests: the digits, tiny models, two epochs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import commands

NARROW = "narrow=depth:2,heads:3,mlp:16"

RECIPE = """
[model]
source = "vit_tiny_patch16_224"
override = { img_size = 8, patch_size = 2, in_chans = 1, num_classes = 10, embed_dim = 16, depth = 4, num_heads = 2 }
[data]
name = "digits"
task = "classification"
samples = 400
holdout = 0.2
mixup = 0.2
[optim]
lr = 3e-3
[schedule]
epochs = 4
batch_size = 32
[run]
log_every = 4
checkpoint_every = 3
"""


def recipe_file(folder: Path, text: str = RECIPE) -> Path:
    file = folder / "tiny.toml"
    file.write_text(text)
    return file


def two_designs(recipe: Any) -> Any:
    """A plan of two designs and two seeds, to be written: only its recipe's model is real."""
    from leanify.comparison.plan import PlannedDesign, StudyPlan

    designs = tuple(PlannedDesign(name, recipe.model, 2, 2, 4, 32, 1000, 1000) for name in ("baseline", "lean"))
    return StudyPlan("x", recipe, None, (0, 1), designs, 1)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", commands.CODE, "compare", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(*arguments: str) -> commands.Result:
    return commands.run("compare", *arguments, COLUMNS="80")


def outcomes(study: Path) -> dict[str, Any]:
    """What must be equal whoever ran a study and however often it was killed: outcomes, logs, last weights."""
    from leanify.runs.run_directory import RunDirectory

    results: dict[str, Any] = {}
    for file in sorted((study / "runs").glob("*.json")):
        path = RunDirectory.open(file.with_suffix(""))
        rows = [{k: v for k, v in row.items() if k != "samples_per_s"} for row in path.rows()]
        sums = {name: tensor.double().sum().item() for name, tensor in path.checkpoints()[-1].weights().items()}
        results[file.stem] = (json.loads(file.read_text()), rows, sums)
    return results


def start_counts(study: Path) -> dict[str, int]:
    """How often each run that has ended was started."""
    return {
        file.stem: len(json.loads((file.with_suffix("") / "environment.json").read_text()))
        for file in sorted((study / "runs").glob("*.json"))
    }
