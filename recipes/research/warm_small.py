"""Two small models trained here, made leaner in several ways and healed: a ViT on Fashion-MNIST, a byte GPT on enwik8.

    python -m recipes.research.warm_small vit|gpt WORK --data DIR [--base RUN] [--arms …]
    python -m recipes.research.warm_small latency WORK      # of all arms in turn
    python -m recipes.research.warm_small table WORK > recipes/results/warm-small.md

DIR is an image folder (train/CLASS/*.png, validation/CLASS/*.png), or one with train.txt and validation.txt. The base
is trained first, unless a run is given. Everything is kept in WORK: what was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanify
from leanify.core import recipe as recipes
from leanify.data.probe_inputs import feed
from leanify.data.samples import Reader
from leanify.lens.sites import locate
from leanify.profiling.counting import body_parameters, call
from leanify.shrinking.teacher import CalibratedTeacher
from leanify.shrinking.transfer import transfer_weights
from leanify.training import start as training
from leanify.training.loop import Trainer
from leanify.upstream.inputs import example_inputs

PASSES = 60  # of a latency: the fastest counts

VIT = """
[model]
source = "vit_tiny_patch16_224"
[model.override]
img_size = 28
patch_size = 4
in_chans = 1
num_classes = 10
embed_dim = 64
depth = 8
num_heads = 4
[data]
name = "fashion-mnist"
task = "classification"
samples = 12000
crop = [0.9, 1.0]
color_jitter = 0.0
workers = 0
[optim]
lr = 2e-3
weight_decay = 0.05
clip = 1.0
[schedule]
epochs = 8
batch_size = 64
warmup = 1
[run]
log_every = 100
eval_batches = 16
keep = 1
"""

GPT = """
[model]
source = "hf/gpt2"
class = "AutoModelForCausalLM"
override = { n_embd = 64, n_layer = 12, n_head = 4, n_positions = 64, vocab_size = 256, attn_pdrop = 0.0, embd_pdrop = 0.0, resid_pdrop = 0.0, bos_token_id = 0, eos_token_id = 0 }
[data]
name = "data"
task = "causal-lm"
length = 64
[optim]
lr = 3e-3
weight_decay = 0.05
clip = 1.0
[schedule]
batch_size = 32
steps = 3000
warmup = 150
[run]
eval_every = 1000
eval_batches = 32
checkpoint_every = 500
keep = 1
"""  # noqa: E501


@dataclass(frozen=True)
class Kind:
    """A base's recipe; how healing differs from it; what is measured; the arms: depth, heads, hidden units, moves."""

    recipe: str
    healing: tuple[str, ...]
    arms: dict[str, tuple[int, int, int, tuple[str, ...] | None]]


BOTH = ("drop", "pair")
SMALL = ("schedule.epochs=", "schedule.steps=4", "schedule.warmup=1", "run.eval_every=4", "run.checkpoint_every=4")
KINDS = {
    "vit": Kind(
        VIT,
        ("optim.lr=1e-3", "schedule.epochs=0.5", "schedule.warmup=0.1"),
        {
            "0.75 drop": (6, 4, 256, ("drop",)),
            "0.75 narrow": (8, 4, 160, ()),
            "0.75 pair and narrow": (5, 8, 204, ("pair",)),
            "0.75 control": (5, 4, 332, BOTH),
            "0.5 drop": (4, 4, 256, ("drop",)),
            "0.5 narrow": (8, 4, 64, ()),
            "0.5 pair and narrow": (4, 7, 160, ("pair",)),
            "0.5 drop and narrow, same shape": (4, 7, 160, ("drop",)),
            "0.5 random, same shape": (4, 7, 160, None),
        },
    ),
    "gpt": Kind(
        GPT,
        ("optim.lr=1e-3", "schedule.steps=60", "schedule.warmup=6", "run.eval_every=60", "run.checkpoint_every=60"),
        {
            "0.75 drop": (9, 4, 256, ("drop",)),
            "0.75 narrow": (12, 4, 160, ()),
            "0.75 pair and narrow": (8, 8, 176, ("pair",)),
            "0.75 drop and narrow, same shape": (8, 8, 176, ("drop",)),
            "0.75 control": (8, 4, 304, BOTH),
            "0.5 drop": (6, 4, 256, ("drop",)),
            "0.5 narrow": (12, 4, 64, ()),
            "0.5 pair and narrow": (8, 6, 96, ("pair",)),
            "0.5 drop and narrow, same shape": (8, 6, 96, ("drop",)),
            "0.5 random, same shape": (8, 6, 96, None),
        },
    ),
}


# -- measuring --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def loss_of(model: nn.Module, batches: Sequence[dict[str, Tensor]]) -> float:
    """Nats a byte."""
    total = count = 0.0
    for batch in batches:
        ids = batch["input_ids"]
        logits: Any = model(ids).logits
        total += F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
        count += ids[:, 1:].numel()
    return total / count


@torch.no_grad()
def cache_error(model: Any, batch: dict[str, Tensor]) -> float:
    """The largest difference of logits between a whole pass and one token at a time with its cache."""
    ids, past, found = batch["input_ids"][:2], None, []
    for place in range(ids.shape[1]):
        given = model(ids[:, place : place + 1], past_key_values=past, use_cache=True)
        past = given.past_key_values
        found.append(given.logits)
    whole = model(ids, use_cache=False).logits
    return float((torch.cat(found, 1) - whole).abs().max())


@torch.no_grad()
def top1(model: nn.Module, trainer: Any) -> float:
    """Per cent of 1,000 validation samples, taken evenly: a folder is sorted by class."""
    samples, right, count = trainer.splits.validation, 0, 0
    chosen = range(0, len(samples), len(samples) // 1000)
    keys = [[(0, i) for i in chosen[start : start + 50]] for start in range(0, 1000, 50)]
    for inputs, targets in Reader(samples, keys, 0, 0):
        right += int((model(trainer.splits.scale_inputs(inputs)).argmax(-1) == targets).sum())
        count += len(targets)
    return 100 * right / count


def measured(kind: str, model: nn.Module, batches: Sequence[dict[str, Tensor]], trainer: Any) -> dict[str, float]:
    model.eval()
    facts = {"body": float(body_parameters(locate(model)))}
    if kind == "vit":
        return {**facts, "quality": top1(model, trainer)}
    layers = leanify.read(model).layers()
    kv = sum(2 * layer.kv_heads * layer.head_dim * 4 for layer in layers)
    return {**facts, "quality": loss_of(model, batches), "kv_bytes": kv, "cache_error": cache_error(model, batches[0])}


# -- arms -------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=(*KINDS, "latency", "table"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--arms", nargs="*")
    parser.add_argument("--small", action="store_true", help="few steps of training: whether it runs")
    told = parser.parse_args()
    if told.kind == "table":
        print("\n".join(page(told.work)))
        return
    if told.kind == "latency":
        return latencies(told.work, told.base)
    kind = KINDS[told.kind]
    recipe = recipes.apply_settings(recipes.parse(kind.recipe), [f"data.path={told.data}", *shortened(told)])
    base = told.base or told.work / told.kind / "base"
    if base.is_dir():
        training.train(resume=base)
    else:
        training.train(recipe, base)
    model = leanify.load(base)
    where = [told.data / "train", told.data / "validation"]
    where = where if told.kind == "vit" else [path.with_suffix(".txt") for path in where]
    calibration, held_out = (
        list(feed(model, path, samples=64, batch_size=16, tokens=64).batches) for path in where
    )  # fmt: skip
    test = list(feed(model, where[1], samples=640, batch_size=32, tokens=64).batches)[4:]
    still = recipes.apply_settings(recipe, [f"model.source={base}", *_plain(recipe)])
    trainer = Trainer(still)
    keep(told, "base", lambda: measured(told.kind, model, test, trainer))
    for name, arm in kind.arms.items():
        if not told.arms or name in told.arms:
            keep(told, name, lambda n=name, a=arm: ran(told, n, a, model, base, calibration, held_out, test, trainer))


def shortened(told: argparse.Namespace) -> tuple[str, ...]:
    """Settings of ``--small``."""
    return SMALL if told.small else ()


def _plain(recipe: Any) -> list[str]:
    """Settings that leave the source's shape and options as they are."""
    return ["model.override={}"] if recipe.model.override else []


def keep(told: argparse.Namespace, name: str, make: Callable[[], dict[str, Any]]) -> None:
    file = told.work / told.kind / "rows.json"
    rows = json.loads(file.read_text()) if file.is_file() else {}
    if name not in rows:
        file.parent.mkdir(parents=True, exist_ok=True)
        rows[name] = make()
        file.write_text(json.dumps(rows, indent=1))
        print(told.kind, name, rows[name], flush=True)


def ran(
    told: argparse.Namespace, name: str, arm: Any, base: nn.Module, source: Path, calibration: Any, held_out: Any,
    test: Any, trainer: Any,
) -> dict[str, Any]:  # fmt: skip
    """An arm: carried, measured, healed on equal samples with the base as its teacher, measured."""
    depth, heads, mlp, moves = arm
    old = leanify.read(base)
    shape = replace(old, stages=(old.stages[0].reshape(depth, heads, mlp=mlp),))
    steps: list[str] = []
    if moves is None:
        torch.manual_seed(0)
        model = leanify.write(base, shape, "fresh")
    else:
        found = transfer_weights(CalibratedTeacher(base, calibration, held_out), shape, moves=moves or BOTH)
        model, steps = found.model, [f"{step.description} ({step.damage:.3f})" for step in found.steps]
    before = measured(told.kind, model, test, trainer)
    place = told.work / told.kind / name.replace(" ", "-").replace(",", "")
    lean = place / "lean"
    if not lean.is_dir():
        leanify.save(model, lean)
    run = place / "run"
    if run.is_dir():
        training.train(resume=run)
    else:
        kind = KINDS[told.kind]
        recipe = recipes.parse(kind.recipe)
        settings = [f"data.path={told.data}", f"model.source={lean}", *_plain(recipe)]
        settings += [*kind.healing, *shortened(told)]
        training.train(recipes.apply_settings(recipe, settings), run, teacher=str(source))
    after = measured(told.kind, leanify.load(run), test, trainer)
    return {"shape": [depth, heads, mlp], "steps": steps, "before": before, "after": after}


# -- latency ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def latencies(work: Path, base: Path | None) -> None:
    """Milliseconds at batch 1 of every arm: all take turns, and the fastest pass of each counts."""
    for kind in KINDS:
        file = work / kind / "rows.json"
        if not file.is_file():
            continue
        rows = json.loads(file.read_text())
        places = {
            name: work / kind / name.replace(" ", "-").replace(",", "") / "lean" for name in rows if name != "base"
        }
        places["base"] = base if base is not None and kind == "gpt" else work / kind / "base"
        models = {name: leanify.load(place).eval() for name, place in places.items()}
        inputs = example_inputs(models["base"], 1, 64 if kind == "gpt" else None)
        best = dict.fromkeys(models, float("inf"))
        for _ in range(PASSES):
            for name, model in models.items():
                began = time.perf_counter()
                call(model, inputs)
                best[name] = min(best[name], 1e3 * (time.perf_counter() - began))
        file.write_text(json.dumps({name: {**row, "latency_ms": best[name]} for name, row in rows.items()}, indent=1))


# -- the page ---------------------------------------------------------------------------------------------------------

HEAD = """\
# Warm starts of two small models

A ViT (8 layers of 4 heads, width 64) trained on Fashion-MNIST and a byte GPT (12 layers of 4 heads, width 64) on
enwik8, brought to 0.75 and to 0.5 of their blocks' parameters in several ways; each healed on the same few samples with
the original as its teacher. Both bases are trained for minutes and far from converged; one seed.

    python -m recipes.research.warm_small vit WORK --data DIR; python -m recipes.research.warm_small gpt WORK --data DIR
    python -m recipes.research.warm_small latency WORK
    python -m recipes.research.warm_small table WORK > recipes/results/warm-small.md

*pair and narrow*, *drop and narrow* and *random* of one budget have one shape. *latency*: of one sample on one core
alone, the fastest of {passes} passes taken in turn; – where none was free. *KV*: of cache a token, in float32.
*steps*: damage after each, KL to the base in nats. A model that is missing below was not run to the end.
"""
TITLES = {"vit": "## ViT, top-1 in per cent", "gpt": "## GPT, nats a byte (less is better)"}


def page(work: Path) -> list[str]:
    lines = HEAD.format(passes=PASSES).splitlines()
    for kind, title in TITLES.items():
        file = work / kind / "rows.json"
        rows = json.loads(file.read_text()) if file.is_file() else {}
        if len(rows) > 1:
            lines += ["", title, "", *table(kind, rows)]
    return lines


def table(kind: str, rows: dict[str, Any]) -> list[str]:
    base, cached = rows.pop("base"), kind == "gpt"
    lines = [
        f"| arm | layers × heads, MLP | blocks | before | after | latency, ms |{' KV, bytes |' * cached} steps |",
        f"|---|---|---|---|---|---|{'---|' * cached}---|",
        f"| base | | {base['body'] / 1e3:.0f} k | {base['quality']:.3f} | – | {ms(base)} |"
        + f" {base.get('kv_bytes', 0):,} |" * cached + " – |",
    ]  # fmt: skip
    for name, row in rows.items():
        depth, heads, mlp = row["shape"]
        lines.append(
            f"| {name} | {depth} × {heads}, {mlp} | {row['before']['body'] / base['body']:.3f} | "
            f"{row['before']['quality']:.3f} | {row['after']['quality']:.3f} | {ms(row)} |"
            + f" {row['before'].get('kv_bytes', 0):,} |" * cached + f" {'; '.join(row['steps']) or '–'} |"
        )  # fmt: skip
    return [*lines, "", *conclusions(kind, base, rows)]


def ms(row: dict[str, Any]) -> str:
    return f"{row['latency_ms']:.1f}" if "latency_ms" in row else "–"


def conclusions(kind: str, base: dict[str, Any], rows: dict[str, Any]) -> list[str]:
    better, unit = (max, "points of top-1") if kind == "vit" else (min, "nats")
    lines = []
    for share in ("0.75", "0.5"):
        some = {name: row for name, row in rows.items() if name.startswith(f"{share} ")}
        if not some:
            continue
        when = {w: better(some, key=lambda name, w=w: some[name][w]["quality"]) for w in ("before", "after")}
        gap = some[when["after"]]["after"]["quality"] - base["quality"]
        lines.append(
            f"- {share}: best before healing *{when['before']}*, after it *{when['after']}* "
            f"({gap:+.3f} {unit} against the base)."
        )
        pair, drop = some.get(f"{share} pair and narrow"), some.get(f"{share} drop and narrow, same shape")
        if pair and drop:
            apart = [pair[w]["quality"] - drop[w]["quality"] for w in ("before", "after")]
            lines.append(
                f"- {share}: pairing less dropping in one shape: {apart[0]:+.3f} before, {apart[1]:+.3f} after."
            )
    if kind == "gpt":
        worst = max(row[w]["cache_error"] for row in rows.values() for w in ("before", "after"))
        lines.append(f"- Token by token with its cache, every arm gives the logits of a whole pass within {worst:.0e}.")
    return lines


if __name__ == "__main__":
    main()
