"""all-MiniLM-L6-v2 made leaner in several ways, each healed on the same sentences: who keeps the embeddings?

    python -m recipes.research.warm_minilm WORK --minilm DIR --imdb DIR --stsb DIR [--seeds 0 1 2] [--arms …]
                                                [--samples N]
    python -m recipes.research.warm_minilm WORK --table > recipes/results/warm-minilm.md

DIR of MiniLM is the checkpoint in sentence-transformers' layout, of IMDb one with train.csv and test.csv (text), of
STS-B one with test.tsv (sentence1, sentence2, score). Everything is kept in WORK, so that what was stopped goes on
where it was.
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
from scipy.stats import spearmanr
from torch import Tensor, nn

import leanify
from leanify.data.probe_inputs import feed
from leanify.data.texts import tokenizers
from leanify.lens.sites import locate
from leanify.profiling.counting import body_parameters
from leanify.shrinking.teacher import CalibratedTeacher
from leanify.shrinking.transfer import transfer_weights
from leanify.tasks.sentence_embedding import embed
from leanify.training import start as training

SAMPLES, BATCH, TOKENS = 3200, 32, 64
CALIBRATION, HELD_OUT, LR, GOAL = 512, 64, 5e-4, 0.95


@dataclass(frozen=True)
class Arm:
    """Depth, heads and hidden units; the moves that may shorten it, None for random weights."""

    words: str
    depth: int
    heads: int
    mlp: int
    moves: tuple[str, ...] | None


ARMS = {  # of equal parameters in their blocks within one per cent: 5.9 M of 10.65 M
    "pair and narrow": Arm("more heads, blocks paired", 5, 18, 384, ("pair",)),
    "drop, same shape": Arm("more heads, blocks dropped", 5, 18, 384, ("drop",)),
    "control": Arm("old heads, wider MLP, the default's moves", 5, 12, 768, ("drop", "pair")),
    "drop only": Arm("two blocks dropped, MLP narrowed", 4, 12, 1152, ("drop",)),
    "narrow only": Arm("all six blocks, MLP narrowed", 6, 12, 512, ()),
    "random": Arm("more heads, random weights", 5, 18, 384, None),
}


# -- data -------------------------------------------------------------------------------------------------------------


def sentences(imdb: Path, out: Path) -> None:
    """IMDb's reviews as single sentences of 5 to 45 words: of train to learn from, of test to validate on."""
    out.mkdir(parents=True, exist_ok=True)
    for split, name, most in (("train", "train.csv", 200_000), ("test", "validation.csv", 2_000)):
        if (out / name).is_file():
            continue
        with (imdb / f"{split}.csv").open(newline="", encoding="utf-8") as file:
            reviews = [row["text"] for row in csv.DictReader(file)]
        rows = list(dict.fromkeys(sentence for review in reviews for sentence in _cut(review)))
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
        self.tokenizer = tokenizers.load(str(minilm))
        with held_out.open(newline="", encoding="utf-8") as file:
            self.texts = [row["text"] for row in csv.DictReader(file)][:500]
        with (stsb / "test.tsv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        self.pairs = [(row["sentence1"], row["sentence2"]) for row in rows]
        self.wanted = np.array([float(row.get("score") or row["label"]) for row in rows])
        self.teacher = vectors(leanify.load(minilm), self.texts, self.tokenizer)

    def of(self, model: nn.Module) -> dict[str, float]:
        cosine = (vectors(model, self.texts, self.tokenizer) * self.teacher).sum(1).mean().item()
        first, second = (vectors(model, [pair[i] for pair in self.pairs], self.tokenizer) for i in (0, 1))
        given = (first * second).sum(1).numpy()
        return {"cosine": cosine, "stsb": 100 * float(spearmanr(self.wanted, given).statistic)}


# -- arms -------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    for name in ("minilm", "imdb", "stsb"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arms", nargs="*")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--table", action="store_true")
    told = parser.parse_args()
    if told.table:
        print("\n".join(page(json.loads((told.work / "rows.json").read_text()))))
        return
    sentences(told.imdb, told.work / "sentences")
    scales = Scales(told.minilm, told.work / "sentences" / "validation.csv", told.stsb)
    base = leanify.load(told.minilm)
    keep(told.work, "teacher", lambda: {"body": body_parameters(locate(base)), **scales.of(base)})
    for seed in told.seeds:
        for name, arm in ARMS.items():
            if name in (told.arms or ARMS):
                keep(
                    told.work,
                    f"{name}/{told.samples}/{seed}",
                    lambda n=name, a=arm, s=seed: ran(told, base, scales, n, a, s),
                )


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
        before = {"body": body_parameters(locate(model)), "steps": steps, "carry_s": time.perf_counter() - began}
        leanify.save(model, lean)
        facts.write_text(json.dumps({**before, "before": scales.of(model)}))
    run = place / f"run-{told.samples}-{seed}"
    settings = (
        f"data.path={told.work / 'sentences'}", f"data.samples={told.samples}", f"data.length={TOKENS}",
        f"schedule.batch_size={BATCH}", "schedule.epochs=1", f"optim.lr={LR}", f"run.seed={seed}",
        "model.override.hidden_dropout_prob=0", "model.override.attention_probs_dropout_prob=0",
        "run.eval_batches=8", "run.checkpoint_every=200", "run.keep=1",
    )  # fmt: skip
    began = time.perf_counter()
    if run.is_dir():
        training.train(resume=run)
    else:
        training.train(lean, run, settings=settings, teacher=str(told.minilm))
    after = scales.of(leanify.load(run))
    healed = {"samples": told.samples, "heal_s": time.perf_counter() - began}
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
    found = transfer_weights(CalibratedTeacher(base, *parts), shape, moves=arm.moves or ("drop", "pair"))
    return found.model, [f"{step.description} ({step.damage:.2f})" for step in found.steps]


# -- the page ---------------------------------------------------------------------------------------------------------

HEAD = """\
# Warm start of a sentence encoder

all-MiniLM-L6-v2 (6 post-norm layers of 12 heads, MLP 1536) brought to {share:.0%} of its blocks' parameters in several
ways, each healed on the same {samples:,} single sentences of IMDb's training reviews (batches of {batch}, at most
{tokens} tokens, one epoch, fp32, no dropout, lr {lr:g}) with the original as its teacher. All shapes have {body:.2f} M
parameters in their blocks within one per cent, of {base:.2f} M.

    python -m recipes.research.warm_minilm WORK --minilm DIR --imdb DIR --stsb DIR --seeds 0 1 2
    python -m recipes.research.warm_minilm WORK --table > recipes/results/warm-minilm.md

*cosine*: to the teacher's embedding, mean over 500 sentences of IMDb's test reviews. *STS-B*: Spearman's ρ × 100 on the
1,379 test pairs. *steps*: the damage after each, as Σ|y − t|² / Σ|t − mean|² of the last layer's tokens on 64 held-out
sentences (among the 500), on which pairing or dropping was chosen. Fits were made on {calibration:,} others. Of several
seeds, of the healing's order of sentences: the mean, and the range.
"""


def page(rows: dict[str, Any]) -> list[str]:
    teacher = rows.pop("teacher")
    arms: dict[str, list[dict[str, Any]]] = {}
    longer: list[tuple[str, dict[str, Any]]] = []
    for name, row in rows.items():
        arm, samples, _ = name.split("/")
        if int(samples) == SAMPLES:
            arms.setdefault(arm, []).append(row)
        else:
            longer.append((arm, row))
    body_of = next(iter(rows.values()))["body"]
    whole = teacher["body"]
    facts = {"share": body_of / whole, "body": body_of / 1e6, "base": whole / 1e6, "calibration": CALIBRATION}
    words = HEAD.format(samples=SAMPLES, batch=BATCH, tokens=TOKENS, lr=LR, **facts)
    lines = [*words.splitlines(), "",
             "| arm | layers × heads, MLP | blocks | seeds | cosine before | after | STS-B before | after | steps |",
             "|---|---|---|---|---|---|---|---|---|",
             f"| teacher | 6 × 12, 1536 | {teacher['body'] / 1e6:.2f} M | – | 1 | – | {teacher['stsb']:.1f} | – | – |",
             ]  # fmt: skip
    for name, some in sorted(arms.items(), key=lambda item: -mean(item[1], "cosine")):
        depth, heads, mlp = some[0]["shape"]
        lines.append(
            f"| {name}: {some[0]['words']} | {depth} × {heads}, {mlp} | {some[0]['body'] / 1e6:.2f} M | {len(some)} | "
            f"{some[0]['before']['cosine']:.3f} | {spread(some, 'cosine', 3)} | {some[0]['before']['stsb']:.1f} | "
            f"{spread(some, 'stsb', 1)} | {'; '.join(some[0]['steps']) or '–'} |"
        )
    return [*lines, "", *of_longer(teacher, longer), *conclusions(teacher, arms)]


def of_longer(teacher: dict[str, Any], rows: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    """What more sentences bring."""
    if not rows:
        return
    yield from ("## More sentences", "", "The same command with `--samples N --arms ARM`; minutes are wall time of the "
                "healing alone, on one shared core.", "", "| arm | sentences | cosine | STS-B | minutes |",
                "|---|---|---|---|---|")  # fmt: skip
    for arm, row in rows:
        note = f" ({row['note']})" if "note" in row else ""
        yield (
            f"| {arm}{note} | {row['samples']:,} | {row['cosine']:.3f} | {row['stsb']:.1f} | {row['heal_s'] / 60:.0f} |"
        )
    arm, best = max(rows, key=lambda one: one[1]["cosine"])
    reached = best["cosine"] >= GOAL and teacher["stsb"] - best["stsb"] <= 2
    yield ""
    yield (
        f"*{arm}* {'reaches' if reached else 'misses'} the goal, a cosine of {GOAL} and STS-B within 2 points of the "
        f"teacher's {teacher['stsb']:.1f}."
    )
    yield ""


def mean(some: Sequence[dict[str, Any]], key: str) -> float:
    return sum(row[key] for row in some) / len(some)


def spread(some: Sequence[dict[str, Any]], key: str, digits: int) -> str:
    """The mean, and the range over seeds where there are several."""
    values = [row[key] for row in some]
    words = f"{mean(some, key):.{digits}f}"
    return words if len(values) == 1 else f"{words} ({min(values):.{digits}f} … {max(values):.{digits}f})"


def conclusions(teacher: dict[str, Any], arms: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    cosine = {name: mean(some, "cosine") for name, some in arms.items()}
    stsb = {name: mean(some, "stsb") for name, some in arms.items()}
    best = max(cosine, key=cosine.__getitem__)
    yield "## What this says"
    yield ""
    yield (
        f"- **Best by cosine: {best}** ({cosine[best]:.3f}; STS-B {stsb[best]:.1f}, "
        f"{teacher['stsb'] - stsb[best]:.1f} points below the teacher)."
    )
    reached = [name for name in cosine if cosine[name] >= GOAL and teacher["stsb"] - stsb[name] <= 2]
    near = [name for name in stsb if teacher["stsb"] - stsb[name] <= 2]
    yield (
        f"- The goal (cosine 0.95 and STS-B within 2 points) is reached by {', '.join(reached) or 'none'} after "
        f"{SAMPLES:,} sentences; within 2 points on STS-B alone: {', '.join(near) or 'none'}."
    )
    for one, other, what in (
        ("pair and narrow", "drop, same shape", "pairing a layer instead of dropping it, with more heads"),
        ("pair and narrow", "control", "more heads instead of a wider MLP (control)"),
        ("pair and narrow", "narrow only", "more heads instead of keeping all six layers"),
        ("pair and narrow", "drop only", "more heads instead of dropping whole layers"),
        ("narrow only", "control", "keeping all six layers instead of the control"),
        ("pair and narrow", "random", "the teacher's weights instead of random ones"),
    ):
        if one in arms and other in arms:
            before = arms[one][0]["before"]["cosine"] - arms[other][0]["before"]["cosine"]
            yield (
                f"- {what}: cosine {before:+.3f} before and {cosine[one] - cosine[other]:+.3f} after healing, STS-B "
                f"{stsb[one] - stsb[other]:+.1f} after it."
            )
    if max(map(len, arms.values())) == 1:
        yield "- One seed an arm: differences of thousandths of cosine or tenths of a point are not told from noise."


if __name__ == "__main__":
    main()
