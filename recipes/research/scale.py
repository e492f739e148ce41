"""The second size: does what holds for small models hold for larger ones? Baseline, lean, control, plain, widest MLP.

    python -m recipes.research.scale RUNS --text DIR --images DIR          one GPU of 80 GB, about 30 minutes
    python -m recipes.research.scale RUNS --text DIR --images DIR --medium the same 256 wide (6 M), hours of a core
    python -m recipes.research.scale RUNS --text DIR --images DIR --small  whether it runs, on a CPU

A byte-level GPT on DIR/train.txt and a ViT on DIR/train/CLASS/…, 512 wide and 8 layers deep (25 M parameters in the
blocks), in five designs of which all but the baseline have half of its parameters; one study of `leanify compare` each,
so it resumes and reports like any other. What is asked was fixed before the runs: is lean not worse than the baseline,
does it beat the control, and in which order are the five? ``--medium`` is 256 wide with 8 layers (6 M), with as many
steps as two CPU cores allow, and one rate. Fewer than three seeds answer nothing: it gives an order and its noise.
``--small`` is as wide and takes six steps.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import leanify
from leanify.core import recipe as recipes

SEEDS = 3
TEXT = """
[model]
source = "gpt2"
class = "AutoModelForCausalLM"
[model.override]
vocab_size = 256
n_positions = 512
n_embd = {width}
n_layer = 8
n_head = {heads}
bos_token_id = 0
eos_token_id = 0
resid_pdrop = 0.0
embd_pdrop = 0.0
attn_pdrop = 0.0
[data]
name = "data"
task = "causal-lm"
length = {length}
path = "{path}"
[optim]
lr = 1e-3
weight_decay = 0.1
betas = [0.9, 0.98]
clip = 1.0
[schedule]
steps = {steps}
batch_size = {batch}
warmup = {warmup}
[run]
eval_batches = 20
"""
IMAGES = """
[model]
source = "vit_tiny_patch16_224"
[model.override]
img_size = 32
patch_size = {patch}
num_classes = 10
embed_dim = {width}
depth = 8
num_heads = {heads}
[data]
name = "data"
task = "classification"
crop = {crop}
flip = 0.0
color_jitter = 0.0
path = "{path}"
[optim]
lr = 1e-3
weight_decay = 0.05
clip = 1.0
[schedule]
steps = {steps}
batch_size = {images}
warmup = {warmup}
[run]
eval_batches = 100
"""
LARGE = {"width": 512, "heads": 8, "length": 512, "steps": 2000, "batch": 64, "warmup": 100}
LARGE |= {"images": 64, "patch": 4, "crop": [0.8, 1.0]}
MEDIUM = {"width": 256, "heads": 4, "length": 128, "steps": 500, "batch": 8, "warmup": 50}
MEDIUM |= {"images": 48, "patch": 8, "crop": [1.0, 1.0]}  # a picture is seen once at most
SMALL = {"width": 256, "heads": 4, "length": 64, "steps": 6, "batch": 4, "warmup": 1}
SMALL |= {"images": 4, "patch": 8, "crop": [1.0, 1.0]}


def designs(width: int, heads: int) -> list[str]:
    """The five designs: as `leanify compare` takes them."""
    half = 8 * (4 * width * width + 2 * width * 4 * width) // 2  # half of the baseline's block parameters
    plain = (half // 5 - 4 * width * width) // (2 * width)  # five layers with the baseline's heads
    widest = (half // 2 - 4 * width * width) // (2 * width)  # two layers
    return [
        "baseline",
        "lean",
        "control",
        f"plain=depth:5,heads:{heads},mlp:{plain}",
        f"widest=depth:2,heads:{heads},mlp:{widest}",
    ]


def study(name: str, text: str, path: Path, runs: Path, sizes: dict[str, Any], seeds: int) -> None:
    value = recipes.parse(text.format(**sizes, path=path))
    every = max(1, sizes["steps"] // 10)
    settings = [f"run.eval_every={every}", f"run.log_every={every}", "run.keep=1"]
    # half of the parameters; in small, where embeddings weigh more, a budget that the depth floor can meet
    budget = 0.5 if sizes["width"] > 256 else 0.8
    found = leanify.compare(
        value,
        runs / name,
        target_params=budget,
        designs=designs(sizes["width"], sizes["heads"]),
        seeds=seeds,
        settings=settings,
        rates=(1,),
    )
    found.html(runs / name / "report.html")
    for result in found.results:
        print(f"{name:8} {result.name:9} {result.plan.params:>12,} {result.quality.mean}", flush=True)
    for verdict in found.verdicts:
        print(f"{name:8} {verdict.words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--text", type=Path, metavar="DIR")
    parser.add_argument("--images", type=Path, metavar="DIR")
    parser.add_argument("--small", action="store_true", help="256 wide and a few steps: whether it runs")
    parser.add_argument("--medium", action="store_true", help="256 wide, 500 steps")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="more of them later go on with the same studies")
    told = parser.parse_args()
    sizes, seeds = LARGE, told.seeds
    if told.medium:
        sizes = MEDIUM
    if told.small:
        sizes = SMALL
    for name, text, path in (("text", TEXT, told.text), ("images", IMAGES, told.images)):
        if path is not None:
            study(name, text, path.absolute(), told.runs, sizes, seeds)


if __name__ == "__main__":
    main()
