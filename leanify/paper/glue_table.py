"""The GLUE table: an encoder fine-tuned on every task with several seeds, each an ordinary run.

    DIR/TASK-SEED/     a run, as `leanify.train` writes it, with its last checkpoint only
    DIR/results.json   metrics of the finished runs, which are not trained again

A run's number comes from its last evaluation, not its best: selecting on the validation set that is reported
would flatter it. A task's number is the median over seeds, MNLI's the mean of its two sets; the average is
over tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from leanify import machine
from leanify.errors import DataError, DirectoryError, RecipeError
from leanify.paper import glue as data
from leanify.runs import recipe as recipes
from leanify.runs import writing
from leanify.runs.files import parsed, read_text
from leanify.runs.recipe import Recipe
from leanify.runs.removing import remove
from leanify.runs.run_directory import RunDirectory
from leanify.tasks.glue import METRICS, TASKS, name_of
from leanify.training import start
from leanify.training.loop import Watcher

RESULTS = "results.json"
HIDDEN = ("step", "epoch", "split", "samples_per_s")  # columns of a row that are not metrics


@dataclass(frozen=True)
class Score:
    """A task's runs. ``values`` are a metric's, times 100, one a seed; the first metric counts."""

    task: str
    values: dict[str, list[float]]
    runs: list[str]

    @property
    def title(self) -> str:
        return TASKS[self.task].title

    @property
    def metric(self) -> str:
        return next(iter(METRICS[self.task]))

    @property
    def median(self) -> float:
        return median(self.values[self.metric])

    def to_json(self) -> dict[str, Any]:
        metrics = {name: {"median": median(values), "values": values} for name, values in self.values.items()}
        facts = {"task": self.task, "metric": self.metric, "median": self.median, "seeds": len(self.runs)}
        return facts | {"metrics": metrics, "runs": self.runs}


@dataclass(frozen=True)
class Report:
    """The scores; ``missing`` are the tasks that were not asked for or whose files are not there."""

    source: str
    directory: str
    scores: list[Score]
    missing: list[str]

    @property
    def average(self) -> float:
        return sum(score.median for score in self.scores) / len(self.scores)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "directory": self.directory,
            "tasks": [score.to_json() for score in self.scores],
            "average": self.average,
            "missing": self.missing,
        }


def glue(
    source: str | Path,
    files: str | Path | None = None,
    *,
    tasks: Sequence[str] | None = None,
    seeds: int = 5,
    output: str | Path | None = None,
    settings: Sequence[str] = (),
    watch: Callable[[str], Watcher | None] = lambda _: None,
) -> Report:
    """Fine-tune ``source`` on the tasks of GLUE under ``files``, else from the hub, by the recipe ``glue``.

    ``tasks`` are those whose files are there unless named; ``settings`` change the recipe. Runs lie in
    ``output``, else in runs/glue-NAME; finished ones are kept, and unfinished ones resumed. All files are
    read and all recipes compared before the first run begins. Raises LeanifyError.
    """
    folder = Path(output) if output is not None else Path("runs") / f"glue-{Path(source).name}"
    if machine.launched("WORLD_SIZE", 1) > 1:
        raise RecipeError("the table is made by one process; several train one task: torchrun … leanify train glue")
    if seeds < 1:
        raise RecipeError(f"{seeds} seeds were asked for; at least one is needed")
    given = {"model.source": source} | ({"data.path": files} if files is not None else {})
    words = [f"{key}={json.dumps(str(value))}" for key, value in given.items()]
    base = recipes.with_settings(recipes.load("glue"), [*words, *settings])
    named = list(_checked(base, tasks))
    plan = {
        f"{task}-{seed}": recipes.with_settings(base, [f"data.name={task}", f"run.seed={seed}"])
        for task in named
        for seed in range(seeds)
    }
    for name, value in plan.items():
        if (folder / name).exists():
            RunDirectory.open(folder / name).check_recipe(value)
    results = _results(folder)
    for name, value in plan.items():
        if name in results and (folder / name).is_dir():
            continue
        results[name] = _measured(folder / name, value, watch(name))
        writing.write(folder / RESULTS, json.dumps(results, indent=2) + "\n")
    scores = []
    for task in named:
        names = [f"{task}-{seed}" for seed in range(seeds)]
        values = {}
        for kind in results[names[0]]:
            if kind != "loss":
                values[kind] = [results[name][kind] for name in names]
        scores.append(Score(task, values, [str(folder / name) for name in names]))
    return Report(str(source), str(folder), scores, [name for name in TASKS if name not in named])


def _checked(base: Recipe, tasks: Sequence[str] | None) -> Iterator[str]:
    """The tasks to train. Reads their files once, to find a bad line before hours of training are lost."""
    section = base.to_train().data
    asked = [name_of(replace(section, name=name)) for name in tasks or TASKS]
    found = 0
    for task in dict.fromkeys(asked):
        value = replace(section, name=task)
        if not tasks and not data.is_there(value, task):
            continue
        data.read(value, task)
        found += 1
        yield task
    if not found:
        raise DataError(f"{section.path} has none of the folders {', '.join(TASKS)}, each with a train.tsv")


def _measured(folder: Path, value: Recipe, watcher: Watcher | None) -> dict[str, float]:
    """One fine-tuning, begun or resumed, and the metrics of its last evaluation."""
    if folder.exists():
        start.train(value, resume=folder, watcher=watcher)
    else:
        start.train(value, folder, watcher=watcher)
    run = RunDirectory.open(folder)
    for old in run.checkpoints()[:-1]:
        remove(old.path)
    last = next(row for row in reversed(run.rows()) if row["split"] == "validation")
    return {name: number for name, number in last.items() if name not in HIDDEN}


def _results(folder: Path) -> dict[str, dict[str, float]]:
    path = folder / RESULTS
    if not path.exists():
        return {}
    try:
        found: dict[str, dict[str, float]] = parsed(read_text(path, DirectoryError))
    except (OSError, ValueError, RecursionError) as error:
        raise DirectoryError(
            f"{path} is damaged ({error}); remove it, and the runs are looked at one by one"
        ) from error
    return found
