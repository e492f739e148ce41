"""Whole training programs beside others', at the same time on the same core: timm's script and transformers' Trainer.

    python -m recipes.research.rival_programs trainer [--processes 2] [--turns 3]
    python -m recipes.research.rival_programs timm --script pytorch-image-models/train.py
    python -m recipes.research.rival_programs trainer --small      one turn of few steps: whether it runs

The train.py is that of a checkout of huggingface/pytorch-image-models: it is not in timm's wheel.
Both get the core in slices, so that whatever else the machine does befalls both, and what counts is the processor time
of each, its workers' with it. The time of a turn is that of a longer run less that of a shorter one: imports and
beginnings cancel out, reading, evaluating and saving do not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from leanify.core import recipe as recipes

ROOT = Path(__file__).parents[2]
CORE = min(os.sched_getaffinity(0))
IMAGES, SIZE = 256, 128

VIT = f"""
[model]
source = "vit_tiny_patch16_224"
[model.override]
img_size = {SIZE}
num_classes = 4
[data]
name = "noise"
task = "classification"
rand_augment = "rand-m9-mstd0.5"
mixup = 0.8
cutmix = 1.0
workers = 1
[optim]
lr = 1e-3
weight_decay = 0.05
label_smoothing = 0.1
[schedule]
epochs = 1
batch_size = 32
[run]
keep = 1
"""
TIMM = [
    "--model=vit_tiny_patch16_224", f"--img-size={SIZE}", "--model-kwargs", f"img_size={SIZE}", "--num-classes=4",
    "--aa=rand-m9-mstd0.5", "--mixup=0.8", "--cutmix=1.0", "--smoothing=0.1", "--workers=1",
    "--opt=adamw", "--lr=1e-3", "--weight-decay=0.05", "--sched=cosine", "--warmup-epochs=0", "--cooldown-epochs=0",
    "--device=cpu", "--checkpoint-hist=1",
]  # fmt: skip

# timm may need what torchvision's registry build lacks beside a CPU-only torch, and leanify declares it. Several
# processes fail on a CPU: the script names DDP a device, which torch takes for GPUs only
TIMM_ON_CPU = """
import sys, runpy, warnings, leanify, torch
class DDP(torch.nn.parallel.DistributedDataParallel):
    def __init__(self, *given, device_ids=None, **named):
        super().__init__(*given, **named)
torch.nn.parallel.DistributedDataParallel = DDP
warnings.simplefilter("ignore")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def write_images(root: Path) -> None:
    """Photograph-sized noise as JPEG: decoding, cropping and augmenting cost what they do."""
    draw = np.random.default_rng(0)
    for split, count in (("train", IMAGES), ("validation", 32)):
        for number in range(count):
            place = root / split / str(number % 4) / f"{number}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(draw.integers(0, 255, (24, 32, 3), dtype=np.uint8))
            small.resize((400, 300), Image.Resampling.BICUBIC).save(place, quality=90)


def together(commands: list[list[str]], where: Path) -> list[float]:
    """Processor seconds of processes that share one core, with one thread each."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (where / "said.txt").open("w") as said:
        running = [
            subprocess.Popen(["taskset", "-c", str(CORE), *command], cwd=where, env=env, stdout=said, stderr=said)
            for command in commands
        ]
        ended = [os.wait4(process.pid, 0) for process in running]
        for process, (_, status, _) in zip(running, ended, strict=True):
            process.returncode = os.waitstatus_to_exitcode(status)
    assert not any(process.returncode for process in running), (where / "said.txt").read_text()[-3000:]
    return [usage.ru_utime + usage.ru_stime for _, _, usage in ended]


def side_by_side(
    where: Path, turns: int, ours: Callable[[bool], list[str]], theirs: Callable[[bool], list[str]]
) -> None:
    """Print the others' time by ours: the median over turns, and every turn."""
    times = []
    for _ in range(turns):
        shorter, longer = (together([theirs(long), ours(long)], where) for long in (False, True))
        times.append([after - before for before, after in zip(shorter, longer, strict=True)])
    ratios = [their / our for their, our in times]
    sums = [sum(column) for column in zip(*times, strict=True)]
    print(f"\n{statistics.median(ratios):.3f} times as fast, {sums[0] / sums[1]:.3f} by the sums of the turns:")
    for ratio, (their, our) in zip(ratios, times, strict=True):
        print(f"  {ratio:.3f}: {their:.2f} s of theirs, {our:.2f} s of ours")


def launched(processes: int, *words: str) -> list[str]:
    """A script of the folder in one process, or by torchrun in several."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *(start if processes > 1 else []), *words]


def beside_timm(where: Path, script: Path, processes: int, turns: int) -> None:
    """Two processes of each share the one core; a batch of theirs is a process's, one of ours is everybody's."""
    write_images(where / "images")
    (where / "vit.toml").write_text(VIT)
    (where / "ours.py").write_text("from leanify.cli import main\nmain()\n")
    (where / "theirs.py").write_text(TIMM_ON_CPU)

    def ours(longer: bool) -> list[str]:
        shutil.rmtree(where / "run", ignore_errors=True)
        settings = ["--set", f"data.path={where / 'images'}", "--set", f"schedule.epochs={3 if longer else 1}"]
        return launched(processes, "ours.py", "train", "vit.toml", "-o", "run", *settings)

    def theirs(longer: bool) -> list[str]:
        shutil.rmtree(where / "timm", ignore_errors=True)
        places = [f"--data-dir={where / 'images'}", f"--epochs={3 if longer else 1}", f"--output={where / 'timm'}"]
        return launched(processes, "theirs.py", str(script), *TIMM, f"--batch-size={32 // processes}", *places)

    side_by_side(where, turns, ours, theirs)


GPT = [
    "schedule.kind=linear", "schedule.warmup=5", "run.log_every=10", "run.eval_every=1000", "run.eval_batches=1",
    "run.keep=1", "schedule.batch_size=8",
]  # fmt: skip
THEIRS = """
import pathlib, sys
from leanify.core import recipe
from recipes.research.rival_curves import train_by_trainer
train_by_trainer(recipe.load(sys.argv[1]), pathlib.Path("trainer"))
"""


def beside_trainer(where: Path, processes: int, turns: int, lengths: tuple[int, int]) -> None:
    """The same GPT-2, text, batches, optimiser and schedule; a line of the log every ten steps, one checkpoint.

    Two processes of each share the one core: they wait for each other asleep, and what counts is their work.
    """
    for steps in lengths:
        value = recipes.apply_settings(recipes.load("chars"), [*GPT, f"schedule.steps={steps}"])
        (where / f"{steps}.toml").write_text(value.to_toml())
    (where / "ours.py").write_text("from leanify.cli import main\nmain()\n")
    (where / "theirs.py").write_text(THEIRS)

    def ours(longer: bool) -> list[str]:
        shutil.rmtree(where / "run", ignore_errors=True)
        return launched(processes, "ours.py", "train", f"{lengths[longer]}.toml", "-o", "run")

    def theirs(longer: bool) -> list[str]:
        shutil.rmtree(where / "trainer", ignore_errors=True)
        return launched(processes, "theirs.py", f"{lengths[longer]}.toml")

    side_by_side(where, turns, ours, theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rival", choices=("timm", "trainer"))
    parser.add_argument("--script", type=Path, metavar="TRAIN.PY", help="timm's train.py")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="one turn of few steps beside Trainer")
    options = parser.parse_args()
    if options.rival == "timm" and (options.script is None or not options.script.is_file()):
        parser.error("--script must name the train.py of a checkout of huggingface/pytorch-image-models")
    with tempfile.TemporaryDirectory() as folder:
        if options.rival == "timm":
            beside_timm(Path(folder), options.script.absolute(), options.processes, options.turns)
        elif options.small:
            beside_trainer(Path(folder), options.processes, 1, (6, 12))
        else:
            beside_trainer(Path(folder), options.processes, options.turns, (40, 200))


if __name__ == "__main__":
    main()
