"""Table 1 of the paper: an encoder fine-tuned on eight tasks of GLUE (Wang et al. 2019), the median of five seeds.

    hf download nyu-mll/glue --repo-type dataset --local-dir GLUE
    python glue.py RUN --data GLUE [--tasks sst2,rte] [--seeds 5] [-o DIR] [--set schedule.epochs=3]

GLUE has a folder for each task with labelled tables: train and validation (or test), as Parquet, TSV or CSV. Each
fine-tuning is a run of the recipe `glue` in DIR/TASK-SEED. DIR/results.json keeps the finished ones, which are not
trained again; an unfinished one is resumed. A run is evaluated once, at its end: to choose a checkpoint on the
validation set that is reported would flatter it. MNLI's number is the mean of its two validation sets.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from scipy import stats
from sklearn import metrics

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import DataError
from leanify.core.files import writing
from leanify.data.texts.own_texts import LabelledTable
from leanify.layouts.faults import Faults
from leanify.layouts.rows import find_table
from leanify.runs.run_directory import RunDirectory
from leanify.training.predicting import predict

Scores = dict[str, list[float]]  # by metric, times 100, one for each seed


@dataclass(frozen=True)
class Task:
    """A task: the metrics, of which the first is the paper's (Devlin et al. 2019, table 1), and its columns."""

    title: str
    metrics: tuple[str, ...] = ("accuracy",)
    columns: tuple[str, ...] = ("sentence1", "sentence2")
    positive: str = ""  # the class that F1 is of, where classes have names
    validation: tuple[str, ...] = ("validation",)


TASKS = {
    "cola": Task("CoLA", ("matthews",), ("sentence",)),
    "sst2": Task("SST-2", columns=("sentence",)),
    "mrpc": Task("MRPC", ("f1", "accuracy"), positive="equivalent"),
    "stsb": Task("STS-B", ("spearman", "pearson")),
    "qqp": Task("QQP", ("f1", "accuracy"), ("question1", "question2"), positive="duplicate"),
    "mnli": Task("MNLI", columns=("premise", "hypothesis"), validation=("validation_matched", "validation_mismatched")),
    "qnli": Task("QNLI", columns=("question", "sentence")),
    "rte": Task("RTE"),
}


def table1(
    source: str, data: Path, names: list[str], seeds: int, output: Path, settings: list[str]
) -> dict[str, Scores]:
    """Fine-tune ``source`` on the tasks and return their scores. Raises LeanifyError."""
    # every recipe and table before the first run, so that no mistake is found hours later
    plan = {(name, seed): run_recipe(source, data / name, seed, settings) for name in names for seed in range(seeds)}
    tables = {name: validation_tables(plan[name, 0].to_train().data) for name in names}
    for (name, seed), recipe in plan.items():
        if (output / f"{name}-{seed}").is_dir():
            RunDirectory.open(output / f"{name}-{seed}").check_recipe(recipe)

    # the missing runs; each is written down as soon as it is evaluated
    results_file = output / "results.json"
    results = json.loads(results_file.read_text("utf-8")) if results_file.is_file() else {}
    scores: dict[str, Scores] = {name: {metric: [] for metric in TASKS[name].metrics} for name in names}
    for (name, seed), recipe in plan.items():
        run = output / f"{name}-{seed}"
        if not run.is_dir() or run.name not in results:
            leanify.train(recipe, resume=run) if run.is_dir() else leanify.train(recipe, run)
            results[run.name] = evaluate(run, TASKS[name], tables[name])
            writing.write(results_file, json.dumps(results, indent=2) + "\n")
        for metric, values in scores[name].items():
            values.append(results[run.name][metric])
    return scores


def run_recipe(source: str, folder: Path, seed: int, settings: list[str]) -> recipes.Recipe:
    """The recipe of one run, evaluated at its end."""
    task = TASKS[folder.name]
    values = {
        "model.source": source,
        "data.name": folder.name,
        "data.path": str(folder),
        "data.task": "text-regression" if folder.name == "stsb" else "text-classification",
        "data.text": list(task.columns),
        "data.label": "label",
        "data.validation": task.validation[0],
        "run.seed": seed,
        "run.eval_every": 10**9,
    }
    fixed = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return recipes.apply_settings(recipes.load("glue"), [*fixed, *settings])


def validation_tables(data: recipes.DataSection) -> list[LabelledTable]:
    """The labelled tables that a task is validated on. Raises DataError."""
    folder, tables = Path(str(data.path)), []
    for split in (data.train, *TASKS[data.name].validation):
        if not folder.is_dir() or (file := find_table(folder, split)) is None:
            raise DataError(f"{folder} has no {split} table; GLUE has a folder for each task: {', '.join(TASKS)}")
        tables.append(LabelledTable.read(file, data, Faults()))
    return tables[1:]


def evaluate(run: Path, task: Task, tables: list[LabelledTable]) -> dict[str, float]:
    """A run's metrics on its validation tables, times 100: the mean over these."""
    # F1 is of the class that GLUE numbers 1
    positive = task.positive if task.positive in RunDirectory.open(run).classes else "1"
    values: Scores = {metric: [] for metric in task.metrics}
    for table in tables:
        labels = [label for _, label in table.rows]
        answers = [answer.answer for answer in predict(run, [table.file])]
        for metric in task.metrics:
            values[metric].append(100 * score(metric, labels, answers, positive))
    return {metric: mean(values[metric]) for metric in task.metrics}


def score(metric: str, labels: list[Any], answers: list[Any], positive: str) -> float:
    """One metric of scikit-learn or SciPy; 0 where constant answers leave it undefined."""
    if metric == "accuracy":
        return float(metrics.accuracy_score(labels, answers))
    if metric == "f1":
        return float(metrics.f1_score(labels, answers, pos_label=positive, zero_division=0.0))
    if metric == "matthews":
        return float(metrics.matthews_corrcoef(labels, answers))
    correlation = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[metric]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant answers
        return float(np.nan_to_num(correlation(np.array(labels, float), np.array(answers, float)).statistic))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="the encoder: a run, a directory, a checkpoint, a hub id")
    parser.add_argument("--data", type=Path, required=True, help="the folder with a folder for each task")
    parser.add_argument("--tasks", help="such as sst2,cola; default: all that --data has")
    parser.add_argument("--seeds", type=int, choices=range(1, 100), metavar="N", default=5)
    parser.add_argument("-o", "--output", type=Path, help="default: runs/glue-NAME")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    present = [name for name in TASKS if (arguments.data / name).is_dir()]
    names = arguments.tasks.split(",") if arguments.tasks else present
    if not names or not TASKS.keys() >= set(names):
        parser.exit(2, f"glue.py: GLUE's tasks are {', '.join(TASKS)}; {arguments.data} has {present or 'none'}\n")
    output = arguments.output or Path("runs") / f"glue-{Path(arguments.source).name}"
    try:
        scores = table1(arguments.source, arguments.data, names, arguments.seeds, output, arguments.settings)
    except leanify.LeanifyError as error:
        parser.exit(2, f"glue.py: {error}\n")

    print(f"{'task':8}{'metric':12}{'median':>8}  lowest–highest  other medians")
    for name, values in scores.items():
        first, *others = TASKS[name].metrics
        span = f"{min(values[first]):.2f}–{max(values[first]):.2f}"
        rest = ", ".join(f"{metric} {median(values[metric]):.2f}" for metric in others)
        print(f"{TASKS[name].title:8}{first:12}{median(values[first]):8.2f}  {span:14}  {rest}".rstrip())
    average = mean(median(values[TASKS[name].metrics[0]]) for name, values in scores.items())
    print(f"\naverage of {len(scores)} task{'s' * (len(scores) > 1)}: {average:.2f}; runs in {output}")


if __name__ == "__main__":
    main()
