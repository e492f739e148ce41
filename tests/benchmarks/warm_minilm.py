"""all-MiniLM-L6-v2 made leaner in several ways, each healed on the same sentences: who keeps the embeddings?

    python tests/benchmarks/warm_minilm.py WORK --minilm DIR --imdb DIR --stsb DIR [--seeds 0 1 2] [--arms …]
    python tests/benchmarks/warm_minilm.py WORK --table > recipes/results/warm-minilm.md

DIR of MiniLM is the checkpoint in sentence-transformers' layout, of IMDb one with train.csv and test.csv, of STS-B one
with test.tsv. Everything is kept in WORK, so that what was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanify
from leanify import training
from leanify.data import delimited, vocabulary
from leanify.data.glue import TASKS, rows_of
from leanify.data.probe_inputs import feed
from leanify.design.counting import body
from leanify.lens.sites import locate
from leanify.tasks.glue import spearman
from leanify.tasks.sentence_embedding import embed
from leanify.warm.carry import carry

SHARE, SAMPLES, BATCH, TOKENS = 0.6, 6400, 32, 64
CALIBRATION, HELD_OUT, LR = 256, 64, 5e-4


@dataclass(frozen=True)
class Arm:
    """Depth, heads and hidden units; the moves that may shorten it, None for random weights."""

    words: str
    depth: int
    heads: int
    mlp: int
    moves: tuple[str, ...] | None


def arms(plan: Any) -> dict[str, Arm]:
    """All have as many parameters in their blocks as the design that leanify plans, within one per cent."""
    lean, control = plan.chosen, plan.control
    shape = (lean.depth, lean.heads, lean.mlp)
    return {
        "pair and narrow": Arm("planned shape, blocks paired", *shape, ("pair",)),
        "drop, same shape": Arm("planned shape, blocks dropped", *shape, ("drop",)),
        "control": Arm(
            "control: old heads, wider MLP, the default", control.depth, control.heads, control.mlp, ("drop", "pair")
        ),
        "drop only": Arm("two blocks dropped, MLP narrowed", 4, 12, 1152, ("drop",)),
        "narrow only": Arm("all six blocks, MLP narrowed", 6, 12, 512, ()),
        "random": Arm("planned shape, random weights", *shape, None),
    }


# -- data -------------------------------------------------------------------------------------------------------------


def sentences(imdb: Path, out: Path) -> None:
    """IMDb's reviews as single sentences of 5 to 45 words: of train to learn from, of test to validate on."""
    out.mkdir(parents=True, exist_ok=True)
    for split, name, most in (("train", "train.csv", 200_000), ("test", "validation.csv", 2_000)):
        if (out / name).is_file():
            continue
        found = dict.fromkeys(sentence for _, [text] in delimited.rows(imdb / f"{split}.csv", ("text",))
                              for sentence in _cut(text))  # fmt: skip
        rows = list(found)
        random.Random(0).shuffle(rows)
        with (out / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text"], *([row] for row in rows[:most])])


def _cut(text: str) -> Iterator[str]:
    for piece in re.split(r"(?<=[.!?])\s+", re.sub(r"<br ?/?>", " ", text)):
        words = piece.split()
        if 5 <= len(words) <= 45:
            yield " ".join(words)


# -- measuring --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def vectors(model: nn.Module, texts: Sequence[str], tokenizer: Any) -> Tensor:
    """Embeddings of length 1, (texts, width), in the order of the texts."""
    model.eval()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found: list[Any] = [None] * len(texts)
    for start in range(0, len(order), 64):
        some = order[start : start + 64]
        inputs = tokenizer([texts[i] for i in some], truncation=True, max_length=TOKENS, padding=True,
                           return_tensors="pt", return_token_type_ids=False)  # fmt: skip
        for i, row in zip(some, F.normalize(embed(model, dict(inputs), ("mean",)), dim=-1), strict=True):
            found[i] = row
    return torch.stack(found)


class Scales:
    """Cosine to the teacher on held-out sentences, and Spearman's ρ on STS-B's test pairs."""

    def __init__(self, minilm: Path, held_out: Path, stsb: Path) -> None:
        self.tokenizer = vocabulary.load(str(minilm))
        self.texts = [text for _, [text] in delimited.rows(held_out, ("text",))][:500]
        rows = list(rows_of(stsb / "test.tsv", TASKS["stsb"]))
        self.pairs, self.wanted = [pair for pair, _ in rows], np.array([label for _, label in rows])
        self.teacher = vectors(leanify.load(minilm), self.texts, self.tokenizer)

    def of(self, model: nn.Module) -> dict[str, float]:
        cosine = (vectors(model, self.texts, self.tokenizer) * self.teacher).sum(1).mean().item()
        first, second = (vectors(model, [pair[i] for pair in self.pairs], self.tokenizer) for i in (0, 1))
        given = (first * second).sum(1).numpy()
        return {"cosine": cosine, "stsb": 100 * spearman(self.wanted, given)}


# -- arms -------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    for name in ("minilm", "imdb", "stsb"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arms", nargs="*")
    parser.add_argument("--table", action="store_true")
    told = parser.parse_args()
    if told.table:
        print("\n".join(page(json.loads((told.work / "rows.json").read_text()))))
        return
    sentences(told.imdb, told.work / "sentences")
    plan = leanify.redesign(told.minilm, target_params=SHARE, count="body")
    scales = Scales(told.minilm, told.work / "sentences" / "validation.csv", told.stsb)
    base = leanify.load(told.minilm)
    keep(told.work, "teacher", lambda: {"body": body(locate(base)), **scales.of(base)})
    for seed in told.seeds:
        for name, arm in arms(plan).items():
            if name in (told.arms or arms(plan)):
                keep(told.work, f"{name}/{seed}", lambda n=name, a=arm, s=seed: ran(told, base, scales, n, a, s))  # type: ignore[misc]


def keep(work: Path, name: str, make: Callable[[], dict[str, Any]]) -> None:
    file = work / "rows.json"
    rows = json.loads(file.read_text()) if file.is_file() else {}
    if name not in rows:
        row = make()
        rows = json.loads(file.read_text()) if file.is_file() else {}
        file.write_text(json.dumps({**rows, name: row}, indent=1))
        print(name, row, flush=True)


def ran(told: argparse.Namespace, base: nn.Module, scales: Scales, name: str, arm: Arm, seed: int) -> dict[str, Any]:
    """An arm: carried, measured, healed, measured. What is carried is the same for every seed of the training."""
    place = told.work / name.replace(",", "").replace(" ", "-")
    lean = place / (f"random-{seed}" if arm.moves is None else "lean")
    facts = place / "carried.json"
    if not lean.is_dir():
        began = time.perf_counter()
        model, steps = carried(told, base, arm, seed)
        before = {"body": body(locate(model)), "steps": steps, "carry_s": time.perf_counter() - began}
        leanify.save(model, lean)
        facts.write_text(json.dumps({**before, "before": scales.of(model)}))
    run = place / f"run-{seed}"
    settings = (
        f"data.path={told.work / 'sentences'}", f"data.samples={SAMPLES}", f"data.length={TOKENS}",
        f"schedule.batch_size={BATCH}", "schedule.epochs=1", f"optim.lr={LR}", "run.precision=bf16",
        f"run.seed={seed}", "run.eval_batches=8", "run.checkpoint_every=100", "run.keep=1",
    )  # fmt: skip
    began = time.perf_counter()
    if run.is_dir():
        training.train(resume=run)
    else:
        training.train(lean, run, settings=settings, teacher=str(told.minilm))
    after = scales.of(leanify.load(run))
    healed = {"samples": SAMPLES, "heal_s": time.perf_counter() - began}
    return {**json.loads(facts.read_text()), **healed, **after, "words": arm.words,
            "shape": [arm.depth, arm.heads, arm.mlp]}  # fmt: skip


def carried(told: argparse.Namespace, base: nn.Module, arm: Arm, seed: int) -> tuple[nn.Module, list[str]]:
    old = leanify.read(base)
    shape = replace(old, stages=(old.stages[0].reshape(arm.depth, arm.heads, mlp=arm.mlp),))
    if arm.moves is None:
        torch.manual_seed(seed)
        return leanify.write(base, shape, "fresh"), []
    parts = [
        list(feed(base, told.work / "sentences" / name, samples=count, batch_size=16, tokens=TOKENS,
                  directory=told.minilm).batches)
        for name, count in (("train.csv", CALIBRATION), ("validation.csv", HELD_OUT))
    ]  # fmt: skip
    found = carry(base, shape, *parts, moves=arm.moves or ("drop", "pair"))
    return found.model, [f"{step.words} ({step.damage:.2f})" for step in found.steps]


def page(rows: dict[str, Any]) -> list[str]:
    return [json.dumps(rows)]


if __name__ == "__main__":
    main()
