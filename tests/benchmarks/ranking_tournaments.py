"""Tournaments that were run, kept as data, and held against the full sweep.

    python tests/benchmarks/ranking_tournaments.py recipes/results/tournaments.json STUDY…

A study is a folder of ``leanify compare tests/benchmarks/ranking/TASK.toml --tournament 12``, called TASK. Its designs
are held against the sweep's by the mean training loss of the last tenth of the schedule, over the seeds that both
have: samples and their order are the same, while the samples of a validation may change between versions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ranking_runs import window
from ranking_table import Task, head, line, spearman

AXES = ("depth", "heads", "head_dim", "mlp")


def kept(path: Path) -> dict[str, Any]:
    """What a tournament's folder says: its cuts, every run with its shape, last step and quality, what it took."""
    from leanify.study.folder import StudyFolder
    from leanify.study.results import study_of

    study = study_of(StudyFolder.open(path))
    plan = study.plan
    assert plan.recipe.schedule is not None
    return {
        "task": path.name,
        "metric": study.metric,
        "budget": plan.budget,
        "steps": plan.recipe.schedule.steps,
        "baseline_macs": plan.baseline_macs,
        "winner": study.pairs[0].design,
        "rungs": [{"share": r.share, "losses": r.losses, "kept": list(r.kept)} for r in study.rungs],
        "runs": list(runs_of(path)),
    }


def runs_of(path: Path) -> Iterator[dict[str, Any]]:
    """Those that were given up, too."""
    from leanify.design.prices import counting
    from leanify.runs import recipe as recipes
    from leanify.study.folder import StudyFolder
    from leanify.study.measure import on_meta
    from leanify.study.plan import Key

    folder = StudyFolder.open(path)
    for file in sorted((path / "runs").glob("*/recipe.toml")):
        design, _, seed = file.parent.name.rpartition("-")
        rows = folder.rows(Key(design, int(seed)))
        model = recipes.load(file).model
        cost = counting.count(on_meta(model), None)
        last = next((row for row in reversed(rows) if row["split"] == "validation"), {})
        shape = {axis: getattr(model, axis) for axis in AXES}
        costs = {"params": cost.params, "macs": cost.macs}
        quality = {key: value for key, value in last.items() if key in ("loss", "top1", "accuracy", "bits_per_byte")}
        train = [row["loss"] for row in rows if row["split"] == "train" and row["step"] > 0.9 * rows[-1]["step"]]
        done = {"step": rows[-1]["step"], "last_tenth": float(np.mean(train)), "validation": quality}
        yield {"design": design, "seed": int(seed), **done, **shape, **costs}


def cost(played: dict[str, Any]) -> float:
    """Multiply-adds of all that was trained, in trainings of the baseline."""
    done = sum(run["step"] / played["steps"] * run["macs"] for run in played["runs"])
    return float(done / played["baseline_macs"])


def print_tournaments(tasks: list[Task], tournaments: list[dict[str, Any]]) -> None:
    words = ("task", "cuts after", "ρ at the cuts", "winner", "its validation", "its loss", "the sweep's best", "place")
    head(*words, "behind", "cost")
    for played in tournaments:
        task = next(t for t in tasks if t.name == played["task"])
        won = {run["seed"]: run for run in played["runs"] if run["design"] == played["winner"]}
        seeds = [seed for seed in won if seed in task.seeds]
        loss = np.mean([won[seed]["last_tenth"] for seed in seeds])
        others = np.array(
            [np.mean([window(task.rows[d, s]["curve"], 0.9, 1.0) for s in seeds]) for d in task.designs]
        )  # fmt: skip
        shape, metric = next(iter(won.values())), played["metric"]
        line(
            task.name,
            " and ".join(f"{rung['share']:.0%}" for rung in played["rungs"]),
            ", ".join(f"{early(task, rung['share']):.2f}" for rung in played["rungs"]),
            f"{played['winner']}: {shape['depth']} × {shape['heads']} × {shape['head_dim']}, {shape['mlp']}",
            f"{np.mean([run['validation'][metric] for run in won.values()]):.4g} {metric}",
            f"{loss:.4f}",
            f"{task.designs[int(others.argmin())]} {others.min():.4f}",
            f"{1 + int((others < loss).sum())} of {1 + len(others)}",
            float((loss - others.min()) / (others.mean() - others.min())),
            f"{cost(played):.1f}",
        )


def early(task: Task, share: float) -> float:
    """ρ between the mean training loss before a cut and the quality at the end, among the sweep's designs."""
    low = 0.8 * share  # as `leanify.study.tournament` has it
    losses = [np.mean([window(task.rows[d, s]["curve"], low, share) for s in task.seeds]) for d in task.designs]
    return spearman(-np.array(losses), task.quality)


def main() -> None:
    target, *studies = map(Path, sys.argv[1:])
    found = [kept(path) for path in studies]
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} tournaments")


if __name__ == "__main__":
    main()
