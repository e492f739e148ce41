"""A checkpoint brought to a share of ALL its parameters, by leanify and by what people do otherwise, healed alike.

    python -m recipes.research.checkpoints CHECKPOINT --data FOLDER [--budget 0.75 0.5] [--glue DIR] [--other FILE]
    python -m recipes.research.checkpoint_page checkpoints.csv

The arms: `leanify shrink` as it comes, also with as many steps of its own healing; the vocabulary cut by plain counts
together with the best run of layers left out (of all pairs of both that meet the budget, the best on the choosing
samples), with the layers of least Block Influence (Men et al. 2024, ShortGPT), with the middle layers (as mergekit's
passthrough is used), or with MLP units pruned by Torch-Pruning's Taylor estimate (Fang et al. 2023); of a model of
pictures the layers or units alone. All others are then trained by the same steps at the better of the same rates, and
kept as they were where no rate helps.

Compared are sentence encoders, causal and masked language models, classifiers of pictures, texts or pairs, and
regressions of texts, on samples that no arm saw: of texts a part of the training table, of pictures half of the
validation split. A seed draws the calibration samples and the order of healing. Rows are kept in ``-o`` as they are
measured; the same command continues. GLUE's tables are read from ``--glue`` (stsb, and of sst2, mrpc, cola, rte those
that are there, with train.tsv and validation.tsv or test.tsv), a second domain of texts from ``--other``.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leanify.core.errors import LeanifyError
from leanify.profiling.counting import parameters
from recipes.research.checkpoint_arms import ARMS, OURS
from recipes.research.checkpoint_subject import LENGTH, SCORES, Small, Subject
from recipes.research.sentence_metrics import TASKS, nearest, probe, read_table, sts

COLUMNS = ("checkpoint", "budget", "arm", "seed", "stage", "metric", "value")


def measure(subject: Subject, small: Small, glue: Path | None, other: Path | None, probes: bool) -> dict[str, float]:
    """What users measure: the task's metric and, of sentence encoders, neighbours and GLUE; parameters and latency."""
    found = {SCORES[subject.task]: subject.score(small, subject.judging)}
    found["parameters"] = float(parameters(small.model))
    found["bytes"] = float(sum(t.numel() * t.element_size() for t in small.model.parameters()))
    found["milliseconds"] = latency(subject, small)
    if subject.task == "sentence-embedding":
        pairs = [subject.answers(model, subject.judging) for model in (small, subject.original)]
        count = min(10, len(subject.judging) - 2)
        mine, theirs = (nearest(rows, count) for rows in pairs)
        found["neighbours"] = float((mine & theirs).sum()) / (count * len(mine))
        if glue is not None:

            def embed_texts(texts: Sequence[str]) -> Tensor:
                return subject.answers(small, [((text,), 0) for text in texts])

            found["STS-B"] = sts(embed_texts, read_table(glue / "stsb" / "test.tsv"))
            for task in TASKS:
                if probes and (glue / task).is_dir():
                    found[task] = probe(embed_texts, glue / task)
    elif other is not None and subject.is_language_model:
        lines = [line for line in other.read_text(encoding="utf-8").splitlines() if len(line) > 40]
        random.Random(1).shuffle(lines)
        found["other domain"] = subject.score(
            small, [((line[: 4 * LENGTH],), 0) for line in lines[: len(subject.judging)]]
        )
    return found


def latency(subject: Subject, small: Small) -> float:
    """Milliseconds of one sample on one thread, the median of twenty."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = []
    with torch.no_grad():
        for sample in subject.judging[:20]:
            began = time.perf_counter()
            subject.answer(small, [sample])
            seconds.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    return 1000 * float(np.median(seconds))


def measured(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def run(subject: Subject, options: argparse.Namespace) -> None:
    """Measure every row that is missing."""
    name, file = options.name or options.checkpoint.resolve().name, options.output
    name += " in small" * options.small
    rows, total_params = measured(file), parameters(subject.original.model)
    known = {tuple(row[key] for key in COLUMNS[:4]) for row in rows}
    # refuse another checkpoint of that name
    for row in rows:
        is_size = (row["checkpoint"], row["arm"], row["metric"]) == (name, "original", "parameters")
        if is_size and row["value"] != f"{total_params:.6g}":
            there, here = row["value"], f"{total_params:.6g}"
            raise LeanifyError(f"{file}: {name!r} has {there} parameters there, {here} here; give --name")

    def keep(budget: str, arm: str, seed: int, stages: dict[str, dict[str, float]]) -> None:
        is_new = not file.is_file()
        with file.open("a", newline="", encoding="utf-8") as lines:
            writer = csv.writer(lines, lineterminator="\n")
            writer.writerows([COLUMNS] if is_new else [])
            for stage, found in stages.items():
                writer.writerows([name, budget, arm, seed, stage, key, f"{value:.6g}"] for key, value in found.items())
        print(budget, arm, seed, stages, flush=True)

    look = (options.glue, options.other)
    if (name, "1", "original", "0") not in known:
        keep("1", "original", 0, {"carried": measure(subject, subject.original, *look, True)})
    for seed, budget, arm in product(options.seeds, options.budget, options.arms):
        if (name, str(budget), arm, str(seed)) in known:
            continue
        torch.manual_seed(seed)
        began = time.process_time()
        try:
            small = subject.best(ARMS[arm](subject, int(budget * total_params), seed))
        except LeanifyError as error:
            print(budget, arm, seed, error, flush=True)
            continue
        minutes = (time.process_time() - began) / 60
        if arm == OURS[1]:
            keep(str(budget), arm, seed, {"healed": measure(subject, small, *look, True) | {"minutes": minutes}})
            continue
        carried = measure(subject, small, *look, False) | {"minutes": minutes}
        began = time.process_time()
        healed = subject.best(chain([small], subject.heal(small, seed)))  # rates may do harm
        minutes = (time.process_time() - began) / 60
        found = measure(subject, healed, *look, True) | {"minutes": minutes}
        keep(str(budget), arm, seed, {"carried": carried, "healed": found})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="pictures or texts, as shrink takes them")
    parser.add_argument("--name", help="of the checkpoint in the table (default: its folder's)")
    parser.add_argument("--budget", type=float, nargs="+", default=[0.75, 0.5, 0.35], help="shares of all parameters")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--glue", type=Path, help="GLUE's tables, for sentence encoders")
    parser.add_argument("--other", type=Path, help="texts of another domain, for language models")
    parser.add_argument("--small", action="store_true", help="few samples and steps: whether it runs")
    parser.add_argument("-o", "--output", type=Path, default=Path("checkpoints.csv"), help="rows (%(default)s)")
    options = parser.parse_args()
    try:
        run(Subject(options.checkpoint, options.data, options.small), options)
    except LeanifyError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
