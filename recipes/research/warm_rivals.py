"""Beside two peers, on one checkpoint and the same sentences: all-MiniLM-L6-v2 with fewer units or fewer layers.

    python -m recipes.research.warm_rivals WORK --minilm DIR --imdb DIR --stsb DIR > recipes/results/warm-rivals.md

Torch-Pruning (Fang et al. 2023) removes hidden units by magnitude and by a first-order Taylor estimate; mergekit's
passthrough leaves layers out. Both must be installed beside leanify: pip install torch-pruning mergekit. mergekit 0.1.5
adds a tuple to a list where a tensor has aliases, as BERT's have (plan.py, line 186): make it ``list(…)`` there.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import nn

import leanify
from leanify.data.probe_inputs import feed
from leanify.lens.sites import locate
from leanify.profiling.counting import body_parameters
from leanify.shrinking.narrow import narrow
from leanify.shrinking.teacher import CalibratedTeacher
from leanify.shrinking.transfer import transfer_weights
from leanify.tasks.sentence_embedding import embed
from leanify.training import start as training

from .warm_minilm import TOKENS, Scales, sentences

UNITS, LAYERS, KEPT = 512, 6, (0, 1, 4, 5)  # hidden units of 1536, layers of 6; the middle two are left out
SAMPLES, CALIBRATION = 3200, 512


def pruned(base: nn.Module, batches: list[Any], taylor: bool) -> nn.Module:
    """The MLPs cut to `UNITS` by Torch-Pruning."""
    import torch_pruning as tp

    model: Any = copy.deepcopy(base).eval()
    importance = tp.importance.GroupTaylorImportance() if taylor else tp.importance.GroupMagnitudeImportance(p=2)
    roots = [layer.intermediate.dense for layer in model.encoder.layer]
    example = {"input_ids": batches[0]["input_ids"][:1]}
    ignored = [m for m in model.modules() if isinstance(m, nn.Linear) and m not in roots]
    ratios = {root: 1 - (UNITS + 0.5) / root.out_features for root in roots}  # it rounds down
    pruner = tp.pruner.BasePruner(
        model, example, importance, pruning_ratio=0.0, pruning_ratio_dict=ratios, ignored_layers=ignored,
        output_transform=lambda output: output.last_hidden_state,
    )  # fmt: skip
    if taylor:  # the gradient of what the models are compared by
        for batch in batches:
            noise = F.dropout(embed(model, batch, ("mean",)), 0.1)
            (1 - F.cosine_similarity(noise, embed(base, batch, ("mean",)).detach())).sum().backward()
    pruner.step()
    return rebuilt(base, model.state_dict(), leanify.read(base).depth, UNITS)


def rebuilt(base: nn.Module, tensors: dict[str, Any], depth: int, mlp: int) -> nn.Module:
    """A leanify model of that shape with another tool's tensors: every one of them."""
    shape = leanify.read(base)
    new = leanify.write(base, replace(shape, stages=(shape.stages[0].reshape(depth, mlp=mlp),)))
    new.load_state_dict({name: x for name, x in tensors.items() if name in new.state_dict()})
    return new


def merged(minilm: Path, work: Path) -> nn.Module:
    """mergekit's passthrough of the kept layers."""
    runs = [(0, 2), (4, 6)]
    lines = ["merge_method: passthrough", "dtype: float32", "slices:"]
    for first, last in runs:
        lines += ["  - sources:", f"      - model: {minilm}", f"        layer_range: [{first}, {last}]"]
    (work / "merge.yml").write_text("\n".join(lines) + "\n")
    program = (  # leanify lets transformers import beside a torchvision of another build
        "from leanify.upstream.libraries import import_transformers as load; load(); "
        "from mergekit.scripts.run_yaml import main; main()"
    )
    command = [sys.executable, "-c", program, str(work / "merge.yml"), str(work / "merged")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return leanify.load(work / "merged")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    for name in ("minilm", "imdb", "stsb"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--arms", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--unhealed", action="store_true", help="measure before healing alone")
    parser.add_argument("--table", action="store_true", help="print what is measured already")
    told = parser.parse_args()
    if told.table:
        print("\n".join(page(json.loads((told.work / "rivals.json").read_text()))))
        return
    sentences(told.imdb, told.work / "sentences")
    base = leanify.load(told.minilm)
    read = {"batch_size": 16, "tokens": TOKENS, "directory": told.minilm}
    batches, held = (
        list(feed(base, told.work / "sentences" / name, samples=count, **read).batches)
        for name, count in (("train.csv", CALIBRATION), ("validation.csv", 48))
    )
    shape = leanify.read(base)
    fewer = replace(shape, stages=(shape.stages[0].reshape(mlp=UNITS),))
    shorter = replace(shape, stages=(shape.stages[0].reshape(len(KEPT)),))
    arms: dict[str, Callable[[], nn.Module]] = {
        "units: Torch-Pruning, magnitude": lambda: pruned(base, batches, False),
        "units: leanify": lambda: narrow(base, fewer, batches),
        "layers: mergekit, middle two left out": lambda: merged(told.minilm, told.work),
        "layers: leanify, best two dropped": lambda: (
            transfer_weights(CalibratedTeacher(base, batches, held), shorter, moves=("drop",)).model
        ),
        "units: Torch-Pruning, Taylor": lambda: pruned(base, batches, True),
        "layers: leanify, paired": lambda: (
            transfer_weights(CalibratedTeacher(base, batches, held), shorter, moves=("pair",)).model
        ),
    }
    arms = {name: make for name, make in arms.items() if name in (told.arms or arms)}
    scales = Scales(told.minilm, told.work / "sentences" / "validation.csv", told.stsb)
    file = told.work / "rivals.json"
    rows = json.loads(file.read_text()) if file.is_file() else {}
    for name, make in arms.items():
        place = told.work / name.replace(":", "").replace(",", "").replace(" ", "-")
        if name not in rows:
            model = make()
            leanify.save(model, place, force=True)
            rows[name] = {
                "blocks": body_parameters(locate(model)) / body_parameters(locate(base)),
                "before": scales.of(model),
            }
            file.write_text(json.dumps(rows, indent=1))
    for name in arms:
        place = told.work / name.replace(":", "").replace(",", "").replace(" ", "-")
        if "after" not in rows[name] and not told.unhealed:
            rows[name]["after"] = scales.of(healed(told, place))
            file.write_text(json.dumps(rows, indent=1))
    print("\n".join(page(rows)))


def healed(told: argparse.Namespace, place: Path) -> nn.Module:
    run = place.with_name(f"{place.name}-run")
    settings = (
        f"data.path={told.work / 'sentences'}", f"data.samples={SAMPLES}", f"data.length={TOKENS}",
        "schedule.batch_size=32", "schedule.epochs=1", "optim.lr=5e-4", "run.eval_batches=4", "run.keep=1",
        "model.override.hidden_dropout_prob=0", "model.override.attention_probs_dropout_prob=0",
    )  # fmt: skip
    if run.is_dir():
        training.train(resume=run)
    else:
        training.train(place, run, settings=settings, teacher=str(told.minilm))
    return leanify.load(run)


def page(rows: dict[str, Any]) -> list[str]:
    installed = {each.name for each in metadata.distributions()}
    tools = [name for name in ("torch-pruning", "mergekit", "transformers") if name in installed]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in tools)
    lines = [
        "# Warm starts beside two peers", "",
        f"all-MiniLM-L6-v2, its MLPs cut from 1536 to {UNITS} units, or {LAYERS} layers to {len(KEPT)}: by each tool",
        f"from the same checkpoint, choices on the same {CALIBRATION} sentences of IMDb, equal parameters within a",
        f"group; then healed by `leanify train --teacher` on the same {SAMPLES:,} sentences. {versions};",
        "mergekit with one line mended that fails on BERT (see the script).", "",
        "    python -m recipes.research.warm_rivals WORK --minilm DIR --imdb DIR --stsb DIR", "",
        "*cosine*: to the original, mean over 500 held-out sentences; *STS-B*: Spearman's ρ × 100 on its test pairs.",
        "One seed; – is not measured.", "",
        "| tool | blocks | cosine before | after | STS-B before | after |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in sorted(rows.items(), reverse=True):
        after = row.get("after")
        cells = [f"{row['before']['cosine']:.3f}", f"{after['cosine']:.3f}" if after else "–"]
        cells += [f"{row['before']['stsb']:.1f}", f"{after['stsb']:.1f}" if after else "–"]
        lines.append(f"| {name} | {row['blocks']:.3f} | {' | '.join(cells)} |")
    lines += ["", "## What this says", ""]
    for group in ("units", "layers"):
        some = {name: row for name, row in rows.items() if name.startswith(group)}
        for when in ("before", "after"):
            known = {name: row[when]["cosine"] for name, row in some.items() if when in row}
            if any("leanify" in n for n in known) and not all("leanify" in n for n in known):
                best = max(known, key=known.__getitem__)
                others = {n: x for n, x in known.items() if "leanify" not in n}
                gap = max(x for n, x in known.items() if "leanify" in n) - max(others.values())
                lines.append(
                    f"- {group}, {when} healing: best by cosine *{best.partition(': ')[2]}* ({known[best]:.3f}); "
                    f"leanify's best against the peer's best: {gap:+.3f}."
                )
    return lines


if __name__ == "__main__":
    main()
