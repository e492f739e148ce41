"""Two small models trained here, made leaner in several ways and healed: a ViT on Fashion-MNIST, a byte GPT on enwik8.

    python tests/benchmarks/warm_small.py vit|gpt WORK --data DIR [--base RUN] [--arms …]
    python tests/benchmarks/warm_small.py table WORK > recipes/results/warm-small.md

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
from leanify import training
from leanify.data.probe_inputs import feed
from leanify.design.counting import body, call
from leanify.lens.sites import locate
from leanify.sources import recipe as recipes
from leanify.warm.carry import carry

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
samples = 6000
crop = [0.9, 1.0]
color_jitter = 0.0
workers = 0
[optim]
lr = 2e-3
weight_decay = 0.05
clip = 1.0
[schedule]
epochs = 4
batch_size = 64
warmup = 0.5
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
def latency(model: nn.Module, batch: dict[str, Tensor]) -> float:
    """Milliseconds at batch 1: the fastest of many."""
    one = {name: value[:1] for name, value in batch.items()}
    times = []
    for _ in range(PASSES):
        began = time.perf_counter()
        call(model, one)
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


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


def measured(kind: str, model: nn.Module, batches: Sequence[dict[str, Tensor]], trainer: Any) -> dict[str, float]:
    model.eval()
    facts = {"body": float(body(locate(model))), "latency_ms": latency(model, batches[0])}
    if kind == "vit":
        trainer.bare = model
        return {**facts, "quality": trainer.evaluate()["top1"]}
    layers = leanify.read(model).layers()
    kv = sum(2 * layer.kv_heads * layer.head_dim * 4 for layer in layers)
    return {**facts, "quality": loss_of(model, batches), "kv_bytes": kv, "cache_error": cache_error(model, batches[0])}


# -- arms -------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=(*KINDS, "table"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--arms", nargs="*")
    told = parser.parse_args()
    if told.kind == "table":
        print("\n".join(page(told.work)))
        return
    kind = KINDS[told.kind]
    recipe = recipes.with_settings(recipes.parse(kind.recipe), [f"data.path={told.data}"])
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
    still = recipes.with_settings(recipe, [f"model.source={base}", *_plain(recipe)])
    trainer = training.Trainer(still)
    keep(told, "base", lambda: measured(told.kind, model, test, trainer))
    for name, arm in kind.arms.items():
        if not told.arms or name in told.arms:
            keep(told, name, lambda n=name, a=arm: ran(told, n, a, model, base, calibration, held_out, test, trainer))  # type: ignore[misc]


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
        found = carry(base, shape, calibration, held_out, moves=moves or BOTH)
        model, steps = found.model, [f"{step.words} ({step.damage:.3f})" for step in found.steps]
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
        settings = [f"data.path={told.data}", f"model.source={lean}", *_plain(recipe), *kind.healing]
        training.train(recipes.with_settings(recipe, settings), run, teacher=str(source))
    after = measured(told.kind, leanify.load(run), test, trainer)
    return {"shape": [depth, heads, mlp], "steps": steps, "before": before, "after": after}


# -- the page ---------------------------------------------------------------------------------------------------------


def page(work: Path) -> list[str]:
    lines = [json.dumps(json.loads((work / kind / "rows.json").read_text())) for kind in KINDS]
    return lines


if __name__ == "__main__":
    main()
